"""A bucket alone, and a bucket with a live log, as sources of records. A data directory replaces the broker."""

import shutil
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.buckets import MemoryBucket
from tests.support.sealed_history import PLACE, fill
from toymq_py.config.topic_settings import TopicSettings
from toymq_py.errors import NoSuchTopic
from toymq_py.storage import topic_settings
from toymq_py.storage.fs import RealFileSystem
from toymq_py.storage.reader import walk_columns
from toymq_py.storage.segment import segment_name
from toymq_py.tier.bucket import BucketError
from toymq_py.tier.keys import Place, seal_key, segment_key
from toymq_py.tier.reader import BucketReader, SegmentLost
from toymq_spark.bucket_logs import LISTING_MAX_AGE_S, BucketLogs, TieredLogs
from toymq_spark.record_sources import DirectoryLogs, Logs

URL = "s3://history/orders"
EDGES = (0, 10, 20, 30, 37)


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def bucket() -> MemoryBucket:
    """Return a bucket with the log's sealed part: three segments."""
    bucket = MemoryBucket()
    fill(bucket, EDGES[:-1])
    return bucket


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return the whole log: four segments, the last of them active."""
    topic = tmp_path / "topics" / "t"
    topic.mkdir(parents=True)
    frames = fill(MemoryBucket(), EDGES)
    for first_id, next_id in pairwise(EDGES):
        (topic / segment_name(first_id)).write_bytes(b"".join(frames[first_id:next_id]))
    topic_settings.store(RealFileSystem(), str(topic), TopicSettings(), PLACE.incarnation)
    return tmp_path


def tiered(bucket: MemoryBucket, log: Path, clock: Clock, *, alone: bool = False) -> TieredLogs:
    return TieredLogs(DirectoryLogs(str(log)), URL, BucketReader(bucket), alone=alone, monotonic=clock)


def ids(logs: Logs, start: int, end: int, segments: Iterable[int] = ()) -> list[int]:
    return [
        msg_id for run in logs.read("t", start, end, walk_columns, PLACE.incarnation, tuple(segments))
        for msg_id in range(run.first_id, run.next_id)
    ]  # fmt: skip


def firsts(logs: Logs, start: int, end: int, *, again: bool = False) -> list[int]:
    return [each.first_id for each in logs.history("t", PLACE.incarnation, start, end, again=again)]


def test_a_bucket_alone_ends_with_what_is_sealed(bucket: MemoryBucket, clock: Clock) -> None:
    pauses: list[float] = []
    logs = BucketLogs(URL, BucketReader(bucket), pauses.append, clock)
    assert logs.topics() == ["t"]
    assert logs.bounds("t") == (0, 30, PLACE.incarnation)
    assert logs.id_at_time("t", 0) == 0
    assert logs.id_at_time("t", 1 << 62) == 30
    assert firsts(logs, 5, 15) == [0, 10]
    assert ids(logs, 5, 15, [0, 10]) == [*range(5, 15)]
    assert ids(logs, 5, 99) == [*range(5, 30)], "as a task of a checkpoint that knew no segments"
    assert [run.next_id for run in logs.read("t", 0, 10, walk_columns, None, [0])] == [10]
    logs.wait("t", 30, 0.7)
    assert pauses == [0.7]
    with pytest.raises(NoSuchTopic):
        logs.bounds("u")


def test_a_listing_is_used_for_a_while(bucket: MemoryBucket, clock: Clock) -> None:
    logs = BucketLogs(URL, BucketReader(bucket), monotonic=clock)
    logs.bounds("t")
    fill(bucket, (30, 40))
    assert logs.bounds("t").next_id == 30
    clock.now = LISTING_MAX_AGE_S + 1
    assert logs.bounds("t").next_id == 40
    logs.close()


def test_what_is_sealed_is_read_in_the_bucket_and_the_rest_from_the_broker(
    bucket: MemoryBucket, log: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    logs = tiered(bucket, log, clock)
    assert logs.bounds("t") == (0, 37, PLACE.incarnation)
    assert firsts(logs, 3, 37) == [0, 10, 20]
    assert firsts(logs, 3, 25) == [0, 10], "the batch does not reach the end of the last"
    shutil.rmtree(log / "topics" / "t")
    assert ids(logs, 3, 30, [0, 10, 20]) == [*range(3, 30)], "the broker is not asked"
    logs.close()
    with pytest.raises(NoSuchTopic):
        ids(logs, 30, 37)
    assert caplog.text == ""


def test_an_object_that_is_lost_is_read_from_the_broker(
    bucket: MemoryBucket, log: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    logs = tiered(bucket, log, clock)
    bucket.delete(segment_key(PLACE, 0))
    bucket.put(segment_key(PLACE, 20), b"short")
    assert ids(logs, 3, 30, [0, 10, 20]) == [*range(3, 30)]
    assert f"{segment_key(PLACE, 0)} is gone from the bucket: records 3 to 9 are read from the broker" in caplog.text
    assert "it has 5 bytes, and its seal says" in caplog.text
    assert firsts(logs, 3, 37) == [], "what is not whole is planned from the broker, and what is behind it"
    assert firsts(logs, 10, 37) == [10, 20]
    alone = tiered(bucket, log, clock, alone=True)
    with pytest.raises(SegmentLost, match="is gone from the bucket"):
        ids(alone, 3, 30, [0, 10, 20])


def test_another_topics_segment_in_its_place_is_read_from_the_broker(
    bucket: MemoryBucket, log: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    other = Place("u", PLACE.incarnation)
    fill(bucket, (0, 10, 20), other)
    for key_of in (segment_key, seal_key):
        bucket.put(key_of(PLACE, 0), bucket.objects[key_of(other, 0)])
    assert ids(tiered(bucket, log, clock), 3, 20, [0, 10]) == [*range(3, 20)]
    assert "it is the seal of another topic or incarnation" in caplog.text
    with pytest.raises(SegmentLost, match="it is the seal of another topic or incarnation"):
        ids(tiered(bucket, log, clock, alone=True), 3, 20, [0, 10])


def test_the_bucket_alone_of_a_broker(bucket: MemoryBucket, log: Path, clock: Clock) -> None:
    logs = tiered(bucket, log, clock, alone=True)
    assert logs.bounds("t") == (0, 30, PLACE.incarnation)
    assert logs.id_at_time("t", 1 << 60) == 30
    assert firsts(logs, 3, 25) == [0, 10, 20]
    assert ids(logs, 3, 30) == [*range(3, 30)], "never from the log"
    bucket.objects.clear()
    fill(bucket, (0, 5), Place("u", PLACE.incarnation))
    assert tiered(bucket, log, clock, alone=True).bounds("t") == (0, 0, PLACE.incarnation)
    assert logs.history("t", None, 0, 30) == [], "without an incarnation nothing is in a bucket"


@pytest.mark.parametrize("alone", [False, True])
def test_where_a_stream_waits(bucket: MemoryBucket, log: Path, alone: bool) -> None:
    """The stream has to wait for the bucket: the broker, which has more records, would answer at once, again and again."""
    pauses: list[float] = []

    class Waiting(DirectoryLogs):
        def wait(self, topic: str, next_id: int, seconds: float) -> None:
            pauses.append(-seconds)

    TieredLogs(Waiting(str(log)), URL, BucketReader(bucket), alone=alone, sleep=pauses.append).wait("t", 30, 0.5)
    assert pauses == [0.5 if alone else -0.5]


def test_a_batch_that_is_run_again_finds_the_same_segments(bucket: MemoryBucket, log: Path, clock: Clock) -> None:
    """A sink recognizes its rows by their tasks, so more segments in the bucket must not change the tasks."""
    first = tiered(bucket, log, clock).history("t", PLACE.incarnation, 3, 37)
    known = first[-1].next_id
    fill(bucket, (30, 37))
    assert firsts(tiered(bucket, log, clock), 3, 37) == [0, 10, 20, 30]
    again = tiered(bucket, log, clock).history("t", PLACE.incarnation, 3, known, again=True)
    assert again == first


def test_a_listing_is_made_anew_when_the_reader_comes_to_its_end(bucket: MemoryBucket, log: Path, clock: Clock) -> None:
    logs = tiered(bucket, log, clock)
    assert firsts(logs, 0, 37) == [0, 10, 20]
    fill(bucket, (30, 37))
    clock.now = LISTING_MAX_AGE_S + 1
    assert firsts(logs, 0, 37) == [0, 10, 20], "a reader within it asks for none"
    assert firsts(logs, 30, 37) == [30]
    clock.now += 1
    fill(bucket, (37, 40))
    assert firsts(logs, 37, 40) == [], "and not at each batch"


def test_a_bucket_that_is_away_is_an_error_with_its_name(bucket: MemoryBucket, log: Path, clock: Clock) -> None:
    class Away(MemoryBucket):
        def get(self, key: str) -> bytes | None:
            raise BucketError("the bucket: connection refused")

    away = Away()
    away.objects = bucket.objects
    for ask in (
        lambda: ids(tiered(away, log, clock), 0, 30, [0, 10, 20]),
        lambda: tiered(away, log, clock).history("t", PLACE.incarnation, 0, 30),
        lambda: BucketLogs(URL, BucketReader(away), monotonic=clock).bounds("t"),
    ):
        with pytest.raises(BucketError, match=r"^s3://history/orders: the bucket: connection refused"):
            ask()
