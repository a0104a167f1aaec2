"""A job's continuation waits for every follower that is required at that moment, and for no other."""

import threading

import pytest

from toymq_py.replication.tickets import JobTicket, Tickets


class Rig:
    """``run`` runs a job that syncs; ``told`` has the continuations that ran."""

    def __init__(self, *required: str) -> None:
        self.tickets = Tickets()
        self.tickets.require(required)
        self.told: list[str] = []

    def ran(self, *seqs: int) -> JobTicket:
        ticket = self.tickets.run(lambda: [self.tickets.expect(seq) for seq in seqs] and None)
        assert ticket is not None
        return ticket

    def run(self, name: str, *seqs: int) -> None:
        self.ran(*seqs).when_settled(lambda: self.told.append(name))


def test_a_job_that_syncs_nothing_shared_has_no_ticket() -> None:
    assert Tickets().run(lambda: None) is None


def test_without_followers_a_ticket_is_settled_at_once() -> None:
    rig = Rig()
    rig.run("a", 1, 2)
    assert rig.told == ["a"]
    assert rig.tickets.oldest is None


def test_every_sync_of_a_job_is_waited_for_on_every_required_follower() -> None:
    rig = Rig("f", "g")
    rig.run("a", 1, 2)
    for follower, seq in (("f", 1), ("g", 1), ("f", 2)):
        rig.tickets.acknowledge(follower, seq)
        assert rig.told == []
    assert rig.tickets.oldest == 1
    rig.tickets.acknowledge("g", 2)
    assert rig.told == ["a"]
    assert rig.tickets.oldest is None


def test_jobs_are_settled_as_their_syncs_end_and_in_no_other_order() -> None:
    rig = Rig("f")
    rig.run("a", 1)
    rig.run("b", 2)
    rig.tickets.acknowledge("f", 2)
    assert rig.told == ["b"]
    rig.tickets.acknowledge("f", 1)
    assert rig.told == ["b", "a"]


def test_a_follower_that_is_faster_than_the_own_disk_counts() -> None:
    rig = Rig("f")
    ticket = rig.ran(1)
    rig.tickets.acknowledge("f", 1)
    ticket.when_settled(lambda: rig.told.append("a"))
    assert rig.told == ["a"]


def test_to_require_a_follower_no_more_settles_what_waited_for_it_alone() -> None:
    rig = Rig("f", "g")
    rig.run("a", 1)
    rig.run("b", 2)
    rig.tickets.acknowledge("g", 1)
    rig.tickets.require(["g"])
    assert rig.told == ["a"]
    rig.tickets.require([])
    assert rig.told == ["a", "b"]


def test_a_follower_that_becomes_required_is_waited_for_but_for_what_it_has() -> None:
    rig = Rig("f")
    rig.run("a", 1)
    rig.run("b", 2)
    rig.run("c", 9)
    rig.tickets.acknowledge("g", 2)
    rig.tickets.require(["f", "g"])
    for seq in (1, 2, 9):
        rig.tickets.acknowledge("f", seq)
    assert rig.told == ["b"]
    rig.tickets.acknowledge_through("g", 8)
    assert rig.told == ["b", "a"]


def test_reports_of_what_is_not_waited_for_are_ignored() -> None:
    rig = Rig("f")
    rig.tickets.acknowledge("f", 7)
    rig.tickets.expect(8)  # outside of a job: at the start, or at the end
    rig.tickets.acknowledge("f", 8)
    rig.run("a", 9)
    rig.tickets.acknowledge("f", 9)
    rig.tickets.acknowledge("f", 9)
    assert rig.told == ["a"]


@pytest.mark.provokes_bugs
def test_a_job_with_a_bug_is_waited_for_as_far_as_it_came() -> None:
    rig = Rig("f")

    def job() -> None:
        rig.tickets.expect(1)
        raise ZeroDivisionError

    ticket = rig.tickets.run(job)
    assert ticket is not None
    assert list(ticket.acked) == [1]


def test_a_node_that_may_not_answer_any_more_settles_nothing() -> None:
    rig = Rig("f")
    rig.run("a", 1)
    rig.tickets.stop()
    rig.tickets.acknowledge("f", 1)
    rig.tickets.require([])
    rig.run("b", 2)
    assert rig.told == []


def test_each_thread_has_the_ticket_of_its_own_job() -> None:
    rig = Rig("f")
    both = threading.Barrier(2)
    found: dict[int, list[int]] = {}

    def work(seq: int) -> None:
        def job() -> None:
            both.wait(10)
            rig.tickets.expect(seq)
            both.wait(10)

        ticket = rig.tickets.run(job)
        assert ticket is not None
        found[seq] = list(ticket.acked)

    threads = [threading.Thread(target=work, args=(seq,)) for seq in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert found == {1: [1], 2: [2]}


def test_what_a_job_syncs_is_unsettled_while_it_runs_and_until_all_have_it() -> None:
    rig = Rig("f")
    told: list[bool] = []
    rig.tickets.on_settled = lambda: told.append(rig.tickets.all_settled)
    assert rig.tickets.all_settled
    first, second = rig.ran(1), rig.ran(2)
    assert rig.tickets.oldest is None, "no call waits yet"
    assert not rig.tickets.all_settled
    for ticket in (first, second):
        ticket.when_settled(lambda: None)
    rig.tickets.acknowledge("f", 1)
    rig.tickets.acknowledge("f", 2)
    assert told == [False, True]
