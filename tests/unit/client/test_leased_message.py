"""What the messages of both clients share: NACK, TOUCH, and a handler that fails."""

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

import toymq
from tests.support.conversing import GREETING, GREETING_LEASE, Conversing, ids_of, message
from toymq.delivery_window import Feed
from toymq.leased_message import Connection, LeasedMessage, Processing
from toymq_py.errors import BadArgument


@pytest.fixture
def peer() -> Conversing:
    return Conversing()


@pytest.fixture
def leased(peer: Conversing) -> Iterator[LeasedMessage[Connection]]:
    feed: Feed = peer.subscribe()
    peer.said()
    peer.hear(b"OK 0\n" + message(7))
    push = feed.take()
    assert push is not None
    link = cast(Connection, SimpleNamespace(conversation=peer.conversation, options=toymq.connect("h")._options))
    yield LeasedMessage(push, feed, link)
    assert feed.take() is None


def test_requests_name_the_message_and_its_consumer(leased: LeasedMessage[Connection]) -> None:
    assert leased._nack(1.5).slot.frame() == b"NACK t c 7 delay=1500\n"
    assert leased._nack(1.5, dead=True).slot.frame() == b"NACK t c 7 dead=1\n", "a dead letter has no delay"
    assert leased._touch(30).slot.frame() == b"TOUCH t c 7 visibility=30000\n"


@pytest.mark.parametrize("answer", [b"OK 0\n", b""], ids=["its lease is over", "no connection"])
def test_a_handler_that_hears_that_its_lease_is_over_gets_the_next_delivery(
    peer: Conversing, leased: LeasedMessage[Connection], answer: bytes
) -> None:
    """Found: the next delivery was taken for the one that the handler still has, and hidden: with ``auto_extend`` as long as
    the client lived."""
    feed = leased._feed
    peer.lose()
    if answer:
        peer.connect()
        peer.hear(b"OK 0\n")
        request = leased._touch(None)
        peer.conversation.send(request.slot)
        peer.hear(answer)
        assert not leased._is_extended(request)
    else:
        assert not leased._in_reach
        assert not leased._is_extended(None)
        peer.connect()
        peer.hear(b"OK 0\n")
    assert feed.leased() == []
    peer.hear(message(7, attempt=2))
    assert ids_of(feed) == [7]


def test_a_message_of_a_pull_is_renewed_for_as_long_as_it_was_leased(leased: LeasedMessage[Connection]) -> None:
    """Found: the broker knows ``visibility`` of subscriptions only, so a pulled message with a lease of 1 s was renewed for the
    topic's 30 s."""
    leased._feed.command = replace(leased._feed.command, visibility_ms=1000)
    assert leased._touch(None).slot.frame() == b"TOUCH t c 7\n", "the broker knows it"
    leased._feed.pulled = True
    assert leased._touch(None).slot.frame() == b"TOUCH t c 7 visibility=1000\n"
    assert leased._touch(30).slot.frame() == b"TOUCH t c 7 visibility=30000\n"


def test_requests_name_the_lease_where_the_broker_takes_it(peer: Conversing, leased: LeasedMessage[Connection]) -> None:
    peer.lose()
    peer.greeting = GREETING_LEASE
    peer.connect()
    lease = leased._feed.lease
    assert leased._nack(None).slot.frame() == b"NACK t c 7 lease=%d\n" % lease
    assert leased._touch(30).slot.frame() == b"TOUCH t c 7 visibility=30000 lease=%d\n" % lease


def test_a_copy_that_was_delivered_again_is_not_extended_although_its_subscription_has_the_lease(
    peer: Conversing, leased: LeasedMessage[Connection]
) -> None:
    feed = leased._feed

    def extended(copy: LeasedMessage[Connection]) -> bool:
        request = copy._touch(None)
        peer.conversation.send(request.slot)
        assert peer.said() == ["TOUCH t c 7"]
        peer.hear(b"OK 1\n")
        return copy._is_extended(request)

    def taken() -> LeasedMessage[Connection]:
        push = feed.take()
        assert push is not None
        return LeasedMessage(push, feed, leased._came_over)

    assert extended(leased)
    peer.hear(message(6) + message(8))
    assert extended(leased), "others came again"
    peer.hear(message(7))
    assert not extended(leased)
    assert [taken().id, taken().id] == [6, 8]
    later = taken()
    assert (extended(leased), extended(later)) == (False, True), "another task has it"
    peer.hear(message(7))
    last = taken()
    assert [extended(copy) for copy in (leased, later, last)] == [False, False, True]
    feed.settle("t", 7)
    assert not feed._again.keys() & {("t", 7)}


def test_a_failed_handler_gives_back_with_its_reason_and_settles(peer: Conversing, leased: LeasedMessage[Connection]) -> None:
    leased._handler_failed(ValueError("bad"), 0.5, ())
    (line,) = peer.said()
    assert line.startswith("NACK t c 7 delay=500 reason=")
    assert leased._feed.open == {}


def test_some_exceptions_go_to_the_dead_letters_and_a_cancellation_gives_back_at_once(
    peer: Conversing, leased: LeasedMessage[Connection]
) -> None:
    leased._handler_failed(ValueError("bad"), 0.5, (ValueError,))
    leased._handler_failed(KeyboardInterrupt(), 0.5, ())
    dead, cancelled = peer.said()
    assert dead.startswith("NACK t c 7 dead=1")
    assert cancelled == "NACK t c 7 delay=0"


@pytest.mark.parametrize("greeting", [GREETING, GREETING_LEASE])
@pytest.mark.parametrize("pulled", [True, False])
def test_without_a_connection_only_what_a_pull_leased_is_given_back_later(
    peer: Conversing, leased: LeasedMessage[Connection], pulled: bool, greeting: bytes
) -> None:
    """The leases of a subscription end with its connection. On a broker without lease numbers, a late NACK might end another
    worker's lease."""
    peer.lose()
    peer.greeting = greeting
    peer.connect()
    leased._feed.pulled = pulled
    peer.lose()
    leased._handler_failed(KeyboardInterrupt(), None, ())
    said = [line for line in peer.connect() if line.startswith("NACK")]
    late = pulled and greeting == GREETING_LEASE
    assert said == ([f"NACK t c 7 delay=0 lease={leased._feed.lease}"] if late else [])


def test_wrong_arguments_are_refused_before_the_handler_runs(leased: LeasedMessage[Connection]) -> None:
    with pytest.raises(BadArgument):
        Processing(leased, -1, ())
    with pytest.raises(TypeError):
        Processing(leased, None, "ValueError")  # type: ignore[arg-type]


def test_what_a_handler_sets_is_checked_where_it_is_set(leased: LeasedMessage[Connection]) -> None:
    """Found: an int as ``dead_on`` never matched, and a text raised an error instead of the handler's exception, so no NACK was
    sent."""
    handling = Processing(leased, 5, ValueError)
    for name, wrong in (("dead_on", int), ("dead_on", "x"), ("retry_delay", b"5s"), ("dead_reason", ValueError("x"))):
        with pytest.raises(TypeError, match=f"^{name} is "):
            setattr(handling, name, wrong)
    assert (handling.retry_delay, handling.dead_on, handling.dead_reason) == (5, ValueError, None)
    handling.retry_delay, handling.dead_on, handling.dead_reason = "1m", (KeyError,), "no such customer"
    assert (handling.retry_delay, handling.dead_on, handling.dead_reason) == ("1m", (KeyError,), "no such customer")
