"""``toymqctl describe``: shows a topic's state, settings and consumers."""

from typing import Any

import click

from toymq_py.names import DEAD_LETTERS
from toymq_py.partitions import differing_settings
from toymq_py.units import counted
from toymqctl.broker import Broker
from toymqctl.consumers import consumer_table
from toymqctl.partitions import parts_of
from toymqctl.places import cluster_of, place_of, places_by_topic
from toymqctl.quantities import TOPIC
from toymqctl.settings import format_settings
from toymqctl.tables import as_json as json_option
from toymqctl.tables import facts, print_json, screen_room, size, table


def _facts(topic: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [
        ("topic", topic["topic"]),
        *((kind, topic[kind]) for kind in ("group", "worker") if kind in topic),
        ("state", topic["state"]),
        ("messages", str(topic["messages"])),
        ("partitions", str(topic["partitions"])) if "parts" in topic else ("ids", _ids(topic)),
        ("stored", f"{size(topic['bytes'])} in {counted(topic['segments'], 'segment')}"),
        *_evicted(topic),
        ("settings", _settings(topic)),
    ]
    losses = [
        ("lost", "lost"), ("expired", "expired_total"), ("dead-lettered", "dead_lettered_total"), ("dropped", "dropped_total"),
    ]  # fmt: skip
    since = " since the broker started"  # dead letters that went back count, too: `toymqctl dlq list` has those that are there
    return rows + [
        (name, f"{counted(topic[field], 'message')}{since if field.endswith('_total') else ''}")
        for name, field in losses if topic[field]
    ]  # fmt: skip


def _settings(topic: dict[str, Any]) -> str:
    """Format a topic's own settings; of a partitioned topic those that are the same in all partitions, and the names of the
    others."""
    own = format_settings(topic["settings"])
    if differ := differing_settings([part["settings"] for part in topic.get("parts", ())]):
        own.append(f"{'and ' if own else ''}{', '.join(differ)}: not the same in all partitions, see below")
    return " ".join(own) or "the broker's defaults"


def _ids(topic: dict[str, Any]) -> str:
    first_id, next_id = topic["first_id"], topic["next_id"]
    return f"{first_id} to {next_id - 1}" if next_id > first_id else f"none, the next is {next_id}"


def _partitions(topic: dict[str, Any], kind: str) -> str:
    """Return the table of a topic's partitions. ``kind``: what has a partition, "group" or "worker"; "" when one process has
    all."""
    rows = [
        (
            one["topic"], *([str(one.get(kind, "-"))] if kind else []), str(one["messages"]), _ids(one), size(one["bytes"]),
            " ".join(format_settings(one["settings"])), one["state"],
        )
        for one in topic["parts"]
    ]  # fmt: skip
    heads = ("partition", *([kind] if kind else []), "messages", "ids", "size", "settings", "state")
    text = tuple(place for place, head in enumerate(heads) if head not in ("messages", "size"))
    return table([heads, *rows], text, screen_room())


def _evicted(topic: dict[str, Any]) -> list[tuple[str, str]]:
    """Return a row on the data that is only in the bucket of the tier, not on the disk; [] for an older broker, which does not
    tell."""
    if (found := topic.get("evicted")) is None:
        return []
    problem = "" if found["problem"] is None else f"; readers wait: {found['problem']}"
    return [("in the bucket alone", f"{size(found['bytes'])} in {counted(found['segments'], 'segment')}{problem}")]


@click.command()
@click.argument("topic", type=TOPIC)
@json_option
@click.pass_obj
def describe(broker: Broker, topic: str, as_json: bool) -> None:
    """Show one TOPIC: state, ids, settings and consumers, and which group of the cluster, or which worker, has it. Unlike
    `sub`, it does not create the topic."""
    with broker.connect() as client:
        found = client.describe(topic)
        names = [one["topic"].removesuffix(DEAD_LETTERS) for one in parts_of(found)]
        kind, places = places_by_topic(cluster_of(client), names)
        if (place := place_of(places, topic)) is not None:
            found[kind] = place
        for one in found.get("parts", ()):
            if (place := place_of(places, one["topic"])) is not None:
                one[kind] = place
    if as_json:
        print_json([found])
    else:
        click.echo(facts(_facts(found)))
        click.echo()
        if "parts" in found:
            click.echo(_partitions(found, kind))
            click.echo()
        click.echo(consumer_table([found]))
