"""Worlds of a cluster: what was acknowledged is on every copy that may be elected, whatever fails; and mutants that are found.

Contract: replication.md, 13.3; ADR 0097.
"""

import gc
import os
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.simulation.cluster import Broken, run
from tests.simulation.cluster_mutants import FOUND, Mutant

pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
"""At its end a killed process begins coroutines that nothing runs."""
SEEDS = 40


@pytest.fixture(autouse=True)
def _dead_processes_are_collected_here() -> Iterator[None]:
    yield
    gc.collect()


def test_no_promise_is_broken() -> None:
    happened: Counter[str] = Counter()
    told = 0
    for seed in range(SEEDS):
        world = run(seed)
        happened += world.happened
        told += len(world.ledger.keys)
    assert told > 50 * SEEDS, "the worlds publish next to nothing"
    for what in ("cut, power", "kill", "term ended", "partition", "pause"):
        assert happened[what] > 3, f"{what} happens: {happened}"


def test_the_same_seed_is_the_same_world() -> None:
    first, second = run(4711), run(4711)
    assert (first.ledger.keys, first.happened, first.loop.now) == (second.ledger.keys, second.happened, second.loop.now)


def test_a_new_leader_does_not_serve_before_a_member_that_comes_back_is_dropped() -> None:
    """Found: it had connected, so the new leader did not drop it, and its join waited for the answer to T3. What only the
    leader had was recovered, and delivered, while the other copy could be elected."""
    run(2419)


@pytest.mark.torture
def test_no_promise_is_broken_in_many_worlds() -> None:
    for seed in range(100_000, 100_000 + int(os.environ.get("TOYMQ_HISTORIES", "5000"))):
        run(seed)


def is_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    run(mutant.seed, mutant.plan)
    mutant.leave_out(monkeypatch)
    with pytest.raises(Broken):
        run(mutant.seed, mutant.plan)


@pytest.mark.parametrize("mutant", FOUND[:4], ids=lambda mutant: mutant.leave_out.__name__)
def test_a_rule_that_is_left_out_is_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    is_found(mutant, monkeypatch)


@pytest.mark.torture
@pytest.mark.parametrize("mutant", FOUND[4:], ids=lambda mutant: mutant.leave_out.__name__)
def test_another_rule_that_is_left_out_is_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    is_found(mutant, monkeypatch)
