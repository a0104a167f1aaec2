"""Runs thousands of simulated clusters in several processes, and makes the plan of a failing one smaller."""

import gc
import multiprocessing
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import pytest

from tests.simulation.cluster import Broken, run
from tests.simulation.cluster_mutants import RULES
from tests.simulation.cluster_plan import Plan, plan_of, shrink

SEEDS_AT_ONCE = 4
"""That a process takes."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one world. ``told``: number of messages that were acknowledged to clients; ``broken``: the promise that
    was broken, "" for none."""

    seed: int
    told: int = 0
    faults: int = 0
    cpu_s: float = 0.0
    broken: str = ""


def look_at(seed: int, rule: str | None = None, plan: Plan | None = None) -> Outcome:
    """Run a world, without ``rule`` in the code if one is given."""
    began = time.process_time()
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)  # begun by a process at its end
        if rule is not None:
            RULES[rule](patch)
        try:
            world = run(seed, plan)
        except Broken as error:
            return Outcome(seed, broken=str(error))
        finally:
            gc.collect()  # dead processes, while the warnings of this world are off
    return Outcome(seed, len(world.ledger.keys), world.happened.total(), time.process_time() - began)


def look_at_all(seeds: range, jobs: int, rule: str | None = None) -> Iterator[Outcome]:
    """Run many worlds; yield their outcomes in the order in which they end."""
    look = partial(look_at, rule=rule)
    if jobs == 1:
        gc.freeze()
        yield from map(look, seeds)
        return
    with multiprocessing.Pool(jobs, gc.freeze) as pool:  # each world ends with a collection: not of the modules, too
        yield from pool.imap_unordered(look, seeds, SEEDS_AT_ONCE)


def smallest(seed: int, rule: str | None = None) -> tuple[Plan, Outcome]:
    """Return the smallest plan under which a seed still breaks a promise, and the outcome. Assumes that the seed's own plan
    does."""
    found = look_at(seed, rule)

    def fails(plan: Plan) -> bool:
        nonlocal found
        outcome = look_at(seed, rule, plan)
        if outcome.broken:
            found = outcome
        return bool(outcome.broken)

    return shrink(plan_of(seed), fails), found
