"""Polls: requests for messages without a subscription. Contract: protocol.md, PULL; ADR 0020."""

import errno
from collections.abc import Callable

import pytest

from tests.support.broker_rig import BrokerRig
from toymq_py.consumer_options import EARLIEST
from toymq_py.errors import NoSuchConsumer, NoSuchTopic, RequestError, ShuttingDown
from toymq_py.subscription.poll import MESSAGES_PER_POLL

TAKE_BYTES = 1 << 20


def test_a_poll_takes_what_there_is_and_its_leases_outlive_it() -> None:
    rig = BrokerRig()
    rig.publish("t", b"1", b"2", b"3")
    poll = rig.poll("t", visibility_s=10)
    assert rig.shown(*poll.take(2, TAKE_BYTES)) == ["t 0-1 x1"]
    poll.close()
    poll = rig.poll("t")
    assert rig.shown(*poll.take(9, TAKE_BYTES)) == ["t 2-2 x1"]
    poll.close()
    rig.advance(10.1)
    assert rig.shown(*rig.poll("t").take(9, TAKE_BYTES)) == ["t 0-0 x2", "t 1-1 x1"], "the lowest counts"
    assert rig.ack("t", 0, 1) == 2


def test_a_poll_is_bounded_in_messages_and_bytes_but_takes_one() -> None:
    rig = BrokerRig(segment_bytes=1 << 20)
    rig.publish("t", *[bytes(1000)] * 20)
    assert sum(map(len, rig.poll("t").take(99, 5000))) == 4, "the fifth would not fit"
    assert sum(map(len, rig.poll("t").take(99, 1))) == 1
    rig.publish("u", *[b""] * (MESSAGES_PER_POLL + 1))
    assert sum(map(len, rig.poll("u").take(10**6, TAKE_BYTES))) == MESSAGES_PER_POLL


def test_polls_that_wait_are_served_in_order() -> None:
    rig = BrokerRig()
    order: list[int] = []

    def waker(n: int) -> Callable[[], bool]:
        return lambda: order.append(n) or True  # type: ignore[func-returns-value]

    polls = [rig.poll("t", wake=waker(n)) for n in range(3)]
    assert [poll.take(1, TAKE_BYTES) for poll in polls] == [[], [], []]
    for n in range(3):
        rig.publish("t", b"x")
        assert order == list(range(n + 1)), "one message, one poll"
        assert rig.shown(*polls[n].take(9, TAKE_BYTES)) == [f"t {n}-{n} x1"]


def test_nothing_is_lost_when_a_poll_that_was_woken_goes_away() -> None:
    rig = BrokerRig()
    order: list[str] = []
    gone = rig.poll("t", wake=lambda: order.append("gone") or True)  # type: ignore[func-returns-value]
    stays = rig.poll("t", wake=lambda: order.append("stays") or True)  # type: ignore[func-returns-value]
    assert gone.take(9, TAKE_BYTES) == stays.take(9, TAKE_BYTES) == []
    rig.publish("t", b"x")
    gone.close()
    assert order == ["gone", "stays"]
    assert rig.shown(*stays.take(9, TAKE_BYTES)) == ["t 0-0 x1"], "and no attempt was counted"


def test_what_a_poll_took_and_did_not_send_goes_back_uncounted() -> None:
    rig = BrokerRig()
    rig.publish("t", b"1", b"2")
    poll = rig.poll("t")
    (delivery,) = poll.take(9, TAKE_BYTES)
    poll.close()
    delivery.subscription.unsend(1, 1)
    assert rig.shown(*rig.poll("t").take(9, TAKE_BYTES)) == ["t 1-1 x1"]


def test_a_poll_takes_over_from_no_session_and_no_session_from_it() -> None:
    rig = BrokerRig()
    alone = rig.subscribe("t")
    poll = rig.poll("t")
    assert poll.take(9, TAKE_BYTES) == []
    rig.subscribe("t")
    assert (alone.closed, poll.closed, poll.problem) == (True, False, None)
    rig.publish("t", b"1", b"2")
    assert rig.shown(*poll.take(9, TAKE_BYTES)) == ["t 0-0 x1"]
    for mode in ("exclusive", "shared"):
        rig.poll("made", f"by-poll-{mode}").close()
        rig.subscribe("made", f"by-poll-{mode}", mode=mode)  # type: ignore[arg-type]


def test_a_consumer_that_a_poll_made_is_shared_and_on_the_disk() -> None:
    rig = BrokerRig()
    rig.publish("t", b"1")
    rig.poll("t").close()
    (found,) = rig.broker.topic("t").describe()["consumers"]
    assert (found["mode"], found["sessions"]) == ("shared", 0)
    rig.reopen(power_cut=True)
    assert sorted(rig.broker.topic("t").consumers) == ["c"]


def test_a_disk_that_refuses_the_registration_does_not_refuse_the_poll() -> None:
    rig = BrokerRig()
    rig.publish("t", b"1")
    rig.disk.fail("rename", 1, errno.ENOSPC, path="/t/")
    assert rig.shown(*rig.poll("t").take(9, TAKE_BYTES)) == ["t 0-0 x1"]


def test_a_poll_goes_on_over_a_seek() -> None:
    rig = BrokerRig()
    rig.publish("t", b"1")
    poll = rig.poll("t")
    assert rig.shown(*poll.take(9, TAKE_BYTES)) == ["t 0-0 x1"]
    assert poll.take(9, TAKE_BYTES) == []
    rig.broker.topic("t").seek("c", EARLIEST)
    assert rig.shown(*poll.take(9, TAKE_BYTES)) == ["t 0-0 x1"]


@pytest.mark.parametrize("error", [NoSuchTopic, NoSuchConsumer])
def test_what_a_poll_waits_for_is_deleted(error: type[RequestError]) -> None:
    rig = BrokerRig()
    woken: list[bool] = []
    poll = rig.poll("t", wake=lambda: woken.append(True) or True)  # type: ignore[func-returns-value]
    assert poll.take(9, TAKE_BYTES) == []
    if error is NoSuchTopic:
        rig.delete("t")
    else:
        rig.broker.topic("t").forget("c")
    assert woken == [True]
    with pytest.raises(error):
        poll.take(9, TAKE_BYTES)


def test_a_poll_of_a_pattern_hears_of_new_topics_and_shares_with_others() -> None:
    rig = BrokerRig()
    rig.publish("a.x", b"1", b"2", b"3", b"4")
    woken: list[bool] = []
    poll = rig.poll("a.*", wake=lambda: woken.append(True) or True)  # type: ignore[func-returns-value]
    other = rig.poll("a.x")
    assert rig.shown(*poll.take(9, TAKE_BYTES)) == ["a.x 0-1 x1"], "half of it is another's"
    other.close()
    assert rig.shown(*poll.take(9, TAKE_BYTES)) == ["a.x 2-3 x1"]
    assert poll.take(9, TAKE_BYTES) == []
    woken.clear()
    rig.publish("a.y", b"1")
    assert woken == [True]
    assert rig.shown(*poll.take(9, TAKE_BYTES)) == ["a.y 0-0 x1"]
    rig.delete("a.y")
    assert poll.take(9, TAKE_BYTES) == [], "one topic less, and no error"


def test_shutting_down_ends_polls_and_refuses_new_ones() -> None:
    rig = BrokerRig()
    woken: list[str] = []
    one = rig.poll("t", wake=lambda: woken.append("t") or True)  # type: ignore[func-returns-value]
    many = rig.poll("a.*", wake=lambda: woken.append("a.*") or True)  # type: ignore[func-returns-value]
    rig.broker.stop_deliveries()
    assert sorted(woken) == ["a.*", "t"]
    assert (one.closed, one.take(9, TAKE_BYTES), many.closed) == (True, [], True)
    with pytest.raises(ShuttingDown):
        rig.poll("t")
