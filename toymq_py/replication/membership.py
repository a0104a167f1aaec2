"""The in-sync set of a leader's group, and its change in etcd (transaction T3), whose outcome may be unknown.

Contract: replication.md, section 3; ADR 0097, items 2 and 11. Belongs to the event loop.

T3 compares the epoch and the revision of the set, so at most one request of those sent with the same revision takes effect. A
missing answer proves nothing, nor does a read that shows the old revision: the request may still be under way. So T3 is sent
again with the same revision until the set has a newer one; until then etcd may hold any value that was sent.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from toymq_py.errors import EtcdError, TermEnded
from toymq_py.replication.agreement import Agreement, ReplicaId

logger = logging.getLogger("toymq_py.replication")

RETRY_MIN_S, RETRY_MAX_S = 0.05, 1.0
"""The time between two requests without an answer."""


class InSyncSet:
    """The members of the in-sync set under one epoch. Changes run one at a time, in turn."""

    def __init__(
        self, agreement: Agreement, me: ReplicaId, epoch: int, members: Sequence[ReplicaId], revision: int,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """
        Args:
            members: the set in etcd at ``revision``, read when this node was elected or later.
            on_change: called when etcd is known to have a new value.
        """
        self._agreement = agreement
        self._me = me
        self._epoch = epoch
        self._members = tuple(members)
        self._revision = revision
        self._sent: dict[tuple[ReplicaId, ...], None] = {}  # values under this revision, without an answer
        self._turn = asyncio.Lock()
        self._on_change = on_change
        self.changes = {"added": 0, "dropped": 0}
        """How many values this leader has put, by their effect."""

    @property
    def members(self) -> tuple[ReplicaId, ...]:
        """The last value that etcd is known to have, or to have had."""
        return self._members

    @property
    def may_hold(self) -> frozenset[ReplicaId]:
        """Every replica of any value that etcd may hold now."""
        return frozenset(self._members).union(*self._sent)

    async def drop(self, replica: ReplicaId) -> None:
        """Remove a replica, and return when no value that etcd may hold has it. Raises: TermEnded."""
        async with self._turn:
            while replica in self.may_hold:
                await self._put(tuple(each for each in self._members if each != replica))

    async def add(self, replica: ReplicaId) -> None:
        """Add a replica, and return when the value in etcd has it. Raises: TermEnded."""
        async with self._turn:
            while self._sent or replica not in self._members:
                wanted = self._members if replica in self._members else (*self._members, replica)
                await self._put(wanted)

    async def _put(self, value: tuple[ReplicaId, ...]) -> None:
        """Send T3 until the set has a newer revision than the known one; that one is known then. Raises: TermEnded.

        After a cancellation the value counts as one that etcd may hold.
        """
        assert self._me in value, "a leader never drops itself"
        delay_s = RETRY_MIN_S
        while True:
            sent_before = bool(self._sent)
            self._sent[value] = None
            try:
                outcome = await self._agreement.change_in_sync(self._epoch, self._revision, value)
                if outcome.done:
                    self._settle(value, outcome.revision)
                    return
                if await self._read():
                    return
                if not sent_before:
                    del self._sent[value]  # refused, so it will not happen, and nothing else is under way
            except EtcdError as error:
                logger.warning("epoch %d: the in-sync set may be %s or not: %s", self._epoch, _shown(value), error)
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, RETRY_MAX_S)

    async def _read(self) -> bool:
        """After a refused T3, read the current epoch and value of the set. Returns: whether they are known now.

        Raises: TermEnded, EtcdError.
        """
        state = await self._agreement.read()
        if state.leader is None or state.leader.epoch != self._epoch:
            other = "no epoch" if state.leader is None else f"epoch {state.leader.epoch}"
            raise TermEnded(f"etcd has {other}, and this node leads epoch {self._epoch}")
        if state.in_sync is None or state.in_sync.revision == self._revision:
            return False
        self._settle(state.in_sync.members, state.in_sync.revision)
        return True

    def _settle(self, members: tuple[ReplicaId, ...], revision: int) -> None:
        self._sent.clear()
        if frozenset(members) != frozenset(self._members):
            self.changes["added" if len(members) > len(self._members) else "dropped"] += 1
            logger.info("epoch %d: in sync are %s", self._epoch, _shown(members))
        self._members, self._revision = members, revision
        self._on_change()


def _shown(members: Sequence[ReplicaId]) -> str:
    return ", ".join(each[:8] for each in members)
