"""Lookups in the runs of a consumer. Contract: delivery.md, "Runs, not rows"."""

from toymq_py.consumer.lease_run import Lessee
from toymq_py.consumer.lease_table import LeaseTable

ONE, TWO = Lessee(100), Lessee(100)


def table() -> LeaseTable:
    """Return a lease table: ids 0 to 3 inflight to one lessee, 4 to 5 to another, 6 ready after two deliveries, 7 to 8 held, 9
    delayed."""
    made = LeaseTable()
    made.append_ready(0, 3, 4)
    assert made.take_ready(ONE, 4, 30.0) == [(0, 3, 5)]
    made.lease(TWO, 4, 5, 40.0)
    made.append_ready(6, 6, 2)
    made.lease(ONE, 7, 9, 30.0)
    assert made.give_up(7, 8) == 2
    assert made.postpone(9, 9, 0.0, lambda attempt: 60.0) == 1
    return made


def test_the_run_of_an_id() -> None:
    runs = table()
    found = [runs.run_of(msg_id) for msg_id in (0, 3, 5)]
    assert [(run.first, run.last) for run in found if run is not None] == [(0, 3), (0, 3), (4, 5)]
    assert runs.run_of(10) is None


def test_parts_of_a_range_by_state() -> None:
    runs = table()
    assert runs.leased([(2, 9)]) == [(2, 5)], "neighbours of two lessees are one range"
    ONE.number = 7
    assert runs.leased([(0, 1), (3, 9)], 7) == [(0, 1), (3, 3)], "of one lessee alone, and what is leased"
    assert runs.leased([(0, 9)], 8) == []
    assert runs.held(8, 20) == [(8, 8)]
    assert runs.not_held(2, 20) == [(2, 6), (9, 9)]
    assert runs.busy(3, 8) == [(3, 3), (4, 5), (7, 8)]
    assert runs.leased_to(ONE) == [(0, 3)]
    assert runs.leased_to(Lessee(1)) == []


def test_the_lowest_due_id_is_not_one_that_waits_for_a_time() -> None:
    runs = table()
    assert runs.first_due() == 0
    runs.remove(0, 8)
    assert runs.first_due() is None
    assert runs.first_due(given_back=True) == 9, "unless that is asked for"


def test_failed_deliveries_are_those_before_the_present_one_and_no_dead_letters() -> None:
    runs = table()
    assert runs.retrying() == 4 + 1 + 1, "0 to 3 are delivered again, 6 and 9 will be; 4 and 5 are with their first client"
    runs.append_ready(10, 12, 0)
    assert runs.retrying() == 6, "what is given back uncounted did not fail"


def test_attempts_are_those_that_a_kill_leaves() -> None:
    runs = table()
    assert runs.most_attempted() == (5, 0)
    assert list(runs.attempts()) == [(0, 0, 5), (1, 3, 4), (4, 4, 1), (6, 6, 2), (7, 9, 1)], "the lowest id of each lessee"
