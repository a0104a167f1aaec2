"""Renewal of leases, on a loop whose time the test sets."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from tests.support.conversing import GREETING_LEASE, Conversing, message
from toymq.errors import TakenOver
from toymq.renewal import EXTENDS_PER_LEASE, UNREAD_TOPICS_MAX, Renewal
from toymq_py.records import MSG_ID_MAX


class Timer:
    cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """An event loop that keeps timers."""

    def __init__(self) -> None:
        self.due: list[tuple[float, Callable[[], Any], Timer]] = []

    def call_later(self, delay_s: float, call: Callable[[], Any]) -> Timer:
        self.due.append((delay_s, call, Timer()))
        return self.due[-1][2]

    def tick(self) -> None:
        """Call all timers that are due, except cancelled ones."""
        _, call, timer = self.due.pop(0)
        if not timer.cancelled:
            call()


def test_leases_are_renewed_several_times_within_their_length_until_they_are_settled() -> None:
    peer, loop = Conversing(), Loop()
    feed = peer.subscribe()
    assert peer.said() == ["SUB t c"]
    peer.hear(b"OK 0\n" + message(1) + message(2) + message(3))
    renewal = Renewal(feed, lambda: peer.conversation, 30.0, cast(asyncio.AbstractEventLoop, loop))
    renewal.start()
    renewal.start()
    assert [delay_s for delay_s, _, _ in loop.due] == [30.0 / EXTENDS_PER_LEASE]
    loop.tick()
    assert peer.said() == ["TOUCH t c 1-3 visibility=30000"]
    feed.take()
    feed.settle("t", 1)
    loop.tick()
    assert peer.said() == ["TOUCH t c 2-3 visibility=30000"]
    renewal.stop()
    loop.tick()
    assert (peer.said(), loop.due) == ([], [])


def test_a_renewal_names_the_lease() -> None:
    """Without the lease's number a worker that was frozen for longer than a lease would renew leases of the workers that have
    its messages now."""
    peer, loop = Conversing(GREETING_LEASE), Loop()
    feed = peer.subscribe()
    peer.said()
    peer.hear(b"OK 0\n" + message(1))
    Renewal(feed, lambda: peer.conversation, 30.0, cast(asyncio.AbstractEventLoop, loop)).start()
    loop.tick()
    assert peer.said() == [f"TOUCH t c 1 visibility=30000 lease={feed.lease}"]


def test_a_subscription_that_the_broker_ended_is_not_renewed() -> None:
    peer, loop = Conversing(), Loop()
    feed = peer.subscribe()
    peer.said()
    peer.hear(b"OK 0\n" + message(1))
    Renewal(feed, lambda: peer.conversation, 30.0, cast(asyncio.AbstractEventLoop, loop)).start()
    peer.conversation.end(feed, TakenOver("by another"))
    loop.tick()
    assert (peer.said(), loop.due) == ([], [])


def test_what_nobody_has_read_is_renewed_by_the_number_of_its_lease() -> None:
    """Found: the blocking client reads nothing while a handler works, so deliveries that lay in its socket went to other
    workers, too."""
    peer, loop = Conversing(GREETING_LEASE), Loop()
    feed = peer.subscribe("t.*")
    peer.said()
    peer.hear(b"OK 0\n" + message(3, topic="t.a") + message(5, topic="t.a") + message(9, topic="t.b"))
    for _ in range(3):
        feed.take()
    feed.settle("t.b", 9)
    timers = cast(asyncio.AbstractEventLoop, loop)
    Renewal(feed, lambda: peer.conversation, 30.0, timers, with_unread=True).start()
    loop.tick()
    options = f"visibility=30000 lease={feed.lease}"
    assert peer.said() == [f"TOUCH t.a c 0-{MSG_ID_MAX} {options}", f"TOUCH t.b c 0-{MSG_ID_MAX} {options}"]
    peer.hear(b"OK 2\nOK 0\n" + b"".join(message(1, topic=f"t.{n}") for n in range(UNREAD_TOPICS_MAX)))
    while feed.take() is not None:
        pass
    for n in range(1, UNREAD_TOPICS_MAX):
        feed.settle(f"t.{n}", 1)
    loop.tick()
    assert peer.said() == [f"TOUCH t.a c 0-{MSG_ID_MAX} {options}", f"TOUCH t.0 c 0-{MSG_ID_MAX} {options}"], "of too many"


def test_without_numbers_what_nobody_has_read_may_be_of_others() -> None:
    peer, loop = Conversing(), Loop()
    feed = peer.subscribe()
    peer.said()
    peer.hear(b"OK 0\n" + message(3))
    timers = cast(asyncio.AbstractEventLoop, loop)
    Renewal(feed, lambda: peer.conversation, 30.0, timers, with_unread=True).start()
    loop.tick()
    assert peer.said() == ["TOUCH t c 3 visibility=30000"]
