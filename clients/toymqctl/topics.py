"""``toymqctl topics``."""

from typing import Any

import click

from toymqctl.broker import Broker
from toymqctl.tables import as_json as json_option
from toymqctl.tables import print_json, screen_room, size, table

_COLUMNS = ("topic", "messages", "bytes", "consumers", "ready", "inflight", "state")


def _row(topic: dict[str, Any]) -> tuple[str, ...]:
    consumers = topic["consumers"]
    sums = (sum(c["ready"] for c in consumers), sum(c["inflight"] for c in consumers))
    return (
        topic["topic"], str(topic["messages"]), size(topic["bytes"]), str(len(consumers)), *map(str, sums), topic["state"]
    )  # fmt: skip


@click.command()
@click.argument("pattern", required=False)
@json_option
@click.pass_obj
def topics(broker: Broker, pattern: str | None, as_json: bool) -> None:
    """List topics: stored messages, consumers and backlog.

    Names that are too long for the terminal are cut; --json has them whole.

    `ready` and `inflight` are sums over the consumers. PATTERN: `orders.*`, `events.>`.
    """
    with broker.connect() as client:
        found = client.topics(pattern)
    if as_json:
        print_json(found)
    elif found:
        click.echo(table([_COLUMNS, *map(_row, found)], text=(0, 6), room=screen_room()))
    else:
        click.echo(f"no topics{broker.as_far_as_seen}")
