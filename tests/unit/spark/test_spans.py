"""Id ranges of tasks, and which of them are read from a bucket. No bucket, no Spark."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.spark.test_offsets import sizes
from tests.unit.spark.test_options import source
from toymq_py.tier.reader import SealedSegment
from toymq_spark.spans import SEGMENTS_MAX, IdSpan, cut, overlapping, whole


def segments(*edges: int, missing: int | None = None) -> list[SealedSegment]:
    return [SealedSegment(a, b, a != missing) for a, b in pairwise(edges)]


@given(sizes, st.one_of(st.none(), st.integers(1, 40)), st.integers(1, 300), st.lists(st.integers(1, 90), max_size=9))
def test_ranges_cover_each_id_once(
    topics: dict[str, tuple[int, int]], least: int | None, most: int, lengths: list[int]
) -> None:
    named = {"minPartitions": str(least)} if least is not None else {}
    options = source("batch", maxRecordsPerPartition=str(most), **named)
    start = {topic: begin for topic, (begin, _) in topics.items()}
    end = {topic: begin + waiting for topic, (begin, waiting) in topics.items()}
    history = {}
    for topic in start:
        edges = [max(start[topic] - 3, 0)]
        for length in lengths:
            edges.append(edges[-1] + length)
        history[topic] = whole(segments(*edges), start[topic], end[topic])
    spans = cut(options, start, end, {}, history)
    assert spans == cut(options, start, end, {}, history)
    covered = [(span.topic, msg_id) for span in spans for msg_id in range(span.start, span.end)]
    assert covered == [(topic, msg_id) for topic in sorted(topics) for msg_id in range(start[topic], end[topic])]
    assert all(0 < span.end - span.start <= most for span in spans)
    assert len(spans) >= min(least or 0, len(covered)) - 2 * len(topics), "minPartitions, where there are so many records"
    for span in spans:
        of_it = overlapping(history[span.topic], span.start, span.end)
        assert span.segments in ((), tuple(each.first_id for each in of_it)), "a task knows its segments"
        assert bool(span.segments) == bool(of_it), "what is in the bucket is read there, and nothing else"


def test_ranges_of_a_size() -> None:
    assert cut(source("batch", minPartitions="3"), {"t": 1}, {"t": 10}, {}) == [
        IdSpan("t", 1, 4), IdSpan("t", 4, 7), IdSpan("t", 7, 10)
    ]  # fmt: skip


def test_removed_ids_are_no_task_of_their_own() -> None:
    """A restore skips ten million ids, with a task's worth of records on either side."""
    removed = {"t": [(90, 10_000_089)]}
    options = source("batch", maxRecordsPerPartition="100")
    start, end = {"t": 0}, {"t": 10_000_200}
    assert cut(options, start, end, {}, {}, removed) == [
        IdSpan("t", 0, 10_000_090 + 10), IdSpan("t", 10_000_100, 10_000_200)
    ]  # fmt: skip
    assert cut(options, {"t": 90}, {"t": 10_000_090}, {}, {}, removed) == []
    history = {"t": segments(0, 50, 10_000_090, 10_000_150)}
    assert cut(options, start, end, {}, history, removed) == [
        IdSpan("t", 0, 10_000_090, None, (0, 50)), IdSpan("t", 10_000_090, 10_000_150, None, (10_000_090,)),
        IdSpan("t", 10_000_150, 10_000_200),
    ]  # fmt: skip
    assert {span.segments for span in cut(options, start, end, {}, history, removed)} == {(0, 50), (10_000_090,), ()}


def test_a_segment_is_worth_a_fetch_when_the_batch_reaches_its_end() -> None:
    found = segments(0, 10, 20, 30)
    assert whole(found, 0, 30) == found
    assert whole(found, 5, 29) == found[:2], "the first is read from its middle on"
    assert whole(found, 5, 9) == []
    assert whole(found, 30, 99) == []
    assert whole(segments(0, 10, 20, 30, missing=10), 0, 30) == found[:1], "behind a hole the broker is asked"
    assert whole([SealedSegment(5, 9, True)], 3, 30) == [], "and before one"
    assert overlapping(found, 5, 11) == found[:2]


def test_a_task_reads_whole_segments() -> None:
    found = segments(0, 100, 200, 300, 1000)
    spans = cut(source("batch"), {"t": 50}, {"t": 1200}, {"t": "f"}, {"t": found})
    assert spans == [IdSpan("t", 50, 1000, "f", (0, 100, 200, 300)), IdSpan("t", 1000, 1200, "f")]
    by_count = cut(source("batch", maxRecordsPerPartition="250"), {"t": 50}, {"t": 1200}, {}, {"t": found})
    assert [(span.start, span.end, span.segments) for span in by_count] == [
        (50, 300, (0, 100, 200)), (300, 533, (300,)), (533, 766, (300,)), (766, 1000, (300,)), (1000, 1200, ())
    ]  # fmt: skip
    few = segments(*range(0, 40, 2))
    assert [len(span.segments) for span in cut(source("batch"), {"t": 0}, {"t": 38}, {}, {"t": few})] == [
        SEGMENTS_MAX, SEGMENTS_MAX, 19 - 2 * SEGMENTS_MAX
    ]  # fmt: skip


def test_a_large_segment_is_fetched_once_unless_the_user_says_otherwise() -> None:
    large = segments(0, 700_000)
    assert len(cut(source("batch"), {"t": 0}, {"t": 700_000}, {}, {"t": large})) == 1
    assert len(cut(source("batch", minPartitions="4"), {"t": 0}, {"t": 700_000}, {}, {"t": large})) == 4
