"""Carries out a command in stages: the places of a stage are asked when those of the stage before have done it. ADR 0184, 0198.
Pure.

A refusal is the reply, and later stages are not asked: a repeat of the command completes what has begun. The error for a change
that all places make says whether nothing was done, or a part may be. ADR 0270.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from toymq_py.errors import PlacementUnknown, RequestError
from toymq_py.names import PARTITION_MARK
from toymq_py.partitioned_topics import PartitionedTopics
from toymq_py.partitions import PARTITIONS
from toymq_py.placement import Place, Placement
from toymq_py.protocol import Command, Config, Create, Delete, Describe, encode_ok
from toymq_py.session.gathering import NO_SUCH, NOT_HERE

AWAY = b"ERR PLACEMENT_UNKNOWN "
LISTED = b", so its topics are not known: try again"
"""The end of the error for a place that does not answer, where a list is asked for."""

Ask = Callable[[Sequence[Place], Callable[[bytes], None]], None]
"""Asks some places; calls back with their replies as one."""


class Plan(NamedTuple):
    """The stages of a command: each is a list of places that are asked together. ``lacks``: the beginnings of the answer of a
    place that does not have the topic, where others may have it."""

    stages: Sequence[Sequence[Place]]
    lacks: tuple[bytes, ...] = ()


def plan_of(
    command: Create | Delete, placement: Placement, partitioned: PartitionedTopics, *, follows: bool
) -> Plan | None:
    """The stages in which places are asked for a command; None: the command needs none.

    The home is the place that would have a plain topic of the name, or the group that shall have a new one. CREATE of
    partitions asks the home first. DELETE in a cluster asks the home first, and again after the others (ADR 0198). Among
    workers DELETE asks the home last: if it is interrupted, the topic stays there, so that no plain topic of its name is made.
    A worker that was killed in an earlier DELETE may still have partitions of the name, so all are asked. If the home is here,
    see ``Passing.ask_others``.

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


def is_change(command: Command) -> bool:
    """Whether a command for a partitioned topic, one of ``gathering.WHOLE``, changes something."""
    return not isinstance(command, Describe) and not (isinstance(command, Config) and not command.settings)


def words_of(command: Command) -> str:
    """Name a command as errors do: ``FORGET orders billing``."""
    words = type(command).__name__.upper(), getattr(command, "topic", None), getattr(command, "consumer", None)
    return " ".join(word for word in words if word is not None)


def part_of(command: Command) -> str:
    """Words for what a change would miss without a group that has no leader, for an error."""
    if not isinstance(command, Create):
        return "would not do its part"
    return f"would {'not know the partitions' if 'group' in command.settings else 'get no partition'} of {command.topic}"


def to_repeat(command: Command, reply: bytes, *, begun: bool = False) -> bytes:
    """The reply with advice: if a place is missing, others may have done their part, and a repeat completes the change.

    Args:
        begun: a place has done its part; then any error gets this advice.
    """
    if not reply.startswith(b"ERR " if begun else AWAY):
        return reply
    said = reply.removesuffix(b"\n").replace(LISTED, b"")
    if b"repeat " not in said:
        return b"%b; part of it may be done: repeat %b\n" % (said, words_of(command).encode())
    return reply if isinstance(command, Create | Delete) else said + b"; part of it may be done\n"


def undone(command: Command, reply: bytes) -> bytes:
    """The reply with advice: a place is missing, and none was asked for the change."""
    if not reply.startswith(AWAY) or b"nothing was done" in reply:
        return reply
    said = reply.removesuffix(b"\n").replace(LISTED, b"")
    return b"%b; nothing was done: repeat %b\n" % (said, words_of(command).encode())


def in_words(error: RequestError, say: Callable[[bytes], bytes]) -> RequestError:
    """An error with the words of ``undone`` or ``to_repeat``."""
    if not isinstance(error, PlacementUnknown):
        return error
    return PlacementUnknown(say(AWAY + str(error).encode()).removeprefix(AWAY).decode().rstrip("\n"))


class Stages:
    """The stages of one command, whose replies are numbers."""

    def __init__(
        self, plan: Plan, ask: Ask, done: Callable[[bytes | RequestError], None], missing: RequestError | None = None
    ) -> None:
        """
        Args:
            done: called with the reply, ``OK`` with the sum of the stages' numbers, or with the error if a stage cannot be
                asked.
            missing: the reply when all lack the topic; by default the first answer that it does not exist (rather than MOVED).
        """
        self._left = [stage for stage in plan.stages if stage]
        self._lacks = plan.lacks
        self._ask = ask
        self._done = done
        self._totals: list[int] = []
        self._missing: bytes | RequestError | None = missing

    def begin(self) -> None:
        """Ask the places of the next stage."""
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
