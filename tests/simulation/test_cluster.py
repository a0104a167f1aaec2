"""Simulated clusters: whatever fails, every copy that may be elected has all that was acknowledged; and each mutant of the code
is found.

Contract: replication.md, 13.3; ADR 0097, 0118.
"""

import gc
import os
from collections import Counter
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from tests.model.rules import FILE_RULES, RECORD_RULES
from tests.simulation import cluster_runs
from tests.simulation.__main__ import main
from tests.simulation.cluster import run
from tests.simulation.cluster_faults import Faults
from tests.simulation.cluster_mutants import FOUND, NOT_SHOWN, Mutant
from tests.simulation.cluster_plan import AIMED, GONE, KINDS, PROVOKED, THEN, TRAPS, Plan, plan_of, shrink
from tests.simulation.cluster_runs import Outcome, look_at

pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
"""At its end a killed process begins coroutines that nothing runs."""
SEEDS = (0, 2, 3, 6, 10)
"""Worlds that together have every kind of fault; look for others when the worlds have changed."""
QUICK = 2
"""Rules that the default tests leave out; the others are torture's."""


@pytest.fixture(autouse=True)
def _dead_processes_are_collected_here() -> Iterator[None]:
    yield
    gc.collect()


def test_no_promise_is_broken() -> None:
    happened: Counter[str] = Counter()
    told = 0
    for seed in SEEDS:
        world = run(seed)
        happened += world.happened
        told += len(world.ledger.keys)
    assert told > 25 * len(SEEDS), "the worlds publish next to nothing"
    for what in ("cut of all, power", "kill", "term ended", "partition", "reset", "late_requests"):
        assert happened[what], f"{what} happens: {happened}"


def test_the_same_seed_is_the_same_world() -> None:
    first, second = run(4711), run(4711)
    assert (first.ledger.keys, first.happened, first.loop.now) == (second.ledger.keys, second.happened, second.loop.now)


@pytest.mark.torture
def test_no_promise_is_broken_in_many_worlds() -> None:
    for seed in range(100_000, 100_000 + int(os.environ.get("TOYMQ_HISTORIES", "5000"))):
        run(seed)


def is_found(mutant: Mutant) -> None:
    assert look_at(mutant.seed).broken == ""
    assert look_at(mutant.seed, mutant.name).broken != "", f"without {mutant.name} the world of seed {mutant.seed} is as good"


@pytest.mark.parametrize("mutant", FOUND[:QUICK], ids=lambda mutant: mutant.name)
def test_a_rule_that_is_left_out_is_found(mutant: Mutant) -> None:
    is_found(mutant)


@pytest.mark.torture
@pytest.mark.parametrize("mutant", FOUND[QUICK:], ids=lambda mutant: mutant.name)
def test_another_rule_that_is_left_out_is_found(mutant: Mutant) -> None:
    is_found(mutant)


def test_each_rule_is_found_or_says_why_not() -> None:
    found = [mutant.name for mutant in FOUND]
    assert len(found) == len(set(found))
    assert not set(found) & NOT_SHOWN.keys()
    assert (RECORD_RULES | FILE_RULES).keys() <= set(found) | NOT_SHOWN.keys()


# -- plans


def test_plans_name_faults_and_moments_that_there_are() -> None:
    kinds = {name.removeprefix("_on_") for name in vars(Faults) if name.startswith("_on_")}
    assert kinds == KINDS.keys()
    acts = [act for choice in AIMED.values() for act in choice]
    acts += [act for some in (*GONE, *THEN) for act in some]
    acts += [act for trap in TRAPS.values() for part in trap for some in part[2] for act in some]
    assert {kind for kind, _ in acts} <= kinds
    moments = {part[0] for trap in TRAPS.values() for part in trap if part[0]}
    assert moments | AIMED.keys() <= PROVOKED.keys()
    assert {kind for choice in PROVOKED.values() for kind in choice} <= kinds


def test_a_plan_of_a_seed_can_be_written_down() -> None:
    for seed in range(50):
        plan = plan_of(seed)
        assert eval(repr(plan), vars(cluster_runs) | {"Step": type(plan.steps[0])}) == plan


def test_a_plan_that_fails_is_made_smaller() -> None:
    def fails(plan: Plan) -> bool:
        return any(("power", "leader") in step.acts and step.when for step in plan.steps)

    plan = next(plan for plan in map(plan_of, range(1000)) if fails(plan) and len(plan.steps) > 2)
    least = shrink(plan, fails)
    assert [step.acts for step in least.steps] == [(("power", "leader"),)]
    assert (least.hosts, least.publishers, least.ending, least.steps[0].provoked_by) == (2, 1, "", "")


def test_the_command_counts_worlds() -> None:
    outcome = CliRunner().invoke(main, ["--cluster", "--seeds", "1"])
    assert outcome.exit_code == 0, outcome.output
    assert "1 clusters in" in outcome.stdout


def test_the_command_prints_the_smallest_plan_of_a_world_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(seed: int, rule: str | None = None, plan: Plan | None = None) -> Outcome:
        return Outcome(seed, broken=f"seed {seed}: lost" if seed == 3 and (plan or plan_of(seed)).steps else "")

    monkeypatch.setattr(cluster_runs, "look_at", failing)
    outcome = CliRunner().invoke(main, ["--cluster", "--seeds", "5"])
    assert outcome.exit_code == 1
    assert "seed 3: lost" in outcome.stderr
    assert "run(3, Plan(hosts=2, min_in_sync=1," in outcome.stderr
    assert outcome.stderr.count("Step(") == 1
