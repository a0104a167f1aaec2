"""Chooses which chains of valid frames behind damage are the log's own: the reading (ADR 0101).

Pure: positions and ids in, chains out. A reading is a selection of chains in which the ids ascend, at least one id is missing
before each chain, and the bytes before it have room for the missing ids at 30 bytes each, since bytes of a log always belong to
some record. Where bytes were inserted, or stand there twice, no id is missing: a chain follows with the very next id when both
chains hold several records, or when no payload can begin between them (ADR 0238). What is not selected is payload. Of two
readings the one with more records counts: the log's records lack only what was damaged, and frames in a payload between two of
them cannot have more ids than were there. Size in bytes does not count: frames in a payload may be of any size.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Protocol

from toymq_py.storage.record import FRAME_OVERHEAD

RECORD_WEIGHT = 64
"""The bytes for which one more record counts."""
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
    """The evidence that the log ended with a chain, or with the damaged record behind it."""

    NOTHING = 0
    ID = 1
    """The id behind is the one in the name of the next file."""
    BYTES = 2
    """The bytes behind fit, too: there are none, or they are the beginning of the next record."""


Passed = tuple[int, int]
"""The id and position from which a later chain may begin: those behind a chain, or behind the damaged record that follows it,
if the header of that tells its end."""


Keys = tuple[tuple[bool, int], ...]
"""Keys that join two chains without a missing id, when both have one: a stretch of whole frames, or (True) a frame that is
there twice, or several records (-1). As of ``shifted_chains.joints``."""


class Judge(Protocol):
    """Judges chains by the bytes behind them."""

    def passed(self, chain: Chain) -> Passed: ...

    def ending(self, chain: Chain, passed: Passed) -> Ending: ...

    def claimed_until(self, chain: Chain) -> int:
        """The end of the record behind a chain as its header claims, even if the record is damaged; 0 unless it has the next
        id."""

    def is_broken_off(self, chain: Chain) -> bool:
        """Whether the bytes behind a chain look like the place where a log was broken off: its end, or a frame of the next id,
        torn or damaged."""


def fits(end: int, next_id: int, chain: Chain) -> bool:
    """Whether at least one id is missing before a chain, and the missing ones have room in the bytes before it."""
    return 1 <= chain.first_id - next_id <= (chain.start - end) // FRAME_OVERHEAD


def best_reading(
    chains: Sequence[Chain], judge: Judge, *, displaced: bool = False, joints: Sequence[tuple[Keys, Keys]] = ()
) -> tuple[list[Chain], Ending]:
    """Choose the reading with the most records, of those that end like the log.

    The first chain that is known to end the log decides against all chains before it, however many records those have. Chains
    behind it stand inside the record that the log ends with: they have to hold more. Of equal readings the first one counts.

    Args:
        chains: by position; each with room behind the break, unless ``displaced``.
        displaced: no chain stands where it was written, so none is known to end the log.
        joints: each chain's keys before and behind it; chains without a missing id between them join when they share a key.
            Empty: none do. See ``shifted_chains.joints``.

    Returns: the chains, and the evidence for the end of the log; ``BYTES`` when no chains contradict each other.
    """
    nexts = _Nexts(chains, joints)
    on = nexts.on
    passed = [(chain.next_id, chain.end) if more else judge.passed(chain) for chain, more in zip(chains, on, strict=True)]
    agree = all(
        more or _follows(chain, back, later, nexts.joins(row))
        for row, (chain, back, later, more) in enumerate(zip(chains, passed, chains[1:], on, strict=False))
    )
    if agree and not displaced:
        return list(chains), Ending.BYTES
    factors = _factors(chains, judge, nexts)
    kept, before = _readings(chains, passed, factors, nexts)
    first, ending = 0, Ending.NOTHING
    if not displaced:
        endings = [
            judge.ending(chain, back) if factor > HIDDEN_FACTOR and not more else Ending.NOTHING
            for chain, back, factor, more in zip(chains, passed, factors, on, strict=True)
        ]
        for row, twin in nexts.twins():
            if not on[row]:
                endings[row] = max(endings[row], endings[twin])
        ending = max(endings)
        first = endings.index(ending)
    row = max((row for row in range(first, len(chains)) if not on[row]), key=kept.__getitem__, default=-1)
    best = []
    while row >= 0:
        best.append(chains[row])
        row = before[row]
    best.reverse()
    return best, ending


def goes_on(chains: Sequence[Chain]) -> list[bool]:
    """For each chain, whether the next one begins exactly at its end, with the next id. A reading never leaves such a chain
    there: a reader of records goes on as long as they are valid."""
    on = [(one.end, one.next_id) == (other.start, other.first_id) for one, other in pairwise(chains)]
    return [*on, False] if chains else on


def _follows(chain: Chain, passed: Passed, later: Chain, joins: bool) -> bool:
    msg_id, end = passed
    if chain.next_id == later.first_id:
        return joins
    return chain.next_id < later.first_id and FRAME_OVERHEAD * (later.first_id - msg_id) <= later.start - end


def _factors(chains: Sequence[Chain], judge: Judge, nexts: "_Nexts") -> list[int]:
    factors = []
    hidden_until = 0
    for chain, more in zip(chains, nexts.on, strict=True):
        if more:
            factors.append(HIDDEN_FACTOR)  # that of the chain that it goes on with, below
            continue
        hidden = chain.end <= hidden_until  # what a record's end does not enclose is not in its payload
        hidden_until = max(hidden_until, judge.claimed_until(chain))
        factors.append(HIDDEN_FACTOR if hidden else RECOGNIZED_FACTOR if judge.is_broken_off(chain) else PLAIN_FACTOR)
    for row in range(len(chains) - 2, -1, -1):
        if nexts.on[row]:
            factors[row] = factors[row + 1]
    for row, twin in nexts.twins():
        factors[row] = max(factors[row], factors[twin])
    return factors


def _readings(
    chains: Sequence[Chain], passed: Sequence[Passed], factors: Sequence[int], nexts: "_Nexts"
) -> tuple[list[int], list[int]]:
    """For each chain, the worth of the best reading that ends with it, and the row of the chain before it in that reading, -1
    for none.

    Behind a chain that goes up to ``next_id`` and is passed at ``(id, end)``, another one may follow if its first id is higher
    than ``next_id``, and its ``start`` leaves the missing ids room: ``30 * id - end`` is no less than ``30 * first_id -
    start``. So one pass goes through the ids, with the best readings so far in a Fenwick tree. Chains that go on with
    ``next_id`` itself are looked up (``_Nexts``).
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
            for other in nexts.before(row, kept):
                if before[row] < 0 or kept[other] > kept[before[row]]:
                    before[row] = other
            worth = factors[row] * (chain.end - chain.start + RECORD_WEIGHT * (chain.next_id - chain.first_id))
            kept[row] = worth + (kept[before[row]] if before[row] >= 0 else 0)
        elif not nexts.on[row]:
            at = len(slacks) - bisect_left(slacks, room[row])
            while at < len(tree):
                if tree[at] < 0 or kept[row] > kept[tree[at]]:
                    tree[at] = row
                at += at & -at
    return kept, before


class _Nexts:
    """Finds, for a chain, the best readings that it continues without a missing id."""

    def __init__(self, chains: Sequence[Chain], joints: Sequence[tuple[Keys, Keys]]) -> None:
        self.on = goes_on(chains)
        self._chains = chains
        none: tuple[Keys, Keys] = (), ()
        self._before: list[Keys] = []
        self._behind: list[Keys] = []
        self._rows: dict[tuple[int, tuple[bool, int]], list[int]] = {}
        """Rows by position, by the id behind and a key."""
        self._best: dict[tuple[int, tuple[bool, int]], list[int]] = {}
        """The rows of the best readings that end with these or the ones before."""
        for row, chain in enumerate(chains):
            before, behind = joints[row] if joints else none
            self._before.append(before)
            self._behind.append(behind)
            for key in () if self.on[row] else self._behind[row]:
                self._rows.setdefault((chain.next_id, key), []).append(row)

    def twins(self) -> Iterator[tuple[int, int]]:
        """Pairs of rows: a chain that ends with a frame of which there is a later copy, and the chain that goes on behind the
        last copy, or ends with it."""
        last: dict[tuple[bool, int], int] = {}
        for row in range(len(self._chains) - 1, -1, -1):
            for key in self._behind[row]:
                if key[0] and key[1] >= 0:
                    twin = last.setdefault(key, row + self.on[row])
                    if twin != row:
                        yield row, twin

    def joins(self, row: int) -> bool:
        """Whether the chain of the next row may follow the one of this row with no id missing between them."""
        return any(key in self._behind[row] for key in self._before[row + 1])

    def before(self, row: int, kept: Sequence[int]) -> list[int]:
        """The rows of chains that the chain of this row can continue without a missing id: for each shared key, the one that
        ends the best reading.

        Args:
            kept: for each row, the worth of the best reading that ends with its chain; filled for chains of lower ids.
        """
        found = [row - 1] if row and self.on[row - 1] else []
        for each in self._before[row]:
            key = self._chains[row].first_id, each
            rows = self._rows.get(key)
            if rows is None:
                continue
            if key not in self._best:
                best = self._best[key] = rows[:1]
                for other in rows[1:]:
                    best.append(other if kept[other] > kept[best[-1]] else best[-1])
            count = bisect_left(rows, row)
            if count:
                found.append(self._best[key][count - 1])
        return found
