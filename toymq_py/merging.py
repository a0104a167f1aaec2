"""Merges the topics and statistics of several workers into one list and one object. ADR 0157. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import merge
from operator import itemgetter
from typing import Any

LARGEST = frozenset(("uptime_s", "fsync_p99_s", "loop_lag_s", "time_ms", "oldest_s", "connections_most"))
SMALLEST = frozenset(("disk_free_bytes",))


def merged_topics(lists: Iterable[Iterable[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """The topics of all workers, in the order of their names. Assumes that each list has that order. Lazy, for lists that are
    generated while they are read."""
    return merge(*lists, key=itemgetter("topic"))


def merged_stats(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The statistics of all workers: counts are added up, times are the longest or shortest one, other values the first one."""
    merged = dict(found[0])
    for name, value in merged.items():
        values = [one[name] for one in found if name in one]
        if isinstance(value, bool):
            merged[name] = any(values)
        elif value is None:
            merged[name] = next((one for one in values if one is not None), None)
        elif isinstance(value, int | float):
            merged[name] = max(values) if name in LARGEST else min(values) if name in SMALLEST else round(sum(values), 6)
    return merged


def merged_columns(found: Sequence[Mapping[str, Sequence[float | None]]]) -> dict[str, list[float | None]]:
    """The history of all workers, by column: rates and counts are added up, ages are the highest one; None if no worker has a
    value. The times of the workers' steps differ by less than one step."""
    return {
        name: [_of_one_step(name, values) for values in zip(*(one[name] for one in found), strict=True)] for name in found[0]
    }


def _of_one_step(name: str, values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    return max(known) if name in LARGEST else round(sum(known), 3)
