"""The checker finds each fault of a history, and nothing in a good one."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.histories import DRAINED, LIFE, MS, START, SUB, TOO_EARLY, ack, deliver, kill, nack, of, pub, sub
from toymq_chaos.checker import Checker, check
from toymq_chaos.history import CONFIRM, Event
from toymq_chaos.leases import BUFFERED

GOOD = [
    SUB, pub(1, 0), pub(2, 1), deliver(3, 0), ack(4, 0, sync=True), deliver(5, 1), kill(6), pub(7, 2, result="unknown"),
    sub(8, "c.2"), deliver(8, 1, attempt=2, process="c.2"), pub(9, 2, result="dup", process="p.2"),
    deliver(10, 2, process="c.2"), ack(11, 2), ack(11, 1, process="c.2"), pub(12, 3, result="unknown"),
    deliver(13, 3, process="c.2"), ack(13, 3, process="c.2"), pub(14, 4, result="err"), pub(15, 4, process="p.3"),
    deliver(16, 4, process="c.2"), ack(17, 4), kill(50), sub(60, "c.3"), deliver(60, 4, attempt=2, process="c.3"),
    ack(61, 4, process="c.3"), DRAINED,
]  # fmt: skip


def test_a_good_history_has_counts_and_no_violation() -> None:
    verdict = check(GOOD)
    assert verdict.ok, verdict.violations[0]
    assert (verdict.attempted, verdict.acknowledged, verdict.recovered, verdict.lost, verdict.unexpected) == (5, 4, 1, 0, 0)
    assert (verdict.delivered, verdict.acked, verdict.kills) == (7, 6, 2)
    assert sum(verdict.duplicated.values()) == 2


def test_the_answer_that_a_cut_history_lacks_may_have_been_read_later() -> None:
    """A history that ends early lacks the answer of a publish that was refused and sent again; its message was delivered before
    the answer was read."""
    cut = [event for event in GOOD if event != pub(15, 4, process="p.3") and event.op != "drained"]
    assert check(cut).ok
    assert not check([*cut, DRAINED]).ok


def without(op: str, msg_id: int) -> Callable[[list[Event]], list[Event]]:
    return lambda events: [event for event in events if not (event.op == op and event.id == msg_id)]


def changed(at: Event, **fields: object) -> Callable[[list[Event]], list[Event]]:
    assert at in GOOD
    return lambda events: [replace(event, **fields) if event == at else event for event in events]  # type: ignore[arg-type]


def added(*more: Event) -> Callable[[list[Event]], list[Event]]:
    return lambda events: sorted([*events, *more], key=lambda one: one.t_ns)


@pytest.mark.parametrize(
    ("spoil", "promise"),
    [
        (without("deliver", 2), "an acknowledged message never came to c"),
        (added(replace(pub(70, 9), id=None, note=CONFIRM)), "an acknowledged message never came to c"),
        (changed(deliver(3, 0), digest="0"), "a message was changed"),
        (changed(deliver(3, 0), key="stranger"), "a message came that was never published"),
        (added(deliver(70, 0, attempt=2)), "an acked message was delivered again although its ack was on the disk"),
        (added(deliver(170, 0, attempt=2)), "an acked message was delivered again although its ack was on the disk"),
        (added(deliver(71, 4, attempt=3, process="c.3")), "an acked message was delivered again"),
        (added(deliver(70, 4, attempt=1, process="c.3")), "attempts fell"),
        (added(pub(70, 1, msg_id=9, process="p.9")), "one key was given two ids"),
        (added(pub(70, 9, msg_id=1, process="p.9")), "one id was given to two keys"),
        (added(deliver(70, 1, msg_id=9, process="c.9")), "one key was given two ids"),
        (added(pub(3, 8, msg_id=0)), "ids of one connection do not ascend"),
        (changed(pub(15, 4, process="p.3"), result="err", id=None), "a refused message was delivered"),
        (added(pub(18, 5, process="p.3"), pub(19, 6, process="p.3"), deliver(20, 6, process="c.2"),
               deliver(21, 5, process="c.2"), ack(22, 5, process="c.2"), ack(22, 6, process="c.2")),
         "first deliveries of one connection do not ascend"),
        (without("ack", 3), "a message was never acked, and did not come again"),
        (changed(sub(8, "c.2"), result="err"), "a message came to a consumer that had not subscribed there"),
        (changed(deliver(3, 0), attempt=0), "an attempt was below 1"),
        (changed(deliver(3, 0), attempt=2), "a first delivery was not attempt 1"),
        (changed(pub(1, 0), result="dup"), "a key that was never published was answered DUP"),
        (added(pub(70, 9, msg_id=3, sent_ms=69, process="p.9")), "an id was given that is not above an acknowledged one"),
    ],
    ids=map(str, range(20)),
)
def test_what_is_wrong_is_found(spoil: Callable[[list[Event]], list[Event]], promise: str) -> None:
    verdict = check(spoil(GOOD))
    assert promise in [violation.promise for violation in verdict.violations]
    for violation in verdict.violations:
        assert violation.evidence
        assert str(violation).startswith(violation.promise)


def test_an_ack_that_had_its_flush_is_not_weakened_by_a_later_one() -> None:
    again = [sub(2000, "c.2"), deliver(2001, 0, attempt=2, process="c.2"), ack(2002, 0, process="c.2"), DRAINED]
    for first, promise in (
        (ack(3, 0, sync=True), "an acked message was delivered again although its ack was on the disk"),
        (ack(3, 0), "an acked message was delivered again"),
    ):
        (violation,) = check([*LIFE, first, ack(1000, 0), kill(1001), *again]).violations
        assert violation.promise == promise


def test_a_full_disk_excuses_no_key_that_was_stored_twice_before() -> None:
    twice = [*LIFE, ack(3, 0, sent_ms=2), pub(10, 0, msg_id=1, sent_ms=9), deliver(11, 0, msg_id=1), ack(12, 1)]
    assert [violation.promise for violation in check([*twice, of(13, "full"), of(14, "free")]).violations] == [
        "one key was given two ids"
    ]
    full = [of(4, "full"), of(5, "free")]
    assert check([*twice[:5], *full, *twice[5:]]).ok


@pytest.mark.parametrize(
    ("acked_ms", "forgotten"), [(3, True), (4_900, True), (6_000, False)], ids=["before", "not looked yet", "long after"]
)
def test_a_full_disk_excuses_only_keys_of_what_was_acked_before_it_was_freed(acked_ms: int, forgotten: bool) -> None:
    acked = sorted([of(4, "full"), of(5, "free"), ack(acked_ms, 0, sent_ms=acked_ms)], key=lambda event: event.t_ns)
    again = [pub(7_000, 0, msg_id=1, sent_ms=6_999), deliver(7_001, 0, msg_id=1), ack(7_002, 1)]
    found = [violation.promise for violation in check([*LIFE, *acked, *again, DRAINED]).violations]
    assert ("one key was given two ids" not in found) == forgotten


RETAINING = replace(START, retain_acked_for_ms=12_000)
UNANSWERED = [RETAINING, SUB, pub(5, 0, sent_ms=1, result="unknown"), deliver(6, 0)]


def stored_again(at_ms: int) -> list[Event]:
    """Return the events of a retry that is sent at that time and stored under a new id."""
    return [deliver(at_ms + 1, 0, msg_id=1), pub(at_ms + 2, 0, sent_ms=at_ms, msg_id=1), ack(at_ms + 3, 1), DRAINED]


EXPIRING = replace(UNANSWERED[2], ttl_ms=100)
AHEAD = replace(of(8, "clock", "nemesis"), ahead_ns=5000 * MS)
REFUSED = pub(2, 0, sent_ms=1, result="err")
ANSWERED = [RETAINING, SUB, pub(5, 0, sent_ms=1, result="unknown"), pub(3001, 0, sent_ms=3000), deliver(3002, 0), ack(3003, 0)]


@pytest.mark.parametrize(
    "events",
    [
        [*UNANSWERED, ack(7, 0), *stored_again(12_001)],
        [*UNANSWERED, ack(7, 0, result="unknown"), *stored_again(12_001)],
        [*UNANSWERED[:2], EXPIRING, UNANSWERED[3], nack(7, 0), *stored_again(12_001)],
        [*UNANSWERED, ack(7, 0), AHEAD, *stored_again(7001)],
        [*ANSWERED, *stored_again(15_001)],
    ],
    ids=["acked", "its ack was not answered", "expired", "the clock went ahead", "the second attempt was stored"],
)
def test_a_retry_may_be_stored_anew_when_retention_has_removed_the_message(events: list[Event]) -> None:
    """Found by the e2e test on a busy machine: two slow starts lay between a publish and its retry."""
    assert not check(events).violations


@pytest.mark.parametrize(
    "events",
    [
        [*UNANSWERED, ack(7, 0), *stored_again(11_900)],
        [START, *UNANSWERED[1:], ack(7, 0), *stored_again(12_001)],
        [*UNANSWERED, nack(7, 0), *stored_again(12_001)[:-1], ack(12_005, 0), DRAINED],
        [*UNANSWERED, *stored_again(12_001)[:-1], ack(12_005, 0, sent_ms=12_004), DRAINED],
        [*UNANSWERED, replace(SUB, consumer="other", process="o.1"), ack(7, 0), *stored_again(12_001)],
        [*UNANSWERED[:2], replace(EXPIRING, ttl_ms=20_000), UNANSWERED[3], nack(7, 0), *stored_again(12_001)],
        [RETAINING, SUB, REFUSED, pub(3001, 0, sent_ms=3000), deliver(3002, 0), ack(3003, 0), *stored_again(12_001)],
        [*ANSWERED, *stored_again(12_001)],
    ],
    ids=[
        "too early", "retention is not told", "given back", "acked later", "another consumer has not acked", "not expired yet",
        "the old attempt was refused", "the old attempt was not stored",
    ],
)
def test_a_retry_that_is_stored_anew_before_retention_may_remove_the_message_is_found(events: list[Event]) -> None:
    assert "one key was given two ids" in [violation.promise for violation in check(events).violations]


def test_a_full_disk_removes_what_has_expired_as_what_is_acked() -> None:
    full = [of(2000, "full"), of(2001, "free")]
    for ttl_ms, promises in ((100, []), (20_000, ["one key was given two ids"])):
        events = [START, SUB, replace(EXPIRING, ttl_ms=ttl_ms), UNANSWERED[3], nack(7, 0), *full, *stored_again(3000)]
        found = [violation.promise for violation in check(events).violations]
        assert [promise for promise in found if promise == "one key was given two ids"] == promises


@pytest.mark.parametrize(
    ("events", "missing"),
    [([], "no start"), (GOOD, "no start"), ([START, *GOOD[:-1]], "no \"drained\""), ([START, *GOOD], None)],
    ids=["empty", "beginning", "end", "nothing"],
)
def test_what_is_missing_of_a_history_is_told(events: list[Event], missing: str | None) -> None:
    checker = Checker()
    for event in events:
        checker.feed(event)
    assert checker.missing is None if missing is None else missing in str(checker.missing)


def test_without_a_drain_an_answer_may_still_be_on_its_way() -> None:
    for events in ([START, SUB, deliver(2, 0)], [*LIFE, deliver(3, 0, attempt=2)]):
        assert check(events).ok
        assert not check([*events, DRAINED]).ok


def test_without_a_drain_nothing_is_lost_yet() -> None:
    assert check([event for event in GOOD[:-1] if event.id != 2 or event.op != "deliver"]).lost == 0


def test_a_nack_of_another_connection_gives_back_what_is_read_late() -> None:
    """Found by queue seed 2397: a worker nacked its attempt 1 late; that gave back attempt 2, which lay unread in another
    worker's socket."""
    share = Event(0, "supervisor", "declare", topic="t", consumer="c", note="share")
    nacked = nack(600, 0, sent_ms=550)
    late = [deliver(700, 0, attempt=2, process="c.2"), deliver(700, 0, attempt=3, process="c.2"), ack(701, 0, process="c.2")]
    history_ = [START, share, SUB, sub(0, "c.2"), pub(1, 0, sent_ms=1), deliver(540, 0), nacked, *late, DRAINED]
    assert check(history_).ok
    own = [replace(event, process="c.2") if event == nacked else event for event in history_]
    assert [it.promise for it in check(own).violations] == [TOO_EARLY], "its own was answered before, and of an earlier one"


def test_a_nack_without_an_answer_may_give_back_what_a_later_connection_has() -> None:
    """Found by workers' seed 101796: the nacks of a connection that was lost were on their way to another worker, and arrived
    when the next connection had the messages."""
    nacked = replace(nack(6, 0, sent_ms=5), result="unknown")
    first = [START, SUB, pub(1, 0, sent_ms=1), deliver(4, 0), nacked, of(6, "disconnect", "c.1"), sub(8, "c.2")]
    second = [deliver(9, 0, process="c.2"), deliver(10, 0, attempt=2, process="c.2"), ack(11, 0, process="c.2"), DRAINED]
    assert check([*first, *second]).ok
    answered = [replace(event, result="ok") if event == nacked else event for event in first]
    assert [it.promise for it in check([*answered, *second]).violations] == [TOO_EARLY]



def buffered(t_ms: int, process: str) -> Event:
    return replace(sub(t_ms, process), note=BUFFERED)


@pytest.mark.parametrize(("subscribed", "read_ms", "is_broken"), [
    (buffered(0, "c.1"), 1100, False), (buffered(0, "c.1"), 900, True), (sub(0, "c.1"), 1100, True),
])  # fmt: skip
def test_what_lay_unread_until_its_lease_ended_comes_in_its_new_place(
    subscribed: Event, read_ms: int, is_broken: bool
) -> None:
    """Found by chaos at a load of 18: a client waited two seconds for a synced ack, while later deliveries with leases of one
    second lay in its socket."""
    told = [pub(1, 0), pub(2, 1), pub(3, 2), deliver(5, 0), ack(read_ms - 1, 0, sync=True, sent_ms=6)]
    again = [deliver(read_ms, 2), deliver(read_ms + 1, 1), ack(read_ms + 2, 2), ack(read_ms + 3, 1)]
    verdict = check([START, subscribed, *told, *again, replace(DRAINED, t_ns=(read_ms + 9) * MS)])
    assert [str(each).partition("\n")[0] for each in verdict.violations] == (
        ["first deliveries of one connection do not ascend"] if is_broken else []
    )


def test_a_client_that_did_not_move_after_a_start_is_named() -> None:
    stalled = Event(9 * MS, "a-t.1", "stalled", topic="t", note="a-t after 1 losses")
    (violation,) = check([START, SUB, stalled]).violations
    assert violation.promise == "a client of the product's own did not move after a start of the broker"
    assert violation.evidence == (stalled,)


def test_what_waited_in_its_client_may_be_older_than_an_answer_that_was_told_before() -> None:
    """A buffering client hands a delivery out later than it came: it is neither too early nor a redelivery after its ack."""
    told = [pub(1, 0), pub(1, 1), deliver(3, 0), ack(500, 0, sync=True, sent_ms=400), deliver(600, 1)]
    again = [deliver(1100, 1, attempt=2), deliver(1101, 0, attempt=2), ack(1110, 1), DRAINED]
    raw = check([START, SUB, *told, *again])
    assert {violation.promise for violation in raw.violations} >= {
        "a message came again before its visibility timeout, without a nack",
        "an acked message was delivered again although its ack was on the disk",
    }
    verdict = check([START, buffered(0, "c.1"), *told, *again])
    assert verdict.ok, verdict.violations[0]
    assert verdict.duplicated["it was read late"] == 1


def test_a_client_that_buffers_hands_out_the_latest_attempt_alone() -> None:
    """Found by a run beside four busy loops: the copies of attempt 2 still waited in the client when attempt 3 came."""
    told = [pub(1, 0), pub(1, 1), deliver(3, 0), deliver(2003, 0, attempt=3), deliver(2004, 1, attempt=2)]
    told += [ack(2005, 0), ack(2006, 1), DRAINED]
    assert {violation.promise for violation in check([START, SUB, *told]).violations} >= {
        "attempts left out a number on one connection",
        "a first delivery was not attempt 1",
    }
    verdict = check([START, buffered(0, "c.1"), *told])
    assert verdict.ok, verdict.violations[0]


def test_what_a_client_asked_for_behind_an_ack_is_not_older_than_it() -> None:
    told = [buffered(0, "c.1"), pub(1, 0), deliver(3, 0), ack(5, 0, sync=True, sent_ms=4), of(6, "disconnect", "c.1"), kill(7)]
    again = [of(8, "connect", "c.2"), buffered(9, "c.2"), deliver(10, 0, attempt=2, process="c.2")]
    (violation,) = check([START, *told, *again]).violations
    assert violation.promise == "an acked message was delivered again although its ack was on the disk"
