"""A consumer after a restart: its snapshot, cut to the ids that the log holds."""

from collections.abc import Iterable

import pytest

from tests.support.call_counts import counted_calls
from tests.support.consumers import POLICY, S, T, all_ready, consumer, restarted
from toymq_py.consumer import Consumer, ConsumerSnapshot, IdSet, MessageCounts
from toymq_py.id_rows import IdRows


def test_json_of_the_contract() -> None:
    value = {
        "since_ns": 1781767800000000000,
        "start": 0,
        "has_acked": True,
        "last_acked": 41,
        "acked_above": [[44, 60], [62, 62]],
        "attempts": [[42, 42, 3], [43, 43, 1]],
    }
    snapshot = ConsumerSnapshot.from_json(value)
    assert snapshot.to_json() == value
    it, changed = Consumer.restore("billing", snapshot, 0, 70)
    assert not changed
    assert (it.name, it.floor, it.last_acked, it.has_acked) == ("billing", 42, 41, True)
    assert all_ready(it) == [(42, 42, 4), (43, 43, 2)]
    assert it.cursor == 61
    assert it.next_fresh(70) == (61, 61)
    assert it.snapshot() == snapshot


def test_id_0_acked_is_not_redelivered_after_a_restart() -> None:
    it = consumer(delivered=1)
    it.ack([(0, 0)])
    again = restarted(it, 0, 1)
    assert (again.has_acked, again.last_acked, again.cursor) == (True, 0, 1)
    assert not again.has_ready()
    assert again.next_fresh(1) is None


def test_a_new_consumer_above_0_starts_there_after_a_restart() -> None:
    again = restarted(consumer(50))
    assert (again.has_acked, again.start, again.floor, again.cursor) == (False, 50, 50, 50)


def test_a_skipped_prefix_without_an_ack_survives() -> None:
    it = consumer(2)
    it.skip(2, 4)
    snapshot = it.snapshot()
    assert (snapshot.start, snapshot.has_acked, snapshot.acked_above) == (2, False, ((2, 4),))
    again = restarted(it)
    assert (again.floor, again.cursor, again.has_acked) == (5, 5, False)


def test_attempts_survive_and_nothing_is_inflight() -> None:
    it = consumer(delivered=10)
    it.nack([(0, 9)], 0.0, 0.0, POLICY)
    it.take_ready(S, 4, 30.0)
    it.nack([(0, 0)], 0.0, 60.0, POLICY)
    it.ack([(2, 2)])
    again = restarted(it)
    assert (again.inflight, again.next_deadline()) == (0, None)
    assert all_ready(again) == [(0, 1, 3), (3, 9, 2)], "of what was inflight the lowest counts"
    assert again.cursor == 10


def test_neighbours_with_equal_attempts_are_one_range() -> None:
    it = consumer(delivered=3)
    it.take_fresh(T, 3, 5, 60.0)
    assert it.snapshot().attempts == ((0, 0, 1), (3, 3, 1)), "the lowest of each session"
    it.nack([(0, 1)], 0.0, 60.0, POLICY)
    it.nack([(2, 5)], 0.0, 30.0, POLICY)
    assert it.snapshot().attempts == ((0, 5, 1),)


def test_given_back_ids_are_ready_or_fresh_after_a_restart() -> None:
    it = consumer(delivered=10)
    it.unsend(S, 2, 3)
    it.unsend(S, 7, 9)
    it.nack([(0, 6)], 0.0, 0.0, POLICY)
    again = restarted(it)
    assert again.cursor == 7
    assert all_ready(again) == [(0, 1, 2), (2, 3, 1), (4, 6, 2)]
    assert again.next_fresh(10) == (7, 9)


def test_holes_ahead_of_the_cursor_stay_ahead_after_a_restart() -> None:
    it = consumer(delivered=2)
    it.nack([(0, 1)], 0.0, 0.0, POLICY)
    it.skip(500, 500)
    again = restarted(it)
    assert again.cursor == 2
    assert again.next_fresh(1000) == (2, 499)
    assert again.snapshot() == it.snapshot()


def snapshot(
    start: int = 0,
    last_acked: int | None = None,
    above: Iterable[tuple[int, int]] = (),
    attempts: Iterable[tuple[int, int, int]] = (),
) -> ConsumerSnapshot:
    return ConsumerSnapshot(
        7, start, last_acked is not None, last_acked or 0, IdRows.of(2, above), IdRows.of(3, attempts)
    )


@pytest.mark.parametrize(
    ("kept", "first_id", "next_id", "changed", "want"),
    [
        (snapshot(), 0, 0, False, (0, 0, False, ())),
        (snapshot(), 0, 5, False, (0, 0, False, ())),
        (snapshot(start=5), 0, 5, False, (5, 5, False, ())),
        (snapshot(start=6), 0, 5, True, (5, 5, False, ())),
        (snapshot(), 3, 9, True, (3, 3, False, ())),  # 0 to 2 were not acked
        (snapshot(last_acked=4), 3, 9, False, (5, 5, True, ())),
        (snapshot(last_acked=4), 5, 9, False, (5, 5, True, ())),
        (snapshot(last_acked=4), 6, 9, True, (6, 6, True, ())),
        (snapshot(last_acked=1, above=[(2, 4)]), 5, 9, False, (5, 5, True, ())),
        (snapshot(last_acked=1, above=[(3, 4)]), 5, 9, True, (5, 5, True, ())),
        (snapshot(last_acked=1, above=[(3, 7)]), 5, 9, True, (8, 8, True, ())),
        (snapshot(last_acked=8), 0, 9, False, (9, 9, True, ())),
        (snapshot(last_acked=9), 0, 9, True, (9, 9, True, ())),
        (snapshot(last_acked=0), 0, 0, True, (0, 0, False, ())),  # no last_acked below 0
        (snapshot(above=[(3, 8)]), 0, 9, False, (0, 0, False, ())),
        (snapshot(above=[(3, 9)]), 0, 9, True, (0, 0, False, ())),
        (snapshot(above=[(9, 12)]), 0, 9, True, (0, 0, False, ())),
        (snapshot(attempts=[(0, 8, 2)]), 0, 9, False, (0, 9, False, ((0, 8, 2),))),
        (snapshot(attempts=[(0, 9, 2)]), 0, 9, True, (0, 9, False, ((0, 8, 2),))),
        (snapshot(attempts=[(0, 8, 2)]), 4, 9, True, (4, 9, False, ((4, 8, 2),))),
        (snapshot(attempts=[(0, 3, 2)]), 4, 9, True, (4, 4, False, ())),
    ],
)
def test_restore_cuts_to_what_the_log_holds(
    kept: ConsumerSnapshot,
    first_id: int,
    next_id: int,
    changed: bool,
    want: tuple[int, int, bool, tuple[tuple[int, int, int], ...]],
) -> None:
    it, was_changed = Consumer.restore("c", kept, first_id, next_id)
    now = it.snapshot()
    assert (it.floor, it.cursor, it.has_acked, now.attempts) == want
    assert was_changed is changed
    assert all(last < next_id for _, last in now.acked_above)
    ConsumerSnapshot.from_json(now.to_json())


@pytest.mark.parametrize(("start", "want"), [(0, 3), (3, 3), (5, 5), (9, 9), (12, 9)])
def test_restore_cuts_the_start_too(start: int, want: int) -> None:
    it, _ = Consumer.restore("c", snapshot(start=start), 3, 9)
    assert it.start == it.snapshot().start == want


def restored(start: int = 0, next_id: int = 10, later: Iterable[int] = ()) -> Consumer:
    """Return a consumer as a restart finds it that had delivered nothing by its stored offsets; ``later``: ids not due."""
    scheduled = IdSet()
    for msg_id in later:
        scheduled.add(msg_id)
    return Consumer.restore("c", Consumer("c", start=start, since_ns=1).snapshot(), 0, next_id, scheduled)[0]


def test_an_ack_is_believed_below_where_this_life_began() -> None:
    it = restored()
    assert it.ack([(2, 3)]) == 2
    assert it.ack([(0, 2**64 - 1)]) == 8, "never what was published since"
    assert it.counts(20).backlog == 10
    assert it.ack([(0, 9)]) == 0


@pytest.mark.parametrize(
    ("ranges", "later", "taken"),
    [
        ([(10, 19)], [13], 9),  # was 0: eight delivered messages came again
        ([(10, 12), (14, 19)], [13], 9),
        ([(0, 99)], [13, 50, 51, 99], 96),
        ([(95, 100)], [100], 5),
        ([(0, 101)], [100], 100),
        ([(5, 5), (10, 13), (13, 15)], [5, 13], 5),
        ([(13, 13)], [13], 0),
        ([(10, 19)], range(10, 20), 0),
    ],
)
def test_ids_that_are_not_due_drop_out_of_an_ack(ranges: list[tuple[int, int]], later: Iterable[int], taken: int) -> None:
    it = restored(next_id=101, later=later)
    assert it.ack(ranges) == taken
    assert it.ack(ranges) == 0
    assert it.counts(101) == MessageCounts(101 - taken - len(list(later)), 0, len(list(later)), 101 - len(list(later)) - taken)
    assert not any(it.has_acked_all(msg_id, msg_id) for msg_id in later)


def test_what_fell_due_before_its_turn_and_what_was_given_back_is_acked_around_what_is_not_due() -> None:
    """The delivery in this life ended without an attempt; the application may have the message of an earlier one."""
    it = restored(later=[2, 5])
    it.take_fresh(S, 0, 1, 30.0)
    it.unsend(S, 0, 1)
    assert it.next_fresh(10) == (3, 4)
    it.take_fresh(S, 3, 4, 30.0)
    it.pass_over(7)
    assert it.is_due(6)
    assert it.ack([(1, 8)]) == 6
    assert all_ready(it) == [(0, 0, 1)]
    assert it.next_fresh(10) == (9, 9)


def test_cumulative_acks_pass_what_is_not_due_once() -> None:
    """An ACK of 0-n per message walked over all that is not due, each time."""

    def calls(count: int) -> int:
        it = restored(next_id=2 * count, later=range(0, 2 * count, 2))

        with counted_calls() as counted:
            assert sum(it.ack([(0, msg_id)]) for msg_id in range(1, 2 * count, 2)) == count
        return counted.calls

    calls(10)
    assert calls(400) < 2.5 * calls(200)


def test_an_ack_is_not_believed_after_a_seek_of_a_new_consumer_or_of_what_moves_to_the_dead_letters() -> None:
    it = restored()
    it.seek(0, 2)
    assert it.ack([(0, 9)]) == 0
    assert Consumer("new", start=0, since_ns=1).ack([(0, 9)]) == 0
    it = restored()
    it.take_fresh(S, 0, 9, 30.0)
    it.give_up([(4, 5)])
    assert it.ack([(0, 9)]) == 8


def test_what_an_ack_may_take_is_what_is_said() -> None:
    it = restored()
    it.ack([(1, 1)])
    it.take_fresh(S, 2, 3, 30.0)
    it.give_up([(3, 3)])
    for msg_id in range(12):
        told = it.has_delivered(msg_id, msg_id) or it.maybe_delivered(msg_id)
        assert told == bool(it.ack([(msg_id, msg_id)])), msg_id
