"""The followers of a leader: accepts their links, and drops followers that do not keep up.

Contract: replication.md, sections 4 and 6; ADR 0097, 0098, 0106. Belongs to the event loop.
"""

import asyncio
import logging
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from toymq_py.clock import Clock
from toymq_py.errors import BadOperation, TermEnded
from toymq_py.metrics import Histogram
from toymq_py.replication.bulk_copy import Pace
from toymq_py.replication.content_digests import ContentDigests
from toymq_py.replication.disk_calls import Offload
from toymq_py.replication.handshake import VERSION, Follow, HandshakeReader, Refused, Wait, encode
from toymq_py.replication.leader_link import LeaderLink, LinkState, Term
from toymq_py.replication.link_options import Identity, LinkOptions, secret_refusal
from toymq_py.replication.required import InSyncChanges, RequiredFollowers
from toymq_py.replication.stream import Stream
from toymq_py.replication.tickets import Tickets

logger = logging.getLogger("toymq_py.replication")

BEAT_S = 0.5
GREETINGS_MAX = 64
"""Most connections that have not sent FOLLOW yet."""
LATE_S = 0.3
"""When the event loop is later than this, it has not read the latest messages of followers, and does not judge them."""
ANSWER_S = 1.0
"""A follower that lives sends something more often."""


@dataclass(frozen=True, slots=True)
class FollowerLag:
    """How far a follower is behind.

    Args:
        bytes: bytes of the stream that it has not acknowledged.
        seconds: the time since the oldest of these was sent.
        state: the value of ``LinkState``.
    """

    replica: str
    name: str
    bytes: int
    seconds: float
    state: str


class LeaderLinks:
    """The links of one term, from the won election to the term's end."""

    def __init__(
        self, *, me: Identity, epoch: int, stream: Stream, tickets: Tickets, digests: ContentDigests, clock: Clock,
        loop: asyncio.AbstractEventLoop, options: LinkOptions, changes: InSyncChanges, offload: Offload,
        members: Iterable[str] = (),
    ) -> None:  # fmt: skip
        """
        Args:
            digests: those of the data directory. They read live files from the plain file system, below ``ShippingFileSystem``.
            offload: runs blocking calls on threads.
            members: the in-sync set that this leader was elected from. Syncs wait for all others in it until they are
                dropped, each before its join or all by ``drop_members``.
        """
        self._me = me
        self._loop = loop
        self._required = RequiredFollowers(tickets, changes, frozenset(members) - {me.replica})
        self._term = Term(
            epoch=epoch, stream=stream, tickets=tickets, digests=digests, clock=clock, loop=loop, options=options,
            changes=changes, offload=offload, required=self._required, pace=Pace(options.resync_bytes_per_s),
        )  # fmt: skip
        self._links: dict[str, LeaderLink] = {}
        self._greeted: set[asyncio.StreamWriter] = set()
        self._judged: set[asyncio.StreamWriter] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._tick_at = 0.0
        self._settled = asyncio.Event()
        tickets.on_settled = self._settled.set
        self._ending = False
        self._closed = False

    def start(self) -> None:
        """Begin to send BEATs and to check time limits. Links may be served before this call."""
        self._plan_tick()

    def close(self) -> None:
        """End all links, without dropping the followers from the in-sync set. Idempotent."""
        self._ending = self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for link in self._links.values():
            link.fail("this node no longer leads")
        for writer in self._greeted:
            writer.transport.abort()

    @property
    def copied_bytes(self) -> int:
        """The bytes of all bulk copies so far."""
        return self._term.copied_bytes

    @property
    def sync_s(self) -> Mapping[str, Histogram]:
        """Histograms of the time until a sync was acknowledged, by the follower's name."""
        return self._term.sync_s

    def required(self) -> frozenset[str]:
        """The replica ids of the followers that each sync waits for."""
        return self._required.replicas

    def lags(self) -> list[FollowerLag]:
        """The lag of each follower that has a link."""
        now = self._term.clock.monotonic()
        return [FollowerLag(link.replica, link.name, *link.lag(now), link.state.value) for link in self._links.values()]

    async def drop_members(self) -> None:
        """Drop each required replica without a link from the in-sync set (T3); return when those with a link were dropped, too,
        by their joins (ADR 0097, 11). Until then a replica that lacks recovered records may be elected. Raises: TermEnded."""
        for replica in sorted(self._required.replicas - self._links.keys()):
            await self._required.drop(replica)
        await self._required.all_dropped()

    async def drop_absent(self, replica: str) -> None:
        """Drop a required replica from the in-sync set (T3), unless it has a link. Raises: TermEnded."""
        if replica in self._required.replicas and replica not in self._links:
            await self._required.drop(replica)

    async def say_bye(self) -> bool:
        """End the term: send BYE when all shipped syncs are acknowledged; return when each follower in sync has closed its
        link.

        Clients' requests must have ended before the call. After BYE no ticket is settled, and no follower joins or is
        dropped. Takes at most three times ``timeout_s``. Returns: whether BYE was sent; if not, a required follower has not
        acknowledged a sync.
        """
        timeout_s = self._term.options.timeout_s
        tickets = self._term.tickets
        try:
            async with asyncio.timeout(2 * timeout_s):
                while not tickets.all_settled:
                    self._settled.clear()
                    await self._settled.wait()
        except TimeoutError:
            logger.warning("epoch %d ends without BYE: not all acknowledge operation %s", self._term.epoch, tickets.oldest)
            return False
        tickets.stop()
        self._ending = True
        self._term.stream.bye()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                for link in [each for each in self._links.values() if each.state is LinkState.IN_SYNC]:
                    await link.gone.wait()
        return True

    def _plan_tick(self) -> None:
        self._tick_at = self._loop.time() + BEAT_S
        self._timer = self._loop.call_at(self._tick_at, self._tick)

    def _tick(self) -> None:
        term = self._term
        late_s = self._loop.time() - self._tick_at
        self._plan_tick()
        if not self._ending:
            oldest = term.tickets.oldest
            term.stream.beat(term.clock.wall_ns(), (term.stream.last + 1 if oldest is None else oldest) - 1)
        now = term.clock.monotonic()
        for link in self._links.values():
            link.tick(now, judge=late_s < LATE_S)
        for writer in self._judged:
            writer.write(encode(Wait()))

    # -- a connection

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, begun: bytes = b"") -> None:
        """Serve one connection to the replica listener, from its first byte to its end; ``begun``: the bytes read so far.
        Raises nothing that the peer causes."""
        try:
            link = await self._greet(reader, writer, begun)
            if link is not None:
                await self._keep(link)
        finally:
            writer.close()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, begun: bytes) -> LeaderLink | None:
        """Read FOLLOW, and accept or refuse it. Returns: the link; None when FOLLOW was refused or did not arrive."""
        if len(self._greeted) >= GREETINGS_MAX:
            logger.warning("a connection to the listener of replicas was closed: %d have not sent FOLLOW yet", GREETINGS_MAX)
            return None
        self._greeted.add(writer)
        handshake = HandshakeReader()
        handshake.receive(begun)
        try:
            async with asyncio.timeout(self._term.options.timeout_s):
                follow = await _read_follow(reader, handshake)
        except (OSError, BadOperation, TimeoutError) as error:
            why = "it says nothing" if isinstance(error, TimeoutError) else error
            logger.warning("a connection to the listener of replicas was closed: %s", why)
            return None
        finally:
            self._greeted.discard(writer)
        self._judged.add(writer)
        try:
            refusal = self._refusal(follow) or await self._refusal_of_replica(follow)
        finally:
            self._judged.discard(writer)
        if refusal is not None:
            logger.warning("follower %s (%s) was refused: %s %s", follow.name, follow.replica[:8], refusal.code, refusal.text)
            with suppress(OSError):
                writer.write(encode(refusal))
            return None
        link = LeaderLink(self._term, follow.replica, follow.name, secrets.token_hex(8), reader, writer, handshake)
        self._links[follow.replica] = link
        return link

    def _refusal(self, follow: Follow) -> Refused | None:
        me, epoch = self._me, self._term.epoch
        if (why := secret_refusal(follow.token, self._term.options.token)) is not None:
            return Refused("AUTH_FAILED", why)
        if follow.version != VERSION:
            return Refused("BAD_VERSION", f"this leader speaks and writes version {VERSION}: upgrade followers first")
        if (follow.cluster, follow.group) != (me.cluster, me.group):
            return Refused("WRONG_CLUSTER", f"this is group {me.group} of cluster {me.cluster}")
        if follow.replica == me.replica:
            return Refused("SAME_REPLICA", "the leader has this replica id: one directory is a copy of the other")
        if self._ending:
            return Refused("NOT_LEADER", "-")
        if follow.promised > epoch:
            self._term.changes.fenced(follow.promised)
            return Refused("FENCED", str(epoch))
        return None

    async def _refusal_of_replica(self, follow: Follow) -> Refused | None:
        """Whether to refuse a follower whose replica id already has a link: the old link is dead, or two directories have one
        id."""
        old = self._links.get(follow.replica)
        if old is None:
            return None
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S / 4):  # what was under way does not count
                await old.gone.wait()
        if await _is_alive(old):
            return Refused("SAME_REPLICA", f"{old.name} follows with this replica id: one directory is a copy of the other")
        old.fail("its replica has come back")
        with suppress(TimeoutError):
            async with asyncio.timeout(self._term.options.timeout_s):
                await old.gone.wait()
        if follow.replica in self._links or self._ending:
            return Refused("NOT_READY", "its last link has not ended yet")
        return None

    async def _keep(self, link: LeaderLink) -> None:
        """Run a link to its end; then drop the follower from the in-sync set (T3) before anything else."""
        try:
            reason = await link.run()
            if not self._ending:
                logger.warning("follower %s (%s) is gone: %s", link.name, link.replica[:8], reason)
                if link.replica in self._required.replicas:
                    await self._required.drop(link.replica)
        except TermEnded as error:
            logger.warning("follower %s (%s) is gone, and so is the term: %s", link.name, link.replica[:8], error)
        finally:
            if self._links.get(link.replica) is link:
                del self._links[link.replica]
            link.gone.set()
            link.heard.set()  # whatever waits for a word of it need not
            link.writer.transport.abort()


async def _read_follow(reader: asyncio.StreamReader, handshake: HandshakeReader) -> Follow:
    """Read the FOLLOW of a new connection. Raises: BadOperation; OSError."""
    while (message := handshake.next_message()) is None:
        data = await reader.read(4096)
        if not data:
            raise BadOperation("it ended before FOLLOW")
        handshake.receive(data)
    if not isinstance(message, Follow):
        raise BadOperation(f"{type(message).__name__} where FOLLOW is expected")
    return message


async def _is_alive(link: LeaderLink) -> bool:
    """Whether a follower sends something within ``ANSWER_S``, as a living one does."""
    if link.gone.is_set():
        return False
    link.heard.clear()
    with suppress(TimeoutError):
        async with asyncio.timeout(ANSWER_S):
            await link.heard.wait()
    return link.heard.is_set() and not link.gone.is_set() and link.state is not LinkState.LEAVING
