"""One term of a leader: from the won election to the hand-over or the end of its epoch.

Contract: replication.md, sections 5, 7 and 8; ADR 0097. Belongs to the event loop. Knows the broker only as an ``Office``.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from toymq_py.clock import Clock
from toymq_py.errors import EtcdError, EtcdWentBack, LeaseLost, LocalError, TermEnded
from toymq_py.replication.agreement import (
    HAND_OVER_TTL_S,
    Agreement,
    Answer,
    ClusterSettings,
    GroupState,
    Member,
    ReplicaId,
    Request,
    RequestKind,
)
from toymq_py.replication.content_digests import ContentDigests
from toymq_py.replication.disk_calls import Offload
from toymq_py.replication.leader_link import LinkState
from toymq_py.replication.leader_links import FollowerLag, LeaderLinks
from toymq_py.replication.lease_keeper import LeaseKeeper
from toymq_py.replication.link_options import Identity, LinkOptions
from toymq_py.replication.membership import InSyncSet
from toymq_py.replication.scrub import Scrub
from toymq_py.replication.stream import Stream
from toymq_py.replication.tickets import Tickets
from toymq_py.storage.fs import FileSystem

logger = logging.getLogger("toymq_py.replication")

LOOK_S = 0.25
"""How often a leader checks that its event loop and its disk make progress."""
LATE_S = 1.0
LATE_TIMES, LATE_WITHIN_S = 2, 10.0
"""A node whose event loop is so often later than ``LATE_S`` cannot lead. Once is a pause that is over: a hand-over would be
another."""
JOINED_LOOK_S = 0.02
ENOUGH_WAIT_S = 2.0
"""How much longer a new leader waits for copies that were in sync while it would refuse publishes without them (ADR 0206)."""
READ_RETRY_S = 0.2
"""The delay after a read of etcd without an answer. A leader goes on meanwhile: nothing in an OK needs etcd."""
DAMAGE_RETRY_S = 60.0
"""The delay before a leader whose copy is damaged checks again whether another copy is in sync."""
BYE_S = 3.0
"""The longest wait for followers to have everything, before a hand-over goes on without."""
T4_S = 1.0
"""The time for T4, which needs no answer: the term has ended with BYE."""
IN_SYNC = LinkState.IN_SYNC.value


class Office(Protocol):
    """The broker of a node and its listeners while the node leads: the interface that a term uses."""

    async def open(self, stream: Stream, tickets: Tickets, lease: int) -> None:
        """Recover the directory as after a power cut; its changes go into ``stream``. Renews the lease while it
        blocks the event loop. Raises: the errors of recovery."""

    async def serve(self) -> None:
        """Serve clients until ``retire`` or ``abandon``. Raises: the errors after which a broker cannot go on."""

    def refuse_publishes(self, reason: str | None) -> None:
        """Refuse publishes with NOT_ENOUGH_REPLICAS for this reason; None: accept them."""

    def deliver_until(self, at: float) -> None:
        """Deliver nothing after this time of the event loop, until a later one is given: by then the lease may have ended, and
        another node may deliver."""

    def disk_trouble(self, stall_s: float) -> str | None:
        """A disk error: a sync that takes longer than ``stall_s``, or one that failed; None without trouble."""

    async def retire(self, *, in_haste: bool) -> None:
        """End the service: send due answers, store acks, close the broker. ``in_haste``: a successor waits."""

    def abandon(self) -> None:
        """Close all connections without an answer, whatever is under way."""


@dataclass(frozen=True, slots=True)
class TermOptions:
    """Options of ``toymq serve`` for a term. ``promote_wait_s``: how long a new leader waits for the members of the in-sync
    set; ``stall_s``: a sync of its own disk that takes longer ends the term; ``scrub_interval_s``: as for ``Scrub``."""

    promote_wait_s: float = 0.5
    stall_s: float = 2.0
    scrub_interval_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The objects that a node and its terms are given."""

    agreement: Agreement
    settings: ClusterSettings
    me: Member
    identity: Identity
    office: Office
    fs: FileSystem
    root: str
    clock: Clock
    loop: asyncio.AbstractEventLoop
    offload: Offload
    link: LinkOptions
    options: TermOptions
    grouped: bool = False
    """Whether there may be other groups (``--group``)."""


class Term:
    """One term, in which this node leads ``epoch``. Call ``run`` once."""

    def __init__(
        self, around: Surroundings, keeper: LeaseKeeper, epoch: int, members: tuple[ReplicaId, ...], revision: int,
        predecessor: ReplicaId | None, stop: asyncio.Event, on_state: Callable[[str], None], scrub: Scrub,
        digests: ContentDigests, distrust: Callable[[], None],
    ) -> None:  # fmt: skip
        """
        Args:
            members: the in-sync set from which this node was elected, at ``revision``.
            predecessor: the last leader, if known. The term does not wait for it to join: usually it is dead.
            stop: set when this node has to end; it then hands over.
            digests: those of the data directory's files.
            distrust: called when etcd went back, and so may elect replicas that lack acknowledged records.
        """
        self._around = around
        self._keeper = keeper
        self.epoch = epoch
        self._predecessor = predecessor
        self._stop = stop
        self._on_state = on_state
        self._scrub = scrub
        self._distrust = distrust
        self._tickets = Tickets()
        self._stream = Stream(self._tickets)
        self._over: asyncio.Future[str] = around.loop.create_future()  # why the term has ended
        self._asked: asyncio.Future[Request] = around.loop.create_future()  # a hand-over
        self._late_at: list[float] = []
        self._opened = self._hindered = self._retiring = False
        self.in_sync = InSyncSet(around.agreement, around.me.replica, epoch, members, revision, self._changed)
        self.links = LeaderLinks(
            me=around.identity, epoch=epoch, stream=self._stream, tickets=self._tickets, digests=digests,
            clock=around.clock, loop=around.loop, options=around.link, changes=self, offload=around.offload, members=members,
        )  # fmt: skip

    # -- as the ``InSyncChanges`` of the links

    async def drop(self, replica: str) -> None:
        """Remove a replica from the in-sync set (``InSyncSet.drop``); an error ends the term."""
        await self._guarded(self.in_sync.drop(replica))

    async def add(self, replica: str) -> None:
        """Add a replica to the in-sync set (``InSyncSet.add``); an error ends the term."""
        await self._guarded(self.in_sync.add(replica))

    def fenced(self, epoch: int) -> None:
        """End the term: a follower has promised a higher epoch."""
        self._end(f"a follower has promised epoch {epoch}")

    async def _guarded(self, change: Coroutine[Any, Any, None]) -> None:
        try:
            await change
        except TermEnded as error:
            self._end(str(error))
            raise

    # -- its course

    async def run(self) -> bool:
        """Open the broker, lead, and hand over when asked to. Returns: whether the node should come back as a follower, as an
        operator asked. Raises: TermEnded: the epoch is over, and the office was abandoned; the errors of ``Office.open``."""
        watching: list[asyncio.Task[None]] = []
        try:
            self._on_state("OPENING")
            await self._around.office.open(self._stream, self._tickets, self._keeper.lease)
            self._around.office.deliver_until(self._keeper.expires_at)
            self._keeper.on_expiry = self._around.office.deliver_until
            self._keeper.hindrance = self._hindrance
            watching = [self._task(self._watch()), self._task(self._keep()), self._task(self._look())]
            self.links.start()
            await self._first(self._gather_members(), self._over, self._stopping())
            if not self._over.done() and not self._stop.is_set():
                self._opened = True
                self._changed()
                watching += [self._task(self._around.office.serve()), self._task(self._scrub_copy())]
                self._on_state("LEADING")
                await self._first(self._over, self._asked, self._stopping())
            if self._over.done():
                if self._hindered:
                    await self._give_up(self._successor(None))
                raise TermEnded(self._over.result())
            return await self._hand_over()
        finally:
            self._tickets.stop()
            self._around.office.abandon()
            for task in watching:
                task.cancel()
            self.links.close()

    def _task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task of this term; if it ends other than by cancellation, the term ends."""
        task = self._around.loop.create_task(work)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or self._retiring:
            return
        error = task.exception()
        if error is not None and not isinstance(error, LocalError):
            logger.error("epoch %d: a bug", self.epoch, exc_info=error)
        self._end(str(error) if error is not None else "a task of the term has ended")

    def _end(self, reason: str) -> None:
        """End the term: from here on no client is answered."""
        if not self._over.done():
            self._tickets.stop()
            self._around.office.abandon()
            self._over.set_result(reason)

    async def _stopping(self) -> None:
        await self._stop.wait()

    async def _first(self, *awaited: "asyncio.Future[Any] | Coroutine[Any, Any, Any]") -> None:
        """Wait for the first awaitable; then cancel those that are coroutines. Raises: an error that a coroutine raised."""
        tasks = [each if isinstance(each, asyncio.Future) else self._around.loop.create_task(each) for each in awaited]
        own = [task for task, each in zip(tasks, awaited, strict=True) if task is not each]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in own:
                if not task.done():
                    task.cancel()
            results = await asyncio.gather(*own, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, TermEnded):
                raise result

    async def _gather_members(self) -> None:
        """Wait for the members of the in-sync set to be in sync again, then drop the others (ADR 0097, item 11). Raises:
        TermEnded."""
        me, enough = self._around.me.replica, self._around.settings.min_in_sync
        expected = set(self.in_sync.members) - {me, self._predecessor}
        wanted = enough - 1 if len(self.in_sync.members) >= enough else 0
        if expected and self._predecessor is not None:  # while the others come: each change waits for etcd
            await self._guarded(self.links.drop_absent(self._predecessor))
        until = self._around.loop.time() + self._around.options.promote_wait_s
        while expected - (joined := self._joined()) or len(joined) < wanted:
            left_s = until + (ENOUGH_WAIT_S if len(joined) < wanted else 0) - self._around.loop.time()
            if left_s <= 0:
                break
            await asyncio.sleep(min(left_s, JOINED_LOOK_S))
        await self._guarded(self.links.drop_members())

    def _joined(self) -> set[str]:
        return {lag.replica for lag in self.links.lags() if lag.state == IN_SYNC}

    def _changed(self) -> None:
        """Note that the in-sync set has changed."""
        settings = self._around.settings
        have, want, all_of_them = len(self.in_sync.members), settings.min_in_sync, settings.replicas
        if self._opened:
            if have < all_of_them:
                logger.warning("epoch %d: %d of %d copies are in sync", self.epoch, have, all_of_them)
            reason = f"{have} of {all_of_them} copies are in sync, and this cluster wants {want}"
            self._around.office.refuse_publishes(reason if have < want else None)

    # -- what ends it

    async def _keep(self) -> None:
        """Renew the lease. Raises: TermEnded."""
        try:
            await self._keeper.keep()
        except LeaseLost as error:
            raise TermEnded(f"the lease of epoch {self.epoch} is lost: {error}") from error

    async def _watch(self) -> None:
        """Read the agreement whenever it changes. Raises: TermEnded."""
        revision = 0
        while True:
            try:
                if revision:
                    await self._around.agreement.changed(revision)
                state = await self._around.agreement.read()
            except EtcdWentBack as error:
                self._distrust()
                over = f"epoch {self.epoch} is over, etcd went back: {error}"
                raise TermEnded(f"{over}; see the runbook in docs/clusters.md") from error
            except EtcdError as error:
                logger.warning("epoch %d goes on without etcd: %s", self.epoch, error)
                await asyncio.sleep(READ_RETRY_S)
                continue
            revision = state.revision
            if state.leader is None or state.leader.epoch != self.epoch:
                leader = state.leader
                held = f"{leader.member.name} leads epoch {leader.epoch}" if leader is not None else "there is no leader"
                raise TermEnded(f"epoch {self.epoch} is over: {held}")
            await self._take_request(state)

    def _hindrance(self) -> str | None:
        """The reason why this node should not lead any longer, or None."""
        if not any(lag.state == IN_SYNC for lag in self.links.lags()):
            return None  # no other copy could do better
        if len(self._late_at) >= LATE_TIMES:
            return f"the event loop was late {len(self._late_at)} times within {LATE_WITHIN_S:g} s"
        return self._around.office.disk_trouble(self._around.options.stall_s)

    async def _look(self) -> None:
        """End the term if there is a reason not to lead any longer. Raises: TermEnded."""
        time = self._around.loop.time
        while True:
            due_at = time() + LOOK_S
            await asyncio.sleep(LOOK_S)
            now = time()
            self._late_at = [at for at in self._late_at if now - at < LATE_WITHIN_S]
            if now - due_at > LATE_S:
                self._late_at.append(now)
            hindrance = self._hindrance()
            if hindrance is not None:
                self._hindered = True
                raise TermEnded(f"{hindrance}, and another copy is in sync")

    async def _scrub_copy(self) -> None:
        """Hand over, and come back as a follower, when records are damaged here and another copy in sync has them."""
        while True:
            path = await self._scrub.until_new_damage()
            if not self._asked.done() and self._successor(None) is not None:
                self._scrub.note(path)
                self._asked.set_result(Request(RequestKind.HAND_OVER, None, 0))
            await asyncio.sleep(DAMAGE_RETRY_S)

    # -- handing over

    async def _take_request(self, state: GroupState) -> None:
        request = state.request
        if request is None or (state.answer is not None and state.answer.request >= request.revision):
            return
        if request.kind is RequestKind.HAND_OVER and not self._asked.done():
            successor = self._successor(request.replica)
            text = f"hands over to {successor.name}" if successor is not None else "no follower that could take over is in sync"
            if await self._answer(Answer(request.revision, successor is not None, text)) and successor is not None:
                self._asked.set_result(request)
        elif request.kind is RequestKind.REMOVE and request.replica is not None:
            if request.replica == self._around.me.replica:
                await self._answer(Answer(request.revision, False, "it leads: hand over first"))
            elif any(lag.replica == request.replica for lag in self.links.lags()):
                await self._answer(Answer(request.revision, False, "its node is connected: stop that first"))
            else:
                await self._guarded(self.in_sync.drop(request.replica))
                await self._answer(Answer(request.revision, True, "removed from the in-sync set"))
        elif request.kind is RequestKind.FORCE:
            await self._answer(Answer(request.revision, False, f"{self._around.me.name} leads: nothing needs force"))

    async def _answer(self, answer: Answer) -> bool:
        try:
            return (await self._around.agreement.answer(answer)).done
        except EtcdError as error:
            logger.warning("the answer to an operator is lost: %s", error)
            return False

    def _successor(self, wanted: ReplicaId | None) -> FollowerLag | None:
        """The follower to take over: the wanted one, or else the one with the least lag; None without one."""
        able = [
            lag for lag in self.links.lags()
            if lag.state == IN_SYNC and lag.replica in self.in_sync.members and wanted in (None, lag.replica)
        ]  # fmt: skip
        return min(able, key=lambda lag: lag.bytes, default=None)

    async def _hand_over(self) -> bool:
        """End the term with all changes stored on every replica in sync, and hand over. Returns: as ``run``."""
        asked = self._asked.result() if self._asked.done() and not self._stop.is_set() else None
        successor = self._successor(asked.replica if asked is not None else None)
        self._on_state("STEPPING DOWN")
        to = successor.name if successor is not None else "no one: no copy is in sync"
        logger.info("epoch %d: hands over to %s", self.epoch, to)
        self._retiring = True
        began = self._around.loop.time()
        granting = None
        if successor is not None:  # meanwhile: publishers wait for T4, which needs it
            granting = self._around.loop.create_task(self._around.agreement.grant(HAND_OVER_TTL_S))
            granting.add_done_callback(lambda task: task.cancelled() or task.exception())  # retrieved, whatever comes next
        await self._first(self._around.office.retire(in_haste=successor is not None), self._over)
        if not self._over.done():
            with suppress(TimeoutError):
                async with asyncio.timeout(BYE_S):
                    await self.links.say_bye()
        self._tickets.stop()
        if granting is not None and self._around.loop.time() - began > HAND_OVER_TTL_S / 2:
            granting.cancel()
            granting = None  # too old to be relied on
        if not self._over.done():
            await self._give_up(successor, granting)
        return asked is not None

    async def _give_up(self, successor: FollowerLag | None, granting: "asyncio.Task[int] | None" = None) -> None:
        """Try T4, or revoke the lease if there is no successor; either way there is then no leader. ``granting``: the lease of
        T4."""
        agreement = self._around.agreement
        try:
            async with asyncio.timeout(T4_S):
                if successor is not None:
                    lease = await (granting or agreement.grant(HAND_OVER_TTL_S))
                    await agreement.hand_over(self.epoch, successor.replica, lease)
                await agreement.revoke(self._keeper.lease)
        except (EtcdError, TimeoutError) as error:
            logger.warning("epoch %d: etcd does not know yet that it is over: %s", self.epoch, error)
