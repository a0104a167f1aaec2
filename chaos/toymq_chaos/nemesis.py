"""Plans faults and their times from a seed. Pure; ``experiment`` injects them.

The same seed gives the same plan: the same lives, faults and kill points at the same times. Its effect differs from run to run.
"""

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from toymq_chaos.fault_injection import PLACES, SERVING, Point

Kind = Literal["pause", "cut", "full", "clock", "worker"]

LIFE_S = 4.0
"""Mean life of a broker: some twenty kills in 90 seconds."""
SECOND_NS = 1_000_000_000
AHEAD_NS = (-5 * SECOND_NS, -SECOND_NS, 0, SECOND_NS, 5 * SECOND_NS)
"""How far the broker's clock is set ahead of ours; retention must keep acked messages for longer than a jump."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault during a life of the broker: frozen (SIGSTOP), disk full, connections cut, clock set, one worker killed."""

    kind: Kind
    at_s: float
    """Seconds since the start of the life."""
    for_s: float
    ahead_ns: int
    worker: int | None = None
    """The worker that is killed or frozen, where there are several."""


@dataclass(frozen=True, slots=True)
class Life:
    """One life of the broker, from its start to its end by ``how``; with ``point`` it kills itself earlier, inside its own
    work."""

    lasts_s: float
    how: Literal["kill", "stop"]
    point: Point | None
    faults: tuple[Fault, ...]
    reserve_bytes: int
    """``--min-free-bytes``."""
    segment_bytes: int
    """``--segment-bytes``: small ones roll often, large ones are made ahead."""
    commit: str
    """``--commit``: where records are written and synced."""
    workers: int = 1
    """``--workers``."""


def lives(seed: int, *, small_disk: bool) -> Iterator[Life]:
    """Yield lives without end; the disk fills only with ``small_disk``."""
    rng = random.Random(f"nemesis {seed}")
    kinds: list[Kind] = ["pause", "cut", "clock", "full"]
    for place in itertools.cycle(SERVING):
        lasts_s = LIFE_S * rng.uniform(0.3, 1.7)
        faults = []
        for kind in kinds:
            fault = Fault(kind, rng.uniform(0, lasts_s), rng.uniform(0.2, 2.0), rng.choice(AHEAD_NS))
            if rng.random() < 0.4 and (kind != "full" or small_disk):
                faults.append(fault)
        point = Point(place, rng.randint(1, PLACES[place].within), after=rng.random() < 0.5)
        yield Life(
            lasts_s,
            "stop" if rng.random() < 0.1 else "kill",
            point if rng.random() < 0.6 else None,
            tuple(sorted(faults, key=lambda fault: fault.at_s)),
            rng.choice((0, 4 << 20)),
            rng.choice((128 << 10, 2 << 20)),
            rng.choice(("auto", "inline", "thread")),
        )


def of_workers(plan: Iterator[Life], seed: int, workers: int) -> Iterator[Life]:
    """Turn a plan into one with several workers, which are killed again and again. The number of workers alternates between
    lives: ``workers`` or one more. No life has a kill point inside its work: each restarted worker would die there, too."""
    rng = random.Random(f"workers {seed}")
    for number, life in enumerate(plan):
        count = workers + number % 2
        faults = [replace(fault, worker=rng.randrange(count)) for fault in life.faults]
        for _ in range(1 + round(life.lasts_s)):
            faults.append(Fault("worker", rng.uniform(0.2, life.lasts_s), 0.0, 0, rng.randrange(count)))
        yield replace(life, point=None, workers=count, faults=tuple(sorted(faults, key=lambda fault: fault.at_s)))
