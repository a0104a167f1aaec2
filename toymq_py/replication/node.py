"""A node of a cluster: looks, follows, stands for election and leads, until it is stopped or a term of its own ends.

Contract: replication.md, section 5; ADR 0097, 0107. Belongs to the event loop, on which it is one task; blocking calls run
on threads. Knows neither the broker (``Office``) nor the network (``Follows``).

    START ──► LOOKING ──► JOINING, FOLLOWING ──► LOOKING …
                 └──────► OPENING, LEADING, STEPPING DOWN ──► the end of the process

``decisions`` decides what follows LOOKING, ``Term`` leads. A node that has led does not follow in the same process: its broker
has read the files, and its threads may still write.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

from toymq_py.errors import DataDirectoryError, EtcdError, EtcdWentBack, LeaseLost
from toymq_py.replication.agreement import Answer, GroupState, LeaderKey, Outcome, ReplicaId, RequestKind, Seat
from toymq_py.replication.content_digests import AHEAD_BYTES_PER_S, LEADER_AHEAD_BYTES_PER_S, ContentDigests
from toymq_py.replication.decisions import Begin, ComeBack, Elect, Follow, Open, Refuse, Standing, Wait, decide
from toymq_py.replication.follower_link import EndReason, FollowEnd, Leads
from toymq_py.replication.lease_keeper import RENEWALS_PER_TTL, LeaseKeeper
from toymq_py.replication.manifest import list_shared, scrubbed
from toymq_py.replication.replica_file import ReplicaFile
from toymq_py.replication.scrub import Scrub
from toymq_py.replication.term import Surroundings, Term
from toymq_py.version import __version__

logger = logging.getLogger("toymq_py.replication")

RETRY_MIN_S, RETRY_MAX_S = 0.02, 0.5
"""The time between two attempts to reach etcd, or a leader that refuses or is gone."""
JITTER_S = 0.05
"""The longest random delay before an election: copies that see the same end of a lease do not ask at the same time."""
SAY_S = 10.0
"""How often the log repeats what the node waits for."""
SEAT_S = 60.0
"""How often a node writes its state again: each time is a revision that etcd keeps until it compacts."""
LAG_STEP_BYTES = 1 << 20
"""A leader writes its followers' lags when one reaches this, or is twice what it was, or half."""
DISK_RETRY_S = 5.0
"""The delay after an error of a follower's own disk, and while its topics are not mounted."""

REASONS = ("began", "handed_over", "leader_lost", "restarted", "forced")
"""Why a node was elected. "restarted": its process has followed no leader, so its life before led, or all nodes were down."""

WENT_BACK = "etcd went back behind what this copy knows: see the runbook in docs/clusters.md"


class Follows(Protocol):
    """What a node needs of ``FollowerLink``."""

    digests: ContentDigests

    @property
    def state(self) -> str: ...

    async def follow(self, leader: Leads, epoch: int) -> FollowEnd: ...


class Node:
    """A node of a cluster. Call ``run`` once. The other members may be read at any time."""

    def __init__(
        self, around: Surroundings, file: ReplicaFile, link: Follows, on_state: Callable[[], None] = lambda: None
    ) -> None:
        """
        Args:
            file: ``replica.json`` of the data directory, whose lock this process holds.
            link: follows leaders, one at a time.
            on_state: called when ``state``, ``leader`` or ``waits_for`` has changed.
        """
        self._around = around
        self.me = around.me
        self.settings = around.settings
        """The settings of the cluster."""
        self._file = file
        self._link = link
        self._on_state = on_state
        self.scrub = Scrub(around.fs, around.root, around.offload, file, around.options.scrub_interval_s)
        self._keeper = LeaseKeeper(around.agreement, around.settings.ttl_s, around.loop.time)
        self._stop = asyncio.Event()
        self._said = ""
        self._said_at = 0.0
        self._followed: ReplicaId | None = None
        self._stands_as = "restarted"
        self._retry_s = RETRY_MIN_S
        self.state = "START"
        self.waits_for = ""
        """Why the node neither leads nor follows; "" when it does."""
        self.trouble: Callable[[], str] = lambda: ""
        """Returns the trouble that a leader reports instead of ``waits_for``."""
        self.leader: LeaderKey | None = None
        """The leader, as etcd had it last."""
        self.in_sync_count = 0
        self.term: Term | None = None
        """The present term, while the node leads."""
        self.in_office = asyncio.Event()
        """Set together with ``term``."""
        self.elected_as: str | None = None
        """One of ``REASONS``: why this node was elected for the term of this process."""

    @property
    def hears_leader(self) -> bool:
        """Whether this node has a link over which a leader has spoken."""
        return self.state in ("JOINING", "FOLLOWING") and self._link.state not in ("", "connecting")

    @property
    def lease_remaining_s(self) -> float:
        """For how many seconds the node's lease certainly lives; negative when it may have ended."""
        return self._keeper.remaining_s

    def stop(self) -> None:
        """Stop the node: a leader hands over, and ``run`` returns. Idempotent."""
        self._stop.set()

    async def run(self) -> bool:
        """Take part in the group. Returns: whether the process should start again, as a follower; False after ``stop``.

        Raises: TermEnded: the process has to end at once, and may start again; and the errors of recovery.
        """
        around, digests = self._around, self._link.digests
        reading = around.loop.create_task(digests.read_ahead(
            around.offload, lambda: scrubbed(list_shared(around.fs, around.root)[0]),
            lambda: AHEAD_BYTES_PER_S if self.term is None else LEADER_AHEAD_BYTES_PER_S,
        ))  # fmt: skip
        try:
            return await self._take_part()
        finally:
            reading.cancel()

    async def _take_part(self) -> bool:
        """Follow until this node is elected, then lead. ``run`` also computes digests of files in advance."""
        await self._start()
        term: Term | None = None
        while term is None and not self._stop.is_set():
            working = self._around.loop.create_task(self._seek_office())
            keeping = self._around.loop.create_task(self._keep_place())
            stopping = self._around.loop.create_task(self._stop.wait())
            try:
                await asyncio.wait((working, keeping, stopping), return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (working, keeping, stopping):
                    task.cancel()
                await asyncio.gather(working, keeping, stopping, return_exceptions=True)
            for task in (working, keeping):
                if not task.cancelled() and (error := task.exception()) is not None:
                    raise error
            if not working.cancelled():
                term = working.result()
        if term is None:
            await self._revoke(self._keeper.lease)
            return False
        return await self._lead(term)

    async def _lead(self, term: Term) -> bool:
        self.term = term
        self.in_office.set()
        seats = self._around.loop.create_task(self._keep_seat())
        try:
            return await term.run()
        finally:
            seats.cancel()

    # -- START

    async def _start(self) -> None:
        """Revoke the lease of this directory's last process (T5): this process holds the lock, so that one no longer writes,
        and without its lease its transactions fail (ADR 0097, item 6). Not done if a leader with this replica id has another
        address: this directory may be a copy of the leader's (ADR 0220)."""
        lease = self._file.record.lease
        while lease is not None:
            try:
                state = await self._around.agreement.read()
                self._saw(state)
                if self._leads_elsewhere(state):
                    await self._changes(state, SAY_S)
                    continue
                await self._around.agreement.revoke(lease)
                break
            except EtcdWentBack:
                break  # what looks for an office judges it
            except EtcdError as error:
                await self._unreachable(error)
        await self._new_lease()

    def _leads_elsewhere(self, state: GroupState) -> bool:
        """Whether a leader with this replica id has another address, so that it may be alive. Logs it."""
        leader, me = state.leader, self._around.me
        if leader is None or leader.member.replica != me.replica or leader.member.repl == me.repl:
            return False
        self._wait_for(
            f"SAME_REPLICA: a leader at {leader.member.repl} has this replica id: one directory is a copy of the other. Where "
            f"this is the same node at another address, its lease ends in {self._around.settings.ttl_s:g} s; else remove it"
        )
        return True

    async def _new_lease(self) -> None:
        await self._persist(self._keeper.grant)
        self._file.change(lease=self._keeper.lease)  # before any transaction names it

    async def _persist(self, call: Callable[[], Awaitable[object]]) -> None:
        """Repeat a call to etcd until it is answered."""
        while True:
            try:
                await call()
            except EtcdError as error:
                await self._unreachable(error)
            else:
                self._retry_s = RETRY_MIN_S
                return

    async def _unreachable(self, error: EtcdError) -> None:
        self._wait_for(f"etcd does not answer: {error}")
        await self._pause()

    async def _pause(self) -> None:
        await asyncio.sleep(self._next_pause_s())

    def _next_pause_s(self) -> float:
        pause_s = self._retry_s * random.uniform(0.5, 1.0)
        self._retry_s = min(self._retry_s * 2, RETRY_MAX_S)
        return pause_s

    async def _revoke(self, lease: int) -> None:
        with suppress(EtcdError):
            await self._around.agreement.revoke(lease)

    # -- what goes on beside

    async def _keep_place(self) -> None:
        """Renew the lease, and publish the node's status. To lose the lease does no harm while this node does not lead."""
        seats = self._around.loop.create_task(self._keep_seat())
        try:
            while True:
                try:
                    await self._keeper.keep()
                except LeaseLost:
                    logger.info("the lease of this node is lost: it takes a new one")
                    await self._new_lease()
        finally:
            seats.cancel()

    async def _keep_seat(self) -> None:
        """Write the node's status to etcd when it has changed, at intervals, and for each new lease, with which it ends."""
        said: tuple[object, ...] | None = None
        said_at = 0.0
        while True:
            lags = [] if self.term is None else [(lag.replica, lag.bytes) for lag in self.term.links.lags()]
            steps = [(replica, (size // LAG_STEP_BYTES).bit_length()) for replica, size in lags]
            waits_for = self.waits_for or (self.trouble() if self.term is not None else "")
            now, lease = self._around.loop.time(), self._keeper.lease
            words = lease, self.state, waits_for, len(self.scrub.found), *steps
            if words != said or now - said_at >= SEAT_S:
                with suppress(EtcdError):
                    seat = Seat(
                        self._around.me, __version__, self.state, None, self._around.clock.wall_ns(),
                        damaged=len(self.scrub.found), lags=tuple(lags), waits_for=waits_for,
                    )  # fmt: skip
                    await self._around.agreement.put_seat(seat, lease)
                    said, said_at = words, now
            await asyncio.sleep(self._around.settings.ttl_s / RENEWALS_PER_TTL)

    def _set_state(self, state: str, waits_for: str = "") -> None:
        if (state, waits_for) != (self.state, self.waits_for):
            if state != self.state and not waits_for:
                logger.info("%s", state)
            self.state, self.waits_for = state, waits_for
            self._on_state()

    def _wait_for(self, reason: str) -> None:
        """Set and log the reason why this node waits; log it again every few seconds."""
        self._set_state("LOOKING", reason)
        now = self._around.loop.time()
        if reason != self._said or now - self._said_at >= SAY_S:
            logger.warning("%s", reason)
            self._said, self._said_at = reason, now

    def _saw(self, state: GroupState) -> None:
        if state.leader != self.leader:
            self.leader = state.leader
            self._on_state()
        self.in_sync_count = len(state.in_sync.members) if state.in_sync is not None else 0

    # -- LOOKING

    async def _seek_office(self) -> Term:
        """Watch etcd, and follow leaders, until this node is elected."""
        while True:
            try:
                state = await self._around.agreement.read()
                self._saw(state)
                record = self._file.record
                me, adopted = self._around.me.replica, self._around.settings.adopted
                standing = Standing(
                    me, record.promised, record.copying, self._keeper.lease, adopted in (None, me), self._around.grouped
                )
                if await self._take_request(state):
                    continue
                decision = decide(state, standing) if not record.distrusted else Refuse(WENT_BACK)
                match decision:
                    case Begin():
                        self._stands_as = "began"
                        if not await self._stand(self._around.agreement.begin(self._around.me, self._keeper.lease)):
                            await self._pause()  # another began, or the settings are not those that this node has read
                    case Elect(revision, delay_s):
                        self._stands_as = self._reason(state)
                        if not await self._changes(state, delay_s + random.uniform(0, JITTER_S) * bool(delay_s)):
                            elect = self._around.agreement.elect
                            await self._stand(elect(self._around.me, self._keeper.lease, revision))
                    case Open(epoch, members, revision):
                        return self._elected(epoch, members, revision)
                    case ComeBack() if self._leads_elsewhere(state):
                        await self._changes(state, SAY_S)
                    case ComeBack(lease):
                        await self._around.agreement.revoke(lease)
                        if lease == self._keeper.lease:
                            await self._new_lease()
                    case Follow():
                        assert state.leader is not None
                        await self._follow(state.leader, state.revision)
                    case Wait(reason):
                        self._wait_for(reason)
                        await self._changes(state, SAY_S)
                    case Refuse(reason):
                        self._refuse(state, reason)
                        await self._changes(state, SAY_S)
            except EtcdWentBack as error:
                self._distrust()
                self._wait_for(WENT_BACK if self._file.record.distrusted else str(error))
                await self._pause()
            except EtcdError as error:
                await self._unreachable(error)

    async def _stand(self, transaction: Awaitable[Outcome]) -> bool:
        """Send T1, T2 or T6. The next read tells which node leads, whatever the answer was (ADR 0097, item 3). Returns: whether
        the transaction is known to be done."""
        self._set_state("LOOKING")
        try:
            return (await transaction).done
        except LeaseLost:
            await self._new_lease()
            return False

    async def _changes(self, state: GroupState, timeout_s: float) -> bool:
        """Wait until the agreement has changed, at most for a time. Returns: whether it may have changed. Raises: EtcdError."""
        if timeout_s <= 0:
            return False
        try:
            async with asyncio.timeout(timeout_s):
                await self._around.agreement.changed(state.revision)
        except TimeoutError:
            return False
        return True

    def _refuse(self, state: GroupState, reason: str) -> None:
        if state.revision < self._file.record.promised:
            self._distrust()
        self._wait_for(reason)

    def _distrust(self) -> None:
        """Store that etcd went back, as its growing revisions will hide that later (ADR 0097, Consequences)."""
        if self._file.record.promised:
            self._file.change(distrusted=True)

    def _reason(self, state: GroupState) -> str:
        """The reason why this node is elected, in one word for the log and metrics."""
        if state.hand_over is not None and state.hand_over.to == self._around.me.replica:
            return "handed_over"
        return "leader_lost" if self._followed is not None else "restarted"

    def _elected(self, epoch: int, members: tuple[ReplicaId, ...], revision: int) -> Term:
        self.elected_as = self._stands_as
        self._file.change(promised=epoch)
        self._retry_s = RETRY_MIN_S
        return Term(
            self._around, self._keeper, epoch, members, revision, self._followed, self._stop, self._set_state, self.scrub,
            self._link.digests, self._distrust,
        )  # fmt: skip

    # -- JOINING and FOLLOWING

    async def _follow(self, leader: LeaderKey, revision: int) -> None:
        """Follow a leader until the link ends, or etcd names another leader or none."""
        self._followed = leader.member.replica
        self._set_state("JOINING")
        loop = self._around.loop
        following = loop.create_task(self._link.follow(leader.member, leader.epoch))
        watching = loop.create_task(self._until_another(leader, revision))
        showing = loop.create_task(self._show_link())
        scrubbing = loop.create_task(self._scrub_copy())
        tasks = following, watching, showing, scrubbing
        try:
            await asyncio.wait((following, watching, scrubbing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if not scrubbing.cancelled():
            scrubbing.result()
        if following.cancelled():
            self._retry_s = RETRY_MIN_S
            return
        try:
            end = following.result()
        except OSError as error:
            self._wait_for(f"the disk of this copy fails: {error}")
            await asyncio.sleep(DISK_RETRY_S)
            return
        except DataDirectoryError as error:
            self._wait_for(str(error))
            await asyncio.sleep(DISK_RETRY_S)
            return
        if end.reason is EndReason.BYE:
            logger.info("epoch %d of %s: %s", leader.epoch, leader.member.name, end.reason.value)
            self._set_state("LOOKING")
            self._retry_s = RETRY_MIN_S
            pause_s = RETRY_MAX_S
        else:
            self._wait_for(f"{leader.member.name} leads epoch {leader.epoch}, and {end.reason.value}: {end.detail}")
            pause_s = self._next_pause_s()
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._until_another(leader, revision)
                self._retry_s = RETRY_MIN_S

    async def _until_another(self, leader: LeaderKey, revision: int) -> None:
        """Return when etcd has another leader or none, or has a request for this node."""
        while True:
            try:
                await self._around.agreement.changed(revision)
                state = await self._around.agreement.read()
            except EtcdError as error:
                if isinstance(error, EtcdWentBack):
                    self._distrust()
                logger.warning("epoch %d goes on without etcd: %s", leader.epoch, error)
                await asyncio.sleep(RETRY_MAX_S)
                continue
            self._saw(state)
            if state.leader is None or state.leader.epoch != leader.epoch:
                return
            revision = state.revision

    async def _show_link(self) -> None:
        """Copy the link's state to this node's state."""
        while True:
            self._set_state("FOLLOWING" if self._link.state == "following" else "JOINING")
            if self.state == "FOLLOWING":
                self._retry_s = RETRY_MIN_S
            await asyncio.sleep(0.1)

    async def _scrub_copy(self) -> None:
        """Scrub, and return when a damaged segment is found that the leader was not asked for: the next join compares all
        files, and replaces it."""
        while self.state != "FOLLOWING":  # noqa: ASYNC110 (the link says so)
            await asyncio.sleep(0.1)
        path = await self.scrub.until_new_damage()
        self.scrub.note(path)
        logger.warning("this copy joins anew, to get %s from the leader", path)

    # -- an operator

    async def _take_request(self, state: GroupState) -> bool:
        """Carry out an operator's FORCE of this replica (T6). Returns: whether there was one; then read the agreement again.

        Raises: EtcdError.
        """
        request, me = state.request, self._around.me
        if request is None or request.kind is not RequestKind.FORCE or request.replica != me.replica:
            return False
        if state.answer is not None and state.answer.request >= request.revision:
            return False
        refusal = None
        if state.leader is not None:
            refusal = f"{state.leader.member.name} leads: nothing needs force"
        elif self._file.record.copying:
            refusal = "this copy is half copied: it has less than any other"
        elif state.in_sync is None or state.in_sync.revision != request.in_sync_revision:
            refusal = "the in-sync set is another one than you saw: look again"
        text = refusal or f"{me.name} stands for election alone"
        taken = await self._around.agreement.answer(Answer(request.revision, refusal is None, text))
        if taken.done and refusal is None:
            logger.critical("an operator forces this copy: what only the others have is lost")
            await self._force(request.in_sync_revision)
        return taken.done

    async def _force(self, in_sync_revision: int) -> None:
        """Try T6. If there is no answer, revoke the lease before anything else: then T6 either happened and has ended, or can
        no longer happen (ADR 0097, item 6)."""
        lease, self._stands_as = self._keeper.lease, "forced"
        try:
            await self._stand(self._around.agreement.force(self._around.me, lease, in_sync_revision))
        except EtcdError:
            await self._persist(lambda: self._around.agreement.revoke(lease))
            await self._new_lease()
