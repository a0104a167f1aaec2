"""Merging topics and figures of several workers. ``tests/unit/session/test_gathering.py`` has them in replies."""

from collections.abc import Iterator
from typing import Any

from toymq_py.merging import merged_columns, merged_stats, merged_topics


def test_topics_are_in_the_order_of_their_names() -> None:
    lists = [{"topic": "b"}, {"topic": "d"}], [], [{"topic": "a"}, {"topic": "c"}]
    assert [topic["topic"] for topic in merged_topics(lists)] == ["a", "b", "c", "d"]
    assert list(merged_topics([])) == []


def test_topics_are_described_as_they_are_read() -> None:
    """Descriptions are made one by one: thousands at once would block the loop."""
    described: list[str] = []

    def describe() -> Iterator[dict[str, Any]]:
        for name in ("a", "c", "e"):
            described.append(name)
            yield {"topic": name}

    merged = merged_topics([describe(), [{"topic": "b"}]])
    assert next(merged)["topic"] == "a"
    assert described == ["a"]


def test_one_process_is_as_it_was() -> None:
    stats = {"version": "1", "publish_total": 1, "rate": 0.5, "disk_low": False, "limits": {}, "tokens": [1]}
    assert merged_stats([stats]) == stats


def test_a_trouble_of_any_worker_is_shown() -> None:
    assert merged_stats([{"a": None}, {"a": "away"}]) == {"a": "away"}
    assert merged_stats([{"a": None}, {"a": None}]) == {"a": None}


def test_a_figure_that_one_does_not_know_counts_for_the_others() -> None:
    assert merged_stats([{"a": 1}, {}, {"a": 2}]) == {"a": 3}


def test_an_hour_of_all_is_the_sum_of_each_step_and_the_highest_age() -> None:
    one = {"published": [None, None, 1.5], "oldest_s": [None, 3.0, 0.0]}
    other = {"published": [None, 2.0, 0.2505], "oldest_s": [None, None, 7.0]}
    assert merged_columns([one, other]) == {"published": [None, 2.0, 1.75], "oldest_s": [None, 3.0, 7.0]}
    assert merged_columns([one]) == one


def test_what_a_limit_of_each_is_compared_with_is_that_of_the_one_with_the_most() -> None:
    assert merged_stats([{"connections": 2, "connections_most": 2}, {"connections": 3, "connections_most": 3}]) == {
        "connections": 5, "connections_most": 3,
    }  # fmt: skip
