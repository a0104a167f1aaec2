"""Id ranges: limits, ranges for tasks, retention. No broker, no Spark."""

import json
from collections.abc import Iterator, Sequence
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.spark.test_options import source
from toymq.requests import TopicRange
from toymq_py.errors import NoSuchTopic
from toymq_py.records import IdRange
from toymq_py.storage.reader import RecordRun, Walk
from toymq_py.tier.reader import SealedSegment
from toymq_spark import offsets
from toymq_spark.errors import DataLoss, OptionError

T = TypeVar("T")


class FakeLogs:
    """Bounds and times of simulated topics. A record's time in ms is a hundred times its id."""

    def __init__(self, **bounds: tuple[int, int]) -> None:
        self.present = bounds
        self.incarnations: dict[str, str] = {}

    def topics(self) -> list[str]:
        return sorted(self.present)

    def partitions(self, topic: str) -> list[str]:
        return [topic]

    def bounds(self, topic: str) -> TopicRange:
        if topic not in self.present:
            raise NoSuchTopic(f"no topic {topic}")
        return TopicRange(*self.present[topic], self.incarnations.get(topic))

    def removed(self, topic: str, incarnation: str | None = None) -> list[IdRange]:
        return []

    def id_at_time(self, topic: str, at_ms: int) -> int:
        first_id, next_id = self.present[topic]
        return min(max(-(-at_ms // 100), first_id), next_id)

    def history(self, topic: str, incarnation: str | None, start: int, end: int, *, again: bool = False) -> list[SealedSegment]:
        raise NotImplementedError

    def read(
        self, topic: str, from_id: int, to_id: int, walk: Walk[T], incarnation: str | None = None, segments: Sequence[int] = ()
    ) -> Iterator[RecordRun[T]]:
        raise NotImplementedError

    def wait(self, topic: str, next_id: int, seconds: float) -> None:
        raise NotImplementedError

    def close(self) -> None:
        pass


LOGS = FakeLogs(a=(10, 100), b=(0, 5), empty=(7, 7))


def starting(missing_is_empty: bool = False, **options: str) -> dict[str, int]:
    return offsets.starting(source(None, subscribe="a,b", **options), LOGS, missing_is_empty=missing_is_empty)


def test_the_json_is_what_spark_compares_as_a_string() -> None:
    text = json.dumps(offsets.to_json({"b": 1, "a": 2}, {"a": "f"}))
    assert text == '{"a": {"0": 2, "incarnation": "f"}, "b": {"0": 1}}'
    assert offsets.incarnations_of(json.loads(text)) == {"a": "f"}
    with_bucket = json.loads(json.dumps(offsets.to_json({"b": 1, "a": 9}, {"a": "f"}, {"a": 7})))
    assert json.dumps(with_bucket) == '{"a": {"0": 9, "bucket": 7, "incarnation": "f"}, "b": {"0": 1}}'
    assert (offsets.in_bucket_of(with_bucket), offsets.from_json(with_bucket)) == ({"a": 7}, {"a": 9, "b": 1})
    with pytest.raises(OptionError, match="invalid offsets"):
        offsets.in_bucket_of({"a": {"0": 9, "bucket": "x"}})
    assert offsets.from_json(json.loads(text)) == {"a": 2, "b": 1}
    for other in ({"a": 1}, {"a": {"x": 1}}, {"a": {"0": "x"}}, {"a": {}}):
        with pytest.raises(OptionError, match="invalid offsets"):
            offsets.from_json(other)


def test_where_to_begin() -> None:
    assert starting() == {"a": 10, "b": 0}
    assert starting(startingOffsets="latest") == {"a": 100, "b": 5}
    assert starting(startingOffsets='{"a": {"0": 50}, "b": {"0": -1}}') == {"a": 50, "b": 5}
    assert starting(startingOffsets='{"a": {"0": 100}, "b": {"0": -2}}') == {"a": 100, "b": 0}
    assert starting(startingTimestamp="350") == {"a": 10, "b": 4}
    with pytest.raises(OptionError, match="topic b has no record at or after 700 ms"):
        starting(startingTimestamp="700")
    assert starting(startingTimestamp="700", startingOffsetsByTimestampStrategy="latest") == {"a": 10, "b": 5}


def test_offsets_that_do_not_fit_are_named() -> None:
    for text, named in (
        ('{"a": {"0": 50}}', "add topic b"),
        ('{"a": {"0": 50}, "b": {"0": 0}, "c": {"0": 1}}', "name topic c, which is not read"),
        ('{"a": {"0": 101}, "b": {"0": 0}}', "topic a ends at 100, before 101"),
    ):
        with pytest.raises(OptionError, match=named):
            starting(startingOffsets=text)
    with pytest.raises(DataLoss, match="topic a: records 3 to 9 are gone: retention removed the records below 10"):
        starting(startingOffsets='{"a": {"0": 3}, "b": {"0": 0}}')


def test_a_topic_that_is_not_there() -> None:
    options = source(None, subscribe="nowhere")
    with pytest.raises(NoSuchTopic):
        offsets.starting(options, LOGS, missing_is_empty=False)
    assert offsets.starting(options, LOGS, missing_is_empty=True) == {"nowhere": 0}
    assert offsets.latest(options, LOGS) == {"nowhere": 0}


def test_where_a_batch_ends() -> None:
    def ending(**options: str) -> dict[str, int]:
        chosen = source("batch", subscribe="a,b", **options)
        return offsets.ending(chosen, LOGS, {"a": 20, "b": 3})

    assert ending() == {"a": 100, "b": 5}
    assert ending(endingOffsets='{"a": {"0": 30}, "b": {"0": 1}}') == {"a": 30, "b": 3}, "never before it begins"
    assert ending(endingTimestamp="2500") == {"a": 25, "b": 5}
    with pytest.raises(OptionError, match="topic b ends at 5, before 6"):
        ending(endingOffsets='{"a": {"0": 30}, "b": {"0": 6}}')


sizes = st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.integers(0, 50), st.integers(0, 1000)), min_size=1)


@given(sizes, st.integers(1, 500))
def test_a_limit_is_shared_by_backlog_and_starves_nobody(topics: dict[str, tuple[int, int]], limit: int) -> None:
    start = {topic: begin for topic, (begin, _) in topics.items()}
    end = {topic: begin + waiting for topic, (begin, waiting) in topics.items()}
    reached = offsets.share(start, end, limit)
    taken = {topic: reached[topic] - start[topic] for topic in start}
    waiting = {topic: end[topic] - start[topic] for topic in start}
    assert sum(taken.values()) <= limit + len(topics), "each topic may be rounded up to one record"
    for topic in topics:
        assert 0 <= taken[topic] <= waiting[topic]
        assert taken[topic] or not waiting[topic], "a topic with a backlog gets something"
    assert offsets.share(start, end, None) == end


def test_a_limit_counts_no_ids_that_were_removed_and_passes_them_at_once() -> None:
    removed = {"a": [(10, 999_999)], "b": [(0, 99)]}.__getitem__
    assert offsets.share({"a": 0}, {"a": 1_000_010}, 5, removed) == {"a": 5}
    assert offsets.share({"a": 5}, {"a": 1_000_010}, 5, removed) == {"a": 1_000_000}
    assert offsets.share({"a": 10}, {"a": 1_000_010}, 5, removed) == {"a": 1_000_005}
    assert offsets.share({"b": 0}, {"b": 100}, 5, removed) == {"b": 100}, "no record waits"
    assert offsets.share({"a": 0, "b": 0}, {"a": 1_000_010, "b": 120}, 10, removed) == {"a": 5, "b": 105}


def test_new_topics_begin_at_0_and_vanished_ones_stay() -> None:
    assert offsets.share({"gone": 7}, {"new": 3}, None) == {"gone": 7, "new": 3}
    assert offsets.share({"a": 50}, {"a": 20}, 5) == {"a": 20}, "a topic that was made anew ends before it began"


@pytest.mark.parametrize(
    ("bounds", "start", "end", "begin", "named"),
    [
        ((0, 9), 3, 9, 3, None),
        ((5, 9), 3, 9, 5, "records 3 to 4 are gone: retention removed the records below 5"),
        ((20, 30), 3, 9, 9, "records 3 to 8 are gone: retention removed the records below 20"),
        ((0, 6), 3, 9, 9, "records 6 to 8 are gone: the topic ends at 6; was it deleted and recreated?"),
        ((0, 4), 8, 4, 0, "records from 8 on are gone: the topic was deleted and recreated"),
        ((0, 0), 8, 0, 0, "records from 8 on are gone: the topic was deleted"),
        ((0, 2), 9, 9, 9, None),
    ],
)
def test_what_retention_takes_from_a_stream(
    bounds: tuple[int, int], start: int, end: int, begin: int, named: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    logs = FakeLogs(t=bounds)
    going_on = source("stream", failOnDataLoss="false")
    assert offsets.retained(going_on, logs, {"t": start}, {"t": end}, {}, {}) == {"t": begin}
    assert [named in message for message in caplog.messages] == ([True] if named else [])
    if named is not None:
        with pytest.raises(DataLoss) as error:
            offsets.retained(source("stream"), logs, {"t": start}, {"t": end}, {}, {})
        assert named in str(error.value)


def test_a_new_topic_of_a_pattern_begins_where_it_begins() -> None:
    assert offsets.retained(source("stream"), FakeLogs(t=(5, 9)), {}, {"t": 9}, {}, {}) == {"t": 5}


@pytest.mark.parametrize(
    ("known", "planned", "now", "begin", "said"),
    [
        ("a", "a", "a", 3, None),
        ("a", "b", "b", 0, "records from 3 on are gone: the topic was deleted and made anew, its incarnation was a and is b"),
        ("a", "a", "b", 9, "records 3 to 8 are gone: the topic was deleted and made anew, its incarnation was a and is b"),
        (None, "a", "b", 9, "records 3 to 8 are gone: the topic was deleted and made anew, its incarnation was a and is b"),
        ("b", "a", "b", 9, "records 0 to 8 are gone: the topic was deleted and made anew, its incarnation was a and is b"),
        (None, "b", "b", 3, None),  # a checkpoint of an older toymq
        ("a", None, None, 3, None),  # one that cannot be told now
        ("a", "a", None, 3, None),
    ],
)
def test_a_topic_that_was_made_anew_is_a_loss_that_names_both_incarnations(
    known: str | None, planned: str | None, now: str | None, begin: int, said: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The new topic has as many records as the old one, so ids alone do not show the difference."""

    def told(incarnation: str | None) -> dict[str, str]:
        return {} if incarnation is None else {"t": incarnation}

    logs = FakeLogs(t=(0, 20))
    logs.incarnations = told(now)
    arguments = (logs, {"t": 3}, {"t": 9}, told(known), told(planned))
    assert offsets.retained(source("stream", failOnDataLoss="false"), *arguments) == {"t": begin}
    assert [said in message for message in caplog.messages] == ([True] if said else [])
    if said is not None:
        with pytest.raises(DataLoss, match=r"start once with failOnDataLoss=false, or with another checkpoint") as error:
            offsets.retained(source("stream"), *arguments)
        assert said in str(error.value)
