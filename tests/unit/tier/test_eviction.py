"""Eviction under faults: messages are delivered once and in order, whatever happens to bucket and process."""

import errno
import random
from contextlib import suppress

import pytest

from tests.support.buckets import FaultyBucket, Killed, MemoryBucket
from tests.support.shares import seeds
from tests.support.tiers import PAYLOAD, TierRig, unnamed
from toymq_py.runtime.tier_thread import evict, look_at
from toymq_py.tier.bucket import BucketError
from toymq_py.tier.keys import seal_key, segment_key


class Reading:
    """A publisher and a consumer of one topic, which outlive the broker."""

    def __init__(self, rig: TierRig) -> None:
        self.rig = rig
        self.published: list[bytes] = []
        self.delivered: dict[int, bytes] = {}
        self.subscribe()

    def subscribe(self) -> None:
        self.subscription = self.rig.subscribe("t", visibility_s=1e6)

    def publish(self, count: int) -> None:
        payloads = [b"%d " % (len(self.published) + n) + PAYLOAD for n in range(count)]
        self.published += payloads  # a kill may come behind the commit
        self.rig.publish("t", *payloads)

    def take(self, *, ack: bool) -> None:
        while (delivery := self.subscription.take(1 << 16)) is not None:
            rows = range(delivery.start, delivery.stop)
            for row in rows:
                msg_id, payload = delivery.records.ids[row], delivery.records.payloads[row]
                assert payload == self.published[msg_id]
                self.delivered[msg_id] = payload
            if ack:
                self.rig.ack("t", delivery.first_id, delivery.last_id)

    def check_order(self) -> None:
        assert list(self.delivered) == sorted(self.delivered), "no message was skipped and came later"


@pytest.mark.parametrize("seed", seeds(25, 100))
def test_kills_and_faults_at_any_call_of_eviction_and_reads(seed: int) -> None:
    chance = random.Random(seed)
    rig = TierRig(bucket := FaultyBucket(MemoryBucket(), chance, 0.0), cache_bytes=chance.choice([1, 1 << 30]))
    assert rig.change("create", "t", tier_local_bytes=str(chance.choice([0, 9000])), retain_acked_for="1000000000") == "OK"
    reading = Reading(rig)
    bucket.share = 0.3
    for _ in range(30):
        act = chance.randrange(10)
        try:
            if act < 4:
                reading.publish(chance.randrange(1, 9))
            elif act < 7:
                reading.take(ack=chance.random() < 0.7)
            elif act == 7:
                rig.advance(5)
            elif act == 8:
                raise Killed  # noqa: TRY301
            else:
                rig.advance(40)
            with suppress(BucketError):
                rig.round()
        except Killed:
            bucket.share, share = 0.0, bucket.share
            rig.reopen(power_cut=chance.random() < 0.5)
            rig.uploads = rig.another_process()
            del reading.published[rig.broker.topic("t").next_id :]
            reading.subscribe()
            bucket.share = share
    bucket.share = 0.0
    for _ in range(40):
        reading.take(ack=True)
        rig.advance(10)
    reading.check_order()
    assert list(reading.delivered) == list(range(len(reading.published)))
    rig.rounds(3)
    assert rig.findings() == []
    assert [each[2] for each in rig.records("t")] == reading.published
    assert rig.numbers("t")["lost"] == 0
    again, done = rig.restored()
    assert done["t"].problems == []
    assert [each[2] for each in again.records("t")] == reading.published[: rig.sealed_below()]


def uploaded() -> TierRig:
    """Return a broker whose sealed segments, ids 0 to 34, are in the bucket and on the disk."""
    rig = TierRig(MemoryBucket())
    rig.publish("t", *[b"%d " % n + PAYLOAD for n in range(40)])
    rig.rounds(2)
    assert rig.change("configure", "t", tier_local_bytes="0") == "OK"
    return rig


def objects(rig: TierRig) -> dict[str, bytes]:
    assert isinstance(rig.bucket, MemoryBucket)
    return rig.bucket.objects


def begin_eviction(rig: TierRig) -> None:
    """Begin an eviction as the tier's thread does; no step of it has run yet."""
    done = rig.uploads.round(*look_at(rig.broker))
    evict(rig.broker, done.proven)


@pytest.mark.parametrize("power_cut", [False, True])
@pytest.mark.parametrize("steps", range(8))
def test_an_eviction_that_is_cut_off_loses_nothing(steps: int, power_cut: bool) -> None:
    rig = uploaded()
    before = rig.records("t")
    begin_eviction(rig)
    for _ in range(steps):
        rig.loop.step()
    rig.reopen(power_cut=power_cut)
    rig.uploads = rig.another_process()
    assert (rig.records("t"), rig.numbers("t")["lost"]) == (before, 0)
    rig.rounds(2)
    assert (rig.records("t"), len(rig.away()), rig.findings()) == (before, 7, [])


def test_nothing_more_leaves_the_disk_for_a_bucket_that_lacks_what_left_it_before(caplog: pytest.LogCaptureFixture) -> None:
    """Found: started with the URL of another bucket, the broker divided the history over both."""
    rig = uploaded()
    rig.rounds(2)
    away = rig.away()
    assert away
    objects(rig).clear()
    rig.reopen()
    rig.uploads = rig.another_process()
    rig.publish("t", *[PAYLOAD] * 20)
    rig.rounds(3)
    assert rig.away() == away
    assert f"{segment_key(rig.place(), away[0])} is not in the bucket, and not on the disk" in caplog.text


@pytest.mark.parametrize("steps", range(12))
@pytest.mark.parametrize("first", ["purge", "eviction"])
def test_what_is_purged_while_it_is_evicted_does_not_come_back(first: str, steps: int) -> None:
    rig = uploaded()
    if first == "eviction":
        begin_eviction(rig)
    rig.broker.topic("t").purge(lambda count, error: None)
    if first == "purge":
        begin_eviction(rig)
    for _ in range(steps):
        rig.loop.step()
    rig.loop.drain()
    rig.rounds(2)
    assert rig.numbers("t")["messages"] == 0
    rig.reopen()
    rig.uploads = rig.another_process()
    rig.rounds(2)
    assert (rig.numbers("t")["messages"], rig.away(), rig.numbers("t")["state"]) == (0, [], "ok")
    assert rig.findings() == []
    assert not any(key.endswith(".log") for key in objects(rig)), "and the bucket lets it go"


@pytest.mark.parametrize("op", ["pwrite", "sync", "rename", "unlink", "open"])
def test_a_disk_that_refuses_keeps_the_segments(op: str) -> None:
    rig = uploaded()
    before = rig.records("t")
    begin_eviction(rig)
    rig.disk.fail(op, 1, errno.EIO)
    rig.loop.drain()
    assert rig.records("t") == before
    rig.disk.heal()
    rig.reopen()
    rig.uploads = rig.another_process()
    rig.rounds(2)
    assert (rig.records("t"), len(rig.away())) == (before, 7)


def test_retention_rules_what_is_in_the_bucket_alone() -> None:
    rig = uploaded()
    rig.rounds(2)
    assert len(rig.away()) == 7
    size = rig.numbers("t")["bytes"]
    assert rig.change("configure", "t", retain_max_bytes=str(size // 2)) == "OK"
    rig.publish("t", PAYLOAD)
    rig.rounds(2)
    numbers = rig.numbers("t")
    assert 0 < len(rig.away()) < 7
    assert numbers["bytes"] <= size // 2 + 4096
    assert (numbers["first_id"], numbers["state"]) == (rig.away()[0], "ok")
    assert sum(key.endswith(".log") for key in objects(rig)) == numbers["segments"] - 1
    rig.reopen()
    assert rig.numbers("t")["first_id"] == numbers["first_id"]
    rig.uploads = rig.another_process()
    assert rig.findings() == []


def test_what_the_next_start_needs_stays_on_the_disk() -> None:
    rig = TierRig(MemoryBucket(), dedupe_keys=8)
    assert rig.change("create", "t", tier_local_bytes="0") == "OK"
    for n in range(40):
        rig.publish("t", PAYLOAD, key=b"key-%d" % n if n >= 20 else b"")
    rig.rounds(3)
    assert rig.away() == [0, 5, 10, 15, 20, 25], "of the newest 8 keys the oldest is that of 32"
    rig.reopen()
    assert [type(each).__name__ for each in rig.publish("t", PAYLOAD, key=b"key-32")] == ["Duplicate"]


def test_a_producer_is_remembered_though_its_records_left_the_disk() -> None:
    rig = TierRig(MemoryBucket())
    assert rig.change("create", "t", tier_local_bytes="0") == "OK"
    publisher = rig.broker.topic("t").publisher
    for sequence in range(1, 31):
        publisher.publish_sequenced([b"p"], [PAYLOAD], None, [sequence])
        rig.loop.drain()
    rig.publish("t", *[PAYLOAD] * 10)
    rig.rounds(3)
    assert rig.away()[:6] == [0, 5, 10, 15, 20, 25]
    rig.reopen()
    outcomes = rig.broker.topic("t").publisher.publish_sequenced([b"p"], [PAYLOAD], None, [30])
    rig.loop.drain()
    assert [type(each).__name__ for each in outcomes] == ["Duplicate"]


def test_nothing_leaves_the_disk_that_does_not_stand_in_the_bucket(caplog: pytest.LogCaptureFixture) -> None:
    rig = uploaded()
    bucket = rig.bucket
    assert isinstance(bucket, MemoryBucket)
    del bucket.objects[seal_key(rig.place(), 0)]
    bucket.objects[segment_key(rig.place(), 5)] = b"short"
    bucket.objects[seal_key(rig.place(), 10)] = b"{}"
    rig.rounds(3)
    assert rig.away() == [15, 20, 25, 30]
    assert caplog.text.count("the segment stays on the disk") == 3


def test_what_does_not_stand_in_the_bucket_keeps_nothing_else_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toymq_py.tier.uploads.PROVEN_MAX", 2)
    rig = uploaded()
    for first_id in (0, 5, 10):
        del objects(rig)[seal_key(rig.place(), first_id)]
    rig.rounds(5)
    assert rig.away() == [15, 20, 25, 30]


def test_a_segment_is_compared_once_though_the_disk_is_too_full_for_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = uploaded()
    asked: list[str] = []
    bucket = rig.bucket
    size = bucket.size
    monkeypatch.setattr(bucket, "size", lambda key: asked.append(key) or size(key))
    rig.disk.fail("open", 1, errno.ENOSPC, sticky=True, path="evicted.json")
    rig.rounds(3)
    assert (rig.away(), len(asked)) == ([], 7)
    rig.disk.heal()
    rig.rounds(1)
    assert len(rig.away()) == 7


def test_old_segments_leave_the_disk_by_age() -> None:
    rig = uploaded()
    assert rig.change("configure", "t", tier_local_bytes="default", tier_local_age=str(3_600_000)) == "OK"
    rig.rounds(2)
    assert rig.away() == []
    rig.advance(3_600)
    rig.publish("t", *[PAYLOAD] * 10)
    rig.rounds(2)
    assert rig.away() == [0, 5, 10, 15, 20, 25, 30, 35], "and the next is young"


def test_both_generations_of_the_list_are_needed_for_nothing_to_be_known() -> None:
    rig = uploaded()
    before = rig.records("t")
    rig.rounds(2)
    rig.put("topics/t/evicted.json", b"{}")
    rig.reopen()
    assert rig.records("t") == before
    rig.put("topics/t/evicted.json.prev", b"{}")
    rig.reopen()
    assert "t" in rig.broker.unopened, "its records are not taken for lost: no consumer passes them"


def test_a_seal_that_names_no_topic_is_written_anew_before_its_segment_leaves_the_disk() -> None:
    rig = uploaded()
    bucket = rig.bucket
    assert isinstance(bucket, MemoryBucket)
    whole = dict(bucket.objects)
    for key in bucket.objects:
        if key.endswith(".seal"):
            bucket.objects[key] = unnamed(bucket.objects[key])
    begin_eviction(rig)
    rig.rounds(3)
    assert rig.away() != []
    assert all(bucket.objects[seal_key(rig.place(), at)] == whole[seal_key(rig.place(), at)] for at in rig.away())


def test_a_segment_with_the_seal_of_another_one_stays_on_the_disk(caplog: pytest.LogCaptureFixture) -> None:
    rig = uploaded()
    rig.bucket.put(seal_key(rig.place(), 5), rig.bucket.get(seal_key(rig.place(), 0)) or b"")
    begin_eviction(rig)
    rig.rounds(3)
    assert 0 in rig.away()
    assert 5 not in rig.away()
    assert "its seal: it is the seal of the segment that begins at 0" in caplog.text
