"""The followers of a leader: takes their links, lets them join, drops those that do not keep up.

Contract: replication.md, sections 4 and 6; ADR 0097, 0098, 0106. Belongs to the event loop.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from toymq_py.clock import Clock
from toymq_py.replication.applier import Offload
from toymq_py.replication.stream import Stream
from toymq_py.replication.tickets import Tickets
from toymq_py.storage.fs import FileSystem


@dataclass(frozen=True, slots=True)
class Identity:
    """Which replica speaks. ``name``: of its node, for people."""

    cluster: str
    group: str
    replica: str
    name: str


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """Options of both ends.

    Args:
        buffer_bytes: ``--replicate-buffer``.
        timeout_s: ``--replica-timeout``.
        resync_bytes_per_s: ``--resync-rate``.
        token: what a follower shows; None: none is asked for.
    """

    buffer_bytes: int = 64 << 20
    timeout_s: float = 3.0
    resync_bytes_per_s: int = 50_000_000
    token: str | None = None


class InSyncChanges(Protocol):
    """The in-sync set in etcd, as the node changes it."""

    async def drop(self, replica: str) -> None:
        """Return when no value of ``isr`` that etcd may hold has the replica. Raises: TermEnded."""

    async def add(self, replica: str) -> None:
        """Return when etcd's ``isr`` has the replica. Raises: TermEnded. Never cancelled; ``drop`` comes after it has ended."""

    def fenced(self, epoch: int) -> None:
        """A follower has promised this higher epoch: step down."""


@dataclass(frozen=True, slots=True)
class FollowerLag:
    """How far a follower is behind.

    Args:
        bytes: of the stream that were not acknowledged.
        seconds: since the oldest of them was put.
        state: "copying", "catching up", "joining", "in sync" or "leaving".
    """

    replica: str
    name: str
    bytes: int
    seconds: float
    state: str


class LeaderLinks:
    """The links of one term, from the won T2 to its end."""

    def __init__(
        self, *, me: Identity, epoch: int, stream: Stream, tickets: Tickets, fs: FileSystem, root: str, clock: Clock,
        loop: asyncio.AbstractEventLoop, options: LinkOptions, changes: InSyncChanges, offload: Offload,
        members: Iterable[str] = (),
    ) -> None:  # fmt: skip
        """
        Args:
            fs: of the machine, without ``ShippingFileSystem``: live files are read from it.
            offload: runs what blocks.
            members: of the in-sync set that this leader was elected from; all but itself are required until ``drop_members``, or
                their own joins, have dropped them.
        """

    def start(self) -> None:
        """Begin to send BEATs and to watch the time. Links may be served before."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection to the listener of replicas, from its first byte to its end. Raises nothing that its peer causes."""

    async def drop_members(self) -> None:
        """Drop by T3 each required replica that has no link (ADR 0097, 11). Raises: TermEnded."""

    def required(self) -> frozenset[str]:
        """The followers that each sync waits for."""
        raise NotImplementedError

    def lags(self) -> list[FollowerLag]:
        """Of each follower that has a link."""
        raise NotImplementedError

    async def say_bye(self) -> None:
        """Say BYE when all that was shipped is settled, and return when it has left for each follower in sync, or after
        ``timeout_s``. Before: no more work for clients. No follower joins or is dropped any more."""

    def close(self) -> None:
        """End all links. Drops none by T3. Idempotent."""
