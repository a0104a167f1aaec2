"""The table of leases as runs: merging, heaps, bounds."""

import gc
import weakref

import pytest

from toymq_py.consumer import DeliveryOrder
from toymq_py.consumer.lease_run import DELAYED, INFLIGHT, MERGE_SLACK_S, READY, Lessee, attempts_if_killed
from toymq_py.consumer.lease_table import ANY, DELIVERED, LeaseTable

A, B, S = Lessee(100), Lessee(100), Lessee(100)


def rows(table: LeaseTable) -> list[tuple[int, int, str, object, int]]:
    return [(r.first, r.last, r.state.name, r.owner, r.attempt) for r in table]


def heap_bound(table: LeaseTable) -> int:
    return 2 * len(table) + 64


def test_single_deliveries_of_one_moment_are_one_run() -> None:
    table = LeaseTable()
    for i in range(1000):
        table.lease(S, i, i, 30.0 + i * 1e-6)
    assert rows(table) == [(0, 999, "INFLIGHT", S, 1)]
    assert table.leased_to(S) == [(0, 999)]
    assert table.messages(INFLIGHT) == 1000


def test_a_steady_stream_never_pushes_the_first_deadline_before_it() -> None:
    table = LeaseTable()
    for i in range(10_000):  # 1 ms apart: each is within the slack of the one before
        table.lease(S, i, i, 30.0 + i * 0.001)
    for run in table:
        assert run.deadline - (30.0 + run.first * 0.001) < MERGE_SLACK_S
        assert run.deadline >= 30.0 + run.last * 0.001, "never early for the last of the run"
    assert len(table) < 10_000 / 4


def test_other_owners_attempts_and_gaps_are_not_merged() -> None:
    table = LeaseTable()
    table.lease(A, 0, 1, 30.0)
    table.lease(B, 2, 3, 30.0)
    table.lease(B, 5, 6, 30.0)
    assert len(table) == 3


def test_an_earlier_deadline_merges_within_the_slack_only() -> None:
    table = LeaseTable()
    table.lease(A, 0, 0, 30.004)
    table.lease(A, 1, 1, 30.0)
    table.lease(A, 2, 2, 30.0045)
    assert len(table) == 1
    table.lease(A, 3, 3, 30.006)
    assert len(table) == 2, "0.006 from the earliest"
    assert table.next_deadline() == 30.0045


def test_leases_without_end_merge_too() -> None:
    table = LeaseTable()
    for i in range(10):
        table.lease(A, i, i, 1e9)
    assert len(table) == 1


def test_heaps_stay_bounded_over_100k_take_and_ack_cycles() -> None:
    table = LeaseTable()
    for i in range(100_000):
        table.lease(S, i, i, 30.0 + i)
        if i >= 10:
            table.remove(i - 10, i - 10, DELIVERED)
        assert len(table._deadlines) <= heap_bound(table)
    assert len(table) == 10


def test_heaps_stay_bounded_over_redeliveries_and_touches() -> None:
    table = LeaseTable()
    table.lease(S, 0, 99, 30.0)
    for i in range(5_000):
        table.give_back(S, i % 100, i % 100)
        table.take_ready(S, 1, 30.0 + i)
        table.touch(0, 99, 50_000.0 - i)
        assert len(table._deadlines) <= heap_bound(table)
        assert len(table._ready) <= heap_bound(table)


def test_a_redelivered_backlog_taken_singly_does_not_grow_the_table() -> None:
    table = LeaseTable()
    table.append_ready(0, 9_999, 3)
    for _ in range(10_000):
        table.take_ready(S, 1, 30.0)
    assert rows(table) == [(0, 9_999, "INFLIGHT", S, 4)]


def test_release_joins_what_the_sessions_had_split() -> None:
    table = LeaseTable()
    for i in range(0, 100, 2):
        table.lease(A, i, i, 30.0)
        table.lease(B, i + 1, i + 1, 30.0)
    assert table.release(A) == 50
    assert table.leased_to(A) == []
    assert table.release(B) == 50
    assert rows(table) == [(0, 1, "READY", None, 1), (2, 99, "READY", None, 0)], "the lowest of each counts"
    assert table.messages(READY) == 100


def test_one_release_among_many_runs_looks_up_singly() -> None:
    table = LeaseTable()
    for i in range(1000):
        table.lease(B if i % 500 == 7 else (A, S)[i % 2], i, i, 30.0)
    assert table.release(B) == 2
    assert [row[:3] for row in rows(table) if row[2] == "READY"] == [
        (7, 7, "READY"),
        (507, 507, "READY"),
    ]


def test_a_removed_run_does_not_keep_its_owner_alive() -> None:
    class Session(Lessee):
        pass

    session = Session(100)
    gone = weakref.ref(session)
    table = LeaseTable()
    table.lease(session, 0, 5, 30.0)
    table.remove(0, 5, DELIVERED)
    del session
    gc.collect()
    assert gone() is None


def test_remove_spans_what_had_left_before_and_stops_at_what_stays() -> None:
    table = LeaseTable()
    table.lease(A, 0, 9, 30.0)
    assert table.remove(2, 3, DELIVERED) == [(2, 3)]
    table.give_back(A, 6, 6)
    assert table.remove(0, 2**64 - 1, DELIVERED) == [(0, 5), (7, 9)]
    assert rows(table) == [(6, 6, "READY", None, 0)]
    assert table.remove(0, 2**64 - 1, ANY) == [(6, 6)]
    assert len(table) == 0
    assert table.next_deadline() is None


def test_remove_inside_a_run_keeps_both_ends_with_their_deadline() -> None:
    table = LeaseTable()
    table.lease(A, 0, 9, 30.0)
    table.remove(4, 5, DELIVERED)
    assert [row[:2] for row in rows(table)] == [(0, 3), (6, 9)]
    assert table.tick(29.999) is False
    assert table.tick(30.0) is True
    assert table.messages(READY) == 8


def test_empty_ranges_do_nothing() -> None:
    table = LeaseTable()
    table.lease(A, 0, 9, 30.0)
    assert table.remove(7, 3, ANY) == []
    assert table.touch(7, 3, 99.0) == 0
    assert table.give_back(A, 7, 3) == 0
    assert rows(table) == [(0, 9, "INFLIGHT", A, 1)]


def test_a_lessee_counts_what_it_has_of_every_table_and_is_named_when_it_gets_room() -> None:
    lessee, other = Lessee(4), Lessee(4)
    one, two = LeaseTable(), LeaseTable()
    one.lease(lessee, 0, 2, 30.0)
    two.lease(lessee, 0, 0, 40.0)
    two.lease(other, 1, 1, 40.0)
    assert (lessee.inflight, other.inflight) == (4, 1)
    one.remove(0, 0, DELIVERED)
    assert one.freed == [], "it did not ask for room"
    lessee.wants_room = True
    two.remove(1, 1, DELIVERED)
    assert two.freed == [], "the other's room is not its own"
    two.tick(40.0)
    one.remove(1, 2, DELIVERED)
    assert (two.freed, one.freed, lessee.wants_room) == ([lessee], [], False), "said once"
    assert (lessee.inflight, other.inflight) == (0, 0)


def suspects(table: LeaseTable, count: int) -> list[int]:
    return [at for at in range(count) if (run := table.run_of(at)) is not None and run.is_suspect]


def test_what_sessions_had_in_hand_again_and_again_is_suspect_until_it_is_answered() -> None:
    table, session = LeaseTable(), Lessee(9)
    session.order = DeliveryOrder()
    table.lease(session, 0, 7, 30.0)
    for lost in range(3):
        assert suspects(table, 8) == ([0, 1, 2, 3] if lost > 1 else []), "of a window no more than so many are in hand"
        table.release(session)
        while table.take_ready(session, 8, 30.0):
            pass
    table.postpone(1, 1, 0.0, lambda attempt: 0.0)
    table.remove(0, 0, DELIVERED)
    assert suspects(table, 8) == [2, 3]


def test_the_message_that_a_session_got_first_counts_also_where_lower_ones_came_later() -> None:
    for order in (None, DeliveryOrder()):
        table, other, session = LeaseTable(), Lessee(9), Lessee(9)
        session.order = order
        table.lease(other, 0, 1, 10.0)
        table.lease(session, 2, 3, 30.0)
        table.tick(10.0)
        assert table.take_ready(session, 2, 31.0) == [(0, 0, 2), (1, 1, 1)]
        assert list(attempts_if_killed(list(table), table)) == [(0, 0, 1), (2, 2, 1)]
        table.remove(3, 3, DELIVERED)
        table.tick(31.0)
        assert [(run.first, run.attempt) for run in table] == [(0, 1), (1, 0), (2, 1)]


def test_an_ack_of_some_that_wait_says_nothing_about_their_neighbours() -> None:
    table, session = LeaseTable(), Lessee(9)
    session.order = DeliveryOrder()
    table.lease(session, 0, 3, 30.0)
    table.release(session)
    while table.take_ready(session, 8, 30.0):
        pass
    table.release(session)
    assert [(run.first, run.last) for run in table] == [(0, 0), (1, 3)]
    table.remove(2, 2, DELIVERED)
    assert suspects(table, 4) == [0, 1, 3]


def test_what_a_session_of_one_topic_had_and_what_ends_by_its_time_is_not_suspect() -> None:
    """In a session of one topic the lowest id counts; and a window that takes longer than its leases is no reason to suspect a
    message."""
    for order in (None, DeliveryOrder()):
        table, session = LeaseTable(), Lessee(9)
        session.order = order
        table.lease(session, 0, 2, 30.0)
        for _ in range(3):
            table.release(session) if order is None else table.tick(30.0)
            while table.take_ready(session, 3, 30.0):
                pass
        assert suspects(table, 3) == []


def test_a_lessee_that_hangs_and_goes_counts_once() -> None:
    """When the lessee goes, messages that it got after the time-out count no attempt: it has not begun them."""
    table, hung, other = LeaseTable(), Lessee(9), Lessee(9)
    table.lease(hung, 0, 0, 30.0)
    table.tick(30.0)
    table.take_ready(other, 1, 60.0)
    table.lease(hung, 1, 1, 60.0)
    table.release(hung)
    assert (table.run_of(0).attempt, table.run_of(1).attempt, hung.late) == (2, 0, True)
    table.take_ready(hung, 1, 60.0)
    table.remove(1, 1, DELIVERED)
    assert not hung.late


@pytest.mark.parametrize("several", [False, True], ids=["topic", "pattern"])
def test_what_a_session_renews_and_dies_of_counts_although_what_waited_behind_it_timed_out(several: bool) -> None:
    """Found by a blind attack: the session was taken to hang on another message, which had counted already. Its poison message
    killed workers for ever."""
    table = LeaseTable()
    for death in range(1, 4):
        session = Lessee(9)
        session.order = DeliveryOrder() if several else None
        if death == 1:
            table.lease(session, 0, 3, 30.0)
        else:
            while table.take_ready(session, 9, 30.0):
                pass
        table.touch(0, 0, 60.0)
        table.tick(30.0)
        table.take_ready(session, 9, 60.0)
        assert session.late
        table.release(session)
        assert [(run.first, run.last, run.attempt) for run in table] == [(0, 0, death), (1, 3, 0)]


def test_a_session_that_renews_what_it_got_behind_its_hang_has_come_to_it() -> None:
    """The session gave up message 0 without a NACK, and now renews message 1: that one counts when its lease ends, as 0 did,
    and not a later one."""
    table, session, other = LeaseTable(), Lessee(9), Lessee(9)
    table.lease(session, 0, 0, 30.0)
    table.tick(30.0)
    table.take_ready(other, 1, 90.0)
    table.lease(session, 1, 2, 60.0)
    table.touch(1, 1, 61.0)
    assert not session.late
    table.tick(61.0)
    assert [(run.first, run.attempt) for run in table] == [(0, 2), (1, 1), (2, 0)]
    table.take_ready(session, 1, 90.0)
    table.touch(2, 2, 95.0)
    assert session.late, "that one it had before"


def test_a_table_that_is_cleared_gives_its_lessees_room() -> None:
    lessee = Lessee(3)
    table = LeaseTable()
    table.lease(lessee, 0, 2, 30.0)
    table.postpone(1, 1, 0.0, lambda attempt: 5.0)
    table.give_back(lessee, 2, 2)
    lessee.wants_room = True
    table.clear()
    assert (lessee.inflight, table.freed, len(table), table.next_deadline()) == (0, [lessee], 0, None)
    assert table.take_ready(lessee, 9, 30.0) == []
    assert [table.messages(state) for state in (READY, INFLIGHT)] == [0, 0]


def test_what_is_held_without_a_deadline_is_no_lease_that_a_client_can_end() -> None:
    table = LeaseTable()
    table.lease(A, 0, 9, 30.0)
    table.give_back(A, 4, 5)
    table.hold(B, 4, 5)
    assert (table.outstanding, table.messages(INFLIGHT)) == (8, 10)
    assert table.touch(0, 9, 60.0) == 8
    assert table.leased([(0, 9)]) == [(0, 3), (6, 9)]
    assert table.postpone(0, 6, 1.0, lambda attempt: 0.0) == 5
    assert table.give_up(0, 9) == 8
    assert [(run.first, run.last) for run in table if run.state is INFLIGHT] == [(4, 5)]
    table.give_back(B, 4, 5)
    assert table.outstanding == 10


def test_what_waits_for_its_next_delivery_is_given_up_and_what_was_never_delivered_is_not() -> None:
    table = LeaseTable()
    table.lease(A, 0, 4, 30.0)
    table.postpone(0, 0, 1.0, lambda attempt: 60.0)
    table.postpone(1, 1, 1.0, lambda attempt: 0.0)
    table.give_back(A, 2, 2)
    table.give_back(A, 3, 3)
    table.hold(B, 3, 3)
    assert table.rejectable([(0, 9)]) == [(0, 1), (4, 4)]
    assert table.give_up(0, 3) == 2
    assert [(held.first, held.last, held.attempt, held.reason) for held in table.take_held(9)] == [(0, 1, 1, "rejected")]
    assert (table.messages(DELAYED), table.messages(READY), table.next_deadline()) == (0, 1, 30.0)
