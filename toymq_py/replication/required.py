"""The required followers: those for which each sync of a leader waits. With the leader they are a superset of every in-sync set
that etcd may hold."""

import asyncio
from collections.abc import Iterable
from typing import Protocol

from toymq_py.replication.tickets import Tickets


class InSyncChanges(Protocol):
    """Changes the in-sync set in etcd. A change that is cancelled may or may not happen; ``drop`` settles it."""

    async def drop(self, replica: str) -> None:
        """Remove a replica from the in-sync set; return when no value that etcd may hold has it. Raises: TermEnded."""

    async def add(self, replica: str) -> None:
        """Add a replica to the in-sync set; return when the value in etcd has it. Raises: TermEnded."""

    def fenced(self, epoch: int) -> None:
        """Step down: a follower has promised this higher epoch."""


class RequiredFollowers:
    """The set of required followers: grows before the in-sync set does, and shrinks after it. Belongs to the event loop."""

    def __init__(self, tickets: Tickets, changes: InSyncChanges, replicas: Iterable[str]) -> None:
        self._tickets = tickets
        self._changes = changes
        self.replicas = frozenset(replicas)
        """The ids of the required replicas."""
        self.undropped = set(self.replicas)
        """The replicas of the set that this leader was elected from, while T3 without them is not done. What recovery found may
        lack there."""
        self._all_dropped = asyncio.Event()
        self._look_whether_all()
        tickets.require(self.replicas)

    def add(self, replica: str) -> None:
        """Let syncs wait for another follower from now on. T3 adds it to the in-sync set later."""
        self._set(self.replicas | {replica})

    async def drop(self, replica: str) -> None:
        """Drop a follower from the in-sync set (T3); then syncs no longer wait for it. Raises: TermEnded; then they still
        do."""
        await self._changes.drop(replica)
        self.undropped.discard(replica)
        self._look_whether_all()
        self._set(self.replicas - {replica})

    async def all_dropped(self) -> None:
        """Return when ``undropped`` is empty."""
        await self._all_dropped.wait()

    def _look_whether_all(self) -> None:
        if not self.undropped:
            self._all_dropped.set()

    def _set(self, replicas: frozenset[str]) -> None:
        self.replicas = replicas
        self._tickets.require(replicas)
