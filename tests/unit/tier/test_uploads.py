"""Sealed segments get into the bucket, whatever happens to the bucket's calls and to the process that makes them."""

import random

import pytest

from tests.support.buckets import FaultyBucket, Killed, MemoryBucket
from tests.support.shares import seeds
from tests.support.tiers import PAYLOAD, TierRig
from toymq_py.errors import DataDirectoryError
from toymq_py.runtime.tier_thread import look_at
from toymq_py.storage import offsets
from toymq_py.tier import deletions
from toymq_py.tier.bucket import BucketError, DirectoryBucket
from toymq_py.tier.keys import deleted_key, holdings, seal_key, segment_key, state_key
from toymq_py.tier.objects import State
from toymq_py.tier.states import NEWEST_KEPT


def segments_of(bucket: MemoryBucket, rig: TierRig) -> list[int]:
    return sorted(holdings(bucket.keys())[rig.place()].segments)


def test_sealed_segments_are_uploaded_once_and_the_active_one_is_not() -> None:
    rig = TierRig(bucket := MemoryBucket())
    rig.publish("small", b"x")
    rig.publish("t", *[PAYLOAD] * 12)
    assert rig.round().segments == 2
    assert segments_of(bucket, rig) == [0, 5]
    for first_id in (0, 5):
        path = f"{rig.broker.topic('t').path}/{first_id:020}.log"
        assert bucket.objects[segment_key(rig.place(), first_id)] == rig.disk.read_file(path)
    assert rig.broker.topic("small").settings_queue.incarnation is None, "a topic that sealed nothing costs nothing"
    before = dict(bucket.objects)
    assert rig.round().segments == 0
    assert bucket.objects == before, "nothing changed, and nothing is written"
    rig.uploads = rig.another_process()
    assert rig.round().segments == 0, "another process sees what is there"
    assert rig.findings() == []


def test_what_a_purge_and_a_delete_remove_leaves_the_bucket_with_its_reason_first() -> None:
    rig = TierRig(bucket := MemoryBucket())
    rig.publish("t", *[PAYLOAD] * 12)
    rig.round()
    rig.purge("t")
    rig.publish("t", *[PAYLOAD] * 6)
    rig.round()
    assert segments_of(bucket, rig) == [12]
    objects = dict(bucket.objects)
    again, done = rig.restored()
    bucket.objects = objects  # of a copy: the restore has told the bucket
    assert done["t"].problems == []
    assert again.broker.topic("t").first_id == 12, "no hole where the purge was"
    rig.delete("t")
    rig.round()
    assert bucket.objects == {}


@pytest.mark.parametrize("after", range(9))
def test_a_deletion_that_was_cut_off_is_ended_by_the_next_process(after: int) -> None:
    """The deletion covers two segments, two seals, a state and two marks; it is killed at each call after the first mark."""
    rig = TierRig(bucket := MemoryBucket())
    rig.publish("t", *[PAYLOAD] * 12)
    rig.round()
    rig.delete("t")
    left, delete = [after], bucket.delete

    def dying(key: str) -> None:
        if not left[0]:
            raise Killed
        left[0] -= 1
        delete(key)

    bucket.delete = dying  # type: ignore[method-assign]
    rig.rounds(1)
    bucket.delete = delete  # type: ignore[method-assign]
    rig.rounds(2)
    assert bucket.objects == {}


def test_a_topic_made_anew_has_a_place_of_its_own() -> None:
    rig = TierRig(bucket := MemoryBucket())
    rig.publish("t", *[PAYLOAD] * 12)
    rig.round()
    old = rig.place()
    rig.delete("t")
    rig.publish("t", *[PAYLOAD] * 7)
    rig.round()
    rig.round()
    assert {*holdings(bucket.keys())} == {rig.place()}
    assert rig.place() != old


def test_a_segment_that_is_out_of_the_log_and_not_unlinked_yet_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: a round of uploads saw the file but not the segment in the log, considered the topic done, and never looked
    again."""
    rig = TierRig(bucket := MemoryBucket())
    rig.publish("t", *[PAYLOAD] * 12)
    rig.round()
    rig.purge("t")
    with monkeypatch.context() as before_the_unlink:
        before_the_unlink.setattr("toymq_py.tier.uploads.list_log", lambda fs, path: ([0, 5, 12], {}))
        rig.round()
    assert segments_of(bucket, rig) == [0, 5]
    rig.round()
    assert segments_of(bucket, rig) == []


def test_acks_of_a_busy_topic_are_not_parsed_in_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = TierRig(MemoryBucket())
    rig.publish("t", *[PAYLOAD] * 12)
    rig.round()
    read: list[str] = []
    load = offsets.load
    monkeypatch.setattr(offsets, "load", lambda fs, path: read.append(path) or load(fs, path))
    for _ in range(5):
        rig.publish("t", b"x")
        rig.clock.advance(1)
        rig.uploads.round(*look_at(rig.broker))
    assert len(read) == 0
    rig.round()
    assert len(read) == 1


def test_states_are_few_and_seldom() -> None:
    rig = TierRig(bucket := MemoryBucket())
    rig.publish("t", *[PAYLOAD] * 6)
    for _ in range(9):
        rig.publish("t", b"x")
        rig.round()
    assert NEWEST_KEPT <= len(holdings(bucket.keys())[rig.place()].states) <= NEWEST_KEPT + 1


def test_a_state_that_was_not_due_is_stored_when_it_is_though_nothing_changes_any_more() -> None:
    """Found by a user: a restore reported "ok" without the messages that got OK after the last sealed segment."""
    rig = TierRig(bucket := MemoryBucket())
    rig.publish("t", *[PAYLOAD] * 6)
    rig.round()
    rig.publish("t", *[PAYLOAD] * 6)
    rig.clock.advance(1)
    rig.uploads.round(*look_at(rig.broker))
    states = holdings(bucket.keys())[rig.place()].states
    rig.clock.advance(10)
    rig.uploads.round(*look_at(rig.broker))
    newest = holdings(bucket.keys())[rig.place()].states - states
    assert [State.decode(bucket.objects[state_key(rig.place(), at)], rig.place()).next_id for at in newest] == [12]


def test_an_object_of_another_writer_is_named_and_not_overwritten(caplog: pytest.LogCaptureFixture) -> None:
    rig = TierRig(bucket := MemoryBucket())
    rig.publish("t", *[PAYLOAD] * 6)
    rig.broker.topic("t").settings_queue.identify(lambda: None)
    rig.loop.drain()
    key = segment_key(rig.place(), 0)
    bucket.objects[key] = b"another"
    for _ in range(2):
        rig.round()
    assert bucket.objects[key] == b"another"
    assert seal_key(rig.place(), 0) not in bucket.objects
    assert caplog.text.count("is not the segment of") == 1


def test_a_bucket_that_is_away_raises_and_the_next_round_goes_on() -> None:
    rig = TierRig(bucket := FaultyBucket(MemoryBucket(), random.Random(3), 0.0))
    rig.publish("t", *[PAYLOAD] * 6)
    bucket.share = 1.0
    with pytest.raises((BucketError, Killed)):
        rig.round()
    bucket.share = 0.0
    assert rig.round().segments == 1


def test_a_stray_deleted_object_deletes_nothing() -> None:
    """Found: a broker on a new disk took an empty one for an interrupted deletion, and deleted the only copies."""
    rig = TierRig(bucket := MemoryBucket())
    rig.publish("t", *[PAYLOAD] * 12)
    rig.round()
    objects, key = dict(bucket.objects), deleted_key(rig.place())
    bucket.objects[key] = b""
    TierRig(bucket).round()
    assert bucket.objects == objects | {key: b""}, "this one does not have the topic"
    rig.uploads = rig.another_process()
    rig.round()
    assert (objects.items() <= bucket.objects.items(), key in bucket.objects) == (True, False), "it lives here"
    bucket.objects[key] = deletions.encode(rig.place(), 7)
    TierRig(bucket).round()
    assert bucket.objects == {}


@pytest.mark.parametrize("is_seen", [True, False])
def test_a_directory_that_was_away_or_is_another_one_gets_what_is_missing(is_seen: bool) -> None:
    """Found: objects were written to the empty mount point meanwhile, and were missing when the directory was back."""
    rig = TierRig(MemoryBucket())
    rig.bucket = DirectoryBucket(rig.disk, "/mnt/orders")
    rig.uploads = rig.another_process()
    rig.publish("t", *[PAYLOAD] * 6)
    rig.round()
    rig.disk.rename("/mnt/orders", "/mnt/other")
    if is_seen:
        for _ in range(2):
            with pytest.raises(BucketError, match="/mnt/orders is gone"):
                rig.round()
        assert not rig.disk.exists("/mnt/orders")
        rig.disk.unlink(f"/mnt/other/{segment_key(rig.place(), 0)}")
        rig.disk.rename("/mnt/other", "/mnt/orders")
    else:
        rig.disk.mkdir("/mnt/orders")
    assert rig.round().segments == 1, "and nothing changed in the broker"
    assert rig.findings() == []
    again, done = rig.restored()
    assert (again.records("t"), done["t"].problems) == (rig.records("t")[:5], [])


@pytest.mark.parametrize("seed", seeds(25, 100))
def test_faults_and_kills_at_any_call_lose_nothing_and_leave_nothing(seed: int) -> None:
    """Upload, states, retention and deletion, with a bucket that fails or times out after the effect, and a process that
    dies."""
    chance = random.Random(seed)
    rig = TierRig(bucket := FaultyBucket(memory := MemoryBucket(), chance, 0.3))
    for step in range(25):
        act = chance.randrange(10)
        topic = chance.choice("tu")
        if act < 6:
            rig.publish(topic, *[b"%d" % step + PAYLOAD] * chance.randrange(1, 9))
        elif act == 6 and topic in rig.broker.topics:
            rig.purge(topic)
        elif act == 7 and topic in rig.broker.topics:
            rig.delete(topic)
        elif act == 8:
            rig.reopen(power_cut=chance.random() < 0.5)
            rig.uploads = rig.another_process()
        rig.rounds(chance.randrange(3))
    assert bucket.faults, "or it shows nothing"
    bucket.share = 0.0
    rig.rounds(3)
    alive = {rig.place(name) for name, topic in rig.broker.topics.items() if topic.settings_queue.incarnation is not None}
    strays = {*holdings(memory.keys())} - alive
    unmarked = [text for text in rig.findings() if "is in the bucket alone, with" not in text]
    assert unmarked == [], "both directions agree"
    for place in strays:  # a kill between DELETE and the mark: nothing but the operator can tell it from a lost disk
        assert rig.findings(), place
    try:
        again, done = rig.restored()
    except DataDirectoryError:
        assert not alive
        return
    for place in alive:
        found = done[place.topic]
        if found.place != place:
            continue
        below = rig.sealed_below(place.topic) if rig.broker.topic(place.topic).log.segments else 0
        expected = [record for record in rig.records(place.topic) if record[0] < below]
        assert again.records(place.topic) == expected, f"topic {place.topic}: what is sealed is there, byte for byte"
        assert again.broker.topic(place.topic).next_id >= below
        ids = [msg_id for first, last in found.unsealed for msg_id in range(first, last + 1)]
        assert ids == list(range(below, max(rig.broker.topic(place.topic).next_id, below))), "and what is not is named"
