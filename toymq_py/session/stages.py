"""A command that places are asked for one after the other: the next ones when those before have done it. ADR 0184, 0198. Pure.

What one refuses is the reply, and those behind it are not asked: a repeat of the command completes what has begun.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from toymq_py.errors import RequestError
from toymq_py.names import PARTITION_MARK
from toymq_py.partitioned_topics import PartitionedTopics
from toymq_py.partitions import PARTITIONS
from toymq_py.placement import Place, Placement
from toymq_py.protocol import Create, Delete, encode_ok
from toymq_py.session.gathering import NO_SUCH, NOT_HERE

Ask = Callable[[Sequence[Place], Callable[[bytes], None]], None]
"""Asks some places; calls back with their replies as one."""


class Plan(NamedTuple):
    """Which places are asked together, one stage after the other; and how the answer of one begins that has nothing of the
    topic, where others may."""

    stages: Sequence[Sequence[Place]]
    lacks: tuple[bytes, ...] = ()


def plan_of(
    command: Create | Delete, placement: Placement, partitioned: PartitionedTopics, *, follows: bool
) -> Plan | None:
    """How places are asked for a command; None: as for others.

    CREATE of partitions is first for where a plain topic would be, of a new topic for the group that is to have it. DELETE in
    a cluster is first and behind the others (ADR 0198). Among workers it is last for the place of a plain topic: interrupted,
    it leaves the topic there, so that no plain one of its name is made. One that was killed in an earlier DELETE may have
    partitions of the name still, so all are asked. If that place is here, see ``Passing.ask_others``.

    Args:
        follows: the client follows MOVED.
    """
    home = placement.place_of(command.topic)
    if isinstance(command, Create) and command.topic not in partitioned.by_name:
        home = next((place for place in placement.places() if place == command.settings.get("group")), home)
    others = [place for place in placement.places() if place != home]
    if isinstance(command, Create):
        return Plan([[home], placement.places()]) if PARTITIONS in command.settings else None
    if command.topic in partitioned.by_name:
        in_groups = Plan([[home], others, [home], others], NO_SUCH)
        return Plan([others, [home]], NOT_HERE) if placement.table is None else in_groups
    if placement.table is not None or home == placement.here or follows or PARTITION_MARK in command.topic:
        return None
    return Plan([[place for place in others if place != placement.here], [home]], NOT_HERE)


def to_repeat(command: Create | Delete, reply: bytes) -> bytes:
    """The reply, as it is told: where a place is missing, others may have done their part, and a repeat completes it."""
    if not reply.startswith(b"ERR PLACEMENT_UNKNOWN ") or b"repeat " in reply:
        return reply
    words = f"{type(command).__name__.upper()} {command.topic}"
    return b"%b; part of it may be done: repeat %b\n" % (reply.removesuffix(b"\n"), words.encode())


class Stages:
    """Of one command, whose replies are numbers."""

    def __init__(
        self, plan: Plan, ask: Ask, done: Callable[[bytes | RequestError], None], missing: RequestError | None = None
    ) -> None:
        """
        Args:
            done: gets the reply, ``OK`` with the sum of all, or why one cannot be asked.
            missing: the reply when all lack the topic; by default that of the first that does not name another place.
        """
        self._left = [stage for stage in plan.stages if stage]
        self._lacks = plan.lacks
        self._ask = ask
        self._done = done
        self._totals: list[int] = []
        self._missing: bytes | RequestError | None = missing

    def begin(self) -> None:
        """Ask the next ones."""
        if not self._left:
            self._done(self._missing if self._missing and not self._totals else encode_ok(sum(self._totals)))
            return
        try:
            self._ask(self._left.pop(0), self._answered)
        except RequestError as error:
            self._done(error)

    def _answered(self, reply: bytes) -> None:
        if reply.startswith(self._lacks):
            known = self._missing
            if known is None or (isinstance(known, bytes) and not known.startswith(NO_SUCH)):
                self._missing = reply
        elif reply.startswith(b"ERR"):
            self._done(reply)
            return
        else:
            self._totals.append(int(reply.split()[1]))
        self.begin()
