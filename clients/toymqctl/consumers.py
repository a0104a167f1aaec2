"""``toymqctl consumers``; the table of them is also part of ``describe``."""

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
    """A consumer that nothing is attached to is called exclusive unless another mode was asked for last."""
    if consumer["mode"] == "exclusive" and not consumer["sessions"]:
        return "-"
    return str(consumer["mode"]) + (" (paused)" if consumer["paused"] else "")


def consumer_table(topics: list[dict[str, Any]]) -> str:
    """Of topics as DESCRIBE tells them; one line without any consumer."""
    rows = [_row(topic["topic"], consumer) for each in topics for topic in parts_of(each) for consumer in topic["consumers"]]
    return fitting([_COLUMNS, *rows], (0, 1, 10), screen_room(), _SPARE) if rows else "no consumers"


@click.command()
@click.argument("topic", metavar="[TOPIC|PATTERN]", required=False, type=TOPIC)
@json_option
@click.pass_obj
def consumers(broker: Broker, topic: str | None, as_json: bool) -> None:
    """List consumers: position, backlog and subscriptions of each.

    `backlog` is what is due and not acked yet, `oldest` how long the oldest of it has been due. `scheduled` is not due: its
    delay is not over, or it was given back for a time. `retrying` is not acked after a delivery that failed.
    `mode` is that of what is attached, or was last; `-` for none.
    """
    with broker.connect() as client:
        found = client.topics(topic) if topic is None or is_pattern(topic) else [client.describe(topic)]
    if as_json:
        described = [one for each in found for one in parts_of(each)]
        print_json({"topic": one["topic"], **consumer} for one in described for consumer in one["consumers"])
    else:
        click.echo(consumer_table(found))
