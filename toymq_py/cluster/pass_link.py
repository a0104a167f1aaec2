"""Pass a client's commands on to the leader of another group, over its replica listener: both ends. ADR 0190.

    session ──► PassLink ──► TCP, with TLS where the nodes have certificates ──► Passed ──► session of that leader

``PassLink`` is a ``PlaceLink``: bytes that are sent before the connection is made wait for it. While the group has no leader
the link waits, since the next leader is seconds away.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import cast

from toymq_py.cluster.replica_listener import connect
from toymq_py.errors import BadOperation, ProtocolViolation
from toymq_py.net.bounded_reads import BoundedProtocol
from toymq_py.net.certificates import PeerCertificates
from toymq_py.protocol import Quit, ReplyFrames, encode_command, first_word
from toymq_py.replication.agreement import LeaderKey
from toymq_py.replication.follower_link import NotAccepted
from toymq_py.replication.link_options import secret_refusal
from toymq_py.replication.pass_line import PASS, PASSED, VERSION, Pass, decode, encode

logger = logging.getLogger("toymq_py.cluster")

CONNECT_S = 4.0
"""How long a link looks for a leader that takes it: longer than most failovers, and less than the 5 s after which clients leave
a broker that owes an answer."""
RETRY_S = 0.1
LASTING = "AUTH_FAILED", "BAD_VERSION"
"""Refusals that no later leader takes back."""


class Refusals:
    """Records which groups refuse connections of this node, and why, for the log and for ``toymqctl cluster``."""

    def __init__(self) -> None:
        self._why: dict[str, str] = {}

    def note(self, group: str, why: str) -> None:
        """Note that a group has refused a connection; "": it has accepted one. Logs each change."""
        if why and why != self._why.get(group):
            logger.warning("group %s refuses this node: %s", group, why)
        self._why[group] = why

    def __str__(self) -> str:
        return "; ".join(f"group {group} refuses this node: {why}" for group, why in sorted(self._why.items()) if why)


class PassLink(asyncio.Protocol):
    """One session's connection to the leader of a group. Belongs to the event loop."""

    def __init__(
        self, asked: Pass, leader: Callable[[], LeaderKey | None], certificates: Callable[[], PeerCertificates | None],
        loop: asyncio.AbstractEventLoop, received: Callable[[list[bytes]], None], lost: Callable[[], None],
        refusals: Refusals,
    ) -> None:  # fmt: skip
        """
        Args:
            leader: returns the current leader of the group, as far as it is known.
            refusals: records refusals by the leader.
            received: called with complete frames.
            lost: called once, when connecting failed or the connection ended; not by ``close``.
        """
        self._asked = asked
        self._leader = leader
        self._certificates = certificates
        self._loop = loop
        self._received = received
        self._lost = lost
        self._refusals = refusals
        self.refusal = ""
        self._frames = ReplyFrames()
        self._out = bytearray()
        self._writer: asyncio.StreamWriter | None = None
        self._last: list[bytes] = []
        self._paused = self._closed = False
        self.finishing = self.reached = False
        self.on_reached: Callable[[], None] = lambda: None
        self._task: asyncio.Task[None] | None = loop.create_task(self._open())

    # -- as a ``PlaceLink``

    def send(self, pieces: Sequence[bytes]) -> None:
        """Send bytes, once there is a connection (``PlaceLink.send``)."""
        if self._writer is not None:
            self._writer.transport.write(b"".join(pieces))
        else:
            for piece in pieces:
                self._out += piece

    def finish(self) -> None:
        """Tell the leader that no more commands come: sends QUIT, since TLS has no half-close. Drops the answer to it."""
        if not self.finishing and not self._closed:
            self.finishing = True
            self.send([encode_command(Quit())])

    def pause(self) -> None:
        """Pause reading from the leader."""
        self._paused = True
        if self._writer is not None and not self._writer.transport.is_closing():
            cast(asyncio.ReadTransport, self._writer.transport).pause_reading()

    def resume(self) -> None:
        """Resume reading from the leader."""
        self._paused = False
        if self._writer is not None and not self._writer.transport.is_closing():
            cast(asyncio.ReadTransport, self._writer.transport).resume_reading()

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
        if self._writer is not None:
            self._writer.transport.abort()

    # -- as the protocol of its transport

    def data_received(self, data: bytes) -> None:
        if self._closed:
            return
        try:
            frames = self._frames.split(data)
        except ProtocolViolation as error:
            logger.warning("the leader of group %s: %s", self._asked.group, error)
            self._end()
            return
        if self.finishing:  # the last frame may be the answer to QUIT
            frames = [*self._last, *frames]
            self._last = frames[-1:]
            del frames[-1:]
        if frames:
            self._received(frames)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._closed and self._last and first_word(self._last[0]) != b"OK":
            self._received(self._last)
        self._end()

    # -- parts

    async def _open(self) -> None:
        try:
            async with asyncio.timeout(CONNECT_S):
                while True:
                    leader = self._leader()
                    if leader is not None and await self._try(leader.member.repl):
                        return
                    if self.refusal.startswith(LASTING):
                        break
                    await asyncio.sleep(RETRY_S)
            self._end()
        except TimeoutError:
            logger.debug("group %s: its leader was not reached within %g s", self._asked.group, CONNECT_S)
            self._end()
        finally:
            self._task = None

    async def _try(self, address: str) -> bool:
        """Connect to the leader at an address. Returns: whether it accepted the connection."""
        try:
            reader, writer = await connect(address, self._certificates())
        except (OSError, NotAccepted) as error:
            logger.debug("group %s at %s: %s", self._asked.group, address, error)
            return False
        try:
            writer.write(encode(self._asked))
            answer = await reader.readline()
        except (OSError, ValueError, asyncio.CancelledError) as error:
            writer.transport.abort()
            if isinstance(error, asyncio.CancelledError):
                raise
            return False
        if answer != PASSED:
            writer.transport.abort()
            logger.debug("group %s at %s: %r", self._asked.group, address, answer[:100])
            said = answer.decode("ascii", "replace").removeprefix("ERR ").rstrip("\n")
            self.refusal = "" if said.startswith("NOT_LEADER") else said
            if self.refusal:
                self._refusals.note(self._asked.group, self.refusal)
            return False
        self._refusals.note(self._asked.group, "")
        self._writer = writer
        self.reached = True
        writer.transport.set_protocol(self)
        writer.transport.write(bytes(self._out))
        self._out.clear()
        if self._paused:
            self.pause()
        self.on_reached()
        return True

    def _end(self) -> None:
        if not self._closed:
            self.close()
            self._lost()


class _Kept(asyncio.Protocol):
    """Puts a session's protocol on the transport of asyncio streams that are no longer used. Keeps a reference to the streams,
    since they close their transport when they are freed."""

    def __init__(self, session: BoundedProtocol, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self.data_received = session.data_received  # type: ignore[method-assign]
        self.eof_received = session.eof_received  # type: ignore[method-assign]
        self.pause_writing = session.pause_writing  # type: ignore[method-assign]
        self.resume_writing = session.resume_writing  # type: ignore[method-assign]
        self.connection_lost = session.connection_lost  # type: ignore[method-assign]


async def take_passed(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, here: Pass, session: Callable[[bool], BoundedProtocol | None],
    leader: Callable[[], str | None],
) -> bool:  # fmt: skip
    """Serve a connection by which another group's node passes a client's commands on; its first bytes, ``PASS``, are read.

    Args:
        here: what the other node must ask for: this cluster, group and secret.
        session: makes the protocol of a session, with True one that has all rights; None while this node does not lead.
        leader: returns the address of the node that leads, if known.

    Returns: whether a session has taken the connection. Raises: OSError.
    """
    try:
        asked = decode(PASS + await reader.readline())
    except (BadOperation, ValueError) as error:
        logger.warning("a connection to the listener of replicas was closed: %s", error)
        return False
    refusal, protocol = "", None
    if (why := secret_refusal(asked.token, here.token)) is not None:
        refusal = f"AUTH_FAILED {why}"
    elif asked.version != VERSION:
        refusal = f"BAD_VERSION this leader speaks version {VERSION}"
    elif (asked.cluster, asked.group) != (here.cluster, here.group):
        refusal = f"WRONG_CLUSTER this is group {here.group} of cluster {here.cluster}"
    elif asked.trusted and not here.trusted:
        refusal = "AUTH_FAILED give all nodes --replicate-token-file, or certificates: nothing proves that this is one"
    elif (protocol := session(asked.trusted)) is None:
        refusal = f"NOT_LEADER {leader() or '-'}"
    if refusal:
        if not refusal.startswith("NOT_LEADER"):
            logger.warning("a node of another group was refused: %s", refusal)
        writer.write(f"ERR {refusal}\n".encode())
        with suppress(OSError):
            await writer.drain()
        return False
    assert protocol is not None
    writer.write(PASSED)
    kept = _Kept(protocol, writer)
    writer.transport.set_protocol(kept)
    protocol.connection_made(writer.transport)
    return True

