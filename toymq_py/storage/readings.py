"""Chooses which chains of valid frames behind damage are the log's own: the reading (ADR 0101).

Pure: positions and ids in, chains out. A reading is a selection of chains in which the ids ascend, at least one id is missing
before each chain, and the bytes before it have room for the missing ids at 30 bytes each, since bytes of a log always belong to
some record. What is not selected is payload. Of two readings the one with more records counts: real records miss only what was
damaged, and no payload can name more ids between two real records than stood there. Bytes say nothing: frames in a payload may
be as large as they like.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from toymq_py.storage.record import FRAME_OVERHEAD

RECORD_WEIGHT = 64
"""What one more record counts for, in bytes."""
RECOGNIZED_FACTOR, PLAIN_FACTOR, HIDDEN_FACTOR = 64, 8, 1
"""A chain counts for so many times more where the damaged record behind it is recognized, and for less where it stands inside a
record whose damaged header says so. Noise over a header makes it look like the rest of a payload, and a payload may hold any
bytes, so that neither may decide alone."""


@dataclass(frozen=True, slots=True)
class Chain:
    """Valid frames of consecutive ids, one behind the other; none when ``end`` is ``start``."""

    start: int
    end: int
    first_id: int
    next_id: int


class Ending(IntEnum):
    """What says that the log ended with a chain, or with the damaged record behind it."""

    NOTHING = 0
    ID = 1
    """The id behind is that which the next file has in its name."""
    BYTES = 2
    """The bytes behind, too: there are none, or they are the beginning of the next record."""


Passed = tuple[int, int]
"""The id and position from which a later chain may begin: those behind a chain, or behind the damaged record that follows it,
if the header of that tells its end."""


class Judge(Protocol):
    """What the bytes behind a chain say."""

    def passed(self, chain: Chain) -> Passed: ...

    def ending(self, chain: Chain, passed: Passed) -> Ending: ...

    def claimed_until(self, chain: Chain) -> int:
        """Where the record of the next id ends by its header, although that may be damaged; 0 without one."""

    def is_broken_off(self, chain: Chain) -> bool:
        """Whether the bytes look like the place where a log was broken off: its end, or a frame of the next id, torn or
        damaged."""


def fits(end: int, next_id: int, chain: Chain) -> bool:
    """Whether at least one id is missing before a chain, and the missing ones have room in the bytes before it."""
    return 1 <= chain.first_id - next_id <= (chain.start - end) // FRAME_OVERHEAD


def best_reading(chains: Sequence[Chain], judge: Judge, *, displaced: bool = False) -> tuple[list[Chain], Ending]:
    """Choose the reading with most records, of those that end as the log does.

    The first chain that is known to end the log decides against all chains before it, however many records those have. Chains
    behind it stand inside the record that the log ends with: they have to hold more. Of equal readings the first one counts.

    Args:
        chains: by position; each with room behind the break, unless ``displaced``.
        displaced: no chain stands where it was written, so none is known to end the log.

    Returns: also what says where the log ends, as far as chains contradict each other.
    """
    passed = [judge.passed(chain) for chain in chains]
    agree = all(map(_follows, chains, passed, chains[1:]))
    if agree and not displaced:
        return list(chains), Ending.BYTES
    factors = _factors(chains, judge)
    kept, before = _readings(chains, passed, factors)
    first, ending = 0, Ending.NOTHING
    if not displaced:
        endings = [
            judge.ending(chain, back) if factor > HIDDEN_FACTOR else Ending.NOTHING
            for chain, back, factor in zip(chains, passed, factors, strict=True)
        ]
        ending = max(endings)
        first = endings.index(ending)
    row = max(range(first, len(chains)), key=kept.__getitem__, default=-1)
    best = []
    while row >= 0:
        best.append(chains[row])
        row = before[row]
    best.reverse()
    return best, ending


def _follows(chain: Chain, passed: Passed, later: Chain) -> bool:
    msg_id, end = passed
    return chain.next_id < later.first_id and FRAME_OVERHEAD * (later.first_id - msg_id) <= later.start - end


def _factors(chains: Sequence[Chain], judge: Judge) -> list[int]:
    factors = []
    hidden_until = 0
    for chain in chains:
        hidden = chain.end <= hidden_until  # what a record's end does not enclose is not in its payload
        hidden_until = max(hidden_until, judge.claimed_until(chain))
        factors.append(HIDDEN_FACTOR if hidden else RECOGNIZED_FACTOR if judge.is_broken_off(chain) else PLAIN_FACTOR)
    return factors


def _readings(chains: Sequence[Chain], passed: Sequence[Passed], factors: Sequence[int]) -> tuple[list[int], list[int]]:
    """For each chain the worth of the best reading that ends with it, and the row of the chain before it there, -1 for none.

    Behind a chain that goes up to ``next_id`` and is passed at ``(id, end)``, another one may follow if its first id is
    higher than ``next_id``, and its ``start`` leaves the missing ids room: ``30 * id - end`` is no less than
    ``30 * first_id - start``. So one goes through the ids once, the best readings so far in a Fenwick tree.
    """
    room = [FRAME_OVERHEAD * msg_id - end for msg_id, end in passed]
    slacks = sorted(set(room))
    tree = [-1] * (len(slacks) + 1)
    """Rows of chains: of those with as much slack or more, the one that ends the best reading."""
    kept, before = [0] * len(chains), [-1] * len(chains)
    events = sorted(
        [(chain.next_id, 0, row) for row, chain in enumerate(chains)]
        + [(chain.first_id - 1, 1, row) for row, chain in enumerate(chains)]
    )
    for _, asks, row in events:
        chain = chains[row]
        if asks:
            at = len(slacks) - bisect_left(slacks, FRAME_OVERHEAD * chain.first_id - chain.start)
            while at:
                other = tree[at]
                if other >= 0 and (before[row] < 0 or kept[other] > kept[before[row]]):
                    before[row] = other
                at &= at - 1
            worth = factors[row] * (chain.end - chain.start + RECORD_WEIGHT * (chain.next_id - chain.first_id))
            kept[row] = worth + (kept[before[row]] if before[row] >= 0 else 0)
        else:
            at = len(slacks) - bisect_left(slacks, room[row])
            while at < len(tree):
                if tree[at] < 0 or kept[row] > kept[tree[at]]:
                    tree[at] = row
                at += at & -at
    return kept, before
