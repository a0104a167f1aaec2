"""Partitions of a topic as Spark sees them: the columns topic and partition, and offsets by partition. ADR 0187.

Within the source a partition is a topic, ``orders#3``. Knows nothing of Spark.
"""

from collections.abc import Iterable

from toymq_py.names import DEAD_LETTERS, PARTITION_MARK, whole_name
from toymq_py.partitions import number_of

SINGLE = "0"
"""The key of a topic that has no partitions."""


def column_values(topic: str, *, divided: bool) -> tuple[str, int]:
    """What the columns topic and partition have. ``divided``: partition 3 of orders is told from the topic ``orders#3``."""
    number = number_of(topic) if divided else None
    return (topic, 0) if number is None else (whole_name(topic), number)


def topics_of(name: str, numbers: Iterable[str]) -> dict[str, str]:
    """The topics of an object ``{"0": …, "1": …}`` that stands for ``name``, by their key. Raises: ValueError."""
    keys = list(numbers)
    if any(not key.isascii() or not key.isdigit() or str(int(key)) != key for key in keys):
        raise ValueError(f"invalid partitions {keys}")
    letters = DEAD_LETTERS if name.endswith(DEAD_LETTERS) else ""
    stem = name.removesuffix(DEAD_LETTERS)
    return {SINGLE: name} if keys == [SINGLE] else {key: f"{stem}{PARTITION_MARK}{key}{letters}" for key in keys}


def by_name(topics: Iterable[str]) -> dict[str, dict[str, str]]:
    """The inverse for all topics, sorted: their names by key, and those by the name that stands for them. A partition 0 alone
    stands for itself, or it would be taken for a topic without partitions; so do those beside a topic of their name."""
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
