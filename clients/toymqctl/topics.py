"""``toymqctl topics``: lists the topics."""

from typing import Any

import click

from toymq_py.names import DEAD_LETTERS, PARTITION_MARK
from toymqctl.broker import Broker
from toymqctl.partitions import grouped
from toymqctl.places import cluster_of, fail_without, place_of, places_by_topic, topics_of_those_there, unserved
from toymqctl.tables import as_json as json_option
from toymqctl.tables import duration, fitting, print_json, screen_room, size

_COLUMNS = ("topic", "messages", "size", "consumers", "backlog", "oldest", "inflight", "state")
"""The words of the dashboard."""
_SPARE = (6, 2, 3, 5, 1)
"""Columns that go first where the terminal is narrow: inflight, size, consumers, oldest, messages."""
_NAME_CHARS_MIN = 16
"""Characters of a name for which a column is left out."""


def _row(topic: dict[str, Any]) -> tuple[str, ...]:
    consumers = topic["consumers"]
    backlog = max((each["backlog"] for each in consumers), default=topic.get("backlog", 0))  # an older broker has none here
    oldest_s = max((each["oldest_unacked_age_s"] for each in consumers if each["backlog"]), default=None)
    return (
        topic["topic"], str(topic["messages"]), size(topic["bytes"]), str(len(consumers)), str(backlog),
        "-" if oldest_s is None else duration(oldest_s), str(sum(each["inflight"] for each in consumers)), topic["state"],
    )  # fmt: skip


@click.command()
@click.argument("pattern", required=False)
@json_option
@click.pass_obj
def topics(broker: Broker, pattern: str | None, as_json: bool) -> None:
    """List topics: stored messages, consumers and backlog.

    A narrow terminal gets names without their middle, and fewer columns; --json has all.

    `backlog` is that of the consumer with the largest; for a topic without a consumer, all messages that are due; for dead
    letters, those neither redriven nor discarded; an AMQP stream has none. `oldest` is how long the oldest message of the
    backlog has been due; `inflight` is the sum over all consumers.
    PATTERN: `orders.*`, `events.>`. The partitions of a topic are one line; `orders#*` lists each. The column `group` (in a
    cluster with groups) or `worker` (with --workers) names the one that has the topic. While one does not answer, the topics of
    the others are listed, and the exit code is 1.
    """
    with broker.connect() as client:
        found, away = topics_of_those_there(client, pattern)
        cluster = cluster_of(client)
        kind, places = places_by_topic(cluster, [one["topic"].removesuffix(DEAD_LETTERS) for one in found])
    if as_json:
        print_json([one if (place := place_of(places, one["topic"])) is None else one | {kind: place} for one in found])
    elif found:
        shown = found if pattern is not None and PARTITION_MARK in pattern else grouped(found)
        rows = [_COLUMNS, *map(_row, shown)]
        if places:
            column = (kind, *(place_of(places, one["topic"]) or "-" for one in shown))
            rows = [(*row, place) for row, place in zip(rows, column, strict=True)]
        click.echo(fitting(rows, (0, 7, 8), screen_room(), _SPARE, least=_NAME_CHARS_MIN))
    elif not away:
        click.echo(f"no topics{broker.as_far_as_seen}")
    for group in unserved(cluster):
        click.echo(f"the topics of group {group} are not listed: restart its nodes with --group {group}", err=True)
    fail_without(away, "not listed: topics of")
