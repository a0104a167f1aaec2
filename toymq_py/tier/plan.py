"""Decides which segments of a topic are uploaded to the bucket, and which are deleted there. Pure.

A segment that the disk has lost stays in the bucket: one is deleted only if the offsets on the disk say that it was removed.
"""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from itertools import pairwise

from toymq_py.tier.keys import Holding


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan for one topic: first ids of segments, ascending. ``lost``: evicted segments that the bucket lacks or has not
    completely."""

    upload: list[int]
    delete: list[int]
    lost: list[int]


def plan(
    bases: Sequence[int], committed_id: int, holding: Holding, is_removed: Callable[[int], bool], evicted: Container[int] = ()
) -> Plan:
    """Decide what to upload and delete for a topic.

    Args:
        bases: first ids of the segments, ascending; the last one is active.
        evicted: first ids of segments that are no longer on the disk.
        committed_id: records from this id on are not committed yet, so a segment with such records waits.
        is_removed: returns whether the offsets on the disk say that retention or PURGE removed an id.
    """
    sealed = [base for base, following in pairwise(bases) if following <= committed_id]
    in_log = set(bases)
    lacking = [base for base in sealed if not holding.is_whole(base)]
    return Plan(
        [base for base in lacking if base not in evicted],
        sorted(base for base in holding.segments | holding.seals if base not in in_log and is_removed(base)),
        [base for base in lacking if base in evicted],
    )
