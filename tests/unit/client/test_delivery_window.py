"""The state of a subscription's messages: arrived, handed out, acked."""

from math import inf

import pytest

from tests.support.conversing import ids_of
from toymq.delivery_window import AckList, Feed, FeedState, ended
from toymq.errors import ConsumerDeleted, SubscriptionEnded, TakenOver
from toymq.message import RANGES_PER_LINE
from toymq_py.errors import ConnectionLost, NoSuchTopic, ToymqError
from toymq_py.protocol import MessagePush, OkReply, Subscribe


def push(msg_id: int, topic: str = "t") -> MessagePush:
    return MessagePush(topic, msg_id, 1, 0, b"", b"", b"x")


def feed(topic: str = "t") -> Feed:
    made = Feed(Subscribe(topic, "c"), lambda: None)
    made.subscribed()
    return made


def test_acks_leave_in_as_few_lines_as_fit_and_the_last_one_tells_synced_acks() -> None:
    acks = AckList("t", "c")
    acks.ids = list(range(0, 2 * RANGES_PER_LINE + 1, 2))
    told: list[ToymqError | None] = []
    acks.waiters.append(told.append)
    first, last = acks.take()
    assert first.frame().count(b",") == RANGES_PER_LINE - 1
    assert last.frame() == b"ACK t c %d sync=1\n" % (2 * RANGES_PER_LINE)
    first.answered(OkReply(1))
    assert not told
    last.answered(OkReply(1))
    assert told == [None]
    assert acks.take() == []


def test_acks_without_an_answer_go_back_and_refused_ones_do_not() -> None:
    acks = AckList("t", "c")
    acks.ids = [1, 2, 3, 7]
    (slot,) = acks.take()
    slot.failed(ConnectionLost("gone"))
    assert acks.ids == [1, 2, 3, 7]
    (slot,) = acks.take()
    slot.refused(NoSuchTopic("deleted"))
    assert acks.ids == []


def test_what_a_handler_still_has_is_not_handed_out_again_after_a_reconnect() -> None:
    books = feed()
    for msg_id in (1, 2):
        books.arrive(push(msg_id))
    assert books.take() == push(1)
    books.lost()
    assert books.take() is None, "2 was not handed out: the broker sends it again"
    for msg_id in (1, 2):
        books.arrive(push(msg_id))
    assert books.take() == push(2)
    assert books.take() is None
    books.arrive(push(1))
    assert books.take() == push(1), "its lease ended: this is a later delivery"


def test_a_later_delivery_of_a_message_that_waits_replaces_the_earlier_one() -> None:
    """Found: when a window held more work than one lease time, a waiting message was handed out once for every lease that
    ended."""
    books = feed("*")
    for msg_id in (1, 2):
        books.arrive(push(msg_id))
    again = MessagePush("t", 2, 2, 0, b"", b"", b"x")
    books.arrive(again)
    books.arrive(push(2, "u"))
    assert books.leased() == [("t", 1), ("t", 2), ("u", 2)]
    assert [books.take() for _ in range(4)] == [push(1), again, push(2, "u"), None]
    books.arrive(push(3))
    assert books.take() == push(3)


@pytest.mark.parametrize(
    ("looked_at", "waits_since", "handled", "since"),
    [
        (10.0, inf, 1, 10.0), (99.6, inf, 1, 100.0),  # a handler is at work
        (10.0, 99.9, 1, 10.0),  # and another task waits
        (10.0, 99.9, 0, 10.0), (99.8, 99.9, 0, 100.0),  # it has done its work, and waits for more
        (10.0, 10.1, 0, 100.0),  # a quiet time
        (10.0, 10.1, 1, 10.0),  # one that the handler of another task had, for all that is known
        (inf, inf, 0, 100.0),  # of a client that knows by itself
    ],
)  # fmt: skip
def test_what_comes_behind_a_handler_that_held_the_loop_may_have_been_there(
    looked_at: float, waits_since: float, handled: int, since: float
) -> None:
    books = feed()
    for msg_id in range(handled):
        books.arrive(push(msg_id))
        books.take()
    books.waits_since = waits_since
    books.came(100.0, looked_at)
    books.arrive(push(7))
    assert books.since == since
    assert books.is_stale(100.1) is (since == 10.0)


def test_what_comes_again_takes_the_turn_that_the_broker_gave_it() -> None:
    """Found: with ``mode="single"`` a redelivered message stayed in the place of its earlier copy, whose lease was over, and so
    overtook messages that must come before it."""
    books = feed()
    for msg_id in range(8):
        books.arrive(push(msg_id))
    assert [books.take(), books.take()] == [push(0), push(1)], "0 is given back, and takes what follows along"
    for msg_id in range(8):
        books.arrive(push(msg_id))
    assert ids_of(books) == list(range(8))


def test_what_is_put_back_does_not_pass_what_comes_before_its_later_delivery() -> None:
    books = feed()
    for msg_id in (1, 2, 1):
        books.arrive(push(msg_id))
    taken = [books.take(), books.take()]
    assert taken == [push(2), push(1)]
    for msg_id in (0, 1):
        books.arrive(push(msg_id))
    books.put_back(push(1))
    books.put_back(push(2))
    assert ids_of(books) == [2, 0, 1]


@pytest.mark.parametrize("when", ["it waits", "the ack is not sent", "the ack is not answered"])
def test_a_message_that_was_acked_is_not_handed_out_again(when: str) -> None:
    """The lease ended before the ack, and the broker's next delivery was read before the ack's answer."""
    books = feed()
    books.arrive(push(1))
    books.take()
    if when == "it waits":
        books.arrive(push(1))
    books.settle("t", 1)
    acks = books.acks_of("t")
    acks.ids.append(1)
    slots = acks.take() if when == "the ack is not answered" else []
    books.arrive(push(1))
    assert (books.take(), list(books.arrived)) == (None, [])
    for slot in slots or acks.take():
        slot.answered(OkReply(1))
    books.arrive(push(1))
    assert books.take() == push(1), "SEEK brought it back"


@pytest.mark.parametrize("ended", ["refused", "failed"])
def test_acks_that_were_not_taken_hold_no_message_back(ended: str) -> None:
    books = feed()
    acks = books.acks_of("t")
    acks.ids.append(1)
    (slot,) = acks.take()
    getattr(slot, ended)(NoSuchTopic("gone"))
    assert acks.unanswered == []
    books.arrive(push(2))
    books.arrive(push(1))
    assert [books.take(), books.take()] == ([push(2), push(1)] if ended == "refused" else [push(2), None])


def test_leased_are_those_that_wait_those_handed_out_and_those_whose_ack_is_not_sent() -> None:
    books = feed()
    for msg_id in (1, 2, 3):
        books.arrive(push(msg_id))
    books.take()
    books.take()
    books.settle("t", 1)
    books.acks_of("t").ids.append(1)
    assert sorted(books.leased()) == [("t", 1), ("t", 2), ("t", 3)]


@pytest.mark.parametrize("how", ["end", "close"])
def test_a_feed_that_is_over_takes_and_hands_out_nothing(how: str) -> None:
    books = feed()
    books.arrive(push(1))
    if how == "end":
        books.end(TakenOver("by another"))
        books.close()
        assert (books.state, type(books.error)) == (FeedState.ENDED, TakenOver), "closing does not hide why it ended"
    else:
        books.close()
        books.end(TakenOver("by another"))
        assert (books.state, books.error) == (FeedState.CLOSED, None)
    books.arrive(push(2))
    assert books.take() is None


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        ("a", "a", True), ("a", "b", False), ("a.*", "a.b", True),
        ("a.b", "a.*", True), ("a.*", "b", False), ("a.*", "b.*", True),
    ],
)  # fmt: skip
def test_subscriptions_that_may_get_the_same_message_overlap(one: str, other: str, overlap: bool) -> None:
    assert feed(one).overlaps(other) is overlap


def test_the_reason_of_closed_becomes_an_error() -> None:
    kinds = [type(ended("t", "c", code)) for code in ("TAKEN_OVER", "DELETED", "SOMETHING_NEW")]
    assert kinds == [TakenOver, ConsumerDeleted, SubscriptionEnded]


def test_a_takeover_names_the_mode_that_shares() -> None:
    assert str(ended("t", "c", "TAKEN_OVER")) == (
        "the subscription of c to t was ended: TAKEN_OVER, another session subscribed as c; "
        'mode="shared" in both shares its messages'
    )
    assert str(ended("t", "c", "DELETED")) == "the subscription of c to t was ended: DELETED"


def test_what_a_seek_delivers_again_is_handed_out_and_no_lease_ended(caplog: pytest.LogCaptureFixture) -> None:
    """Found: after a SEEK of the application itself the client warned of ended leases and of attempts that count."""
    it = feed()
    for msg_id in (0, 1):
        it.arrive(push(msg_id))
    it.take()
    it.moved("t")
    assert it.waiting() == [], "what waited comes again, if it is not below the new position"
    for msg_id in (0, 1):
        it.arrive(push(msg_id))
    assert not caplog.records
    assert ids_of(it) == [0, 1]
    it.arrive(push(0))
    (record,) = caplog.records
    assert record.getMessage().startswith("t 0: its lease ended"), "which it did, of the second delivery"


def test_what_was_open_over_a_reconnect_is_delivered_again_behind_a_seek() -> None:
    it = feed()
    it.arrive(push(0))
    it.take()
    it.lost()
    it.moved("t")
    it.arrive(push(0))
    assert ids_of(it) == [0], "the application asked for it"
    it.moved("t")
    it.lost()
    it.arrive(push(0))
    assert ids_of(it) == [0]


def test_a_lease_that_ends_under_its_handler_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """Found: a job that took longer than twenty leases became a dead letter, without a warning."""
    it = feed()
    for msg_id in (0, 1):
        it.arrive(push(msg_id))
    it.take()
    for _ in range(3):
        it.arrive(push(1))
        assert not caplog.records, "it waits here, and no handler has it"
    for _ in range(3):
        it.arrive(push(0))
    (record,) = caplog.records
    assert record.getMessage().startswith("t 0: its lease ended before it was acked")
