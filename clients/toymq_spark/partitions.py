"""Converts partitions of a topic to the form that Spark sees: the columns topic and partition, and offsets by partition. ADR
0187.

Within this package a partition is a topic of its own, ``orders#3``. Does not know Spark.
"""

from collections.abc import Iterable

from toymq_py.names import partition_name, whole_name
from toymq_py.partitions import number_of

SINGLE = "0"
"""The key of a topic that has no partitions."""


def column_values(topic: str, *, divided: bool) -> tuple[str, int]:
    """Return the values of the columns topic and partition. ``divided``: ``orders#3`` becomes ("orders", 3), else ("orders#3",
    0)."""
    number = number_of(topic) if divided else None
    return (topic, 0) if number is None else (whole_name(topic), number)


def topics_of(name: str, numbers: Iterable[str]) -> dict[str, str]:
    """Return the internal topic for each key of an object ``{"0": …, "1": …}``, the offsets of topic ``name``. Raises:
    ValueError."""
    keys = list(numbers)
    if any(not key.isascii() or not key.isdigit() or str(int(key)) != key for key in keys):
        raise ValueError(f"invalid partitions {keys}")
    return {SINGLE: name} if keys == [SINGLE] else {key: partition_name(name, key) for key in keys}


def by_name(topics: Iterable[str]) -> dict[str, dict[str, str]]:
    """Group internal topics by the topic's name that Spark sees, sorted; within it, by partition number as text: the inverse of
    ``topics_of``. A partition keeps its own name, with number "0", if only partition 0 is there, which would look like a topic
    without partitions, or if a topic without partitions has the same name."""
    parts: dict[str, dict[int, str]] = {}
    for topic in topics:
        number = number_of(topic)
        parts.setdefault(topic if number is None else whole_name(topic), {})[-1 if number is None else number] = topic
    found: dict[str, dict[str, str]] = {}
    for name, numbers in parts.items():
        if -1 in numbers or list(numbers) == [0]:
            found |= {topic: {SINGLE: topic} for topic in numbers.values()}
        else:
            found[name] = {str(number): numbers[number] for number in sorted(numbers)}
    return dict(sorted(found.items()))
