"""Runs in id order: looked up by id, or counted. Contract: delivery.md, "Runs, not rows".

Changes nothing: ``LeaseTable`` does. Knows no heaps and no deadlines.
"""

from array import array
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator
from math import inf

from toymq_py.consumer.lease_run import (
    DELAYED,
    HELD,
    INFLIGHT,
    READY,
    LeaseRun,
    Lessee,
    RunState,
    attempts_if_killed,
    first_run_by_lessee,
)
from toymq_py.id_rows import ID_ROWS_BLOCK, IdRows
from toymq_py.records import IdRange


class RunList:
    """Disjoint runs in id order, with their first ids in a parallel list for ``bisect``."""

    __slots__ = ("_firsts", "_parked", "_runs", "_totals")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._runs: list[LeaseRun] = []
        self._totals = [0, 0, 0, 0]  # messages, by RunState
        self._parked = 0  # of INFLIGHT ones, those that ``hold`` leased: no client has them

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[LeaseRun]:
        return iter(self._runs)

    def messages(self, state: RunState) -> int:
        """The number of ids in a state."""
        return self._totals[state]

    @property
    def outstanding(self) -> int:
        """The number of messages that a client had and has not settled for good. Each may be a run of its own: this bounds the
        memory."""
        return sum(self._totals) - self._parked

    def leased_to(self, owner: Lessee) -> list[IdRange]:
        """The ids of this table that are inflight to an owner."""
        if not owner.inflight:
            return []
        return [(r.first, r.last) for r in self._runs if r.state is INFLIGHT and r.owner is owner]

    def expiring(self, now: float) -> list[IdRange]:
        """The ids whose leases have passed their deadline at ``now``."""
        return [(run.first, run.last) for run in self._runs if run.state is INFLIGHT and run.deadline <= now]

    def run_of(self, msg_id: int) -> LeaseRun | None:
        """The run that contains an id; None without one."""
        i = self._index(msg_id)
        return self._runs[i] if i < len(self._runs) and self._runs[i].first <= msg_id else None

    def all_delivered(self, first: int, last: int) -> bool:
        """Whether an ack takes every id of the range: they were delivered, and are not on their way to the dead letters."""
        at = first
        for run in self._within(first, last):
            if run.first > at or (run.attempt == 0 and not run.spared) or run.state is HELD:
                return False
            at = run.last + 1
        return at > last

    def busy(self, first: int, last: int) -> list[IdRange]:
        """The parts of the range that are inflight or being moved to the dead letters."""
        return [
            (max(run.first, first), min(run.last, last)) for run in self._within(first, last) if run.state in (INFLIGHT, HELD)
        ]

    def held(self, first: int, last: int) -> list[IdRange]:
        """The parts of the range that wait for the dead letters or are being moved there."""
        return [(max(run.first, first), min(run.last, last)) for run in self._within(first, last) if run.state is HELD]

    def not_held(self, first: int, last: int) -> list[IdRange]:
        """The other parts of the range that are in runs."""
        return self._spans([(first, last)], lambda run: run.state is not HELD)

    def leased(self, ranges: Iterable[IdRange], number: int | None = None) -> list[IdRange]:
        """The parts of the ranges that are leased by the lessee of that number, or by any; neighbours are joined."""
        return self._spans(
            ranges,
            lambda run: run.state is INFLIGHT and run.deadline != inf
            and (number is None or (run.owner is not None and run.owner.number == number)),
        )  # fmt: skip

    def rejectable(self, ranges: Iterable[IdRange]) -> list[IdRange]:
        """The parts of the ranges that ``give_up`` takes: leased messages, and delivered messages that wait for redelivery."""
        return self._spans(ranges, _is_rejectable)

    def _spans(self, ranges: Iterable[IdRange], takes: Callable[[LeaseRun], bool]) -> list[IdRange]:
        """The parts of the ranges in runs for which ``takes`` returns True; neighbours are joined."""
        spans: list[IdRange] = []
        for first, last in ranges:
            for run in self._within(first, last):
                if takes(run):
                    begin, end = max(run.first, first), min(run.last, last)
                    spans.append((spans.pop()[0] if spans and spans[-1][1] + 1 == begin else begin, end))
        return spans

    def first_due(self, *, given_back: bool = False) -> int | None:
        """The lowest id, without those that the disk refuses to read (leased without a deadline) and, unless ``given_back``,
        those that wait for a delayed redelivery."""
        for run in self._runs:
            if (given_back or run.state is not DELAYED) and not (run.state is INFLIGHT and run.deadline == inf):
                return run.first
        return None

    def most_attempted(self) -> tuple[int, int]:
        """The most attempts of an id, a present delivery included, and the lowest id with them; zeros for an empty table."""
        attempt = msg_id = 0
        for run in self._runs:
            if run.attempt > attempt:
                attempt, msg_id = run.attempt, run.first
        return attempt, msg_id

    def retrying(self) -> int:
        """How many ids have a failed delivery and will be delivered again, now or later."""
        return sum(
            run.last + 1 - run.first for run in self._runs
            if run.state is not HELD and run.attempt > (run.state is INFLIGHT and run.deadline != inf)
        )  # fmt: skip

    def attempts(self) -> IdRows:
        """Attempts that count after a kill, in id order, neighbours with equal attempts joined: rows of ``AttemptRange``."""
        firsts: list[int] = []
        lasts: list[int] = []
        attempts: list[int] = []
        for first, last, attempt in attempts_if_killed(self._runs, self):
            if attempts and attempt == attempts[-1] and first == lasts[-1] + 1:
                lasts[-1] = last
            else:
                firsts.append(first)
                lasts.append(last)
                attempts.append(attempt)
        return IdRows(3, [
            (array("Q", firsts[at : at + ID_ROWS_BLOCK]), array("Q", lasts[at : at + ID_ROWS_BLOCK]),
             array("Q", attempts[at : at + ID_ROWS_BLOCK]))
            for at in range(0, len(firsts), ID_ROWS_BLOCK)
        ])  # fmt: skip

    def _index(self, msg_id: int) -> int:
        """Index of the first run that ends at or above ``msg_id``."""
        i = bisect_right(self._firsts, msg_id)
        return i - 1 if i and self._runs[i - 1].last >= msg_id else i

    def _leases_of(self, i: int, j: int) -> list[LeaseRun]:
        """The leased runs among i to j - 1, without those that the disk refuses to read (leased without a deadline)."""
        return [run for run in self._runs[i:j] if run.state is INFLIGHT and run.deadline != inf]

    def _rejectable_of(self, i: int, j: int) -> list[LeaseRun]:
        """The runs among i to j - 1 that ``rejectable`` selects."""
        return list(filter(_is_rejectable, self._runs[i:j]))

    def _firsts_of(self, owners: Collection[Lessee | None]) -> dict[Lessee, LeaseRun]:
        """For each owner, the run that it got first. It takes one pass, so look up all owners at once."""
        return first_run_by_lessee(run for run in self._runs if run.owner in owners) if owners else {}

    def first_of(self, owner: Lessee) -> int:
        """The id that an owner got first. Assumes that it holds some here."""
        return self._firsts_of((owner,))[owner].first

    def _within(self, first: int, last: int) -> list[LeaseRun]:
        """The runs that hold some of these ids."""
        return self._runs[self._index(first) : bisect_right(self._firsts, last)]


def _is_rejectable(run: LeaseRun) -> bool:
    """Whether a run has a counted attempt, and is leased with a deadline or waits for its redelivery."""
    return run.attempt > 0 and (run.state in (READY, DELAYED) or (run.state is INFLIGHT and run.deadline != inf))
