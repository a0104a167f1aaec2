"""The runs table: merging, heaps, bounds."""

import gc
import weakref

from toymq_py.consumer.inflight import INFLIGHT, MERGE_SLACK_S, READY, RunTable


def rows(table: RunTable) -> list[tuple[int, int, str, object, int]]:
    return [(r.first, r.last, r.state.name, r.owner, r.attempt) for r in table]


def heap_bound(table: RunTable) -> int:
    return 2 * len(table) + 64


def test_single_deliveries_of_one_moment_are_one_run() -> None:
    table = RunTable()
    for i in range(1000):
        table.lease("s", i, i, 30.0 + i * 1e-6)
    assert rows(table) == [(0, 999, "INFLIGHT", "s", 1)]
    assert table.leased_by("s") == table.messages(INFLIGHT) == 1000


def test_a_steady_stream_never_pushes_the_first_deadline_before_it() -> None:
    table = RunTable()
    for i in range(10_000):  # 1 ms apart: each is within the slack of the one before
        table.lease("s", i, i, 30.0 + i * 0.001)
    for run in table:
        assert run.deadline - (30.0 + run.first * 0.001) < MERGE_SLACK_S
        assert run.deadline >= 30.0 + run.last * 0.001, "never early for the last of the run"
    assert len(table) < 10_000 / 4


def test_other_owners_attempts_and_gaps_are_not_merged() -> None:
    table = RunTable()
    table.lease("a", 0, 1, 30.0)
    table.lease("b", 2, 3, 30.0)
    table.lease("b", 5, 6, 30.0)
    assert len(table) == 3


def test_an_earlier_deadline_merges_within_the_slack_only() -> None:
    table = RunTable()
    table.lease("a", 0, 0, 30.004)
    table.lease("a", 1, 1, 30.0)
    table.lease("a", 2, 2, 30.0045)
    assert len(table) == 1
    table.lease("a", 3, 3, 30.006)
    assert len(table) == 2, "0.006 from the earliest"
    assert table.next_deadline() == 30.0045


def test_leases_without_end_merge_too() -> None:
    table = RunTable()
    for i in range(10):
        table.lease("a", i, i, float("inf"))
    assert len(table) == 1


def test_heaps_stay_bounded_over_100k_take_and_ack_cycles() -> None:
    table = RunTable()
    for i in range(100_000):
        table.lease("s", i, i, 30.0 + i)
        if i >= 10:
            table.remove(i - 10, i - 10, delivered_only=True)
        assert len(table._deadlines) <= heap_bound(table)
    assert len(table) == 10


def test_heaps_stay_bounded_over_redeliveries_and_touches() -> None:
    table = RunTable()
    table.lease("s", 0, 99, 30.0)
    for i in range(5_000):
        table.give_back("s", i % 100, i % 100)
        table.take_ready("s", 1, 30.0 + i)
        table.touch(0, 99, 50_000.0 - i)
        assert len(table._deadlines) <= heap_bound(table)
        assert len(table._ready) <= heap_bound(table)


def test_a_redelivered_backlog_taken_singly_does_not_grow_the_table() -> None:
    table = RunTable()
    table.append_ready(0, 9_999, 3)
    for _ in range(10_000):
        table.take_ready("s", 1, 30.0)
    assert rows(table) == [(0, 9_999, "INFLIGHT", "s", 4)]


def test_release_joins_what_the_sessions_had_split() -> None:
    table = RunTable()
    for i in range(0, 100, 2):
        table.lease("a", i, i, 30.0)
        table.lease("b", i + 1, i + 1, 30.0)
    assert table.release("a") == 50
    assert table.leased_by("a") == 0
    assert table.release("b") == 50
    assert rows(table) == [(0, 99, "READY", None, 1)]
    assert table.messages(READY) == 100


def test_one_release_among_many_runs_looks_up_singly() -> None:
    table = RunTable()
    for i in range(1000):
        table.lease("b" if i % 500 == 7 else i % 2, i, i, 30.0)
    assert table.release("b") == 2
    assert [row[:3] for row in rows(table) if row[2] == "READY"] == [
        (7, 7, "READY"),
        (507, 507, "READY"),
    ]


def test_a_removed_run_does_not_keep_its_owner_alive() -> None:
    class Session:
        pass

    session = Session()
    gone = weakref.ref(session)
    table = RunTable()
    table.lease(session, 0, 5, 30.0)
    table.remove(0, 5, delivered_only=True)
    del session
    gc.collect()
    assert gone() is None


def test_remove_spans_what_had_left_before_and_stops_at_what_stays() -> None:
    table = RunTable()
    table.lease("a", 0, 9, 30.0)
    assert table.remove(2, 3, delivered_only=True) == [(2, 3)]
    table.give_back("a", 6, 6)
    assert table.remove(0, 2**64 - 1, delivered_only=True) == [(0, 5), (7, 9)]
    assert rows(table) == [(6, 6, "READY", None, 0)]
    assert table.remove(0, 2**64 - 1, delivered_only=False) == [(6, 6)]
    assert len(table) == 0
    assert table.next_deadline() is None


def test_remove_inside_a_run_keeps_both_ends_with_their_deadline() -> None:
    table = RunTable()
    table.lease("a", 0, 9, 30.0)
    table.remove(4, 5, delivered_only=True)
    assert [row[:2] for row in rows(table)] == [(0, 3), (6, 9)]
    assert table.tick(29.999) is False
    assert table.tick(30.0) is True
    assert table.messages(READY) == 8


def test_empty_ranges_do_nothing() -> None:
    table = RunTable()
    table.lease("a", 0, 9, 30.0)
    assert table.remove(7, 3, delivered_only=False) == []
    assert table.touch(7, 3, 99.0) == 0
    assert table.give_back("a", 7, 3) == 0
    assert rows(table) == [(0, 9, "INFLIGHT", "a", 1)]
