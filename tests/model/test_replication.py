"""The replication protocol at the grain of records: nothing is lost within bounds, and each rule that is left out is found."""

import os
import random

import pytest

from tests.model.bounds import FAR, FAR_FORCED, FINDS_RECORD_RULE, LONG, NO_ANSWER, SHORT, Bounds
from tests.model.explore import Key, exhaust, walk
from tests.model.replication import Replication
from tests.model.rules import ASSUMPTIONS, RECORD_RULES, SENTENCES
from tests.model.world import World, orders

ONLY_WITHOUT_A_RULE = {"restored", "forgets", "resumes", "assumes"}
"""What happens only in the model that lacks a rule."""


def searched(bounds: Bounds) -> int:
    outcome = exhaust(Replication(bounds))
    assert outcome.violation is None, "\n".join([outcome.violation or "", *outcome.trace])
    assert outcome.complete
    return outcome.states


@pytest.mark.parametrize("bounds", [bounds for bounds in SHORT if isinstance(bounds, Bounds)], ids=str)
def test_nothing_is_lost(bounds: Bounds) -> None:
    assert searched(bounds) > 1000


@pytest.mark.torture
@pytest.mark.parametrize("bounds", [bounds for bounds in LONG if isinstance(bounds, Bounds)], ids=str)
def test_nothing_is_lost_within_wider_bounds(bounds: Bounds) -> None:
    assert searched(bounds) > 10_000


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(rule, marks=pytest.mark.torture) if FINDS_RECORD_RULE.get(rule) == NO_ANSWER else rule
        for rule in (*RECORD_RULES, *ASSUMPTIONS)
    ],
)
def test_a_rule_left_out_is_found(rule: str) -> None:
    """Rules whose absence only a lost answer shows take a second or more each."""
    outcome = exhaust(Replication(FINDS_RECORD_RULE[rule], rule), limit=60_000)
    assert outcome.violation is not None, f"without {rule} nothing was found in {outcome.states} states"
    assert outcome.trace


def test_each_rule_has_a_form_that_finds_it() -> None:
    assert FINDS_RECORD_RULE.keys() == RECORD_RULES.keys() | ASSUMPTIONS.keys()


@pytest.mark.parametrize("bounds", [FAR, FAR_FORCED], ids=["far", "forced"])
def test_random_walks_lose_nothing(bounds: Bounds) -> None:
    for seed in range(10):
        _, violation, trace = walk(Replication(bounds), seed, 150)
        assert violation is None, "\n".join([f"walk {seed}: {violation}", *trace])


@pytest.mark.torture
@pytest.mark.parametrize("bounds", [FAR, FAR_FORCED], ids=["far", "forced"])
def test_random_walks_lose_nothing_in_many(bounds: Bounds) -> None:
    for seed in range(100_000, 100_000 + int(os.environ.get("TOYMQ_SEEDS", "10000"))):
        _, violation, trace = walk(Replication(bounds), seed, 150)
        assert violation is None, "\n".join([f"walk {seed}: {violation}", *trace])


def test_a_walk_finds_a_rule_left_out() -> None:
    found = [seed for seed in range(60) if walk(Replication(FAR, "timeout_is_no"), seed, 150)[1] is not None]
    assert found, "60 walks without an answer to T3 lose nothing"


def test_every_action_happens() -> None:
    """A guard that is never true would make the search small and every promise kept."""
    seen: set[object] = set()
    for bounds in (FAR, FAR_FORCED, Bounds(nodes=2, unknown=2, wipes=1, begin=True)):
        for seed in range(40):
            model = Replication(bounds)
            rng = random.Random(seed)
            world = model.initial()
            for _ in range(150):
                choices = [(action, after) for action, after in model.steps(world) if after != world]
                if not choices:
                    break
                action, world = rng.choice(choices)
                seen.add(action[0])
    assert SENTENCES.keys() - seen == ONLY_WITHOUT_A_RULE


class Named(Replication):
    """The same model without the reduction: worlds that differ by names are different."""

    def pack(self, world: World) -> Key:
        return (*map(self._id, world.nodes), *world[1:])


def test_worlds_that_differ_by_names_count_once() -> None:
    """The reduction visits one of each orbit, and misses none."""
    bounds = Bounds(records=1, epochs=2, faults=1, unknown=1)
    reduced = Replication(bounds)
    named = Named(bounds)
    orbits: set[Key] = set()
    seen = {named.pack(named.initial())}
    to_visit = list(seen)
    while to_visit:
        world = named.unpack(to_visit.pop())
        orbits.add(reduced.pack(world))
        for _, after in named.steps(world):
            key = named.pack(after)
            if key not in seen:
                seen.add(key)
                to_visit.append(key)
    assert len(orbits) == exhaust(Replication(bounds)).states
    assert len(orbits) < len(seen)


def test_equal_copies_may_take_either_name() -> None:
    assert list(orders([("a",), ("b",)])) == [None], "they are sorted already"
    assert list(orders([("b",), ("c",), ("a",)])) == [(1, 2, 0)]
    assert list(orders([("b",), ("a",), ("b",)])) == [(1, 0, 2), (2, 0, 1)]


def test_a_trace_names_the_copies() -> None:
    outcome = exhaust(Replication(FINDS_RECORD_RULE["read_settles"], "read_settles"))
    assert "A drops B by T3" in outcome.trace
    assert "A sends T3 for the in-sync set {A, B}, has no answer" in outcome.trace
    assert outcome.trace[-1] == "etcd: a T3 without an answer happens now, in-sync set {A, B}"
    assert outcome.violation == "B may be elected and lacks records 0, which got OK"
