"""Partitions as one line."""

from typing import Any

from toymqctl.partitions import grouped, parts_of, range_name


def topic(name: str, messages: int = 1) -> dict[str, Any]:
    counts = dict.fromkeys(("bytes", "segments", "expired_total", "dead_lettered_total", "dropped_total", "lost"), 0)
    return {"topic": name, "messages": messages, "state": "ok", "settings": {}, "consumers": [], **counts}


def test_partitions_are_one_in_the_place_of_the_first() -> None:
    names = ["a", "b#0", "b#0.dlq", "b#10", "b#2", "c"]
    found = grouped([topic(name) for name in names])
    assert [(one["topic"], one["messages"]) for one in found] == [("a", 1), ("b#0-10", 3), ("b#0.dlq", 1), ("c", 1)]
    assert [one["topic"] for one in parts_of(found[1])] == ["b#0", "b#2", "b#10"]
    assert parts_of(found[0]) == [found[0]]


def test_names_of_ranges() -> None:
    assert range_name("b", [topic("b#3")]) == "b#3"
    assert range_name("b.dlq", [topic("b#3.dlq"), topic("b#1.dlq")]) == "b#1-3.dlq"
