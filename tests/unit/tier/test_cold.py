"""Evicted records are read from the bucket as before; during a fetch readers wait, and nothing else does."""

import random
from collections.abc import Callable

import pytest

from tests.support.broker_rig import DIR
from tests.support.buckets import FaultyBucket, Killed, MemoryBucket
from tests.support.tiers import PAYLOAD, TierRig, unnamed
from toymq_py.disk_errors import BeingFetched, storage_error
from toymq_py.storage.evicted import NoCold
from toymq_py.tier.bucket import BucketError
from toymq_py.tier.cold import KEPT_MIN
from toymq_py.tier.keys import Place, seal_key, segment_key


def evicted(count: int = 40, **options: object) -> tuple[TierRig, MemoryBucket]:
    """Return a broker with a topic whose sealed segments, of five records each, are in the bucket only."""
    rig = TierRig(bucket := MemoryBucket(), **options)
    assert rig.change("create", "t", tier_local_bytes="0") == "OK"
    rig.publish("t", *[b"%d " % n + PAYLOAD for n in range(count)])
    rig.rounds(3)
    return rig, bucket


def test_segments_leave_the_disk_and_everything_is_still_there() -> None:
    rig, _ = evicted()
    sealed = len(rig.broker.topic("t").log.segments) - 1
    assert len(rig.away()) == sealed == 7
    assert len(rig.segment_files("t")) == 1
    assert [each[2].split()[0] for each in rig.records("t")] == [b"%d" % n for n in range(40)]
    numbers = rig.numbers("t")
    assert (numbers["messages"], numbers["state"], numbers["segments"], numbers["lost"]) == (40, "ok", 8, 0)
    assert numbers["bytes"] > 40 * len(PAYLOAD)
    assert numbers["evicted"]["segments"] == 7
    assert rig.findings() == []


@pytest.mark.parametrize("power_cut", [False, True])
def test_a_restart_knows_what_was_evicted(power_cut: bool) -> None:
    rig, _ = evicted()
    before = rig.records("t")
    described = rig.numbers("t")
    rig.reopen(power_cut=power_cut)
    rig.uploads = rig.another_process()
    assert rig.numbers("t") | {"evicted": None} == described | {"evicted": None}
    assert rig.records("t") == before
    rig.rounds(2)  # unlinked files may be back after a power cut
    assert (rig.numbers("t"), rig.records("t")) == (described, before)
    assert rig.away() == [0, 5, 10, 15, 20, 25, 30]


def test_a_consumer_gets_all_of_it_in_order() -> None:
    rig, _ = evicted()
    assert rig.take(rig.subscribe("t")) == []
    subscription = rig.subscribe("t")
    found: list[int] = []
    for _ in range(100):
        found += [msg_id for msg_id, _ in rig.take(subscription)]
        rig.advance(0.1)
    assert found == list(range(40))


def test_a_reader_that_goes_forward_has_the_next_segment_fetched_ahead() -> None:
    rig, bucket = evicted()
    log = rig.broker.topic("t").log
    with pytest.raises(BeingFetched):
        log.read(0, 5)
    rig.loop.drain()
    assert [segment.cached_path is not None for segment in log.segments[:4]] == [True, True, False, False]
    log.read(0, 5)
    log.read(5, 5)  # the one that was fetched ahead
    rig.loop.drain()
    assert log.segments[2].cached_path is not None
    with pytest.raises(BeingFetched):
        log.read(22, 1)  # in the middle: a look
    rig.loop.drain()
    assert [segment.cached_path is not None for segment in log.segments[3:6]] == [False, True, False]
    assert bucket.objects


def test_the_cache_is_bounded_and_cleaned_at_the_start() -> None:
    rig, _ = evicted(cache_bytes=1)
    for _ in range(3):
        rig.records("t")
    assert len(rig.disk.listdir(f"{DIR}/tier-cache")) == KEPT_MIN
    rig.reopen()
    assert rig.disk.listdir(f"{DIR}/tier-cache") == []
    assert len(rig.records("t")) == 40


def test_a_bucket_that_fails_makes_its_readers_wait_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    rig, bucket = evicted()
    get = bucket.get

    def failing(key: str) -> bytes | None:
        raise BucketError("the bucket: no route to host")

    bucket.get = failing  # type: ignore[method-assign]
    subscription = rig.subscribe("t")
    for _ in range(10):
        assert rig.take(subscription) == []
        rig.advance(10)
    rig.publish("u", b"others go on")
    assert rig.take(rig.subscribe("u")) == [(0, 1)]
    assert rig.numbers("t")["evicted"]["problem"] == "the bucket: no route to host"
    assert rig.broker.metrics.tier_fetch_failing == 1
    with pytest.raises(BeingFetched) as refused:
        rig.broker.topic("t").fetch(0, 5, 1 << 20)
    error = storage_error(refused.value)
    assert (error.code, error.retryable) == ("TIER_AWAY", True)
    assert str(error).startswith("the bucket: no route to host")
    assert caplog.text.count("cannot be fetched from the bucket") == 1, "once"
    bucket.get = get  # type: ignore[method-assign]
    found: list[int] = []
    for _ in range(100):
        taken = [msg_id for msg_id, _ in rig.take(subscription)]
        if taken:
            rig.ack("t", taken[0], taken[-1])
        found += taken
        rig.advance(1)
    assert found == list(range(40)), "nothing was skipped"
    assert rig.broker.metrics.tier_fetch_failing == 0
    assert rig.numbers("t")["evicted"]["problem"] is None


def test_a_bucket_that_is_away_as_a_whole_is_not_called_an_object_that_is_gone() -> None:
    rig, bucket = evicted()
    objects, bucket.objects = bucket.objects, {}
    subscription = rig.subscribe("t")
    rig.take(subscription)
    rig.advance(10)
    assert rig.numbers("t")["evicted"]["problem"].startswith("the bucket is empty: is its file system mounted")
    bucket.objects = {key: data for key, data in objects.items() if key != segment_key(rig.place(), 0)}
    rig.advance(60)
    assert rig.numbers("t")["evicted"]["problem"] == f"{segment_key(rig.place(), 0)} is gone from the bucket"


def test_a_damaged_object_is_never_served_and_never_skipped() -> None:
    rig, bucket = evicted()
    key = segment_key(rig.place(), 0)
    right = bucket.objects[key]
    bucket.objects[key] = right[:-1] + b"\xff"
    subscription = rig.subscribe("t")
    for _ in range(5):
        assert rig.take(subscription) == []
        rig.advance(10)
    assert "it is not what was evicted" in rig.numbers("t")["evicted"]["problem"]
    assert any("is damaged" in text for text in rig.findings())
    bucket.objects[key] = right
    rig.advance(60)
    assert rig.take(subscription)[0] == (0, 1)
    assert rig.numbers("t")["lost"] == 0


def test_a_fetched_file_that_is_damaged_or_removed_is_fetched_again() -> None:
    rig, _ = evicted()
    before = rig.records("t")
    log = rig.broker.topic("t").log
    (path,) = {segment.cached_path for segment in log.segments[:1]}
    assert path is not None
    file = rig.disk.open(path)
    file.pwrite(b"\xff" * 100, 900)
    file.close()
    log.close()
    assert rig.records("t") == before
    rig.disk.unlink(log.segments[0].cached_path)  # type: ignore[arg-type]
    log.close()
    assert rig.records("t") == before
    assert (log.lost, log.unreadable) == ([], [])


def test_without_a_tier_what_was_evicted_waits_for_one() -> None:
    rig, _ = evicted()
    before = rig.records("t")
    rig.reopen()
    cold = rig.broker.files.cold
    rig.broker.files.cold = NoCold()
    assert rig.take(rig.subscribe("t")) == []
    assert "--tier" in rig.numbers("t")["evicted"]["problem"]
    rig.broker.files.cold = cold
    assert rig.records("t") == before


def test_dead_letters_that_left_the_disk_are_redriven() -> None:
    rig = TierRig(MemoryBucket())
    rig.publish("t", *[b"%d " % n + PAYLOAD for n in range(20)])
    assert len(rig.take(rig.subscribe("t"))) == 20
    rig.nack("t", 0, 19, dead=True)
    assert rig.change("configure", "t.dlq", tier_local_bytes="0", dedupe_keys="0") == "OK"
    rig.broker.topic("t.dlq").retention._keys_kept = 0  # else they stay until there are many more
    rig.rounds(3)
    assert len(rig.away("t.dlq")) > 2
    answers: list[tuple[int, object]] = []
    rig.broker.redrive("t.dlq", None, None, lambda count, error: answers.append((count, error)))
    for _ in range(10):
        rig.advance(1)
    assert answers == [(20, None)]
    assert rig.broker.topic("t").messages() == 40


def test_a_redrive_whose_bucket_fails_says_so_and_goes_on_later() -> None:
    rig, bucket = evicted()
    rig.publish("u", PAYLOAD)
    rig.take(rig.subscribe("u"))
    rig.nack("u", 0, 0, dead=True)
    rig.broker.topic("u.dlq").retention._keys_kept = 0
    rig.broker.topic("u.dlq").committer.begin_segment()
    rig.loop.drain()
    assert rig.change("configure", "u.dlq", tier_local_bytes="0", dedupe_keys="0") == "OK"
    rig.rounds(3)
    assert rig.away("u.dlq") == [0]
    get = bucket.get

    def failing(key: str) -> bytes | None:
        raise BucketError("the bucket: no route to host")

    bucket.get = failing  # type: ignore[method-assign]
    assert rig.redrive("u.dlq") == (0, "STORAGE")
    bucket.get = get  # type: ignore[method-assign]
    rig.advance(60)
    assert rig.redrive("u.dlq") == (1, None)


def test_figures_of_what_is_in_the_bucket_fetch_nothing() -> None:
    rig, bucket = evicted()
    rig.subscribe("t")
    fetched: list[str] = []
    get = bucket.get
    bucket.get = lambda key: fetched.append(key) or get(key)  # type: ignore[func-returns-value, method-assign, assignment]
    rig.advance(5)
    assert rig.numbers("t")["consumers"]["c"]["oldest_unacked_age_s"] > 0
    rig.broker.stats()
    rig.loop.drain()
    assert fetched == []


# -- parts of a segment

RECORD = bytes(2000)
SEGMENT_BYTES = 1 << 20


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> int:
    """Use parts of about 64 records, eight to a segment."""
    monkeypatch.setattr("toymq_py.tier.parts.PART_BYTES", part_bytes := 128 << 10)
    for module in ("cold", "parts"):
        monkeypatch.setattr(f"toymq_py.tier.{module}.PARTED_MIN_BYTES", 2 * part_bytes)
    return part_bytes


def parted(bucket: MemoryBucket | FaultyBucket, **options: object) -> TierRig:
    """Return a broker with a topic of two and a half segments of 520 records each, each with its id as payload; two are in the
    bucket only."""
    rig = TierRig(bucket, segment_bytes=SEGMENT_BYTES, **options)
    assert rig.change("create", "t", tier_local_bytes="0") == "OK"
    for begin in range(0, 1300, 100):
        rig.publish("t", *[b"%d " % n + RECORD for n in range(begin, begin + 100)])
    rig.rounds(3)
    assert len(rig.away()) == 2
    return rig


def fetched(rig: TierRig, at: int, count: int = 1) -> list[bytes]:
    return [payload.split()[0] for payload in read(rig, at, count)]


def read(rig: TierRig, at: int, count: int) -> list[bytes]:
    log = rig.broker.topic("t").log
    for _ in range(200):
        try:
            run, row, next_id = log.read(at, count)
        except BeingFetched:
            rig.advance(10)
        else:
            assert run is not None
            return run.payloads[row : row + next_id - at]
    raise AssertionError(f"{at} is not fetched")


def test_a_read_in_the_middle_fetches_a_part_and_no_more(small_parts: int) -> None:
    rig = parted(bucket := MemoryBucket())
    assert fetched(rig, 300) == [b"300"]
    assert 0 < rig.broker.metrics.tier_fetched_bytes_total <= small_parts + 65536
    assert fetched(rig, 301) == [b"301"]
    assert fetched(rig, 800) == [b"800"]
    assert rig.broker.metrics.tier_fetched_bytes_total <= 2 * (small_parts + 65536), "what is here is not fetched again"
    assert rig.broker.topic("t").log.segments[0].is_away
    bucket.objects.clear()
    assert fetched(rig, 302) == [b"302"], "nothing more is asked for"


def test_a_reader_that_goes_forward_has_the_next_part_and_then_the_next_segment_ahead(small_parts: int) -> None:
    rig = parted(MemoryBucket())
    log, waits = rig.broker.topic("t").log, 0
    at, found = 300, []
    while at < log.committed_id:
        try:
            run, row, next_id = log.read(at, 10)
        except BeingFetched:
            waits += 1
        else:
            assert run is not None
            found += run.payloads[row : row + next_id - at]
            at = next_id
        rig.loop.drain()
    assert [payload.split()[0] for payload in found] == [b"%d" % n for n in range(300, 1300)]
    assert waits == 1, "for the first part"


def test_a_fetch_ends_where_it_would_have_to_wait(small_parts: int) -> None:
    """Otherwise it would wait for its whole range at once, which the cache may not hold."""
    rig = parted(MemoryBucket(), cache_bytes=1)
    log, at, found = rig.broker.topic("t").log, 100, 0
    for _ in range(100):
        try:
            _, count, at = log.read_frames(at, 10_000, 64 << 20)
        except BeingFetched:
            rig.loop.drain()
            continue
        found += count
    assert (at, found) == (log.committed_id, 1200)


@pytest.mark.parametrize("change", [unnamed, lambda seal: b"garbage"], ids=["old", "garbage"])
def test_a_segment_whose_seal_has_no_parts_is_fetched_whole(small_parts: int, change: Callable[[bytes], bytes]) -> None:
    rig = parted(bucket := MemoryBucket())
    key = seal_key(rig.place(), 0)
    bucket.objects[key] = change(bucket.objects[key])
    assert fetched(rig, 300) == [b"300"]
    assert not rig.broker.topic("t").log.segments[0].is_away
    assert len(rig.findings(repair=True)) == 1, "the disk knows the segment, so its seal is written anew"
    assert rig.findings() == []


@pytest.mark.parametrize("kinds", [[segment_key], [seal_key], [segment_key, seal_key]], ids=["log", "seal", "both"])
@pytest.mark.parametrize("at", [0, 300, 510])
def test_the_objects_of_another_topic_with_the_same_layout_are_never_served(
    small_parts: int, kinds: list[Callable[[Place, int], str]], at: int
) -> None:
    """Found: a read in the middle of such an object returned the other topic's records: they are valid, with the ids and
    positions of the index."""
    rig = parted(bucket := MemoryBucket())
    assert rig.change("create", "u", tier_local_bytes="0") == "OK"
    for begin in range(0, 1300, 100):
        rig.publish("u", *[b"%d other" % n + RECORD[5:] for n in range(begin, begin + 100)])
    rig.rounds(3)
    right = dict(bucket.objects)
    for key_of in kinds:
        bucket.objects[key_of(rig.place("t"), 0)] = right[key_of(rig.place("u"), 0)]
    assert len(right[segment_key(rig.place("t"), 0)]) == len(right[segment_key(rig.place("u"), 0)])
    log = rig.broker.topic("t").log
    if segment_key in kinds:
        for _ in range(3):
            with pytest.raises(BeingFetched):
                log.read(at, 1)
            rig.advance(10)
        assert "it is not what was evicted" in rig.numbers("t")["evicted"]["problem"]
        with pytest.raises(BeingFetched) as refused:
            rig.broker.topic("t").fetch(at, 5, 1 << 20)
        assert storage_error(refused.value).code == "TIER_AWAY"
        assert len(rig.findings()) == len(kinds)
        bucket.objects = right
    assert read(rig, at, 1) == [b"%d " % at + RECORD]
    assert read(rig, at + 600, 1) == [b"%d " % (at + 600) + RECORD]


def test_a_damaged_part_is_never_served(small_parts: int) -> None:
    rig = parted(bucket := MemoryBucket())
    key = segment_key(rig.place(), 0)
    right = bucket.objects[key]
    at = 300 * len(right) // 520
    bucket.objects[key] = right[:at] + bytes(5000) + right[at + 5000 :]
    with pytest.raises(BeingFetched):
        rig.broker.topic("t").log.read(300, 1)
    rig.loop.drain()
    with pytest.raises(BeingFetched, match="it is not what was evicted"):
        rig.broker.topic("t").log.read(300, 1)
    bucket.objects[key] = right
    assert fetched(rig, 300) == [b"300"]


def test_a_part_that_was_changed_on_the_disk_is_fetched_again(small_parts: int) -> None:
    rig = parted(MemoryBucket())
    read(rig, 300, 1)
    (name,) = rig.disk.listdir(f"{DIR}/tier-cache")
    rig.put(f"tier-cache/{name}", b"x" * 100_000)
    assert fetched(rig, 300) == [b"300"]
    assert rig.numbers("t")["lost"] == 0


@pytest.mark.parametrize("seed", range(20))
def test_reads_anywhere_with_faults_are_what_was_published(small_parts: int, seed: int) -> None:
    chance = random.Random(seed)
    rig = parted(bucket := FaultyBucket(MemoryBucket(), chance, 0.0), cache_bytes=chance.choice([1, 1 << 19, 1 << 30]))
    bucket.share, at = 0.3, 0
    for _ in range(30):
        act = chance.randrange(4)
        at = at if act == 0 and at < 1300 else chance.randrange(1300)
        try:
            found = fetched(rig, at, chance.randrange(1, 200))
        except Killed:
            bucket.share = 0.0
            rig.reopen(power_cut=chance.random() < 0.5)
            bucket.share = 0.3
            continue
        assert found == [b"%d" % n for n in range(at, at + len(found))]
        at += len(found)
    assert rig.numbers("t")["lost"] == 0
