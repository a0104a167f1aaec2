"""Connections among nodes: the replica listener, and ``connect`` to a leader's. With TLS where the node has certificates.

Contract: replication.md, section 4; ADR 0120. Belongs to the event loop. Knows no protocol that runs on a connection.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from toymq_py.config.option_schema import parse_address
from toymq_py.net.acceptor import Acceptor
from toymq_py.net.certificates import PeerCertificates, reason_of
from toymq_py.replication.follower_link import NotAccepted
from toymq_py.replication.handshake import Wait, encode

logger = logging.getLogger("toymq_py.cluster")

CONNECTIONS_MAX = 128
"""Most connections: the nodes need a few. For one more the oldest TLS handshake gives way, as an honest one takes a moment (ADR
0245); where none is under way, the new connection is closed at once."""
HANDSHAKE_S = 3.0
ACCEPTED = encode(Wait())
"""With TLS the leader speaks first: with TLS 1.3 it judges the other end's certificate when that end has done its handshake.
What that end would have sent by then might hide the alert."""

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bool]]


class ReplicaListener:
    """Accepts connections of replicas from ``start`` to ``stop``; connections go on after that."""

    def __init__(
        self, listeners: Sequence[socket.socket], certificates: PeerCertificates | None, serve: Serve,
        loop: asyncio.AbstractEventLoop,
    ) -> None:  # fmt: skip
        """``serve`` handles a connection from its first byte on. It returns True when another object owns the connection now;
        False when the connection has ended."""
        self._certificates = certificates
        self._serve = serve
        self._loop = loop
        self._acceptors = [Acceptor(listener.dup(), loop, self._accepted) for listener in listeners]
        self._tasks: set[asyncio.Task[None]] = set()
        self._handshakes: dict[socket.socket, None] = {}  # the oldest first

    def start(self) -> None:
        for acceptor in self._acceptors:
            acceptor.start()

    def stop(self) -> None:
        """Stop accepting. Idempotent."""
        for acceptor in self._acceptors:
            acceptor.stop()
        self._acceptors.clear()

    def _accepted(self, connection: socket.socket) -> None:
        if len(self._tasks) >= CONNECTIONS_MAX:
            if not self._handshakes:
                connection.close()
                return
            oldest = next(iter(self._handshakes))
            del self._handshakes[oldest]
            with suppress(OSError):  # it finds the stream's end. Cancelled, it would wait for the other end's answer to a close
                oldest.shutdown(socket.SHUT_RDWR)
        task = self._loop.create_task(self._run(connection))
        self._tasks.add(task)
        task.add_done_callback(self._left)

    def _left(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a bug in the link of a replica", exc_info=error)

    async def _run(self, connection: socket.socket) -> None:
        reader = asyncio.StreamReader(loop=self._loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=self._loop)
        tls: dict[str, object] = {}
        if self._certificates is not None:
            tls = {"ssl": self._certificates.context, "ssl_handshake_timeout": HANDSHAKE_S}
            self._handshakes[connection] = None
        peer = _peer(connection)
        try:
            transport, _ = await self._loop.connect_accepted_socket(lambda: protocol, connection, **tls)  # type: ignore[arg-type]
        except OSError as error:
            connection.close()
            why = reason_of(error) if isinstance(error, ssl.SSLError) else str(error) or "it left during the handshake"
            if tls and connection not in self._handshakes:
                why = f"its handshake gave way to a newer connection, of {CONNECTIONS_MAX} at most"
            logger.warning("a connection to the listener of replicas, from %s, was refused: %s", peer, why)
            return
        finally:
            self._handshakes.pop(connection, None)
        writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)
        if tls:
            writer.write(ACCEPTED)
        kept = False
        try:
            kept = await self._serve(reader, writer)
        finally:
            if not kept:
                writer.close()


async def connect(address: str, certificates: PeerCertificates | None) -> Streams:
    """Connect to a leader's replica listener.

    Raises: OSError; SSLCertVerificationError when the leader's certificate is not signed by the CA of the nodes, or is not for
    this address; NotAccepted when the leader does not accept this node's certificate.
    """
    host, port = parse_address(address)
    if certificates is None:
        return await asyncio.open_connection(host, port)
    reader, writer = await asyncio.open_connection(host, port, ssl=certificates.client_context)
    try:
        await reader.readuntil(ACCEPTED)
    except (ssl.SSLError, asyncio.IncompleteReadError) as error:
        writer.transport.abort()
        why = reason_of(error) if isinstance(error, ssl.SSLError) else "it has closed the connection"
        raise NotAccepted(f"the leader does not accept the certificate of this node: {why}") from None
    except BaseException:
        writer.transport.abort()
        raise
    return reader, writer


def _peer(connection: socket.socket) -> str:
    try:
        return "{}:{}".format(*connection.getpeername()[:2])
    except OSError:
        return "a peer that has left"
