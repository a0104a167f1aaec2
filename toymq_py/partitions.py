"""Partitioned topics: their names, and the partition that a message goes to. Contract: groups.md, stage 4; ADR 0184. Pure.

``CREATE orders partitions=8`` makes the topics ``orders#0`` to ``orders#7``. A partition is a topic: it has a log, ids,
consumers, settings and a place of its own. A change of ``partition_of_route`` would split the messages of a key over two
partitions, so tests pin its values.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from toymq_py.errors import BadArgument, BadName, PlacementUnknown
from toymq_py.names import DEAD_LETTERS, PARTITION_MARK, is_dead_letters, partition_name, whole_name
from toymq_py.units import parse_number

PARTITIONS = "partitions"
"""The option of CREATE with the number of partitions."""
PARTITIONS_MAX = 1024
"""Most partitions of a topic: each is a topic, with two open files and some ten KiB of memory."""


def parse_partitions(text: str) -> int:
    """Parse the number of partitions. Raises: BadArgument."""
    return parse_number(PARTITIONS, text, 1, PARTITIONS_MAX)


def partition_of_route(route: bytes, count: int) -> int:
    """The number of the partition that a route goes to: its CRC-32 (of zlib, IEEE 802.3), modulo the number of partitions."""
    return crc32(route) % count


def number_of(name: str) -> int | None:
    """The number of a partition, or of the partition that a dead-letter topic belongs to; None for any other topic."""
    _, mark, number = name.removesuffix(DEAD_LETTERS).partition(PARTITION_MARK)
    return int(number) if mark and number.isdigit() else None


def wholes_of(names: Iterable[str]) -> dict[str, int]:
    """The partitioned topics that have partitions, or their dead letters, among these names, each with the lowest possible
    number of partitions."""
    found: dict[str, int] = {}
    for name in names:
        if (number := number_of(name)) is not None:
            whole = whole_name(name).removesuffix(DEAD_LETTERS)
            found[whole] = max(found.get(whole, 0), number + 1)
    return found


def without_number(name: str, least: int) -> str:
    """The error text for a lost topic: it has partitions on the disk, but no file tells their number."""
    return (
        f"partitions of {name} are here, up to {name}{PARTITION_MARK}{least - 1}, and partitions.json does not know the topic: "
        f"CREATE {name} {PARTITIONS}=N brings it back with what is in them; N is the number that it had, at least {least}"
    )


def half_made(name: str) -> PlacementUnknown:
    """The error for a partitioned topic that some workers or groups know and others do not."""
    whole = whole_name(name)
    text = "has its partitions at some workers or groups and not at others: it is being made or deleted, try again"
    return PlacementUnknown(f"{whole} {text}; if that was interrupted, repeat the CREATE or DELETE of it")


def check_whole_name(name: str) -> str:
    """Return the name of a topic that can be divided into partitions. Raises: BadName, BadArgument."""
    if PARTITION_MARK in name:
        raise BadName(f"{name} is the name of a partition: create {whole_name(name)} with a number of partitions")
    if is_dead_letters(name):
        raise BadArgument(f"{name} holds dead letters: the dead letters of partition 3 are in {partition_name(name, '3')}")
    return name


@dataclass(frozen=True, slots=True)
class Partitioned:
    """A topic that is divided into ``count`` partitions, made with ``settings``."""

    name: str
    count: int
    settings: Mapping[str, str] = field(default_factory=dict)
    names: tuple[str, ...] = field(init=False)
    """The names of the partitions, in order."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(f"{self.name}{PARTITION_MARK}{number}" for number in range(self.count)))

    def members(self, name: str) -> tuple[str, ...]:
        """The names of the partitions, or of their dead-letter topics if ``name`` has the suffix ``.dlq``."""
        return tuple(one + DEAD_LETTERS for one in self.names) if is_dead_letters(name) else self.names


def described_whole(name: str, count: int, parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The JSON object of a partitioned topic, made from those of its partitions: numbers are sums, ages and attempts are the
    largest; ``settings`` are those that all have in common, ``settings_differ`` the names of others; ``parts`` are the
    objects of the partitions."""
    parts = sorted(parts, key=lambda part: number_of(str(part["topic"])) or 0)
    summed = ("messages", "bytes", "segments", "expired_total", "dead_lettered_total", "dropped_total", "lost")
    states = [str(part["state"]) for part in parts]
    settings = [part["settings"] for part in parts]
    by_consumer: dict[str, list[Mapping[str, Any]]] = {}
    for part in parts:
        for consumer in part["consumers"]:
            by_consumer.setdefault(consumer["consumer"], []).append(consumer)
    consumers = [_whole_consumer(consumer, found) for consumer, found in by_consumer.items()]
    largest = {  # an older broker does not say what waits without a consumer
        word: max([each[word] for each in consumers], default=sum(part.get(word, 0) for part in parts))
        for word in ("backlog", "scheduled")
    }
    return {
        "topic": name,
        PARTITIONS: count,
        **{word: sum(part[word] for part in parts) for word in summed},
        "state": next((state for state in ("failed", "degraded") if state in states), "ok"),
        "settings": common_settings(settings),
        "settings_differ": differing_settings(settings),
        **largest,
        "consumers": consumers,
        "parts": list(parts),
    }


def common_settings(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The settings that have the same value in all partitions."""
    first, *others = found or [{}]
    return {name: value for name, value in first.items() if all(other.get(name) == value for other in others)}


def differing_settings(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of settings that differ between partitions, such as one whose change was interrupted."""
    common = common_settings(found)
    return sorted({name for one in found for name in one if name not in common})


def _whole_consumer(name: str, parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    summed = ("ready", "inflight", "scheduled", "backlog", "acked_total", "redelivered_total")
    return {
        "consumer": name,
        "mode": parts[0]["mode"],
        **{word: sum(part[word] for part in parts) for word in summed},
        "retrying": sum(part.get("retrying", 0) for part in parts),  # an older broker does not say it
        "oldest_unacked_age_s": max(part["oldest_unacked_age_s"] for part in parts),
        "sessions": max(part["sessions"] for part in parts),
        "attached": any(part.get("attached", part["sessions"]) for part in parts),  # nor this
        "paused": all(part["paused"] for part in parts),
        "attempts_max": max(part["attempts_max"] for part in parts),
    }
