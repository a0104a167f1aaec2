"""The consumer: deliveries, acks, and how messages become ready again. Restart: test_consumer_restart.py."""

import pytest

from tests.support.consumers import POLICY, S, T, U, all_ready, consumer, restarted
from toymq_py.consumer import Consumer, IdSet, MessageCounts
from toymq_py.consumer.lease_run import Lessee

U64 = 2**64 - 1


def held(it: Consumer, owner: Lessee) -> int:
    return sum(last + 1 - first for first, last in it.inflight_to(owner))


# -- the life of a message


def test_a_new_consumer_has_seen_nothing() -> None:
    it = consumer(5)
    assert (it.floor, it.cursor, it.start, it.has_acked) == (5, 5, 5, False)
    assert it.counts(8) == MessageCounts(ready=3, inflight=0, scheduled=0, backlog=3)
    assert it.next_fresh(5) is None
    assert it.next_fresh(8) == (5, 7)


def test_take_and_ack() -> None:
    it = consumer()
    it.take_fresh(S, 0, 9, 30.0)
    assert (it.cursor, it.inflight, held(it, S), held(it, T)) == (10, 10, 10, 0)
    assert it.ack([(0, 4)]) == 5
    assert (it.floor, it.last_acked, it.has_acked) == (5, 4, True)
    assert it.counts(12) == MessageCounts(ready=2, inflight=5, scheduled=0, backlog=7)


def test_acks_above_a_gap_are_ranges_until_the_gap_closes() -> None:
    it = consumer(delivered=10)
    assert it.ack([(3, 4), (6, 9)]) == 6
    assert it.floor == 0
    assert it.snapshot().acked_above == ((3, 4), (6, 9))
    assert it.ack([(0, 2)]) == 3
    assert it.floor == 5
    assert it.ack([(5, 5)]) == 1
    assert it.floor == 10
    assert it.snapshot().acked_above == ()


def test_a_consumer_that_starts_above_0_is_contiguous_from_its_start() -> None:
    it = consumer(100, delivered=10)
    assert it.ack([(100, 104)]) == 5
    assert (it.floor, it.last_acked) == (105, 104)
    assert it.snapshot().acked_above == ()


def test_an_ack_of_what_was_never_handed_out_takes_it_too() -> None:
    """A client may ack messages that it has read from the log. Messages between them are delivered in order, and a repeated ack
    changes nothing."""
    it = consumer(delivered=2)
    assert it.ack_unseen([(1, 1), (4, 5), (8, 20)], 10) == 5
    assert (it.has_acked, it.floor, it.next_fresh(10)) == (True, 0, (2, 3))
    assert (it.inflight, it.counts(10)) == (1, MessageCounts(ready=4, inflight=1, scheduled=0, backlog=5))
    before = it.changes
    assert it.ack_unseen([(4, 5)], 10) == 0
    assert it.changes == before
    it.take_fresh(S, 2, 3, 30.0)
    assert it.next_fresh(10) == (6, 7)
    assert restarted(it, next_id=10).snapshot() == it.snapshot()


def test_an_ack_of_what_was_never_handed_out_leaves_dead_letters_on_their_way() -> None:
    it = consumer(delivered=3)
    it.give_up([(1, 1)])
    assert it.ack_unseen([(0, 4)], 5) == 4
    assert it.is_held(1)
    assert not it.is_held(0)
    assert it.floor == 1
    it.take_held(10)
    assert it.ack_dead_lettered(1, 1) == 1
    assert it.floor == 5


def test_an_ack_of_what_is_not_due_ends_it() -> None:
    later = IdSet()
    later.add_range(1, 2)
    it = Consumer("c", start=0, since_ns=7, scheduled=later)
    assert it.ack_unseen([(1, 1)], 3) == 1
    assert it.counts(3) == MessageCounts(ready=1, inflight=0, scheduled=1, backlog=1)
    later.discard_range(1, 2)
    it.fall_due([1, 2])
    assert it.next_fresh(3) == (0, 0)
    it.take_fresh(S, 0, 0, 30.0)
    assert it.next_fresh(3) == (2, 2)


def test_double_ack_counts_0_and_changes_nothing() -> None:
    it = consumer(delivered=10)
    assert it.ack([(2, 5)]) == 4
    before = it.changes
    assert it.ack([(2, 5)]) == 0
    assert it.changes == before
    assert it.ack([(0, 9), (0, 9)]) == 6


def test_ack_of_ids_never_delivered_counts_0() -> None:
    it = consumer(delivered=3)
    assert it.ack([(3, 50)]) == 0
    assert not it.has_acked
    assert it.ack([(0, U64)]) == 3
    assert (it.floor, it.cursor) == (3, 3)


def test_ack_takes_what_was_delivered_whatever_became_of_its_lease() -> None:
    it = consumer(delivered=6)
    it.nack([(0, 0)], 0.0, 60.0, POLICY)
    it.nack([(1, 1)], 0.0, 0.0, POLICY)
    assert it.tick(30.0)
    assert it.inflight == 0
    assert it.ack([(0, 5)]) == 6, "delayed, nacked and expired ones alike"
    assert not it.has_ready()
    assert it.next_deadline() is None


def test_what_may_be_acked_and_what_is_leased() -> None:
    it = consumer(delivered=5)
    assert not it.is_last(20)
    it.limit_attempts(2)
    assert [it.is_last(attempt) for attempt in (1, 2, 3)] == [False, True, True]
    it.ack([(0, 0)])
    it.nack([(2, 2)], 1.0, 0.0, POLICY)
    it.unsend(S, 3, 3)
    it.give_up([(4, 4)])
    assert [it.is_inflight(msg_id) for msg_id in range(7)] == [False, True, False, False, False, False, False]
    assert [it.has_delivered(msg_id, msg_id) for msg_id in range(7)] == [False, True, True, False, False, False, False]
    assert [it.failed(msg_id) for msg_id in range(7)] == [0, 0, 1, 0, 1, 0, 0]
    assert [it.ack([(msg_id, msg_id)]) for msg_id in range(7)] == [0, 1, 1, 0, 0, 0, 0]


def test_ack_above_a_gap_at_id_0() -> None:
    it = consumer(delivered=2)
    assert it.ack([(1, 1)]) == 1
    assert it.has_acked
    snapshot = it.snapshot()
    assert (snapshot.has_acked, snapshot.acked_above) == (False, ((1, 1),)), "nothing below 0"
    again = restarted(it)
    assert all_ready(again) == [(0, 0, 2)]
    assert again.ack([(0, 0)]) == 1
    assert again.floor == 2


def test_taking_what_is_not_fresh_is_a_mistake() -> None:
    it = consumer(delivered=5)
    it.skip(8, 9)
    for first, last in ((4, 6), (7, 8), (9, 12), (7, 6)):
        with pytest.raises(ValueError, match="not fresh"):
            it.take_fresh(S, first, last, 30.0)
    assert (it.cursor, it.inflight) == (5, 5)


# -- holes


def test_ids_passed_over_by_a_delivery_count_as_acked() -> None:
    it = consumer(delivered=2)
    it.take_fresh(S, 5, 6, 30.0)
    assert it.counts(7).backlog == 4
    assert it.ack([(0, U64)]) == 4
    assert it.floor == 7


def test_a_hole_at_the_cursor_moves_it() -> None:
    it = consumer()
    it.skip(0, 3)
    assert (it.floor, it.cursor, it.has_acked) == (4, 4, False)


def test_a_hole_ahead_is_passed_in_its_turn() -> None:
    it = consumer()
    it.skip(3, 4)
    assert (it.floor, it.cursor) == (0, 0)
    assert it.next_fresh(10) == (0, 2)
    assert it.counts(10).backlog == 8
    assert it.counts(4).backlog == 3
    it.take_fresh(S, 0, 2, 30.0)
    assert it.cursor == 5
    assert it.next_fresh(10) == (5, 9)
    it.ack([(0, 2)])
    assert it.floor == 5


def test_skip_takes_ids_out_of_every_state() -> None:
    it = consumer(delivered=6)
    it.nack([(0, 1)], 0.0, 60.0, POLICY)
    it.nack([(2, 3)], 0.0, 0.0, POLICY)
    it.skip(1, 4)
    assert it.counts(6) == MessageCounts(ready=0, inflight=1, scheduled=1, backlog=1)
    assert held(it, S) == 1
    assert not it.has_ready()
    assert it.ack([(1, 4)]) == 0


def test_skip_takes_what_was_given_back_uncounted() -> None:
    it = consumer(delivered=3)
    it.unsend(S, 0, 2)
    it.skip(1, 1)
    assert all_ready(it) == [(0, 0, 1), (2, 2, 1)]


def test_drop_below_counts_what_was_not_acked() -> None:
    it = consumer(delivered=10)
    it.ack([(2, 4)])
    assert it.drop_below(8) == 5
    assert (it.floor, it.cursor, it.inflight, it.start) == (8, 10, 2, 8)
    assert it.drop_below(8) == 0
    assert it.drop_below(15) == 7, "2 inflight, 5 never delivered"
    assert (it.floor, it.cursor, it.inflight) == (15, 15, 0)
    assert it.next_deadline() is None


# -- ways back


def test_unsend_gives_the_attempt_back() -> None:
    it = consumer(delivered=10)
    it.unsend(S, 4, 9)
    assert (it.inflight, it.counts(10).ready) == (4, 6)
    assert it.ack([(4, 9)]) == 0, "never delivered"
    assert it.take_ready(T, 100, 60.0) == [(4, 9, 1)]
    assert it.ack([(4, 9)]) == 6


def test_unsend_of_a_redelivery_keeps_the_earlier_attempts() -> None:
    it = consumer(delivered=2)
    it.nack([(0, 1)], 0.0, 0.0, POLICY)
    assert it.take_ready(T, 2, 60.0) == [(0, 1, 2)]
    it.unsend(T, 1, 1)
    assert it.snapshot().attempts == ((0, 0, 2), (1, 1, 1))


def test_unsend_leaves_other_owners_and_acked_ids_alone() -> None:
    it = consumer(delivered=4)
    it.take_fresh(T, 4, 5, 30.0)
    it.ack([(1, 1)])
    before = it.changes
    it.unsend(U, 0, 9)
    assert it.changes == before
    it.unsend(S, 0, 9)
    assert (held(it, S), held(it, T)) == (0, 2)
    assert all_ready(it) == [(0, 0, 1), (2, 3, 1)]


def test_release_makes_everything_of_one_owner_ready_at_once() -> None:
    it = consumer(delivered=3)
    it.take_fresh(T, 3, 5, 30.0)
    it.nack([(0, 0)], 0.0, 60.0, POLICY)
    before = it.changes
    assert it.release(S) == 2
    assert it.release(S) == 0
    assert it.changes == before, "a snapshot shows no leases"
    assert it.counts(6) == MessageCounts(ready=2, inflight=3, scheduled=1, backlog=5)
    assert all_ready(it) == [(1, 1, 2), (2, 2, 1)], "the lowest counts"


def test_redeliveries_come_lowest_id_first_and_in_portions() -> None:
    it = consumer(delivered=10)
    it.nack([(7, 9)], 0.0, 0.0, POLICY)
    it.nack([(1, 3)], 0.0, 0.0, POLICY)
    assert it.take_ready(T, 2, 60.0) == [(1, 2, 2)]
    assert it.take_ready(T, 2, 60.0) == [(3, 3, 2), (7, 7, 2)]
    assert it.take_ready(T, 0, 60.0) == []
    assert it.take_ready(T, 9, 60.0) == [(8, 9, 2)]
    assert not it.has_ready()


def test_nack_with_a_delay_waits_for_it() -> None:
    it = consumer(delivered=10)
    assert it.nack([(2, 4), (9, 20)], 1.0, 2.5, POLICY) == 4
    assert it.nack([(2, 4)], 1.0, 9.0, POLICY) == 0, "no longer inflight"
    assert it.counts(10) == MessageCounts(ready=0, inflight=6, scheduled=4, backlog=6)
    assert it.next_deadline() == 3.5
    assert not it.tick(3.499)
    assert it.tick(3.5)
    assert all_ready(it) == [(2, 4, 2), (9, 9, 2)]


def test_nack_without_a_delay_backs_off_by_attempt() -> None:
    it = consumer(delivered=2)
    now = 0.0
    for want in (0.1, 0.2, 0.4):
        assert it.nack([(0, 1)], now, None, POLICY) == 2
        assert it.next_deadline() == pytest.approx(now + want)
        now += want
        assert it.tick(now)
        it.take_ready(S, 9, now + 30.0)


def test_a_lease_ends_at_its_deadline_and_not_before() -> None:
    it = consumer(delivered=2)
    it.take_fresh(S, 2, 3, 31.0)
    assert it.next_deadline() == 30.0
    assert not it.tick(29.9999)
    assert it.tick(30.0)
    assert (it.inflight, it.next_deadline()) == (2, 31.0)
    assert not it.tick(30.5)
    assert it.tick(1000.0)
    assert it.next_deadline() is None
    assert all_ready(it) == [(0, 0, 2), (1, 3, 1)], "what it had behind the one that counted does not"


def test_a_worker_that_hangs_counts_one_message_a_time_out_whenever_the_others_were_delivered() -> None:
    """Found: leases that began at different times end at different times, and each message was the lowest one then: five of
    five counted an attempt."""
    it = consumer()
    for msg_id in range(5):
        it.take_fresh(S, msg_id, msg_id, 30.0 + msg_id)
    for now in range(30, 35):
        assert it.tick(float(now))
    assert [it.take_ready(S, 5, 65.0), it.take_ready(S, 5, 66.0)] == [[(0, 0, 2), (1, 4, 1)], []]
    assert it.tick(65.0)
    assert all_ready(it) == [(0, 0, 3), (1, 4, 1)], "what it got behind that counts by itself"


def test_a_worker_that_has_settled_something_hangs_on_another_message() -> None:
    it = consumer()
    it.take_fresh(S, 0, 0, 30.0)
    it.take_fresh(S, 1, 2, 31.0)
    it.tick(30.0)
    it.ack([(1, 1)])
    it.tick(31.0)
    assert all_ready(it) == [(0, 0, 2), (2, 2, 2)]


def test_merged_deadlines_never_expire_early() -> None:
    it = consumer()
    for i in range(5):
        it.take_fresh(S, i, i, 30.0 + i * 0.001)
    assert not it.tick(30.0039)
    assert it.tick(30.004)
    assert it.inflight == 0


def test_touch_keeps_a_lease() -> None:
    it = consumer(delivered=10)
    assert it.touch([(3, 5), (9, 99)], 60.0) == 4
    assert it.next_deadline() == 30.0
    assert it.tick(30.0)
    assert it.inflight == 4
    assert it.touch([(0, 99)], 90.0) == 4, "what is ready again has no clock"
    assert not it.tick(60.0)
    assert it.next_deadline() == 90.0


@pytest.mark.parametrize("touched", [False, True], ids=["hangs", "touches"])
def test_a_time_out_counts_only_the_lowest_that_the_lessee_holds(touched: bool) -> None:
    """The worker hangs on message 0, or handles it and touches it: later deliveries wait in its buffer."""
    it = consumer()
    for msg_id in range(100):
        it.take_fresh(S, msg_id, msg_id, 30.0 + msg_id)
    for now in range(30, 300):
        if touched:
            it.touch([(0, 0)], now + 30.0)
        it.tick(float(now))
        it.take_ready(S, 100, now + 30.0)
    assert list(it.snapshot().attempts) == [(0, 0, 1 if touched else 10)]


def test_touch_may_shorten_a_lease() -> None:
    it = consumer(delivered=10)
    assert it.touch([(3, 3)], 5.0) == 1
    assert it.next_deadline() == 5.0
    assert it.tick(5.0)
    assert all_ready(it) == [(3, 3, 1)], "uncounted: 0 to 2 are still held"
    assert it.next_deadline() == 30.0


# -- seek


def test_seek_forgets_everything() -> None:
    it = consumer(delivered=10)
    it.ack([(0, 3), (6, 6)])
    it.nack([(5, 5)], 0.0, 60.0, POLICY)
    it.seek(2, 99)
    assert (it.start, it.floor, it.cursor, it.has_acked, it.since_ns) == (2, 2, 2, False, 99)
    assert (it.inflight, held(it, S), it.next_deadline()) == (0, 0, None)
    assert it.ack([(0, U64)]) == 0, "the old deliveries are forgotten"
    it.take_fresh(S, 2, 4, 30.0)
    assert it.snapshot().attempts == ((2, 2, 1),)


# -- width and number


def test_a_range_of_any_width_costs_what_is_inflight() -> None:
    it = consumer(delivered=3)
    assert it.touch([(0, U64)], 40.0) == 3
    assert it.nack([(0, U64)], 0.0, 0.0, POLICY) == 3
    assert it.ack([(0, U64)]) == 3


def test_every_second_of_100k_acked_and_then_the_rest_at_once() -> None:
    it = consumer(delivered=100_000)
    assert sum(it.ack([(i, i)]) for i in range(1, 100_000, 2)) == 50_000
    assert it.inflight == 50_000
    assert it.ack([(0, U64)]) == 50_000
    assert (it.floor, it.inflight, it.next_deadline()) == (100_000, 0, None)


def test_an_ack_takes_what_was_spared() -> None:
    """A delivery that does not count as an attempt can still be acked, since its client has it."""
    it = consumer(delivered=4)
    it.release(S)
    assert all_ready(it) == [(0, 0, 2), (1, 3, 1)]
    it = consumer(delivered=4)
    it.release(S)
    it.take_ready(T, 2, 60.0)
    it.unsend(T, 0, 1)
    assert it.ack([(0, 9)]) == 4
