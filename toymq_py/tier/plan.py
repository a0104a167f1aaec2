"""Decides which segments of a topic go to the bucket, and which leave it. Pure.

A segment that the disk lost stays in the bucket: only one that the offsets on the disk say was removed goes there, too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from toymq_py.tier.keys import Holding


@dataclass(frozen=True, slots=True)
class Plan:
    """First ids, ascending."""

    upload: list[int]
    delete: list[int]


def plan(bases: Sequence[int], committed_id: int, holding: Holding, is_removed: Callable[[int], bool]) -> Plan:
    """What to do for a topic.

    Args:
        bases: first ids of the segments on the disk, ascending; the last one is active.
        committed_id: what lies at or above may be taken back, so a segment that reaches beyond it waits.
        is_removed: whether the offsets on the disk say that retention or PURGE removed an id.
    """
    sealed = [base for base, following in pairwise(bases) if following <= committed_id]
    on_disk = set(bases)
    return Plan(
        [base for base in sealed if not holding.is_whole(base)],
        sorted(base for base in holding.segments | holding.seals if base not in on_disk and is_removed(base)),
    )
