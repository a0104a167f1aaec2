"""Many sessions of one consumer. Contract: delivery.md, ``mode=shared``."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.broker_rig import BrokerRig
from tests.support.shares import examples
from toymq_py.consumer_options import EARLIEST
from toymq_py.errors import ModeConflict
from toymq_py.topic import Subscription

TAKE_BYTES = 1 << 20


def workers(rig: BrokerRig, count: int, *, window: int = 100) -> list[Subscription]:
    """Return so many sessions of consumer c on topic t; each found nothing yet, in order."""
    team = [rig.subscribe("t", mode="shared", window=window) for _ in range(count)]
    for worker in team:
        assert worker.take(TAKE_BYTES) is None
    return team


def test_each_takes_its_share_and_one_at_least() -> None:
    rig = BrokerRig()
    one, two, three = workers(rig, 3)
    rig.publish("t", *[b"x"] * 9)
    assert rig.woken == [one, two, three]
    assert rig.shown(one.take(TAKE_BYTES)) == ["t 0-2 x1"]
    assert rig.shown(two.take(TAKE_BYTES)) == ["t 3-4 x1"]
    assert rig.shown(three.take(TAKE_BYTES)) == ["t 5-5 x1"]
    assert rig.shown(one.take(TAKE_BYTES)) == ["t 6-6 x1"]


def test_the_head_is_the_lowest_that_could_be_taken() -> None:
    rig = BrokerRig()
    one = rig.subscribe("t", mode="shared", window=100)
    channel = one.channel
    assert channel.head() is None
    rig.publish("t", *[b"x"] * 3)
    assert channel.head() == 0
    assert rig.shown(one.take_some(2, TAKE_BYTES)) == ["t 0-1 x1"]
    assert channel.head() == 2
    channel.nack([(1, 1)], 0.0)
    assert channel.head() == 1
    channel.ack([(0, 1)])
    assert channel.head() == 2


def test_one_message_wakes_one_and_each_in_turn() -> None:
    rig = BrokerRig()
    team = workers(rig, 3)
    order = []
    for n in range(6):
        rig.publish("t", b"x")
        (woken,) = rig.woken
        rig.woken.clear()
        order.append(team.index(woken))
        assert rig.shown(woken.take(TAKE_BYTES)) == [f"t {n}-{n} x1"]
        assert woken.take(TAKE_BYTES) is None
    assert order == [0, 1, 2, 0, 1, 2]


def test_a_worker_that_hangs_is_the_last_choice() -> None:
    """Found: each time its lease ended, the message went to the worker that hangs again, and became a dead letter that no other
    worker had tried."""
    rig = BrokerRig()
    hangs, works = workers(rig, 2, window=1)
    rig.publish("t", b"x")
    assert rig.shown(hangs.take(TAKE_BYTES)) == ["t 0-0 x1"]
    assert hangs.take(TAKE_BYTES) is None
    rig.woken.clear()
    rig.advance(31)
    assert rig.woken == [works, hangs]
    assert rig.shown(works.take(TAKE_BYTES)) == ["t 0-0 x2"]
    assert hangs.take(TAKE_BYTES) is None
    rig.ack("t", 0, 0)
    assert works.take(TAKE_BYTES) is None
    for msg_id in (1, 2):
        rig.woken.clear()
        rig.publish("t", b"y")
        assert rig.woken == [works], "although it has been idle for a shorter time"
        assert rig.shown(works.take(TAKE_BYTES)) == [f"t {msg_id}-{msg_id} x1"]
        rig.ack("t", msg_id, msg_id)
        assert works.take(TAKE_BYTES) is None
    works.close()
    assert hangs.take(TAKE_BYTES) is None
    rig.woken.clear()
    rig.publish("t", b"z")
    assert rig.woken == [hangs], "there is no other"
    assert rig.shown(hangs.take(TAKE_BYTES)) == ["t 3-3 x1"]
    rig.ack("t", 3, 3)
    assert not hangs.lessee.late, "it has settled something"


def test_a_session_that_cannot_take_is_passed_over() -> None:
    """A stalled or paused session says so when it is notified, or passes the notification on."""
    rig = BrokerRig()
    deaf = rig.subscribe("t", mode="shared", wake=lambda _: False)
    assert deaf.take(TAKE_BYTES) is None
    late, third = workers(rig, 2)
    rig.publish("t", b"x")
    assert rig.woken == [late]
    late.wake_others()
    assert rig.woken == [late, third], "late was woken, and its socket took no more before it could take"
    assert rig.shown(third.take(TAKE_BYTES)) == ["t 0-0 x1"]


def test_a_worker_that_dies_between_its_wake_and_its_take() -> None:
    rig = BrokerRig()
    first, second = workers(rig, 2)
    rig.publish("t", b"x")
    assert rig.woken == [first]
    first.close()
    assert rig.woken == [first, second]
    assert rig.take(second) == [(0, 1)]


def test_what_a_dead_worker_held_goes_to_the_others_at_once() -> None:
    rig = BrokerRig()
    first, second = workers(rig, 2)
    rig.publish("t", b"x", b"x", b"x", b"x")
    rig.take(first)
    assert second.take(TAKE_BYTES) is None
    rig.woken.clear()
    first.close()
    assert rig.woken == [second]
    assert rig.take(second) == [(0, 2), (1, 1), (2, 1), (3, 1)]


def test_windows_are_each_ones_own_and_room_wakes_whose_it_is() -> None:
    rig = BrokerRig()
    first, second = workers(rig, 2, window=2)
    rig.publish("t", *[b"x"] * 8)
    assert [rig.take(first), rig.take(second)] == [[(0, 1), (1, 1)], [(2, 1), (3, 1)]]
    rig.woken.clear()
    assert rig.ack("t", 2, 2) == 1, "whoever acks it"
    assert rig.woken == [second]
    assert rig.take(second) == [(4, 1)]
    assert rig.ack("t", 4, 4) == 1
    assert rig.woken == [second, second]
    rig.advance(31)
    assert rig.woken[2:] == [first], "room for it; second has not looked yet"
    assert rig.take(first) == [(0, 2), (1, 1)]


def test_the_mode_is_that_of_the_attached_sessions() -> None:
    rig = BrokerRig()
    worker = rig.subscribe("t", mode="shared")
    with pytest.raises(ModeConflict, match=r"mode=shared: subscribe with mode=shared, or as another consumer$"):
        rig.subscribe("t")
    assert not worker.closed, "nothing was taken over"
    worker.close()
    alone = rig.subscribe("t")
    with pytest.raises(ModeConflict, match="mode=exclusive"):
        rig.subscribe("t", mode="shared")
    newer = rig.subscribe("t")
    assert (alone.closed, newer.closed, rig.ended) == (True, False, ["TAKEN_OVER"])
    assert sum(len(channel.sessions) for channel in rig.broker.topic("t").channels.values()) == 1


def test_a_refused_session_leaves_no_consumer_behind() -> None:
    rig = BrokerRig()
    rig.subscribe("t", "c", mode="shared")
    with pytest.raises(ModeConflict):
        rig.subscribe("t", "c", start="latest")
    assert list(rig.broker.topic("t").consumers) == ["c"]


def test_seek_and_forget_end_them_all() -> None:
    rig = BrokerRig()
    team = workers(rig, 3)
    rig.publish("t", b"x", b"x")
    rig.take(team[0])
    topic = rig.broker.topic("t")
    assert topic.seek("c", EARLIEST) == 0
    assert rig.ended == ["SEEK"] * 3
    assert [worker.inflight for worker in team] == [0, 0, 0]
    rig.subscribe("t", mode="shared")
    topic.forget("c")
    assert rig.ended == ["SEEK"] * 3 + ["DELETED"]
    assert topic.consumers == {}


def described(rig: BrokerRig) -> dict[str, object]:
    (consumer,) = rig.broker.topic("t").describe()["consumers"]
    return {key: consumer[key] for key in ("mode", "sessions", "paused", "inflight", "ready")}


def test_describe_tells_mode_sessions_and_whether_all_are_paused() -> None:
    rig = BrokerRig()
    first, second = workers(rig, 2)
    rig.publish("t", b"x", b"x", b"x")
    first.take(TAKE_BYTES)
    assert described(rig) == {"mode": "shared", "sessions": 2, "paused": False, "inflight": 1, "ready": 2}
    first.pause(True)
    assert described(rig)["paused"] is False
    second.pause(True)
    assert described(rig)["paused"] is True
    first.close()
    second.close()
    assert described(rig) == {"mode": "shared", "sessions": 0, "paused": False, "inflight": 0, "ready": 3}
    rig.subscribe("t")
    assert described(rig)["mode"] == "exclusive"


def test_a_thousand_idle_workers_do_not_get_up_for_one_message() -> None:
    rig = BrokerRig()
    workers(rig, 1000)
    for n in range(10):
        rig.publish("t", b"x")
        assert len(rig.woken) == n + 1


def test_subscribers_that_come_and_go_within_one_commit_get_what_was_published() -> None:
    """Found: the tail in memory had a gap, after which records got the ids of the missing ones."""
    rig = BrokerRig()
    topic = rig.broker.topic_or_new("t")
    subscription = rig.subscribe("t")
    topic.publisher.publish([b""], [b"zero"])
    subscription.close()
    topic.publisher.publish([b""], [b"one"])
    subscription = rig.subscribe("t")
    topic.publisher.publish([b""], [b"two"])
    rig.loop.drain()
    got = {}
    while (delivery := subscription.take(1 << 20)) is not None:
        for row in range(delivery.start, delivery.stop):
            got[delivery.records.ids[row]] = delivery.records.payloads[row]
    assert got == {0: b"zero", 1: b"one", 2: b"two"}


@given(
    delivered=st.integers(0, 12),
    dead=st.integers(0, 12),
    acked=st.lists(st.integers(0, 12), max_size=4),
    ids=st.lists(st.integers(0, 13), max_size=12) | st.integers(0, 12).map(lambda first: list(range(first, 13))),
)
@settings(max_examples=examples(200), deadline=None)
def test_a_run_of_acks_does_what_one_after_the_other_does(delivered: int, dead: int, acked: list[int], ids: list[int]) -> None:
    def made() -> BrokerRig:
        rig = BrokerRig()
        (worker,) = workers(rig, 1)
        rig.publish("t", *[b"x"] * 13)
        worker.take(TAKE_BYTES, delivered)
        topic = rig.broker.topic("t")
        topic.nack("c", [(dead, dead)], None, dead=True)
        for msg_id in acked:
            topic.ack("c", [(msg_id, msg_id)])
        return rig

    one, other = made(), made()
    counts = one.broker.topic("t").channel("c").ack_each(ids)
    assert counts == [other.broker.topic("t").ack("c", [(msg_id, msg_id)]) for msg_id in ids]
    assert one.broker.metrics.ack_total == other.broker.metrics.ack_total
    consumers = [rig.broker.topic("t").consumers["c"] for rig in (one, other)]
    assert consumers[0].snapshot().to_json() == consumers[1].snapshot().to_json()
