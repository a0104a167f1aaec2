"""Decides which segments of a topic go to the bucket, and which leave it. Pure.

A segment that the disk lost stays in the bucket: only one that the offsets on the disk say was removed goes there, too.
"""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from itertools import pairwise

from toymq_py.tier.keys import Holding


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan for one topic: first ids, ascending. ``lost``: evicted segments that the bucket does not have whole."""

    upload: list[int]
    delete: list[int]
    lost: list[int]


def plan(
    bases: Sequence[int], committed_id: int, holding: Holding, is_removed: Callable[[int], bool], evicted: Container[int] = ()
) -> Plan:
    """Decide what to do for a topic.

    Args:
        bases: first ids of the segments, ascending; the last one is active.
        evicted: those of them that are not on the disk.
        committed_id: records at or above it may be taken back, so a segment that reaches beyond it waits.
        is_removed: whether the offsets on the disk say that retention or PURGE removed an id.
    """
    sealed = [base for base, following in pairwise(bases) if following <= committed_id]
    in_log = set(bases)
    lacking = [base for base in sealed if not holding.is_whole(base)]
    return Plan(
        [base for base in lacking if base not in evicted],
        sorted(base for base in holding.segments | holding.seals if base not in in_log and is_removed(base)),
        [base for base in lacking if base in evicted],
    )
