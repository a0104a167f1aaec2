"""Runs of neighbouring ids in the same state. Contract: delivery.md, "Runs, not rows"; ADR 0053."""

from math import inf

import pytest

from toymq_py.consumer.lease_run import (
    INFLIGHT,
    MERGE_SLACK_S,
    READY,
    LeaseRun,
    Lessee,
    attempts_if_killed,
    first_run_by_lessee,
)

A, B = Lessee(100), Lessee(100)


def leased(first: int, last: int, owner: Lessee = A, deadline: float = 30.0, attempt: int = 1) -> LeaseRun:
    return LeaseRun(first, last, INFLIGHT, owner, deadline, attempt)


@pytest.mark.parametrize(
    ("first", "owner", "deadline", "attempt", "accepted"),
    [
        (10, A, 30.0, 1, True),
        (11, A, 30.0, 1, False),
        (10, B, 30.0, 1, False),
        (10, A, 30.0, 2, False),
        (10, A, 30.0 + MERGE_SLACK_S / 2, 1, True),
        (10, A, 30.0 + MERGE_SLACK_S * 2, 1, False),
    ],
)
def test_only_neighbours_in_one_condition_merge(
    first: int, owner: Lessee, deadline: float, attempt: int, accepted: bool
) -> None:
    assert leased(0, 9).accepts(first, INFLIGHT, owner, deadline, deadline, attempt, 0) == accepted


def test_neighbours_of_different_turns_stay_apart_while_they_are_leased() -> None:
    """If they were merged, a message that was delivered after another topic's messages would seem to be delivered before them
    (ADR 0256)."""
    run = LeaseRun(0, 9, INFLIGHT, A, 30.0, 1, turn=3)
    assert run.accepts(10, INFLIGHT, A, 30.0, 30.0, 1, 3)
    assert not run.accepts(10, INFLIGHT, A, 30.0, 30.0, 1, 4)
    assert run.tail(5).turn == 3
    run.end_lease(READY)
    assert (run.state, run.owner, run.turn, run.ticket) == (READY, None, 0, None)


def test_a_merged_run_is_due_with_its_latest_lease_and_spans_all_deliveries() -> None:
    run = leased(0, 9)
    run.delivered = (5.0, 6.0)
    run.extend(12, 30.003, 30.003, (4.0, 7.0))
    assert (run.last, run.earliest, run.deadline, run.delivered) == (12, 30.0, 30.003, (4.0, 7.0))
    run.extend(13, 30.0, 30.0, None)
    assert (run.deadline, run.delivered) == (30.003, None), "one that is not known hides the others"


def test_the_tail_of_a_run_is_in_the_same_condition() -> None:
    run = leased(0, 9, attempt=3)
    run.delivered, run.reason, run.ticket = (1.0, 2.0), "rejected", 8
    rest = run.tail(4)
    assert (rest.first, rest.last, rest.attempt, rest.delivered, rest.reason) == (4, 9, 3, (1.0, 2.0), "rejected")
    assert rest.ticket is None, "no heap entry stands for it yet"


def test_a_kill_counts_only_the_lowest_id_of_each_lessee_as_attempted() -> None:
    runs = [leased(0, 3), leased(4, 5, B, attempt=2), leased(6, 7), LeaseRun(8, 9, READY, None, 0.0, 4)]
    assert list(attempts_if_killed(runs)) == [(0, 0, 1), (4, 4, 2), (5, 5, 1), (8, 9, 4)]
    held = leased(0, 1, deadline=inf, attempt=1)
    assert list(attempts_if_killed([held])) == [(0, 1, 1)], "it waits for a restart and is not being attempted"


def test_the_lowest_run_of_each_lessee() -> None:
    runs = [leased(8, 9), leased(2, 3, B), leased(0, 1), LeaseRun(4, 5, READY, None, 0.0, 1)]
    assert first_run_by_lessee(runs) == {A: runs[2], B: runs[1]}


def test_a_message_that_was_only_in_a_buffer_is_spared() -> None:
    run = leased(0, 0)
    run.spare()
    assert (run.attempt, run.spared) == (0, True)
    again = leased(0, 0, attempt=3)
    again.spare()
    assert (again.attempt, again.spared) == (2, False)
