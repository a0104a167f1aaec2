"""``toymqctl consumers``: lists consumers. Its table is also part of ``toymqctl describe``."""

from typing import Any

import click

from toymq_py.names import is_pattern
from toymqctl.broker import Broker
from toymqctl.partitions import parts_of
from toymqctl.quantities import TOPIC
from toymqctl.tables import as_json as json_option
from toymqctl.tables import duration, fitting, print_json, screen_room

_COLUMNS = ("topic", "consumer", "last acked", "backlog", "ready", "inflight", "scheduled", "retrying", "oldest",
            "sessions", "mode")  # fmt: skip
_SPARE = (10, 2, 4, 5, 6)
"""Columns that go first where the terminal is narrow: mode, last acked, ready (backlog minus inflight), inflight, scheduled."""


def _row(topic: str, consumer: dict[str, Any]) -> tuple[str, ...]:
    return (
        topic,
        consumer["consumer"],
        str(consumer["last_acked"]) if consumer["has_acked"] else "-",
        *(str(consumer[name]) for name in ("backlog", "ready", "inflight", "scheduled")),
        str(consumer.get("retrying", "-")),  # an older broker does not say it
        duration(consumer["oldest_unacked_age_s"]) if consumer["backlog"] else "-",
        str(consumer["sessions"]),
        _mode(consumer),
    )


def _mode(consumer: dict[str, Any]) -> str:
    """The mode to show for a consumer, "-" for none: without an attached client the broker reports "exclusive" unless another
    mode was used last."""
    if consumer["mode"] == "exclusive" and not consumer["sessions"]:
        return "-"
    return str(consumer["mode"]) + (" (paused)" if consumer["paused"] else "")


def consumer_table(topics: list[dict[str, Any]]) -> str:
    """Return the table of the consumers of described topics; one line of text if there are none."""
    rows = [_row(topic["topic"], consumer) for each in topics for topic in parts_of(each) for consumer in topic["consumers"]]
    return fitting([_COLUMNS, *rows], (0, 1, 10), screen_room(), _SPARE) if rows else "no consumers"


@click.command()
@click.argument("topic", metavar="[TOPIC|PATTERN]", required=False, type=TOPIC)
@json_option
@click.pass_obj
def consumers(broker: Broker, topic: str | None, as_json: bool) -> None:
    """List consumers: position, backlog and subscriptions of each.

    `backlog` counts messages that are due and not acked yet, `oldest` is how long the oldest of them has been due. `scheduled`
    counts those not due yet: their delay is not over, or they were nacked with a delay. `retrying` counts those not acked after
    a failed delivery. `mode` is that of the clients that are attached, or were last; `-` for none.
    """
    with broker.connect() as client:
        found = client.topics(topic) if topic is None or is_pattern(topic) else [client.describe(topic)]
    if as_json:
        described = [one for each in found for one in parts_of(each)]
        print_json({"topic": one["topic"], **consumer} for one in described for consumer in one["consumers"])
    else:
        click.echo(consumer_table(found))
