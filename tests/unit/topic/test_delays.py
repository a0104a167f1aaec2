"""delay= and ttl= on the simulated disk and clock: schedule, expiry, restarts. Contract: delivery.md, "Clocks" and "Delay"."""

import random
from typing import Any

import pytest

from tests.support.broker_rig import BrokerRig
from toymq_py.consumer_options import Start
from toymq_py.storage.record import iter_frames
from toymq_py.topic.delays import BLOCK_ROWS_MAX, Schedule

HOUR_MS = 3_600_000


@pytest.fixture
def rig() -> BrokerRig:
    return BrokerRig()


def publish(rig: BrokerRig, *payloads: bytes, delay_ms: int | None = None, ttl_ms: int | None = None, topic: str = "t") -> int:
    """Publish with a delay or a ttl. Returns: the first id."""
    count = len(payloads)
    delays, ttls = (None if ms is None else [ms] * count for ms in (delay_ms, ttl_ms))
    outcomes = rig.broker.topic_or_new(topic).publisher.publish([b""] * count, payloads, None, delays, ttls)
    rig.loop.drain()
    return outcomes[0].first_id


def counts(rig: BrokerRig, consumer: str = "c", topic: str = "t") -> dict[str, Any]:
    (found,) = [c for c in rig.broker.topic(topic).describe()["consumers"] if c["consumer"] == consumer]
    return {name: found[name] for name in ("ready", "inflight", "scheduled", "backlog")}


def test_a_delayed_message_blocks_no_other_and_takes_its_place_by_id(rig: BrokerRig) -> None:
    subscription = rig.subscribe("t", window=2)
    publish(rig, b"0")
    publish(rig, b"1", delay_ms=1000)
    publish(rig, b"2", b"3", b"4")
    assert counts(rig) == {"ready": 4, "inflight": 0, "scheduled": 1, "backlog": 4}
    assert rig.take(subscription) == [(0, 1), (2, 1)]
    rig.advance(0.999)
    rig.ack("t", 0, 0)
    assert rig.take(subscription) == [(3, 1)]
    rig.ack("t", 0, 9)
    rig.advance(0.003)
    assert rig.take(subscription) == [(1, 1), (4, 1)], "before what is newer"
    rig.ack("t", 1, 1)
    assert rig.broker.topic("t").consumers["c"].floor == 4
    assert counts(rig) == {"ready": 0, "inflight": 1, "scheduled": 0, "backlog": 1}


def test_one_take_leases_no_more_of_what_is_due_than_it_reads() -> None:
    """Found: each due id was leased as a run of its own; leasing 200 that the next read did not reach, and undoing it, took 15
    ms."""
    rig = BrokerRig(segment_bytes=64 << 20)
    subscription = rig.subscribe("t", window=1000)
    for _ in range(200):
        publish(rig, b"x", delay_ms=1000)
        publish(rig, b"x" * 40_000)  # one entry of the index to every second message: a part of the log to look at
    while subscription.take(1 << 20) is not None:
        pass
    rig.ack("t", 0, 400)
    rig.broker.topic("t").log.tail.clear()
    rig.advance(1.01)
    consumer = rig.broker.topic("t").consumers["c"]
    before = consumer.changes
    delivery = subscription.take(1 << 20)
    assert delivery is not None
    assert 0 < len(delivery) < 100, "a look has its bound"
    assert (consumer.inflight, consumer.changes - before) == (len(delivery), 1)
    assert consumer.due(1000) == [2 * n for n in range(len(delivery), 200)], "the rest is due as it was, and no run"


def test_what_is_due_and_expired_is_passed_over_to_what_is_due(rig: BrokerRig) -> None:
    subscription = rig.subscribe("t")
    for ttl_ms in (1001, None):
        publish(rig, b"x", delay_ms=1000, ttl_ms=ttl_ms)
        publish(rig, b"x")
    rig.take(subscription)
    rig.advance(1.01)
    assert rig.take(subscription) == [(2, 1)]


def test_an_idle_session_is_woken_when_a_message_is_due_and_not_before(rig: BrokerRig) -> None:
    subscription = rig.subscribe("t")
    publish(rig, b"0", delay_ms=20)
    assert rig.take(subscription) == []
    rig.woken.clear()
    rig.advance(0.0199)
    assert rig.woken == []
    rig.advance(0.0021)  # a little after: the clock of the loop is not the clock on the wall
    assert rig.woken == [subscription]
    assert rig.take(subscription) == [(0, 1)]


def test_an_ack_of_a_range_takes_nothing_that_is_not_due(rig: BrokerRig) -> None:
    subscription = rig.subscribe("t")
    publish(rig, b"0")
    publish(rig, b"1", delay_ms=50)
    publish(rig, b"2", delay_ms=10)
    publish(rig, b"3")
    assert rig.take(subscription) == [(0, 1), (3, 1)]
    rig.advance(0.013)
    assert rig.ack("t", 0, 3) == 2, "1 waits, and 2 is due and was not delivered"
    assert rig.take(subscription) == [(2, 1)]
    rig.ack("t", 0, 3)
    assert counts(rig) == {"ready": 0, "inflight": 0, "scheduled": 1, "backlog": 0}
    rig.advance(0.05)
    assert rig.take(subscription) == [(1, 1)]


@pytest.mark.parametrize("power_cut", [False, True])
def test_a_restart_changes_nothing_of_the_schedule(rig: BrokerRig, power_cut: bool) -> None:
    subscription = rig.subscribe("t")
    for row in range(40):  # several segments: 4 KiB each
        publish(rig, b"x" * 300, delay_ms=1000 + 100 * row if row % 2 else None)
    taken = rig.take(subscription)
    assert taken == [(row, 1) for row in range(0, 40, 2)]
    rig.ack("t", 0, 20)
    assert len(rig.broker.topic("t").log.segments) > 2
    rig.reopen(power_cut=power_cut)
    subscription = rig.subscribe("t")
    assert counts(rig) == {"ready": 9, "inflight": 0, "scheduled": 20, "backlog": 9}
    assert [msg_id for msg_id, _ in rig.take(subscription)] == list(range(22, 40, 2))
    rig.ack("t", 0, 99)
    due: list[int] = []
    for _ in range(50):
        rig.advance(0.1)
        due += [msg_id for msg_id, attempt in rig.take(subscription) if attempt == 1]
    assert due == list(range(1, 40, 2)), "in the order of their times"
    rig.ack("t", 0, 99)
    assert counts(rig)["backlog"] == 0


def test_what_fell_due_while_the_broker_was_down_is_ready(rig: BrokerRig) -> None:
    subscription = rig.subscribe("t")
    publish(rig, b"0", delay_ms=1000)
    publish(rig, b"1")
    assert rig.take(subscription) == [(1, 1)]
    rig.ack("t", 1, 1)
    rig.clock.advance(5)
    rig.reopen()
    assert counts(rig) == {"ready": 1, "inflight": 0, "scheduled": 0, "backlog": 1}
    assert rig.take(rig.subscribe("t")) == [(0, 1)]


def test_a_wall_clock_that_was_set_decides(rig: BrokerRig) -> None:
    subscription = rig.subscribe("t")
    publish(rig, b"0", delay_ms=HOUR_MS)
    rig.clock.jump_wall(7200)
    rig.advance(10.1)
    assert rig.take(subscription) == [(0, 1)], "set forward: noticed within ten seconds"
    rig.flush("t")
    rig.clock.jump_wall(-7200)
    rig.reopen()
    subscription = rig.subscribe("t")
    assert rig.take(subscription) == [(0, 2)], "delivered once, it does not wait again"
    assert counts(rig) == {"ready": 0, "inflight": 1, "scheduled": 0, "backlog": 1}
    rig.ack("t", 0, 0)
    assert counts(rig)["backlog"] == 0
    rig.advance(HOUR_MS / 1000 + 1)
    assert rig.take(subscription) == []


def test_consumers_that_begin_or_are_moved_beyond_it_never_see_it(rig: BrokerRig) -> None:
    publish(rig, b"0", b"1", delay_ms=1000)
    publish(rig, b"2")
    late = rig.subscribe("t", "late", start="latest")
    moved = rig.subscribe("t", "moved")
    back = rig.subscribe("t", "back")
    assert rig.take(moved) == [(2, 1)]
    for name, target in (("moved", "1"), ("back", "latest"), ("back", "earliest")):
        rig.broker.topic("t").seek(name, Start.parse(target))
    assert counts(rig, "late")["backlog"] == 0
    assert counts(rig, "moved") == {"ready": 1, "inflight": 0, "scheduled": 1, "backlog": 1}
    assert counts(rig, "back") == {"ready": 1, "inflight": 0, "scheduled": 2, "backlog": 1}
    moved, back = rig.subscribe("t", "moved"), rig.subscribe("t", "back")
    assert rig.take(moved) == rig.take(back) == [(2, 1)]
    rig.advance(1.1)
    assert rig.take(late) == []
    assert rig.take(moved) == [(1, 1)]
    assert rig.take(back) == [(0, 1), (1, 1)]


def test_thousands_that_are_due_at_once_come_in_slices_and_all(rig: BrokerRig) -> None:
    subscription = rig.subscribe("t", window=10_000)
    publish(rig, *[b""] * 3000, delay_ms=5)
    rig.advance(0.006)
    first = rig.take(subscription)
    assert 0 < len(first) < 3000
    for _ in range(4):
        rig.advance(0.003)
        first += rig.take(subscription)
    assert first == [(msg_id, 1) for msg_id in range(3000)]


def test_a_delivery_with_gaps_goes_back_without_what_lies_between(rig: BrokerRig) -> None:
    subscription = rig.subscribe("t")
    for delay_ms in (10, None, 10, 10):
        publish(rig, b"x", delay_ms=delay_ms)
    assert rig.take(subscription) == [(1, 1)]
    rig.advance(0.02)
    delivery = subscription.take(1 << 20)
    assert delivery is not None
    assert list(delivery.records.ids) == [0, 2, 3]
    assert (delivery.ranges(), delivery.ranges(1), delivery.ranges(3)) == ([(0, 0), (2, 3)], [(2, 3)], [])
    for first, last in delivery.ranges():
        subscription.unsend(first, last)
    assert rig.take(subscription) == [(0, 1), (2, 1), (3, 1)], "uncounted, and 1 is where it was"


def test_a_fetch_shows_what_waits(rig: BrokerRig) -> None:
    publish(rig, b"0", delay_ms=HOUR_MS)
    frames, count, next_id = rig.broker.topic("t").log.read_frames(0, 9, 1 << 20)
    assert (count, next_id) == (1, 1)
    (frame,) = iter_frames(frames)
    assert frame.number(1) == rig.clock.wall_ns() + HOUR_MS * 1_000_000


def test_a_segment_with_a_message_that_waits_stays(rig: BrokerRig) -> None:
    rig.change("create", "t", retain_acked_for="0")
    subscription = rig.subscribe("t")
    publish(rig, b"0", delay_ms=60_000)
    for _ in range(40):
        publish(rig, b"x" * 300)
    rig.take(subscription)
    rig.ack("t", 0, 99)
    assert rig.broker.topic("t").log.first_id == 0
    rig.advance(61)
    assert rig.take(subscription) == [(0, 1)]
    rig.ack("t", 0, 99)
    rig.advance(2)
    assert rig.broker.topic("t").log.first_id > 0


# -- ttl


def test_an_expired_message_is_dropped_when_its_turn_comes(rig: BrokerRig) -> None:
    publish(rig, b"0", b"1", ttl_ms=1000)
    publish(rig, b"2")
    publish(rig, b"3", ttl_ms=5000)
    rig.advance(1)
    subscription = rig.subscribe("t")
    assert rig.take(subscription) == [(2, 1), (3, 1)]
    topic = rig.broker.topic("t")
    assert topic.describe()["expired_total"] == 2
    assert topic.consumers["c"].floor == 2
    rig.flush("t")
    rig.reopen()
    assert rig.broker.topic("t").consumers["c"].floor == 2, "it is acked for good"


def test_expired_while_inflight_an_ack_is_an_ack_and_a_redelivery_is_not_made(rig: BrokerRig) -> None:
    subscription = rig.subscribe("t", visibility_s=2)
    publish(rig, b"0", b"1", ttl_ms=1000)
    assert rig.take(subscription) == [(0, 1), (1, 1)]
    rig.advance(1.5)
    assert rig.ack("t", 0, 0) == 1
    rig.advance(1)
    assert rig.take(subscription) == []
    assert rig.broker.topic("t").describe()["expired_total"] == 1
    assert counts(rig) == {"ready": 0, "inflight": 0, "scheduled": 0, "backlog": 0}


def test_ttl_counts_from_the_append_also_with_delay(rig: BrokerRig) -> None:
    subscription = rig.subscribe("t")
    publish(rig, b"never", delay_ms=1000, ttl_ms=1000)
    publish(rig, b"once", delay_ms=1000, ttl_ms=1100)
    rig.advance(1.01)
    assert rig.take(subscription) == [(1, 1)]
    assert rig.broker.topic("t").context.expired_total == 1


def test_the_ttl_of_the_topic_is_for_those_without_their_own(rig: BrokerRig) -> None:
    assert rig.change("create", "t", ttl="1000") == "OK"
    publish(rig, b"0")
    publish(rig, b"1", ttl_ms=5000)
    rig.reopen()
    publish(rig, b"2")
    assert rig.change("configure", "t", ttl="default") == "OK"
    publish(rig, b"3")
    rig.advance(2)
    assert rig.take(rig.subscribe("t")) == [(1, 1), (3, 1)]


def test_what_never_expires_does_not_on_a_topic_with_a_ttl(rig: BrokerRig) -> None:
    assert rig.change("create", "t", ttl="1000") == "OK"
    rig.broker.topic("t").publisher.publish([b""], [b"0"], topic_ttl=False)
    rig.loop.drain()
    rig.advance(2)
    assert rig.take(rig.subscribe("t")) == [(0, 1)]


def test_a_long_row_of_expired_ones_leaves_others_their_turn(rig: BrokerRig) -> None:
    for _ in range(40):
        publish(rig, *[b"x" * 300] * 9, ttl_ms=10)
    publish(rig, b"last")
    rig.advance(1)
    subscription = rig.subscribe("t")
    found: list[tuple[int, int]] = []
    rig.woken.append(subscription)
    turns = 0
    while rig.woken:
        rig.woken.clear()
        found += rig.take(subscription)
        rig.loop.drain()
        turns += 1
    assert turns > 3, "it asks to be called again, and others are called before"
    assert found == [(360, 1)]
    assert rig.broker.topic("t").context.expired_total == 360


def test_runs_and_redeliveries_stop_before_an_expired_row(rig: BrokerRig) -> None:
    rows = [None, 10, None, 10, 10, None]
    subscription = rig.subscribe("t", visibility_s=5)
    for ttl in rows:
        publish(rig, b"x", ttl_ms=ttl)
    assert len(rig.take(subscription)) == 6
    rig.advance(6)
    assert rig.take(subscription) == [(0, 2), (2, 1), (5, 1)]
    assert rig.broker.topic("t").context.expired_total == 3


def oldest(rig: BrokerRig) -> float:
    (consumer,) = rig.broker.topic("t").describe()["consumers"]
    return float(consumer["oldest_unacked_age_s"])


def test_what_is_not_due_is_neither_backlog_nor_old(rig: BrokerRig) -> None:
    """Found: a delay of two hours looked like a consumer that is two hours behind."""
    subscription = rig.subscribe("t")
    publish(rig, b"later", delay_ms=2 * HOUR_MS)
    rig.advance(3600)
    assert (counts(rig)["backlog"], counts(rig)["scheduled"], oldest(rig)) == (0, 1, 0.0)
    publish(rig, b"now")
    rig.advance(60)
    assert (counts(rig)["backlog"], oldest(rig)) == (1, 60.0)
    assert rig.take(subscription) == [(1, 1)]
    rig.broker.topic("t").nack("c", [(1, 1)], 10.0)
    assert (counts(rig)["backlog"], counts(rig)["scheduled"], oldest(rig)) == (0, 2, 0.0)
    rig.advance(10)
    assert (counts(rig)["backlog"], oldest(rig)) == (1, 70.0)
    rig.ack("t", 1, 1)
    rig.advance(3600)
    assert counts(rig) == {"ready": 1, "inflight": 0, "scheduled": 0, "backlog": 1}
    assert oldest(rig) == pytest.approx(70.0, abs=0.1), "since it was due, not since it was published"


def test_the_limit_of_the_backlog_counts_what_is_scheduled(rig: BrokerRig) -> None:
    rig.subscribe("t")
    assert rig.change("configure", "t", backlog_max_messages="2") == "OK"
    publish(rig, b"a", b"b", delay_ms=HOUR_MS)
    assert rig.publish("t", b"c")[0].error is not None, "it takes space, too"


def of(times: dict[int, int], now_ns: int = 0) -> Schedule:
    schedule = Schedule()
    schedule.add(list(times), list(times.values()), now_ns)
    return schedule


def test_what_is_due_already_does_not_wait() -> None:
    schedule = of({3: 10, 4: 11, 9: 12}, now_ns=10)
    assert list(schedule.ids) == [4, 9]
    assert schedule.next_at_ns() == 11
    assert schedule.take_due(10, 99) == []
    assert schedule.take_due(11, 99) == [4]
    assert schedule.take_due(99, 99) == [9]
    assert (schedule.next_at_ns(), len(schedule.ids)) == (None, 0)


def test_the_earliest_comes_first_and_no_more_than_asked_for() -> None:
    schedule = of({1: 30, 2: 10, 3: 20, 4: 10})
    assert schedule.take_due(40, 2) == [2, 4]
    assert schedule.next_at_ns() == 20
    assert schedule.take_due(40, 2) == [3, 1]


def test_it_gives_back_in_order_whatever_the_times() -> None:
    """Short and long delays are added while others fall due; blocks of the schedule are split."""
    rng = random.Random(7)
    schedule = Schedule()
    waiting: dict[int, int] = {}
    now = next_id = 0
    for _ in range(300):
        count = rng.choice([1, 1, 40, BLOCK_ROWS_MAX + 5 if rng.random() < 0.05 else 3])
        spread = rng.choice([1, 50, 10**17])
        added = {next_id + row: now + rng.randrange(spread) for row in range(count)}
        next_id += count
        schedule.add(list(added), list(added.values()), now)
        waiting |= {msg_id: at for msg_id, at in added.items() if at > now}
        now += rng.choice([0, 1, 20])
        due = schedule.take_due(now, limit := rng.choice([1, 7, 2000]))
        at_ns = [waiting.pop(msg_id) for msg_id in due]
        assert at_ns == sorted(at_ns)
        assert not due or at_ns[-1] <= now
        late = sum(at <= now for at in waiting.values())
        assert len(due) == limit or not late
        assert len(schedule.ids) == len(waiting)
        assert schedule.next_at_ns() == min(waiting.values(), default=None)


def test_the_order_is_that_of_the_times() -> None:
    rng = random.Random(8)
    times = {msg_id: rng.randrange(1, 10**9) for msg_id in range(3 * BLOCK_ROWS_MAX)}
    schedule = of(times)
    taken: list[int] = []
    while (at := schedule.next_at_ns()) is not None:
        due = schedule.take_due(at + 10**6, 100)
        assert due, "what is said to be due is there"
        taken += due
    assert [times[msg_id] for msg_id in taken] == sorted(times.values())


def test_what_left_it_is_passed_over() -> None:
    schedule = of({1: 10, 2: 10, 3: 10})
    schedule.drop(1, 2)
    assert list(schedule.ids) == [3]
    assert schedule.take_due(10, 99) == [3]
    schedule = of({1: 10, 2: 10})
    schedule.drop(0, 9)
    assert schedule.next_at_ns() is None, "with nothing left it holds nothing"
