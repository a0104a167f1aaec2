"""Partitions of a topic as Spark sees them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toymq_spark.offsets import from_json, in_bucket_of, incarnations_of, to_json
from toymq_spark.options import EARLIEST, parse_source
from toymq_spark.partitions import by_name, column_values, topics_of

NAMES = st.sampled_from([*(f"orders#{number}" for number in (0, 1, 2, 10)), "orders", "plain", "one#0", "two#3", "dead#1.dlq"])
BROKER = {"url": "toymq://h"}


def test_columns() -> None:
    assert column_values("orders#3", divided=True) == ("orders", 3)
    assert column_values("orders#3.dlq", divided=True) == ("orders.dlq", 3)
    assert column_values("orders#3", divided=False) == ("orders#3", 0)
    assert column_values("orders", divided=True) == ("orders", 0)


def test_offsets_of_partitions() -> None:
    found = {"orders#10": 9, "orders#0": 17, "orders#2": 4, "plain": 5}
    stored = to_json(found, {"orders#2": "b" * 16, "plain": "c" * 16}, {"orders#0": 3})
    assert stored == {
        "orders": {"0": 17, "2": 4, "10": 9, "bucket": {"0": 3}, "incarnation": {"2": "b" * 16}},
        "plain": {"0": 5, "incarnation": "c" * 16},
    }
    assert to_json({"orders#0": 1}, {}) == {"orders#0": {"0": 1}}, "or it would be the topic orders"
    assert from_json({"orders": {"0": 17, "1": 9}}) == {"orders#0": 17, "orders#1": 9}
    assert from_json({"orders": {"3": 9}}) == {"orders#3": 9}


@given(st.dictionaries(NAMES, st.integers(0, 99)), st.data())
def test_what_is_stored_is_read_again(offsets: dict[str, int], data: st.DataObject) -> None:
    known = st.dictionaries(st.sampled_from(sorted(offsets)), st.integers(0, 99)) if offsets else st.just({})
    bucket, words = data.draw(known), {topic: f"{number:016x}" for topic, number in data.draw(known).items()}
    stored = to_json(offsets, words, bucket)
    assert (from_json(stored), in_bucket_of(stored), incarnations_of(stored)) == (offsets, bucket, words)
    assert list(stored) == sorted(stored), "Spark compares the text"


@pytest.mark.parametrize("keys", [["x"], ["00"], ["-1"], ["0", "01"]])
def test_what_is_no_partition(keys: list[str]) -> None:
    with pytest.raises(ValueError, match="invalid partitions"):
        topics_of("orders", keys)


def test_topics_and_those_that_have_partitions() -> None:
    assert by_name(["b#0", "b", "b#1"]) == {"b": {"0": "b"}, "b#0": {"0": "b#0"}, "b#1": {"0": "b#1"}}
    assert topics_of("b", ["0"]) == {"0": "b"}
    assert topics_of("b", ["0", "3"]) == {"0": "b#0", "3": "b#3"}


def test_options() -> None:
    given = '{"orders": {"0": 17, "1": -2}, "plain": {"0": 5}}'
    start = parse_source({**BROKER, "subscribe": "orders,plain", "startingOffsets": given}).start
    assert [start.of(topic) for topic in ("orders#0", "orders#1", "plain")] == [17, EARLIEST, 5]
    one = parse_source({**BROKER, "subscribe": "orders", "startingOffsets": '{"orders": {"0": 17}}'}).start
    assert one.of("orders#0") == 17, "a topic with one partition"
    assigned = parse_source({**BROKER, "assign": '{"orders": [0, 3], "plain": [0]}'}).topics
    assert assigned.names == ("orders#0", "orders#3", "plain")
    topics = parse_source({**BROKER, "subscribePattern": "ord.*s"}).topics
    assert topics.select(lambda: ["orders#0", "orders#0.dlq", "others", "plain"]) == ["orders#0"]
