"""A bucket is read segment by segment: records that match the seal are returned, and everything else is a named loss."""

import hashlib
from pathlib import Path

import pytest

from tests.support.buckets import MemoryBucket
from tests.support.logs import TS_NS, some_frames
from tests.support.sealed_history import PLACE, fill
from tests.support.tiers import PAYLOAD, TierRig, unnamed
from toymq_py.errors import ConfigError, NoSuchTopic
from toymq_py.storage import offsets
from toymq_py.storage.reader import walk_columns
from toymq_py.storage.record import Frame, iter_frames
from toymq_py.tier.bucket import BucketError
from toymq_py.tier.deletions import encode
from toymq_py.tier.keys import Place, deleted_key, seal_key, segment_key, state_key
from toymq_py.tier.objects import Seal, State
from toymq_py.tier.reader import BucketReader, BucketTopic, SealedSegment, SegmentLost, open_reader


@pytest.fixture
def bucket() -> MemoryBucket:
    return MemoryBucket()


@pytest.fixture
def frames(bucket: MemoryBucket) -> list[Frame]:
    """Put thirty records in three segments into the bucket."""
    return [*iter_frames(b"".join(fill(bucket, (0, 10, 20, 30))))]


def read(bucket: MemoryBucket, start: int, end: int, first_ids: tuple[int, ...] = (0, 10, 20)) -> list[tuple[int, bytes]]:
    found = []
    for run in BucketReader(bucket).read(PLACE, first_ids, start, end, walk_columns):
        assert run.next_id - run.first_id == len(run.seen.payloads)
        found += [*zip(range(run.first_id, run.next_id), run.seen.payloads, strict=True)]
    return found


def losses(bucket: MemoryBucket, start: int = 0, end: int = 30) -> list[tuple[int, int, str]]:
    """Return all losses in a range; the other records are read."""
    reader, found, at, read_ids = BucketReader(bucket), [], start, set()
    while at < end:
        try:
            for run in reader.read(PLACE, (0, 10, 20), at, end, walk_columns):
                read_ids |= {*range(run.first_id, run.next_id)}
            break
        except SegmentLost as lost:
            found.append((lost.first_id, lost.next_id - 1, str(lost)))
            at = lost.next_id
    gone = {msg_id for first, last, _ in found for msg_id in range(first, last + 1)}
    assert read_ids | gone == {*range(start, end)}
    assert not read_ids & gone
    return found


def test_any_range_is_read(bucket: MemoryBucket, frames: list[Frame]) -> None:
    for start, end in ((0, 30), (0, 10), (3, 4), (9, 11), (10, 20), (15, 30), (29, 30), (7, 7)):
        assert read(bucket, start, end) == [(each.msg_id, each.payload) for each in frames[start:end]]


def test_a_topic_is_what_is_sealed(bucket: MemoryBucket, frames: list[Frame]) -> None:
    reader = BucketReader(bucket)
    assert reader.topics() == ["t"]
    whole = [SealedSegment(0, 10, True), SealedSegment(10, 20, True), SealedSegment(20, 30, True)]
    assert reader.topic("t") == BucketTopic(PLACE, 0, 30, whole)
    assert reader.segments(PLACE) == whole
    bucket.put(segment_key(PLACE, 30), b"".join(some_frames(5, first_id=30)))
    assert reader.topic("t").next_id == 30, "without a seal it is under way"
    bucket.delete(segment_key(PLACE, 10))
    assert reader.segments(PLACE)[1] == (10, 20, False)
    with pytest.raises(NoSuchTopic, match="no topic u in the bucket"):
        reader.topic("u")
    bucket.put(deleted_key(PLACE), b"")
    assert (reader.topics(), reader.topic("t").place, len(reader.segments(PLACE))) == (["t"], PLACE, 3), "it is stray"
    bucket.put(deleted_key(PLACE), encode(PLACE, 7))
    assert reader.segments(PLACE) == []
    with pytest.raises(NoSuchTopic):
        reader.topic("t")


def test_what_was_removed_is_not_read_and_the_newest_incarnation_counts(bucket: MemoryBucket, frames: list[Frame]) -> None:
    known = offsets.encode(offsets.OffsetsState(first_id=12, next_id=35), "t")
    bucket.put(state_key(PLACE, 7), State(35, known, None).encode(PLACE))
    found = BucketReader(bucket).topic("t")
    assert (found.first_id, found.next_id) == (12, 30)
    assert [each.first_id for each in found.segments if each.next_id > found.first_id] == [10, 20]
    newer = Place("t", "f" * 16)
    fill(bucket, (0, 3), newer)
    bucket.put(state_key(newer, 8), State(3, None, None).encode(newer))
    assert BucketReader(bucket).topic("t").place == newer


def test_a_broker_with_a_tier_is_read_as_it_is() -> None:
    bucket = MemoryBucket()
    rig = TierRig(bucket)
    rig.publish("t", *[PAYLOAD] * 17)
    rig.round()
    rig.round()
    found = BucketReader(bucket).topic("t")
    assert (found.place, found.first_id, found.next_id) == (rig.place(), 0, rig.sealed_below())
    first_ids = [each.first_id for each in found.segments]
    runs = BucketReader(bucket).read(found.place, first_ids, 0, found.next_id, walk_columns)
    assert [payload for run in runs for payload in run.seen.payloads] == [PAYLOAD] * found.next_id


def test_an_object_that_is_gone_or_is_not_what_its_seal_says_is_lost_by_name(bucket: MemoryBucket, frames: list[Frame]) -> None:
    key, seal = segment_key(PLACE, 10), seal_key(PLACE, 10)
    data, sealed = bucket.objects[key], bucket.objects[seal]
    flipped = data[:50] + bytes([data[50] ^ 1]) + data[51:]
    for other, why in (
        (data[:-1], f"{key} in the bucket is damaged: it has {len(data) - 1} bytes, and its seal says {len(data)}"),
        (b"", f"{key} in the bucket is damaged: it has 0 bytes"),
        (data + b"x", f"{key} in the bucket is damaged: it has {len(data) + 1} bytes"),
        (flipped, f"{key} in the bucket is damaged: its Adler-32 is"),
    ):
        bucket.put(key, other)
        ((first, last, said),) = losses(bucket)
        assert (first, last) == (10, 19)
        assert said.startswith(why)
        assert losses(bucket, 13, 16)[0][:2] == (13, 15)
    bucket.delete(key)
    assert losses(bucket) == [(10, 19, f"{key} is gone from the bucket")]
    bucket.put(key, data)
    for other in (b"", b"{}", sealed.replace(b"20", b"21"), Seal(10, 1, "x").encode(), Seal(1 << 65, 1, "x").encode()):
        bucket.put(seal, other)
        ((first, last, said),) = losses(bucket)
        assert (first, last, said.startswith(f"{seal} in the bucket is damaged: ")) == (10, 19, True)
    bucket.delete(seal)
    assert losses(bucket) == [(10, 19, f"{seal} is gone from the bucket")]


def test_a_segment_that_was_sealed_with_damage_gives_what_holds(bucket: MemoryBucket, frames: list[Frame]) -> None:
    pieces = some_frames(10, first_id=10)
    pieces[4] = pieces[4][:-1] + bytes([pieces[4][-1] ^ 1])
    data = b"".join(pieces)
    bucket.put(segment_key(PLACE, 10), data)
    bucket.put(seal_key(PLACE, 10), Seal.of(data, PLACE, 10, 20).encode())
    assert [msg_id for msg_id, _ in read(bucket, 0, 30)] == [*range(14), *range(15, 30)]
    assert [msg_id for msg_id, _ in read(bucket, 14, 30)] == [*range(15, 30)]


def test_ids_that_no_segment_has_are_lost(bucket: MemoryBucket) -> None:
    fill(bucket, (0, 10))
    fill(bucket, (20, 30))
    reader = BucketReader(bucket)
    assert [each[:2] for each in reader.segments(PLACE)] == [(0, 20), (20, 30)]
    with pytest.raises(SegmentLost, match=r"the bucket has no segment of them: t/.*log ends before") as error:
        list(reader.read(PLACE, (0, 20), 0, 30, walk_columns))
    assert (error.value.first_id, error.value.next_id) == (10, 20)


def test_a_time_is_found_in_few_segments(bucket: MemoryBucket) -> None:
    frames = [*iter_frames(b"".join(fill(bucket, range(0, 1010, 10))))]
    asked: list[str] = []
    get = bucket.get
    bucket.get = lambda key: asked.append(key) or get(key)  # type: ignore[method-assign, func-returns-value]
    reader = BucketReader(bucket)
    topic = reader.topic("t")
    for msg_id in (0, 1, 9, 10, 11, 555, 999):
        asked.clear()
        assert reader.id_at_time(topic, frames[msg_id].ts_ns) == msg_id
        assert sum(key.endswith(".log") for key in asked) <= 2
        assert len(asked) <= 12, "and few seals"
    assert reader.id_at_time(topic, TS_NS - 5) == 0
    assert reader.id_at_time(topic, TS_NS + 10_000) == 1000
    bucket.put(segment_key(PLACE, 500), b"")
    assert [reader.id_at_time(topic, frames[msg_id].ts_ns) for msg_id in (300, 499, 505, 510)] == [300, 499, 500, 500]
    bucket.delete(segment_key(PLACE, 0))
    assert reader.id_at_time(topic, 0) == 0, "it may have been there, and a reader that begins there is told"


def test_other_names_are_not_ours(bucket: MemoryBucket, frames: list[Frame]) -> None:
    before = BucketReader(bucket).topic("t")
    for key in (
        f"t/{PLACE.incarnation}/{'9' * 20}.log", f"t/{PLACE.incarnation}/{'9' * 20}.seal",
        f"t/{PLACE.incarnation}/../../etc.log", f"t/{PLACE.incarnation}/deleted/x", f"../t/{PLACE.incarnation}/{0:020}.log",
        "t/nowhere/00000000000000000000.log",
        f"a\nb/{PLACE.incarnation}/{0:020}.seal", f"t/{PLACE.incarnation}/{5:020}.log.tmp",
    ):  # fmt: skip
        bucket.put(key, hashlib.sha256(key.encode()).digest())
    assert BucketReader(bucket).topic("t") == before
    assert BucketReader(bucket).topics() == ["t"]


def test_a_bucket_that_is_away_is_no_loss(bucket: MemoryBucket, frames: list[Frame], tmp_path: Path) -> None:
    """A file system that is not mounted is an empty directory, or none."""
    bucket.objects.clear()
    for ask in (lambda: losses(bucket), lambda: BucketReader(bucket).topic("t")):
        with pytest.raises(BucketError, match="the bucket is empty: is its file system mounted"):
            ask()
    reader = open_reader(f"file://{tmp_path}/nowhere")
    with pytest.raises(BucketError, match="nowhere is gone: mount its file system"):
        reader.segments(PLACE)
    assert not (tmp_path / "nowhere").exists(), "a reader makes nothing"
    with pytest.raises(ConfigError, match="a tier is one of file://, s3://"):
        open_reader("http://h/b")


def test_a_segment_of_another_topic_or_place_in_the_log_is_lost_by_name(bucket: MemoryBucket, frames: list[Frame]) -> None:
    other = Place("u", PLACE.incarnation)
    fill(bucket, (0, 10, 20, 30), other)
    for place, first_id, why in ((other, 10, "'u/0123456789abcdef'"), (PLACE, 0, "the segment that begins at 0")):
        for key_of in (segment_key, seal_key):
            bucket.put(key_of(PLACE, 10), bucket.objects[key_of(place, first_id)])
        ((first, last, said),) = losses(bucket)
        assert (first, last, why in said) == (10, 19, True)


def test_a_seal_that_names_no_topic_is_believed_and_said_once(
    bucket: MemoryBucket, frames: list[Frame], caplog: pytest.LogCaptureFixture
) -> None:
    for key in bucket.objects:
        if key.endswith(".seal"):
            bucket.objects[key] = unnamed(bucket.objects[key])
    assert read(bucket, 0, 30) == [(frame.msg_id, frame.payload) for frame in frames]
    assert caplog.text.count("name no topic") == 1
