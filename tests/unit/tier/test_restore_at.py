"""A restore to a time: the records up to it, the consumers of then, and ids that were not used since. What is gone is named."""

import random
from dataclasses import replace

import pytest

from tests.support.broker_rig import BrokerRig
from tests.support.buckets import FaultyBucket, Killed, MemoryBucket
from tests.support.shares import seeds
from tests.support.tiers import AGAIN, PAYLOAD, TierRig, exchange
from toymq_py.errors import DataDirectoryError
from toymq_py.storage import offsets
from toymq_py.storage.segment_heads import log_incarnation
from toymq_py.tier.bucket import BucketError
from toymq_py.tier.keys import holdings, seal_key, segment_key, state_key
from toymq_py.tier.objects import State
from toymq_py.tier.restore import restore
from toymq_py.tier.states import IDS_LEFT_OUT


def publish(rig: TierRig, count: int, topic: str = "t") -> None:
    """Publish a record every ten seconds, with its id as payload."""
    for _ in range(count):
        next_id = rig.broker.topic(topic).next_id if topic in rig.broker.topics else 0
        rig.publish(topic, b"%d " % next_id + PAYLOAD)
        rig.advance(10)


def acked(rig: BrokerRig) -> int:
    return rig.broker.topic("t").channel("c").consumer.last_acked


def written() -> tuple[TierRig, MemoryBucket, int]:
    """Return a broker, its bucket and a time: before it ids 0 to 6 with 0 to 2 acked, then ids up to 27 with 0 to 20 acked; a
    state of each."""
    rig = TierRig(bucket := MemoryBucket())
    publish(rig, 7)
    reader = rig.subscribe("t")
    rig.take(reader)
    rig.ack("t", 0, 2)
    rig.round()
    then = rig.clock.wall_ns()
    rig.advance(5)
    publish(rig, 21)
    rig.take(reader)
    rig.ack("t", 3, 20)
    rig.round()
    return rig, bucket, then


def test_records_and_consumers_are_those_of_the_time_and_the_bucket_does_not_change() -> None:
    """The time is in the middle of the second segment, which was not sealed then."""
    rig, bucket, then = written()
    objects = dict(bucket.objects)
    again, done = rig.restored(then)
    assert again.records("t") == rig.records("t")[:7], "ids 5 and 6 were sealed later, and were there"
    assert acked(again) == 2
    assert (done["t"].problems, done["t"].unsealed, done["t"].segments) == ([], [], 2)
    assert bucket.objects == objects
    assert again.broker.topic("t").state == "ok"


def test_ids_behind_all_that_were_used_and_an_incarnation_of_its_own() -> None:
    rig, bucket, then = written()
    again, done = rig.restored(then)
    again.publish("t", b"other")
    assert again.records("t")[-1][0] == 28 + IDS_LEFT_OUT == done["t"].next_id
    incarnation = again.broker.topic("t").settings_queue.incarnation
    assert incarnation == done["t"].place.incarnation != rig.place().incarnation
    again.flush("t")
    path = again.broker.topic("t").path
    assert {log_incarnation(again.disk, path), offsets.load(again.disk, path).state.incarnation} == {incarnation}
    assert again.broker.topic("t").log.lost == []
    assert again.broker.topic("t").fetch(20, 10, 1000)[1] == 1, "a reader that stood behind the time goes on at what is new"
    before = {key: data for key, data in bucket.objects.items() if rig.place().incarnation in key}
    again.broker.close()
    tiered = TierRig(bucket, disk=rig.disk, data_dir=AGAIN)
    tiered.publish("t", *[PAYLOAD] * 12)
    tiered.round()
    assert before.items() <= bucket.objects.items(), "it may go on in the same bucket"
    assert {0, 5} <= holdings(bucket.keys())[tiered.place()].segments, "which gets all of it anew"


def test_a_second_restore_of_what_was_restored() -> None:
    """A time before the first restore gives the old topic, a later one the new topic; ids are used once."""
    rig, bucket, then = written()
    between = rig.clock.wall_ns()
    again, _ = rig.restored(then)
    again.broker.close()
    tiered = TierRig(bucket, disk=rig.disk, data_dir=AGAIN)
    tiered.clock.advance(between // 10**9 + 1000 - tiered.clock.wall_ns() // 10**9)
    tiered.publish("t", *[b"new" + PAYLOAD] * 12)
    tiered.round()
    tiered.publish("t", *[b"new" + PAYLOAD] * 12)
    tiered.round()
    highest = tiered.records("t")[-1][0]
    disk = tiered.disk
    for name, at, expected in (
        ("old", between, rig.records("t")[:25]),
        ("new", tiered.clock.wall_ns(), tiered.records("t")[: -(tiered.broker.topic("t").next_id - tiered.sealed_below())]),
    ):
        (done,) = restore(disk, bucket, f"/data/{name}", pid=1, now_ns=tiered.clock.wall_ns(), at_ns=at)
        found = BrokerRig(disk=disk, data_dir=f"/data/{name}")
        assert found.records("t") == expected, name
        assert done.next_id > highest, name
        found.broker.close()


def test_what_was_not_sealed_is_named_where_the_state_knows_it() -> None:
    rig, _, _ = written()
    again, done = rig.restored(rig.clock.wall_ns())
    assert (len(again.records("t")), done["t"].unsealed) == (25, [(25, 27)])
    assert again.broker.topic("t").log.lost == [(25, 27)]


def test_what_retention_removed_since_is_named_and_no_loss() -> None:
    rig, bucket, then = written()
    rig.purge("t")
    publish(rig, 6)
    rig.round()
    assert 0 not in holdings(bucket.keys())[rig.place()].segments
    again, done = rig.restored(then)
    text = "records 0 to 6 were there, were removed by retention or PURGE since, and are not in the bucket any more"
    assert done["t"].problems == [text]
    assert (again.records("t"), again.broker.topic("t").log.lost) == ([], [])
    again.publish("t", b"x")
    assert again.take(again.subscribe("t")) == [(done["t"].next_id, 1)]


def test_what_is_removed_by_now_and_still_in_the_bucket_comes_back() -> None:
    rig, bucket, then = written()
    objects = dict(bucket.objects)
    rig.purge("t")
    publish(rig, 6)
    rig.round()
    bucket.objects = objects | bucket.objects  # its deletion was cut off
    again, done = rig.restored(then)
    assert (len(again.records("t")), done["t"].problems) == (7, [])


def test_a_time_before_the_first_state_has_records_and_no_consumers() -> None:
    rig = TierRig(MemoryBucket())
    assert rig.change("create", "t", visibility="7000") == "OK"
    publish(rig, 8)
    then = rig.clock.wall_ns()
    publish(rig, 8)
    rig.take(rig.subscribe("t"))
    rig.ack("t", 0, 12)
    rig.round()
    again, done = rig.restored(then)
    assert again.records("t") == rig.records("t")[:9], "the one of this very time is in"
    assert "c" not in again.broker.topic("t").channels
    assert again.broker.topic("t").settings.visibility == 7000
    why = "it gets no consumers, and its settings are those of the first state behind it"
    assert done["t"].problems == [f"the bucket has no state of then: {why}"]


def test_a_time_before_everything_is_refused_and_leaves_nothing() -> None:
    rig, _, _ = written()
    with pytest.raises(DataDirectoryError, match=r"nothing from 1970-01-01 .* its first state is of .* name a later time"):
        rig.restored(5)
    assert not rig.disk.is_dir(AGAIN)
    rig.disk.mkdir(AGAIN)
    with pytest.raises(DataDirectoryError):
        rig.restored(5)
    assert rig.disk.listdir(AGAIN) == [], "the directory was there, and stays"
    assert rig.restored(rig.clock.wall_ns())[1]["t"].segments, "the directory can be used"


def test_a_topic_that_was_made_later_is_not_restored_and_said_so() -> None:
    rig, _, then = written()
    publish(rig, 7, "u")
    rig.round()
    again, done = rig.restored(then)
    assert "made later, or made anew" in str(done["u"].why_absent)
    assert done["t"].why_absent is None
    assert [*again.broker.topics] == ["t"]


@pytest.mark.parametrize("is_old_there", [False, True], ids=["deleted", "left over"])
def test_a_topic_that_was_deleted_and_made_anew(is_old_there: bool) -> None:
    rig, bucket, then = written()
    objects, old = dict(bucket.objects), rig.records("t")[:7]
    rig.delete("t")
    publish(rig, 7)
    rig.rounds(2)
    if not is_old_there:
        with pytest.raises(DataDirectoryError, match="the bucket has nothing from"):
            rig.restored(then)
        return
    bucket.objects = objects | bucket.objects
    again, done = rig.restored(then)
    assert (again.records("t"), done["t"].problems) == (old, [])
    assert done["t"].next_id >= 28 + IDS_LEFT_OUT, "behind the ids of both"


def test_records_of_a_clock_that_was_ahead_were_there_when_something_came_behind_them() -> None:
    rig = TierRig(MemoryBucket())
    rig.clock.jump_wall(30 * 86_400)
    publish(rig, 7)
    rig.clock.jump_wall(-30 * 86_400)
    publish(rig, 7)
    then = rig.clock.wall_ns()
    publish(rig, 9)
    rig.round()
    again, _ = rig.restored(then)
    assert again.records("t") == rig.records("t")[:15], "also those whose time is a month ahead"


@pytest.mark.parametrize("is_more", [False, True], ids=["the end", "more behind"])
def test_records_that_a_state_knows_were_there_whatever_their_time(is_more: bool) -> None:
    """After a clock was an hour ahead and set right, the times of records stand still (ADR 0050): they are later than the real
    time."""
    rig = TierRig(MemoryBucket())
    rig.clock.jump_wall(3600)
    publish(rig, 12)
    rig.clock.jump_wall(-3600)
    rig.round()
    then = rig.clock.wall_ns()
    rig.advance(5)
    if is_more:
        publish(rig, 9)
        rig.round()
    again, done = rig.restored(then)
    assert again.records("t") == rig.records("t")[: 12 if is_more else 10]
    assert done["t"].unsealed == ([] if is_more else [(10, 11)])


def test_ids_that_were_removed_since_from_the_middle_are_no_loss() -> None:
    """Retention removed them behind a segment that has to stay."""
    rig, bucket, then = written()
    place = rig.place()
    at = max(holdings(bucket.keys())[place].states)
    state = State.decode(bucket.objects[state_key(place, at)], place)
    known = replace(offsets.decode(state.offsets or b""), removed=((2, 3), (5, 9)))
    bucket.put(state_key(place, at), State(state.next_id, offsets.encode(known, "t"), None).encode(place))
    bucket.delete(segment_key(place, 5))
    bucket.delete(seal_key(place, 5))
    again, done = rig.restored(then)
    assert again.records("t") == rig.records("t")[:5]
    assert again.broker.topic("t").log.lost == []
    assert [problem[:15] for problem in done["t"].problems] == ["records 5 to 6 "]


def test_a_damaged_segment_is_named_and_the_state_of_then_stands_for_its_ids() -> None:
    rig, bucket, then = written()
    key = segment_key(rig.place(), 5)
    bucket.objects[key] = b"garbage"
    again, done = rig.restored(then)
    assert [problem.startswith(f"{key} is damaged: ") for problem in done["t"].problems] == [True]
    assert again.records("t") == rig.records("t")[:5]
    assert again.broker.topic("t").log.lost[0][0] == 5


@pytest.mark.parametrize("data", [b"", b"x" * 100], ids=["empty", "garbage"])
@pytest.mark.parametrize("first_id", [0, 5, 7, 12, 999_999, 2**63])
def test_garbage_in_the_bucket_is_named_and_costs_what_it_replaced(first_id: int, data: bytes) -> None:
    rig, bucket, then = written()
    key = segment_key(rig.place(), first_id)
    bucket.objects[key] = data
    bucket.delete(seal_key(rig.place(), first_id))
    bucket.objects[f"t/{rig.place().incarnation}/junk"] = b""
    bucket.objects["junk"] = b""
    again, done = rig.restored(then)
    assert again.records("t") == [each for each in rig.records("t")[:7] if each[0] // 5 != first_id / 5]
    assert done["t"].problems in ([], [f"{key} has no seal and no record: it is left out"])
    assert bool(done["t"].problems) or first_id > 7
    assert done["t"].next_id < 2**32


@pytest.mark.parametrize("seed", seeds(20, 60))
def test_any_time_of_any_history(seed: int) -> None:
    """The bucket fails and processes die, then the restore is killed and run again: the result is a prefix of the log up to the
    time, in ids and bytes; missing records are named."""
    chance = random.Random(seed)
    rig = TierRig(bucket := FaultyBucket(memory := MemoryBucket(), chance, 0.2))
    history: list[tuple[int, int, int]] = []
    """Time, first id, next id."""
    for _ in range(20):
        act = chance.randrange(8)
        if act < 6:
            publish(rig, chance.randrange(1, 9))
        elif act == 6 and "t" in rig.broker.topics:
            rig.purge("t")
        else:
            rig.reopen(power_cut=chance.random() < 0.5)
            rig.uploads = rig.another_process()
        rig.rounds(chance.randrange(3))
        if "t" in rig.broker.topics:
            topic = rig.broker.topic("t")
            history.append((rig.clock.wall_ns(), topic.first_id, topic.next_id))
            rig.clock.advance(1)
    bucket.share = 0.0
    publish(rig, 8)
    rig.rounds(3)
    objects, all_records = dict(memory.objects), rig.records("t")
    then, _, next_id = chance.choice(history)
    bucket.share = 0.2
    rig.bucket = bucket
    while True:
        try:
            (done,) = restore(rig.disk, bucket, AGAIN, pid=1, now_ns=rig.clock.wall_ns(), at_ns=then)
            break
        except DataDirectoryError as error:
            assert "nothing from" in str(error)  # noqa: PT017
            return
        except (BucketError, Killed):
            bucket.share *= 0.8
            rig.disk = rig.disk.kill() if chance.random() < 0.5 else rig.disk.crash()
    assert memory.objects == objects, "it only reads"
    again = BrokerRig(disk=rig.disk.crash(), data_dir=AGAIN)
    found = again.records("t")
    assert found == [record for record in all_records if found and found[0][0] <= record[0] <= found[-1][0]]
    assert all(record[0] < next_id for record in found)
    present = {record[0] for record in found} | {n for first, last in done.unsealed for n in range(first, last + 1)}
    assert {record[0] for record in all_records if record[0] < next_id} <= present, "all of then that is there now"
    again.publish("t", b"x")
    assert again.records("t")[-1][0] >= rig.broker.topic("t").next_id + IDS_LEFT_OUT - 50


def test_segments_of_two_topics_that_were_exchanged_are_named_and_left_out() -> None:
    """Found, with a time in the middle of the second segment: the records of one topic were restored to the other one."""
    rig, bucket, then = written()
    before, known = rig.records("t"), dict(bucket.objects)
    rig.advance(1000)
    publish(rig, 28, "u")
    rig.round()
    exchange(bucket, rig.place("t"), rig.place("u"), "log", "seal")
    again, done = rig.restored(then)
    assert len(done["t"].problems) == 5, "when it began is not known of any"
    assert all("it is the seal of another topic" in problem for problem in done["t"].problems)
    assert (again.records("t"), done["t"].segments) == ([], 0)
    bucket.objects |= known
    rig.disk.rename(AGAIN, "/data/first")
    again, done = rig.restored(then)
    assert (again.records("t"), done["t"].problems) == (before[:7], [])


def test_a_segment_of_another_time_in_its_place_does_not_hide_records() -> None:
    """A segment's seal has the time at which it begins. Found: an object exchanged for a later one silently left its records
    out."""
    rig, bucket, _ = written()
    publish(rig, 5)
    then = rig.clock.wall_ns()
    rig.advance(1000)
    publish(rig, 33, "u")
    rig.round()
    for at in sorted(holdings(bucket.keys())[rig.place("t")].states)[1:]:
        bucket.delete(state_key(rig.place("t"), at))
    key = segment_key(rig.place("t"), 25)
    bucket.objects[key] = bucket.objects[segment_key(rig.place("u"), 25)]
    _, done = rig.restored(then)
    assert [problem.startswith(f"{key} is damaged: ") for problem in done["t"].problems] == [True]
