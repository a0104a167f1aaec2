"""Backlog limits. Contract: delivery.md, "Backlog limits"; ADR 0018."""

import itertools
import random
from errno import ENOSPC
from types import SimpleNamespace

import pytest

from tests.support.broker_rig import BrokerRig
from toymq_py.consumer.ack_set import AckSet
from toymq_py.consumer_options import Start
from toymq_py.errors import PayloadTooLarge, QueueFull
from toymq_py.storage.record import FRAME_OVERHEAD
from toymq_py.topic import Published, Registration


def limited(**settings: object) -> BrokerRig:
    rig = BrokerRig(segment_bytes=1 << 20)
    assert rig.change("create", "t", **{name: str(value) for name, value in settings.items()}) == "OK"
    return rig


def codes(outcomes: list[Published]) -> list[str]:
    """Return for each publish: OK, DUP or the error's code."""
    told: list[str] = []
    for outcome in outcomes:
        error = outcome.error or outcome.commit.error
        told += [error.code if error else "DUP" if outcome.duplicate else "OK"] * outcome.count
    return told


def publish(rig: BrokerRig, *keys: bytes, payload: bytes = b"x") -> list[str]:
    outcomes = rig.broker.topic("t").publisher.publish(list(keys), [payload] * len(keys))
    rig.loop.drain()
    return codes(list(outcomes))


def ids(rig: BrokerRig, consumer: str = "c") -> list[int]:
    subscription = rig.subscribe("t", consumer)
    found = [msg_id for msg_id, _ in rig.take(subscription)]
    subscription.close()
    return found


# -- reject


def test_a_run_is_admitted_up_to_the_limit_and_refused_behind_it() -> None:
    rig = limited(backlog_max_messages=3)
    assert publish(rig, *[b""] * 5) == ["OK"] * 3 + ["QUEUE_FULL"] * 2
    assert publish(rig, b"") == ["QUEUE_FULL"]
    assert ids(rig) == [0, 1, 2]
    assert rig.ack("t", 1, 1) == 1
    assert publish(rig, b"", b"") == ["OK", "QUEUE_FULL"]
    assert rig.numbers("t")["consumers"]["c"]["backlog"] == 3


def test_a_refused_publish_leaves_no_trace() -> None:
    rig = limited(backlog_max_messages=2)
    assert publish(rig, b"a", b"b", b"c") == ["OK", "OK", "QUEUE_FULL"]
    before = rig.disk.snapshot()
    assert publish(rig, b"c", b"d") == ["QUEUE_FULL"] * 2
    assert rig.disk.snapshot() == before
    rig.reopen(power_cut=True)
    assert publish(rig, b"c") == ["QUEUE_FULL"], "the limit holds at once, and the key is not known"
    assert ids(rig) == [0, 1]
    rig.ack("t", 0, 1)
    assert publish(rig, b"c", b"d") == ["OK", "OK"], "the refused keys are no duplicates"
    assert rig.broker.topic("t").log.committed_id == 4


def test_a_known_key_answers_dup_although_it_is_full() -> None:
    rig = limited(backlog_max_messages=2)
    assert publish(rig, b"a", b"b") == ["OK", "OK"]
    assert publish(rig, b"x", b"a", b"y", b"b", b"x") == ["QUEUE_FULL", "DUP", "QUEUE_FULL", "DUP", "QUEUE_FULL"]


def test_a_known_key_answers_dup_although_the_disk_is_low() -> None:
    rig = BrokerRig(min_free_bytes=100_000)
    rig.disk.capacity_bytes = 1_000_000
    assert rig.change("create", "t", backlog_max_messages="1") == "OK"
    assert publish(rig, b"a") == ["OK"]
    rig.purge("t")
    rig.clock.advance(1)
    assert publish(rig, b"b") == ["OK"]
    rig.disk.capacity_bytes = rig.disk.used_bytes + 90_000
    rig.clock.advance(1)
    rig.purge("t")
    assert publish(rig, b"c") == ["DISK_LOW"]
    assert publish(rig, b"c") == ["DISK_LOW"], "and so from then on"
    rig.disk.capacity_bytes = rig.disk.used_bytes + 190_000
    rig.clock.advance(0.1)
    assert publish(rig, b"c") == ["DISK_LOW"], "twice the mark are asked for"
    rig.disk.capacity_bytes = rig.disk.used_bytes + 200_000
    rig.clock.advance(0.1)
    assert publish(rig, b"c", b"d") == ["OK", "QUEUE_FULL"]
    rig.disk.capacity_bytes = rig.disk.used_bytes
    rig.clock.advance(1)
    assert publish(rig, b"c", b"d") == ["DUP", "QUEUE_FULL"]


def test_what_waits_for_its_commit_counts() -> None:
    rig = limited(backlog_max_messages=3)
    publisher = rig.broker.topic("t").publisher
    outcomes = [*publisher.publish([b"", b""], [b"x"] * 2), *publisher.publish([b"a", b"b"], [b"x"] * 2)]
    rig.loop.drain()
    assert codes(outcomes) == ["OK", "OK", "OK", "QUEUE_FULL"]


def test_a_commit_that_fails_gives_the_room_back() -> None:
    rig = limited(backlog_max_messages=2)
    rig.disk.capacity_bytes = rig.disk.used_bytes
    assert publish(rig, b"", b"", b"") == ["DISK_FULL", "DISK_FULL", "QUEUE_FULL"]
    rig.disk.capacity_bytes = None
    assert publish(rig, b"", b"", b"") == ["OK", "OK", "QUEUE_FULL"]


def test_every_consumer_counts_and_what_comes_back_counts_again() -> None:
    rig = limited(backlog_max_messages=4)
    assert publish(rig, *[b""] * 4) == ["OK"] * 4
    assert ids(rig, "fast") == ids(rig, "slow") == [0, 1, 2, 3]
    rig.ack("t", 0, 3, "fast")
    assert publish(rig, b"") == ["QUEUE_FULL"], "the slow one has acked nothing"
    rig.ack("t", 1, 2, "slow")
    assert publish(rig, b"", b"", b"") == ["OK", "OK", "QUEUE_FULL"]
    rig.ack("t", 0, 5, "slow")
    topic = rig.broker.topic("t")
    topic.seek("slow", Start("latest"))
    topic.seek("fast", Start("latest"))
    assert publish(rig, *[b""] * 3) == ["OK"] * 3
    topic.seek("fast", Start("earliest"))
    assert publish(rig, b"") == ["QUEUE_FULL"], "nine are open again"
    topic.forget("fast")
    assert publish(rig, b"", b"") == ["OK", "QUEUE_FULL"]
    topic.forget("slow")
    assert publish(rig, b"") == ["QUEUE_FULL"], "without a consumer all that is retained waits"
    assert rig.purge("t") == 10
    assert publish(rig, b"") == ["OK"]


def test_a_limit_in_bytes() -> None:
    frame = FRAME_OVERHEAD + 100
    rig = limited(backlog_max_bytes=3 * frame)
    assert publish(rig, *[b""] * 4, payload=bytes(100)) == ["OK"] * 3 + ["QUEUE_FULL"]
    assert ids(rig) == [0, 1, 2]
    rig.ack("t", 1, 1)
    assert publish(rig, b"", b"", payload=bytes(100)) == ["OK", "QUEUE_FULL"], "records of one size are told exactly"
    rig.ack("t", 0, 0)
    assert publish(rig, b"k", payload=bytes(101)) == ["QUEUE_FULL"]
    assert publish(rig, b"k", payload=bytes(50)) == ["OK"]


def test_a_record_that_no_room_is_enough_for_is_refused_for_good() -> None:
    rig = limited(backlog_max_bytes=1000)
    assert publish(rig, b"", payload=bytes(1000)) == ["PAYLOAD_TOO_LARGE"]
    outcomes = rig.broker.topic("t").publisher.publish([b""] * 3, [b"a", bytes(1000), b"b"])
    rig.loop.drain()
    assert codes(list(outcomes)) == ["OK", "PAYLOAD_TOO_LARGE", "OK"]
    error = outcomes[1].error
    assert isinstance(error, PayloadTooLarge)
    assert not error.fatal
    assert "backlog_max_bytes" in str(error)


def test_a_producer_is_stored_up_to_the_limit() -> None:
    rig = limited(backlog_max_messages=2)
    publisher = rig.broker.topic("t").publisher
    outcomes = list(publisher.publish_sequenced([b"p"] * 4, [b"x"] * 4, None, [0, 1, 2, 3]))
    rig.loop.drain()
    assert codes(outcomes) == ["OK", "OK", "QUEUE_FULL", "QUEUE_FULL"]
    rig.purge("t")
    outcomes = list(publisher.publish_sequenced([b"p"] * 3, [b"x"] * 3, None, [2, 3, 4]))
    rig.loop.drain()
    assert codes(outcomes) == ["OK", "OK", "QUEUE_FULL"]
    assert publisher.producers.find(b"p", 0) == (3, 3)


def test_what_the_broker_stores_goes_past_the_limit_and_counts() -> None:
    rig = limited(backlog_max_messages=2)
    publisher = rig.broker.topic("t").publisher
    assert publish(rig, b"") == ["OK"]
    outcomes = list(publisher.publish_unlimited([b"", b"k", b"k"], [b"x"] * 3))
    rig.loop.drain()
    assert codes(outcomes) == ["OK", "OK", "DUP"]
    assert publish(rig, b"") == ["QUEUE_FULL"]
    ids(rig)
    rig.ack("t", 0, 0)
    assert publish(rig, b"") == ["QUEUE_FULL"], "still two"
    rig.ack("t", 1, 1)
    assert publish(rig, b"", b"") == ["OK", "QUEUE_FULL"]


def test_limits_change_while_it_runs() -> None:
    rig = limited(backlog_max_messages=1)
    assert publish(rig, b"", b"") == ["OK", "QUEUE_FULL"]
    assert rig.change("configure", "t", backlog_max_messages="2") == "OK"
    assert publish(rig, b"", b"") == ["OK", "QUEUE_FULL"]
    assert rig.change("configure", "t", backlog_max_messages="default") == "OK"
    assert publish(rig, b"", b"") == ["OK", "OK"]
    assert rig.change("configure", "t", backlog_max_messages="3", when_full="drop-oldest") == "OK"
    assert (ids(rig), rig.numbers("t")["dropped_total"]) == ([1, 2, 3], 1)


def test_without_a_limit_nothing_is_asked() -> None:
    rig = limited(visibility=5000)
    assert rig.broker.topic("t").publisher.limit is None


def test_looking_at_a_backlog_in_pieces_takes_no_more_than_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = limited(backlog_max_bytes=2000)
    limit = rig.broker.topic("t").publisher.limit
    assert limit is not None
    looks = []

    def slow(first: int, bound: int) -> int:
        looks.append(rig.clock.monotonic())
        rig.clock.advance(0.1)
        return 2000

    monkeypatch.setattr(limit._backlog, "bytes", slow)
    for _ in range(100):
        rig.clock.advance(0.1)
        assert publish(rig, b"") == ["QUEUE_FULL"]
    assert 3 <= len(looks) <= 6, "a look of 100 ms every 2 s"


# -- drop-oldest


def test_the_oldest_are_dropped_and_counted() -> None:
    rig = limited(backlog_max_messages=3, when_full="drop-oldest")
    subscription = rig.subscribe("t")
    assert publish(rig, *[b""] * 3) == ["OK"] * 3
    assert len(rig.take(subscription)) == 3
    assert rig.ack("t", 1, 1) == 1
    rig.woken.clear()
    assert publish(rig, b"", b"") == ["OK", "OK"]
    assert rig.numbers("t")["dropped_total"] == 1
    assert subscription in rig.woken
    assert rig.ack("t", 0, 2) == 1, "the first was dropped while it was inflight"
    assert [msg_id for msg_id, _ in rig.take(subscription)] == [3, 4]
    consumer = rig.numbers("t")["consumers"]["c"]
    assert (consumer["backlog"], consumer["inflight"], consumer["last_acked"]) == (2, 2, 2)


def test_a_run_above_the_limit_leaves_its_newest() -> None:
    rig = limited(backlog_max_messages=2, when_full="drop-oldest")
    rig.subscribe("t").close()
    assert publish(rig, *[b""] * 5) == ["OK"] * 5
    assert (ids(rig), rig.numbers("t")["dropped_total"]) == ([3, 4], 3)


def test_dropped_by_bytes() -> None:
    frame = FRAME_OVERHEAD + 100
    rig = limited(backlog_max_bytes=3 * frame, when_full="drop-oldest")
    rig.subscribe("t").close()
    for _ in range(5):
        assert publish(rig, b"", payload=bytes(100)) == ["OK"]
    assert publish(rig, b"", payload=bytes(3 * frame)) == ["PAYLOAD_TOO_LARGE"]
    assert (ids(rig), rig.numbers("t")["dropped_total"]) == ([2, 3, 4], 2)


def test_dropped_messages_without_consumers_leave_the_retained_range() -> None:
    rig = BrokerRig()
    assert rig.change("create", "t", backlog_max_messages="2", when_full="drop-oldest") == "OK"
    for _ in range(6):
        rig.publish("t", bytes(3000))
    topic = rig.broker.topic("t")
    assert (topic.log.first_id, topic.log.messages(), topic.retention.dropped_total) == (4, 2, 4)
    rig.loop.advance(1)
    assert len([name for name in rig.files("t") if name.endswith(".log")]) == 2, "its segments are removed"
    rig.reopen(power_cut=True)
    assert rig.broker.topic("t").log.first_id == 4
    assert ids(rig) == [4, 5]


def test_a_new_consumer_begins_within_the_limit() -> None:
    rig = limited(backlog_max_messages=2, when_full="drop-oldest")
    rig.subscribe("t").close()
    for _ in range(4):
        publish(rig, b"")
        rig.broker.topic("t").ack("c", [(n, n) for n, _ in rig.take(rig.subscribe("t"))])
    assert rig.numbers("t")["dropped_total"] == 0
    assert ids(rig, "late") == [2, 3]
    assert rig.numbers("t")["dropped_total"] == 2


@pytest.mark.parametrize("seed", range(12))
def test_a_restart_brings_nothing_back_that_contradicts(seed: int) -> None:
    """Whether or not the offsets with the dropped ids are on disk: the limit holds, and the newest messages are there."""
    rng = random.Random(seed)
    rig = limited(backlog_max_messages=3, when_full="drop-oldest")
    rig.subscribe("t").close()
    published = 0
    for _ in range(6):
        run = rng.randrange(1, 5)
        assert publish(rig, *[b""] * run) == ["OK"] * run
        published += run
        if rng.random() < 0.5:
            rig.flush("t")
        rig.reopen(power_cut=True)
        assert ids(rig) == list(range(max(published - 3, 0), published))


def test_a_failed_commit_drops_nothing() -> None:
    rig = limited(backlog_max_messages=1, when_full="drop-oldest")
    assert publish(rig, b"") == ["OK"]
    rig.subscribe("t").close()
    rig.disk.capacity_bytes = rig.disk.used_bytes
    assert publish(rig, b"", payload=bytes(5000)) == ["DISK_FULL"]
    assert (ids(rig), rig.numbers("t")["dropped_total"]) == ([0], 0)


# -- what counts


@pytest.mark.parametrize("ranges_max", [0, 1, 3, 512])
def test_the_ids_that_some_consumer_has_not_acked(ranges_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compared with sets, over random acks of several consumers."""
    monkeypatch.setattr("toymq_py.topic.backlog.RANGES_MAX", ranges_max)
    rng = random.Random(7)
    for consumers in range(4):
        for _ in range(10):
            rig = limited(backlog_max_messages=1000)
            publish(rig, *[b""] * 40)
            topic = rig.broker.topic("t")
            names = [f"c{n}" for n in range(consumers)]
            open_ids = [set(range(40)) for _ in names]
            for name, left in zip(names, open_ids, strict=True):
                assert len(ids(rig, name)) == 40
                for _ in range(rng.randrange(12)):
                    first = rng.randrange(40)
                    last = min(first + rng.randrange(6), 39)
                    topic.ack(name, [(first, last)])
                    left -= set(range(first, last + 1))
            wanted = set().union(*open_ids) if names else set(range(40))
            ranges = list(topic.backlog.ranges(0, 40))
            assert {n for first, last in ranges for n in range(first, last + 1)} == wanted
            assert all(b[0] > a[1] + 1 for a, b in itertools.pairwise(ranges))
            assert topic.backlog.messages(0, 40) == len(wanted)
            frame = FRAME_OVERHEAD + 1
            assert topic.backlog.bytes(0, 40) == frame * len(wanted)


@pytest.mark.parametrize("seed", range(20))
def test_it_is_the_same_whatever_consumers_do(seed: int) -> None:
    """Compared with the open ids of each consumer: consumers come, ack, seek, and are forgotten, and the limit comes and
    goes."""
    rng = random.Random(seed)
    rig = limited(backlog_max_messages=10_000)
    topic = rig.broker.topic("t")
    publish(rig, *[b""] * 60)
    for step in range(60):
        name = rng.choice("abcd")
        first = rng.randrange(60)
        last = min(first + rng.randrange(8), 59)
        match rng.randrange(12):
            case 0:
                topic.seek(name, Start("id", first))
            case 1 if name in topic.consumers:
                topic.forget(name)
            case 2:
                topic.retention.drop(0, rng.randrange(12))
            case 3:
                assert rig.change("configure", "t", backlog_max_messages=rng.choice(["default", "10000"])) == "OK"
            case 4 if name in topic.consumers:
                topic.consumers[name].skip(first, last)
            case _:
                ids(rig, name)
                topic.ack(name, [(first, last)])
        consumers = topic.consumers.values()
        wanted = {n for n in range(60) if not consumers or any(not each.has_acked_all(n, n) for each in consumers)}
        assert {n for first, last in topic.backlog.ranges(0, 60) for n in range(first, last + 1)} == wanted, step
        cut = rng.randrange(61)
        assert topic.backlog.messages(0, cut) == len([n for n in wanted if n < cut]), step


@pytest.mark.parametrize("when_full", ["reject", "drop-oldest"])
def test_a_look_is_not_a_walk_over_what_two_consumers_have_acked(when_full: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = limited(backlog_max_messages=8000, when_full=when_full)
    topic = rig.broker.topic("t")
    publish(rig, *[b""] * 8000)
    for name, start in (("a", 1), ("b", 3)):
        subscription = rig.subscribe("t", name, window=10_000)
        assert len(rig.take(subscription)) == 8000
        topic.ack(name, [(n, n) for n in range(start, 8000, 4)])
    asked: list[str] = []

    def counting(name: str) -> None:
        question = getattr(AckSet, name)

        def counted(*args: object) -> object:
            asked.append(name)
            return question(*args)

        monkeypatch.setattr(AckSet, name, counted)

    counting("next_open")
    counting("open_until")
    assert publish(rig, *[b""] * 10) == (["OK"] * 10 if when_full == "drop-oldest" else ["QUEUE_FULL"] * 10)
    assert topic.retention.dropped_total == (10 if when_full == "drop-oldest" else 0), "together they have open all there is"
    assert len(asked) < 500, "4,000 ranges are not walked through"


def test_a_consumer_that_never_was_counts_no_more() -> None:
    rig = limited(backlog_max_messages=4)
    publish(rig, *[b""] * 4)
    ids(rig, "c")
    rig.ack("t", 0, 2)
    subscription, refused = rig.subscribe("t", "late"), []
    rig.disk.fail("rename", 1, ENOSPC)
    rig.broker.topic("t").when_registered(subscription, Registration.NEW_AHEAD, refused.append)
    rig.advance(1)
    assert [type(error) for error in refused] == [OSError]
    assert subscription.closed
    assert publish(rig, *[b""] * 4) == ["OK"] * 3 + ["QUEUE_FULL"]


def test_the_error_says_which_limit() -> None:
    for settings, word in (({"backlog_max_messages": 1}, "1 messages"), ({"backlog_max_bytes": 40}, "40 bytes")):
        rig = limited(**settings)
        outcomes = rig.broker.topic("t").publisher.publish([b"", b""], [b"x", b"y"])
        error = outcomes[-1].error
        assert isinstance(error, QueueFull)
        assert word in str(error)


def test_bytes_between_is_exact_at_the_index_and_near_inside() -> None:
    rig = BrokerRig(segment_bytes=1 << 20)
    rng = random.Random(2)
    sizes = [rng.randrange(2000) for _ in range(3000)]
    for start in range(0, 3000, 50):
        rig.publish("t", *[bytes(size) for size in sizes[start : start + 50]])
    log = rig.broker.topic("t").log
    assert len(log.segments) > 2
    frames = [size + FRAME_OVERHEAD for size in sizes]
    assert log.bytes_between(0, 3000) == sum(frames) == log.size_bytes
    exact = SimpleNamespace(worst=0)
    for _ in range(300):
        first, last = sorted(rng.sample(range(3000), 2))
        exact.worst = max(exact.worst, abs(log.bytes_between(first, last) - sum(frames[first:last])))
    assert exact.worst < 64 * 1024
    entry = log.segments[1].index_ids[1]
    assert log.bytes_between(0, entry) == sum(frames[:entry])
