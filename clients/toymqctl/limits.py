"""Shows how much of its limits a broker uses. Each worker, and each group, has limits of its own, so the fullest one is
shown."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from toymq_py.names import DEAD_LETTERS
from toymqctl.places import place_of, places_by_topic

FULL_SHARE = 0.9
"""Share of a limit above which a check warns."""


def number_of_topics(topics: Sequence[Mapping[str, Any]]) -> str:
    """Format the number of topics that --max-topics counts, and the number of dead-letter topics, which it does not count."""
    beside = len(topics) - len(counting := _counting(topics))
    return f"{len(counting)}" + (f" and {beside} of dead letters" if beside else "")


def _counting(topics: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the topics that --max-topics counts."""
    names = {topic["topic"] for topic in topics}
    return [name for name in names if name.removesuffix(DEAD_LETTERS) not in names - {name}]


def used(stats: Mapping[str, Any], cluster: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return a text on the use of each limit, and the options of the limits that are nearly reached.

    Args:
        cluster: the answer to CLUSTER.
    """
    counting = _counting(stats["topics"])
    kind, places = places_by_topic(cluster, [name.removesuffix(DEAD_LETTERS) for name in counting])
    counts = Counter(place_of(places, name) for name in counting)
    counted = []
    near = []
    for name, count, option in (
        ("connections", stats.get("connections_most", stats["connections"]), "max_connections"),  # an older broker: of all
        ("topics", max(counts.values(), default=0), "max_topics"),
        ("consumers of a topic", max((len(topic["consumers"]) for topic in stats["topics"]), default=0), "max_consumers"),
    ):
        limit = stats["limits"][option]
        counted.append(f"{count} of {limit} {name}")
        if count >= FULL_SHARE * limit:
            near.append("--" + option.replace("_", "-"))
    return (f"at the {kind} with the most " if kind else "") + ", ".join(counted), near
