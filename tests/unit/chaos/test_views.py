"""A history of several workers: the end of one worker excuses events of its topics, and nothing else."""

from dataclasses import replace

from tests.support.histories import DRAINED, LIFE, MS, START, TOO_EARLY, ack, deliver, of, pub, sub
from toymq_chaos.checker import check
from toymq_chaos.history import Event
from toymq_chaos.verdict import Verdict
from toymq_chaos.views import REPLACED_NS, Views
from toymq_py.forking import BACK_OFF_MIN_S
from toymq_py.placement import worker_of

WORKERS = 2
HERE = worker_of("t", WORKERS)
BEGIN = replace(START, workers=WORKERS)


def kill_of(t_ms: int, worker: int | None) -> Event:
    return replace(of(t_ms, "kill"), worker=worker)


def connect(t_ms: int, *processes: str) -> list[Event]:
    return [of(t_ms, "connect", process) for process in processes]


def verdict_of(*events: Event) -> Verdict:
    views = Views()
    for event in events:
        views.feed(event)
    return views.verdict()


def broken(*events: Event) -> list[str]:
    return [violation.promise for violation in verdict_of(*events).violations]


def again_after(kill: Event) -> list[str]:
    """Return the violations when an unacked message is redelivered over another connection, after a kill."""
    first, second = connect(0, "p.1", "c.1"), connect(20, "c.2")
    return broken(
        BEGIN, *first, sub(1, "c.1"), pub(2, 0), deliver(3, 0), kill, *second, sub(21, "c.2"),
        deliver(22, 0, attempt=2, process="c.2"), ack(23, 0, process="c.2"), DRAINED,
    )  # fmt: skip


def test_the_end_of_its_worker_explains_a_redelivery() -> None:
    assert again_after(kill_of(10, HERE)) == []
    assert again_after(kill_of(10, None)) == [], "of the supervisor"


def test_the_end_of_another_worker_does_not() -> None:
    assert again_after(kill_of(10, 1 - HERE)) == [TOO_EARLY]


def test_an_ack_may_be_lost_with_the_worker_that_answered_it_alone() -> None:
    for worker, found in ((HERE, []), (1 - HERE, ["an acked message was delivered again"])):
        assert broken(
            BEGIN, *connect(0, "p.1", "c.1"), sub(1, "c.1"), pub(2, 0), deliver(3, 0), ack(4, 0), kill_of(10, worker),
            *connect(20, "c.2"), sub(21, "c.2"), deliver(22, 0, attempt=2, process="c.2"), ack(23, 0, process="c.2"), DRAINED,
        ) == found  # fmt: skip


def test_a_connection_that_outlives_the_worker_is_another_one_from_its_next_command_on() -> None:
    """The client's worker lives, and passes commands on to the killed one. A PULL after the kill belongs to the next life."""
    def pull(t_ms: int) -> Event:
        return replace(sub(t_ms, "c.1"), op="pull")

    events = [
        BEGIN, *connect(0, "p.1", "c.1"), pull(1), pub(2, 0), deliver(3, 0), ack(4, 0), kill_of(10, HERE), pull(30),
        deliver(31, 0, attempt=2), ack(32, 0), of(40, "disconnect", "c.1"), DRAINED,
    ]  # fmt: skip
    verdict = verdict_of(*events)
    assert verdict.ok, verdict.violations[0]
    assert verdict.duplicated == {"its ack was lost in a kill window": 1}
    assert broken(*(event for event in events if event.op != "kill")) == ["an acked message was delivered again"]


def test_a_command_on_its_way_when_the_worker_ends_is_of_the_next_life() -> None:
    """The command was sent before the kill, and passed on after it: the successor answers it."""
    pull = replace(sub(9, "c.1"), op="pull", t_ns=200 * MS)
    first = replace(sub(1, "c.1"), op="pull")
    verdict = verdict_of(
        BEGIN, *connect(0, "p.1", "c.1"), first, pub(2, 0), deliver(3, 0), ack(4, 0), kill_of(10, HERE), pull,
        deliver(201, 0, attempt=2), ack(202, 0), DRAINED,
    )  # fmt: skip
    assert verdict.ok, verdict.violations[0]


def pulled_over_an_end(answered_ms: int, *, sent_ms: int = 9) -> list[str]:
    """Return the violations of a PULL around the end of its worker, when another connection then gets the same message, also as
    attempt 1."""
    pull = replace(sub(sent_ms, "c.1"), op="pull", t_ns=answered_ms * MS)
    share = replace(of(0, "declare", "supervisor"), topic="t", consumer="c", note="share")
    found = [pull, deliver(answered_ms + 1, 0), *connect(answered_ms + 2, "c.2"), sub(answered_ms + 3, "c.2")]
    again = [deliver(answered_ms + 300, 0, process="c.2"), ack(answered_ms + 301, 0, process="c.2")]
    events = [share, BEGIN, *connect(0, "p.1", "c.1"), pub(2, 0), kill_of(10, HERE), *found, *again, DRAINED]
    return broken(*events)


def test_an_answer_that_was_read_late_may_be_of_the_worker_that_ended() -> None:
    assert REPLACED_NS == BACK_OFF_MIN_S * 1e9
    assert pulled_over_an_end(71) == [], "there is no other one yet"
    assert pulled_over_an_end(171) == [], "there may be one, on a busy machine as well as not"
    assert pulled_over_an_end(171, sent_ms=11) == [TOO_EARLY], "it was sent behind the end"


def test_an_ack_that_was_answered_by_either_worker_does_not_bind() -> None:
    for sync, found in ((None, []), (True, ["an acked message was delivered again although its ack was on the disk"])):
        assert broken(
            BEGIN, *connect(0, "p.1", "c.1"), replace(sub(1, "c.1"), op="pull"), pub(2, 0), deliver(3, 0), kill_of(10, HERE),
            ack(171, 0, sent_ms=9, sync=sync), of(172, "disconnect", "c.1"), *connect(180, "c.2"), sub(181, "c.2"),
            deliver(300, 0, attempt=2, process="c.2"), ack(301, 0, process="c.2"), DRAINED,
        ) == found  # fmt: skip


def test_an_ack_that_was_answered_by_either_worker_may_have_ended_what_the_second_had_delivered() -> None:
    """The SUB of the second client took long to be passed on, so it read the message after the ack. An answer from a third
    worker cannot explain this."""
    pulled = replace(sub(1, "c.1"), op="pull")
    events = [BEGIN, *connect(0, "p.1", "c.1"), pulled, pub(2, 0), deliver(3, 0), kill_of(10, HERE)]
    acked, read = ack(171, 0, sent_ms=9), [replace(sub(300, "c.2"), sent_ns=181 * MS), deliver(301, 0, process="c.2"), DRAINED]
    assert broken(*events, *connect(11, "c.2"), acked, *read) == []
    assert broken(*events, acked, kill_of(175, HERE), *connect(180, "c.2"), *read) == [
        "a message was never acked, and did not come again"
    ]


def test_what_was_delivered_before_the_end_and_read_after_it_is_of_the_life_before() -> None:
    assert broken(
        BEGIN, *connect(0, "p.1", "c.1"), sub(1, "c.1"), pub(2, 0), kill_of(10, HERE), deliver(11, 0),
        of(12, "disconnect", "c.1"), *connect(20, "c.2"), sub(21, "c.2"), deliver(22, 0, process="c.2"),
        ack(23, 0, process="c.2"), DRAINED,
    ) == []  # fmt: skip


def test_a_topic_that_is_with_another_worker_after_a_change_of_their_number_ends_with_that_one() -> None:
    topic = next(f"m{n}" for n in range(99) if worker_of(f"m{n}", 2) != worker_of(f"m{n}", 3))
    for worker, found in ((worker_of(topic, 3), []), (worker_of(topic, 2), [TOO_EARLY])):
        later = [
            *connect(200, "p.1", "c.1"), sub(201, "c.1"), pub(202, 0), deliver(203, 0), kill_of(210, worker),
            *connect(220, "c.2"), sub(221, "c.2"), deliver(222, 0, attempt=2, process="c.2"), ack(223, 0, process="c.2"),
        ]  # fmt: skip
        moved = [replace(event, topic=event.topic and topic) for event in later]
        assert broken(BEGIN, of(100, "stop"), replace(START, t_ns=150 * MS, workers=3), *moved, DRAINED) == found


def test_messages_of_all_topics_and_patterns_count_once() -> None:
    pattern = replace(sub(1, "c.1"), topic="a.*")
    events = [BEGIN, *connect(0, "p.1", "c.1"), pattern]
    for n in range(6):
        topic = f"a.{n % 3}"
        events += [
            replace(pub(2 + 3 * n, n, msg_id=n // 3), topic=topic), replace(deliver(3 + 3 * n, n, msg_id=n // 3), topic=topic),
            replace(ack(4 + 3 * n, n // 3), topic=topic),
        ]  # fmt: skip
    verdict = verdict_of(*events, kill_of(90, 0), kill_of(91, None), DRAINED)
    assert verdict.ok, verdict.violations[0]
    assert (verdict.acknowledged, verdict.delivered, verdict.acked, verdict.kills) == (6, 6, 6, 2)
    lost = [event for event in events if event.op != "deliver" or event.topic != "a.1"]
    assert verdict_of(*lost, DRAINED).lost == 2


def test_a_history_of_one_process_has_the_verdict_of_the_checker() -> None:
    spoilt = [*LIFE, deliver(5, 0, attempt=2, process="c.1"), ack(6, 0), DRAINED]
    assert verdict_of(*spoilt).as_dict() == check(spoilt).as_dict()
    assert verdict_of(*spoilt).violations


def test_what_is_missing_is_told() -> None:
    views = Views()
    assert "no start" in str(views.missing)
    for event in (BEGIN, pub(2, 0)):
        views.feed(event)
    assert 'no "drained"' in str(views.missing)
    views.feed(DRAINED)
    assert views.missing is None
