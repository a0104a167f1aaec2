"""Three machines in network namespaces, with a real etcd and a node each: what happens to their network, and to all at once.

The harness's clients publish and consume throughout, its checker judges what they saw, and each copy, opened alone, has all of
it. ``make torture-cluster`` does this for hours.
"""

import socket
from pathlib import Path

import pytest

from tests.support.cluster_harms import FAILOVERS, HARMS, MOVES, Outcome, run_round
from tests.support.machines import Machines
from tests.support.requirements import require

pytestmark = require("etcd", "proc", "netns")


def kept(outcome: Outcome, *, failovers: int, stored: int = 500) -> None:
    """Check that no promise was broken, and that so many harms ended a leader's term."""
    assert outcome.broken == []
    assert outcome.failovers >= failovers
    assert outcome.stored > stored


def test_a_leader_that_reaches_clients_alone_costs_no_message(tmp_path: Path) -> None:
    """A leader is cut off from followers and etcd, but not from clients: the short form of the next test."""
    kept(run_round(tmp_path, 1, ["alone_with_clients"], share=4), failovers=1, stored=50)


@pytest.mark.torture
def test_cuts_cost_no_message(tmp_path: Path) -> None:
    """The network is cut one way, and between the leader and its followers, etcd, or both."""
    names = ["leader_not_heard", "acknowledgements_lost", "apart_from_etcd", "apart_from_followers", "alone_with_clients"]
    kept(run_round(tmp_path, 1, names), failovers=3)


@pytest.mark.torture
@pytest.mark.parametrize("seed", [3, 4])
def test_every_harm_costs_no_message(tmp_path: Path, seed: int) -> None:
    names = [*HARMS, *HARMS]
    kept(run_round(tmp_path, seed, names), failovers=2 * len(FAILOVERS))


@pytest.mark.torture
@pytest.mark.parametrize("seed", [5, 6])
def test_topics_that_move_between_groups_lose_no_message_whatever_dies(tmp_path: Path, seed: int) -> None:
    """Each machine has a node of both groups: a machine that fails takes one of each."""
    names = [name for harm in ("process_killed", "machine_lost", "cut_off", "handed_over") for name in (harm, *MOVES)]
    kept(run_round(tmp_path, seed, names, groups=("a", "b")), failovers=4)


def test_a_cut_is_one_way_and_ends() -> None:
    """The other tests rely on this."""
    with Machines(2) as machines, machines.entered(), socket.create_server((machines.hub.data, 0)) as listener:
        port = listener.getsockname()[1]
        echo = (
            f"import socket; c = socket.create_connection(('{machines.hub.data}', {port}))\n"
            "while data := c.recv(9): print(data, flush=True); c.sendall(data)"
        )
        with machines[0].running(echo) as process:
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(20)
                machines.cut(machines[0], machines.hub)
                connection.sendall(b"a")
                assert process.stdout is not None
                assert process.stdout.readline() == "b'a'\n", "it arrives"
                connection.settimeout(0.3)
                with pytest.raises(TimeoutError):
                    connection.recv(9)
                machines.heal()
                connection.settimeout(20)
                assert connection.recv(9) == b"a", "it was not lost, only late: the connection lives"
