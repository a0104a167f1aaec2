"""Names and descriptions of partitions, and the function of the route. Contract: groups.md, stage 4; ADR 0184."""

from typing import Any

import pytest

from toymq_py.errors import BadArgument, BadName
from toymq_py.names import TopicPattern, check_name, is_pattern, whole_name
from toymq_py.partitions import (
    PARTITIONS_MAX,
    Partitioned,
    check_whole_name,
    common_settings,
    described_whole,
    differing_settings,
    number_of,
    parse_partitions,
    partition_of_route,
)


@pytest.mark.parametrize(
    ("route", "count", "partition"),
    [(b"", 8, 0), (b"a", 8, 3), (b"key-1", 4, 2), (b"order-17", 8, 4), (b"customer-42", 1024, 21), (b"\xff" * 512, 7, 2)],
)
def test_the_function_of_the_route_stays(route: bytes, count: int, partition: int) -> None:
    """Another function would divide the messages of a key over two partitions."""
    assert partition_of_route(route, count) == partition


@pytest.mark.parametrize("name", ["orders#0", "orders#1023", "a.b#7", "orders#3.dlq", "x" * 196 + "#1023.dlq"])
def test_names_of_partitions(name: str) -> None:
    assert check_name("topic", name) == name


@pytest.mark.parametrize(
    "name", ["orders#", "orders#00", "orders#01", "orders#-1", "#1", "orders#1#2", "orders#x", "orders#10000"]
)
def test_what_is_no_partition(name: str) -> None:
    with pytest.raises(BadName, match="# is for the number of a partition, as in orders#3"):
        check_name("topic", name)
    with pytest.raises(BadName):
        check_name("consumer", name)


def test_a_consumer_has_no_partitions() -> None:
    with pytest.raises(BadName):
        check_name("consumer", "orders#3")


@pytest.mark.parametrize(
    ("pattern", "topic", "matches"),
    [
        ("orders#*", "orders#3", True), ("orders#*", "orders", False), ("orders#*", "other#3", False),
        ("orders#*", "orders#3.dlq", False), ("orders#*.dlq", "orders#3.dlq", True), ("a.b#*", "a.b#12", True),
        (">", "orders#3", True), ("*", "orders#3", True), ("*", "orders#3.dlq", False), ("*.b#*", "a.b#1", True),
    ],
)  # fmt: skip
def test_patterns_of_partitions(pattern: str, topic: str, matches: bool) -> None:
    assert is_pattern(pattern)
    assert TopicPattern(pattern).matches(topic) is matches


@pytest.mark.parametrize("pattern", ["*#*", "orders#>", "orders#**", "#*", "a*#*"])
def test_what_is_no_pattern_of_partitions(pattern: str) -> None:
    with pytest.raises(BadName):
        TopicPattern(pattern)


def test_the_pattern_of_a_whole_has_its_name() -> None:
    for name, matched in (("orders", "orders#3"), ("orders.dlq", "orders#3.dlq")):
        pattern = TopicPattern.of_partitions(name)
        assert (pattern.text, pattern.matches(matched), pattern.matches(name)) == (name, True, False)
    assert TopicPattern("orders#*").overlaps(TopicPattern.of_partitions("orders"))


@pytest.mark.parametrize(
    ("name", "whole", "number"),
    [("orders#3", "orders", 3), ("orders#3.dlq", "orders.dlq", 3), ("orders#*", "orders", None), ("orders", "orders", None),
     ("orders.dlq", "orders.dlq", None)],
)  # fmt: skip
def test_the_whole_of_a_partition(name: str, whole: str, number: int | None) -> None:
    assert (whole_name(name), number_of(name)) == (whole, number)


def test_what_can_be_divided() -> None:
    assert check_whole_name("orders") == "orders"
    with pytest.raises(BadName, match="orders#3 is the name of a partition: create orders with a number of partitions"):
        check_whole_name("orders#3")
    with pytest.raises(BadArgument, match=r"the dead letters of partition 3 are in orders#3\.dlq"):
        check_whole_name("orders.dlq")
    assert parse_partitions("1024") == PARTITIONS_MAX
    for text in ("0", "1025", "x", ""):
        with pytest.raises(BadArgument, match="invalid partitions"):
            parse_partitions(text)


def test_members() -> None:
    topic = Partitioned("orders", 2)
    assert topic.names == topic.members("orders") == ("orders#0", "orders#1")
    assert topic.members("orders.dlq") == ("orders#0.dlq", "orders#1.dlq")


def _part(number: int, **changed: Any) -> dict[str, Any]:
    consumer = {
        "consumer": "c", "mode": "shared", "ready": 1, "inflight": 2, "scheduled": 0, "backlog": 3, "acked_total": 4,
        "redelivered_total": 5, "oldest_unacked_age_s": 0.5 * number, "sessions": number, "attached": number > 1,
        "retrying": number, "paused": False, "attempts_max": number,
    }  # fmt: skip
    described: dict[str, Any] = {
        "topic": f"orders#{number}", "messages": 10, "bytes": 100, "segments": 1, "state": "ok",
        "settings": {"ttl": 5, "visibility": 9},
        "consumers": [consumer], "expired_total": 0, "dead_lettered_total": 1, "dropped_total": 0, "lost": 0,
    }  # fmt: skip
    return described | changed


def test_a_whole_is_described_by_its_partitions() -> None:
    parts = [_part(10), _part(2, settings={"ttl": 5, "visibility": 8}, state="degraded", consumers=[])]
    found = described_whole("orders", 11, parts)
    assert [part["topic"] for part in found["parts"]] == ["orders#2", "orders#10"], "in the order of their numbers"
    assert (found["topic"], found["partitions"], found["messages"], found["dead_lettered_total"]) == ("orders", 11, 20, 2)
    assert (found["state"], found["settings"]) == ("degraded", {"ttl": 5})
    (consumer,) = described_whole("orders", 3, [_part(1), _part(2)])["consumers"]
    shown = ("backlog", "oldest_unacked_age_s", "sessions", "attached", "retrying", "attempts_max")
    assert [consumer[word] for word in shown] == [6, 1.0, 2, True, 3, 2]
    alone = [_part(n, consumers=[], backlog=n, scheduled=1) for n in (1, 2)]
    assert [described_whole("orders", 2, alone)[word] for word in ("backlog", "scheduled")] == [3, 2], "without a consumer"
    assert described_whole("orders", 2, [_part(1), _part(2)])["backlog"] == 6, "of the consumer with the most, over all parts"
    empty = described_whole("orders", 3, [])
    assert (empty["messages"], empty["settings"], empty["consumers"], empty["state"]) == (0, {}, [], "ok")


def test_a_setting_that_some_partitions_have_is_named() -> None:
    """Found: after a change that reached only some partitions the topic was shown with "the broker's defaults"."""
    assert differing_settings([]) == differing_settings([{"a": 1}, {"a": 1}]) == []
    assert differing_settings([{"a": 1, "b": 2}, {"b": 2, "c": 3}, {"a": 1, "b": 2}]) == ["a", "c"]
    half = [_part(1, settings={"max_attempts": 7}), _part(2, settings={})]
    assert [described_whole("orders", 2, half)[word] for word in ("settings", "settings_differ")] == [{}, ["max_attempts"]]


def test_settings_that_all_have() -> None:
    assert common_settings([]) == {}
    assert common_settings([{"a": 1, "b": 2}, {"b": 2, "a": 3}]) == {"b": 2}
