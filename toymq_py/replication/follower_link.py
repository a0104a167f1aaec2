"""A follower's end of the link: follows one leader until the link ends.

Contract: replication.md, sections 4 and 6; ADR 0097, 0098, 0106. Belongs to the event loop; what blocks runs on threads.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from toymq_py.clock import Clock
from toymq_py.replication.applier import Offload
from toymq_py.replication.leader_links import Identity, LinkOptions
from toymq_py.replication.replica_file import ReplicaFile
from toymq_py.storage.fs import FileSystem

Connect = Callable[[str], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
"""Connects to the HOST:PORT of a leader's listener of replicas. Raises: OSError."""


class Leads(Protocol):
    """The part of ``Member`` that a link needs."""

    @property
    def repl(self) -> str: ...


class EndReason(Enum):
    BYE = "the leader has ended its term, everything settled"
    LOST = "the connection could not be made, or was lost"
    REFUSED = "the leader has refused this replica"
    FENCED = "the leader is of an older epoch than this replica has promised"


@dataclass(frozen=True, slots=True)
class FollowEnd:
    """Why a link ended. ``detail`` is for people; for REFUSED it begins with the code of the answer."""

    reason: EndReason
    detail: str


class FollowerLink:
    """One at a time for a directory."""

    def __init__(
        self, *, me: Identity, file: ReplicaFile, fs: FileSystem, root: str, clock: Clock, options: LinkOptions,
        offload: Offload, connect: Connect,
    ) -> None:  # fmt: skip
        """
        Args:
            file: of the directory; ``promised`` and ``copying`` are changed here.
            offload: a small pool of threads: syncs, plans, the redo.
        """

    @property
    def state(self) -> str:
        """For people: "connecting", "comparing", "copying", "catching up", "following"."""
        raise NotImplementedError

    @property
    def leader_wall_ns(self) -> int | None:
        """The leader's clock as its last BEAT told it; None before the first."""
        raise NotImplementedError

    async def follow(self, leader: Leads, epoch: int) -> FollowEnd:
        """Join a leader and follow it until the link ends.

        ``epoch`` is the one that the node has read from etcd: no other is joined. When this returns, raises or was cancelled,
        nothing of it touches the directory any more.

        Raises: OSError of the own disk; it was reported to the leader.
        """
        raise NotImplementedError
