"""Explicit-state search: visit every world that a model can reach, or walk it at random from a seed.

A model is a set of worlds, what may happen in each, and what must never be true. It knows nothing of the search. ``pack`` may
give one key to worlds that differ only by the names of equal parties; a trace is replayed in one set of names.
"""

import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

World = TypeVar("World")
Action = tuple[str | int | tuple[int, ...], ...]
"""The name of what happens, then what it concerns; ``words`` makes a sentence of it."""
Key = tuple[object, ...]
REPORT_STATES = 50_000
"""How many new worlds there are between two reports of progress."""


class Model(Protocol[World]):
    """What the search needs to know of a model."""

    def initial(self) -> World:
        """Return the one world in which everything begins."""
        ...

    def steps(self, world: World) -> Iterator[tuple[Action, World]]:
        """Yield each thing that may happen next, with the world after it."""
        ...

    def broken(self, world: World) -> str | None:
        """Return the promise that this world breaks, in words, or None."""
        ...

    def pack(self, world: World) -> Key:
        """Return a small hashable key, equal for worlds that are the same but for names."""
        ...

    def unpack(self, key: Key) -> World:
        """Return a world of that key."""
        ...

    def words(self, action: Action) -> str:
        """Return the sentence for one line of a trace."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a search found. ``complete``: it visited each reachable world. ``violation``: None when every promise was kept."""

    states: int
    cpu_s: float
    complete: bool
    violation: str | None = None
    trace: list[str] = field(default_factory=list)


def exhaust(
    model: Model[World], limit: int = 3_000_000, report: Callable[[int, int, float], None] | None = None
) -> Outcome:
    """Visit worlds breadth-first, so that a trace is one of the shortest.

    Stops at the first violation, or behind ``limit`` worlds (then the outcome is not complete). ``report`` is given worlds
    seen, worlds to visit and seconds of CPU, now and then.
    """
    began = time.process_time()
    first = model.pack(model.initial())
    seen: dict[Key, Key | None] = {first: None}
    to_visit = deque([first])
    pack, broken, steps = model.pack, model.broken, model.steps
    next_report = REPORT_STATES
    while to_visit:
        key = to_visit.popleft()
        for _, after in steps(model.unpack(key)):
            reached = pack(after)
            if reached in seen:
                continue
            seen[reached] = key
            violation = broken(after)
            if violation is not None:
                return Outcome(len(seen), time.process_time() - began, False, *_replay(model, seen, reached))
            to_visit.append(reached)
        if len(seen) >= next_report and report is not None:
            report(len(seen), len(to_visit), time.process_time() - began)
            next_report += REPORT_STATES
        if len(seen) >= limit:
            break
    return Outcome(len(seen), time.process_time() - began, not to_visit)


def _replay(model: Model[World], seen: dict[Key, Key | None], last: Key) -> tuple[str | None, list[str]]:
    """Return the violation and its trace, in the names of the initial world."""
    path = [last]
    while (before := seen[path[-1]]) is not None:
        path.append(before)
    world, trace = model.initial(), []
    for key in path[-2::-1]:
        action, world = next((action, after) for action, after in model.steps(world) if model.pack(after) == key)
        trace.append(model.words(action))
    return model.broken(world), trace


def walk(model: Model[World], seed: int, steps: int) -> tuple[int, str | None, list[str]]:
    """Take at most ``steps`` random steps. Returns how many there were, the violation or None, and the trace."""
    rng = random.Random(seed)
    world = model.initial()
    trace: list[str] = []
    for taken in range(steps):
        choices = [(action, after) for action, after in model.steps(world) if after != world]
        if not choices:
            return taken, None, trace
        action, world = rng.choice(choices)
        trace.append(model.words(action))
        if (violation := model.broken(world)) is not None:
            return taken + 1, violation, trace
    return steps, None, trace
