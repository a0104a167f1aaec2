"""Tells which group of a cluster, or worker of a broker, has which topic, as the node that answers knows it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import click

from toymq import sync
from toymq.requests import cluster, partial_stats
from toymq_py.errors import BadArgument, NoSuchTopic, PlacementUnknown, RequestError
from toymq_py.names import DEAD_LETTERS, PARTITION_MARK, TopicPattern, is_pattern, whole_name
from toymq_py.placement import worker_of


def cluster_of(client: sync.Client) -> dict[str, Any]:
    """Return the answer to CLUSTER; {} from an older broker that does not know the command."""
    try:
        return client._ask(cluster())
    except RequestError:
        return {}


def figures_of_those_there(client: sync.Client) -> dict[str, Any]:
    """Return STATS of the workers or groups that answer; ``away`` names the others. Raises: PlacementUnknown from an older
    broker while any is away."""
    try:
        return client._ask(partial_stats())
    except BadArgument:
        return client.stats()


def stats_of_those_there(client: sync.Client) -> dict[str, Any]:
    """Return STATS of all workers or groups; if some do not answer, of the others, with ``away``. Raises: as
    ``figures_of_those_there``."""
    try:
        return client.stats()
    except PlacementUnknown:
        return figures_of_those_there(client)


def topics_of_those_there(client: sync.Client, pattern: str | None) -> tuple[list[dict[str, Any]], Sequence[Mapping[str, str]]]:
    """Return TOPICS of all workers or groups that answer, and a list of those that do not. Raises: as
    ``figures_of_those_there``."""
    try:
        return client.topics(pattern), ()
    except PlacementUnknown:
        found = figures_of_those_there(client)
    topics = found["topics"]
    if pattern is not None:
        matches = TopicPattern(pattern).matches if is_pattern(pattern) else pattern.__eq__
        topics = [one for one in topics if matches(one["topic"])]
    return topics, found.get("away", ())


def fail_without(away: Sequence[Mapping[str, str]], what: str) -> None:
    """Exit with 1 if a worker or group is away, and say which and why: a program must not take a part for the whole."""
    for one in away:
        click.echo(f"toymqctl: {what} {one['place']}, which {one['why']}", err=True)
    if away:
        raise SystemExit(1)


def workers_of(cluster: Mapping[str, Any]) -> int:
    """Return how many workers the broker has."""
    return max(len(cluster.get("workers", ())), 1)


def places_by_topic(cluster: Mapping[str, Any], names: Iterable[str]) -> tuple[str, dict[str, str]]:
    """Return what has the topics, "group" or "worker", and which of them has each topic; for a partitioned topic the list of
    those of its partitions. ("", {}) if one process has all topics."""
    if "groups" in cluster:
        return "group", groups_by_topic(cluster)
    if (workers := workers_of(cluster)) == 1:
        return "", {}
    return "worker", _with_wholes({name: str(worker_of(name, workers)) for name in names})


def unserved(cluster: Mapping[str, Any]) -> list[str]:
    """Return the groups whose leaders run without ``--group``: other groups do not know their topics."""
    groups = cluster.get("groups", {}).items()
    return [name for name, group in groups if group["leader"] is not None and not group["placed"]]


def groups_by_topic(cluster: Mapping[str, Any]) -> dict[str, str]:
    """Return the group of each topic, for a partitioned one the groups of its partitions; {} for a cluster without groups."""
    return _with_wholes(cluster.get("topics", {}) if "groups" in cluster else {})


def _with_wholes(places: Mapping[str, str]) -> dict[str, str]:
    parts: dict[str, set[str]] = {}
    for name, place in places.items():
        if PARTITION_MARK in name:
            parts.setdefault(whole_name(name), set()).add(place)
    return {**places, **{whole: ", ".join(sorted(some)) for whole, some in parts.items()}}


def place_of(places: Mapping[str, str], topic: str) -> str | None:
    """Return the group or worker of a topic, a dead-letter topic, or a list's line of several partitions; None if unknown."""
    origin = topic.removesuffix(DEAD_LETTERS)
    return places.get(origin) or places.get(whole_name(origin))


def reachable_topics(client: sync.Client, cluster: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Describe one by one the topics of the groups that have a leader: TOPICS and STATS are refused while one has none."""
    return list(_described(client, cluster))


def _described(client: sync.Client, cluster: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    places: Mapping[str, str] = cluster.get("topics", {})
    wholes = {whole_name(name) for name in places if PARTITION_MARK in name}
    for topic, place in places.items():
        if topic in wholes or cluster["groups"].get(place, {}).get("leader") is None:
            continue
        for name in (topic, topic + DEAD_LETTERS):
            try:
                yield client.describe(name)
            except (NoSuchTopic, PlacementUnknown):  # no dead letters; or its group has lost its leader just now
                break
