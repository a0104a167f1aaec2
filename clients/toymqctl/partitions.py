"""Partitioned topics on the command line: one line for a topic, and its partitions one by one."""

from collections.abc import Iterable, Sequence
from typing import Any

from toymq_py.names import DEAD_LETTERS, PARTITION_MARK, whole_name
from toymq_py.partitions import described_whole, number_of


def parts_of(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The partitions of a described topic; of another one itself."""
    parts: list[dict[str, Any]] = found.get("parts", [found])
    return parts


def grouped(topics: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Topics with the partitions of each as one, in the place of the first: ``orders#0-7``."""
    found: dict[tuple[str, bool], list[dict[str, Any]]] = {}
    for topic in topics:
        name = topic["topic"]
        found.setdefault((whole_name(name), number_of(name) is not None), []).append(topic)
    return [_one(whole, some) if is_divided else some[0] for (whole, is_divided), some in found.items()]


def _one(whole: str, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {**described_whole(whole, len(parts), parts), "topic": range_name(whole, parts)}


def range_name(whole: str, parts: Sequence[dict[str, Any]]) -> str:
    """``orders#0-7``, ``orders#0-7.dlq``."""
    numbers = sorted(number for part in parts if (number := number_of(part["topic"])) is not None)
    letters = DEAD_LETTERS if whole.endswith(DEAD_LETTERS) else ""
    last = f"-{numbers[-1]}" if len(numbers) > 1 else ""
    return f"{whole.removesuffix(DEAD_LETTERS)}{PARTITION_MARK}{numbers[0]}{last}{letters}"
