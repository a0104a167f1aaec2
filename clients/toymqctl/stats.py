"""``toymqctl stats``: shows the broker's statistics."""

from typing import Any

import click

from toymqctl.broker import Broker
from toymqctl.limits import number_of_topics
from toymqctl.places import fail_without, stats_of_those_there
from toymqctl.tables import as_json as json_option
from toymqctl.tables import duration, facts, print_json, size


def _facts(stats: dict[str, Any], broker: Broker) -> list[tuple[str, str]]:
    topics = stats["topics"]
    bad = [topic["topic"] for topic in topics if topic["state"] != "ok"]
    return [
        ("version", stats["version"]),
        ("uptime", duration(stats["uptime_s"])),
        ("connections", str(stats["connections"])),
        ("topics", f"{number_of_topics(topics)}{broker.as_far_as_seen}" + (f", {len(bad)} of them not ok" if bad else "")),
        (
            "messages",
            f"{sum(topic['messages'] for topic in topics)}, {size(sum(topic['bytes'] for topic in topics))}"
            f"{broker.of_topics_seen}",
        ),
        ("published", f"{stats['publish_total']}, {stats['duplicate_total']} duplicates beside"),
        ("delivered", f"{stats['deliver_total']}, {stats['redeliver_total']} of them again"),
        ("acked", f"{stats['ack_total']}, {stats['nack_total']} given back"),
        ("errors", str(stats["error_total"])),
        ("fsync", f"{stats['fsync']}, {stats['fsync_total']} so far, p99 {stats['fsync_p99_s'] * 1000:.2f} ms"),
        ("memory", size(stats["rss_bytes"])),
        ("disk free", size(stats["disk_free_bytes"])),
    ]


@click.command()
@json_option
@click.pass_obj
def stats(broker: Broker, as_json: bool) -> None:
    """Show the broker's statistics; totals count from its start. While a worker or group does not answer they are those of the
    others, and the exit code is 1."""
    with broker.connect() as client:
        found = stats_of_those_there(client)
    if as_json:
        print_json([found])
    else:
        click.echo(facts(_facts(found, broker)))
    fail_without(found.get("away", ()), "without")
