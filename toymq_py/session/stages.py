"""A command that places are asked for one after the other: the next ones when those before have done it. ADR 0184, 0198. Pure.

What one refuses is the reply, and those behind it are not asked: a repeat of the command completes what has begun.
"""

from collections.abc import Callable, Sequence

from toymq_py.errors import RequestError
from toymq_py.names import PARTITION_MARK, is_pattern
from toymq_py.partitioned_topics import PartitionedTopics
from toymq_py.partitions import PARTITIONS
from toymq_py.placement import Place, Placement
from toymq_py.protocol import Create, Delete, encode_ok
from toymq_py.session.gathering import Gathering

Ask = Callable[[Sequence[Place], Callable[[bytes], None]], None]
"""Asks some places; calls back with their replies as one."""


Merge = Callable[[Gathering], bytes | None]


def stages_of(
    command: Create | Delete, placement: Placement, partitioned: PartitionedTopics, *, follows: bool
) -> tuple[list[list[Place]], Merge] | None:
    """Which places are asked, and how the replies of those that are asked together become one; None: as other commands are.

    CREATE of partitions is first for where a plain topic would be. DELETE in a cluster is first and behind the others (ADR
    0198); among workers the others are asked, too: one that was killed in an earlier DELETE may have partitions of the name.

    Args:
        follows: the client follows MOVED, so that only the place of the name asks the others.
    """
    home = placement.place_of(command.topic)
    others = [place for place in placement.places() if place != home]
    if isinstance(command, Create):
        return ([[home], [*placement.places()]], Gathering.total) if PARTITIONS in command.settings else None
    is_whole = command.topic in partitioned.by_name
    if placement.table is not None:
        return ([[home], others, [home], others], Gathering.sum_of_some) if is_whole else None
    if is_whole or is_pattern(command.topic) or PARTITION_MARK in command.topic or (follows and home != placement.here):
        return None
    return [[home], others], Gathering.sum_of_holders


class Stages:
    """Of one command, whose replies are numbers."""

    def __init__(
        self, stages: Sequence[Sequence[Place]], ask: Ask, done: Callable[[bytes | RequestError], None], *,
        lacking: bool = False,
    ) -> None:  # fmt: skip
        """
        Args:
            done: gets the reply, ``OK`` with the sum of all, or why one cannot be asked.
            lacking: some places may have no such topic.
        """
        self._left = [stage for stage in stages if stage]
        self._ask = ask
        self._done = done
        self._lacking = lacking
        self._totals: list[int] = []
        self._missing = encode_ok(0)
        """The reply when each has said that there is no such topic."""

    def begin(self) -> None:
        """Ask the next ones."""
        if not self._left:
            self._done(encode_ok(sum(self._totals)) if self._totals else self._missing)
            return
        try:
            self._ask(self._left.pop(0), self._answered)
        except RequestError as error:
            self._done(error)

    def _answered(self, reply: bytes) -> None:
        if self._lacking and reply.startswith(b"ERR NO_SUCH_"):
            self._missing = reply
        elif reply.startswith(b"ERR"):
            self._done(reply)
            return
        else:
            self._totals.append(int(reply.split()[1]))
        self.begin()
