"""TLS between a connection and its session: records in, bytes out, and back.

Contract: reliability.md, "Security"; delivery.md, "Attempts"; ADR 0019. asyncio's TLS hides how much the socket took and has no
half-close; the contracts need both. The module ``ssl`` does the cryptography. The session does not know of TLS.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Any, cast

from toymq_py.errors import BadFraming, RequestError
from toymq_py.net.bounded_reads import BoundedProtocol, ReadBuffer
from toymq_py.net.certificates import reason_of
from toymq_py.net.peer import described_peer

logger = logging.getLogger("toymq_py.session")

READ_BYTES = 64 * 1024
"""The size of a read; a record has 16 KiB at most."""
HANDSHAKE_S = 10.0
"""The time for a handshake, from the connection on."""
HANDSHAKE_RECORD = 0x16
"""The first byte of a TLS client."""


class _Stage(Enum):
    SILENT = "no byte has arrived"
    HANDSHAKE = "handshake under way"
    OPEN = "the session gets the decrypted bytes"
    ENDED = "the session is gone, or was never made"


class TlsProtocol(BoundedProtocol):
    """Forwards decrypted bytes and events to ``inner``, once the handshake is done."""

    def __init__(
        self,
        context: ssl.SSLContext,
        inner: BoundedProtocol,
        loop: asyncio.AbstractEventLoop,
        buffer: ReadBuffer,
        may_begin: Callable[["TlsProtocol"], bool],
        settled: Callable[["TlsProtocol"], None],
        refuse: Callable[[asyncio.Transport, RequestError], None],
    ) -> None:
        """
        Args:
            may_begin: returns whether there is memory for a handshake; asked before it takes any.
            settled: called once when the handshake has succeeded or failed, before ``inner`` gets the connection.
            refuse: writes an error without TLS and closes the connection.
        """
        self._context = context
        self._inner = inner
        self._loop = loop
        self.buffer = buffer
        self._may_begin = may_begin
        self._settled: Callable[[TlsProtocol], None] | None = settled
        self._refuse = refuse
        self._stage = _Stage.SILENT
        self._transport: asyncio.Transport
        self._tls: ssl.SSLObject
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._said_goodbye = False
        self._timer: asyncio.TimerHandle | None = None

    # -- from the connection

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._inner.get_buffer(sizehint) if self._stage is _Stage.OPEN else self.buffer.room  # of the same memory

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._stage is _Stage.ENDED:
            self._transport.abort()
            return
        self._timer = self._loop.call_later(HANDSHAKE_S, self._too_late)

    def data_received(self, data: bytes) -> None:
        if self._stage is _Stage.SILENT:
            if data[0] != HANDSHAKE_RECORD:
                self._end("the client sent something else instead of TLS")  # perhaps a token: none of it is logged
                self._refuse(self._transport, BadFraming("this port speaks TLS: use toymqs://"))
                return
            if not self._may_begin(self):
                self._end("the broker's memory is at its limit (--memory-max)")
                self._transport.abort()
                return
            self._tls = self._context.wrap_bio(self._incoming, self._outgoing, server_side=True)
            self._stage = _Stage.HANDSHAKE
        if self._said_goodbye:
            self._inner.data_received(data)  # the session drops and counts it
        elif self._stage is not _Stage.ENDED:
            self._incoming.write(data)
            if self._stage is _Stage.HANDSHAKE:
                self._shake_hands()
            if self._stage is _Stage.OPEN:
                self._read()

    def eof_received(self) -> bool:
        return self._stage is _Stage.OPEN and bool(self._inner.eof_received())

    def pause_writing(self) -> None:
        if self._stage is _Stage.OPEN:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._stage is _Stage.OPEN:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        was_open = self._stage is _Stage.OPEN
        self._end(None if was_open else "the connection ended")
        if was_open:
            self._inner.connection_lost(exc)

    # -- its work

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except ssl.SSLError as error:
            self._flush()  # the alert that says why
            self._end(reason_of(error))
            self._transport.close()
            return
        self._flush()
        self._settle()
        self._stage = _Stage.OPEN
        self._inner.connection_made(TlsTransport(self, self._transport))

    def _read(self) -> None:
        pieces = []
        try:
            while piece := self._tls.read(READ_BYTES):
                pieces.append(piece)
            ended = True  # close_notify
        except ssl.SSLWantReadError:
            ended = False
        except ssl.SSLError as error:
            logger.warning("TLS with %s is broken: %s", self._peer(), reason_of(error))
            self._transport.abort()
            return
        self._flush()  # replies of TLS itself, a new key for example
        if pieces:
            self._inner.data_received(b"".join(pieces))
        if ended:
            self._inner.eof_received()

    def _flush(self) -> None:
        if data := self._outgoing.read():
            self._transport.write(data)

    def _too_late(self) -> None:
        self._end(f"the client sent none within {HANDSHAKE_S:g} s")
        self._transport.abort()

    def _end(self, failure: str | None) -> None:
        """Stop handling TLS for this connection. Log ``failure`` if the handshake was under way. Idempotent."""
        if self._settled is not None and failure is not None:
            logger.info("no TLS handshake with %s: %s", self._peer(), failure)
        self._stage = _Stage.ENDED
        self._settle()

    def _settle(self) -> None:
        settled, self._settled = self._settled, None
        if settled is not None:
            settled(self)
        if self._timer is not None:
            self._timer.cancel()

    def abort(self) -> None:
        """Abort the handshake: the memory goes to another client, or the broker shuts down. It may be called before the
        connection is made."""
        if hasattr(self, "_transport"):
            self._end("it gave way to another client, or the broker shuts down")
            self._transport.abort()
        else:
            self._stage = _Stage.ENDED
            self._settle()

    def _peer(self) -> str:
        return described_peer(self._transport)

    # -- for the session

    def write(self, data: bytes) -> None:
        if self._said_goodbye or self._transport.is_closing():
            return
        view = memoryview(data)
        while view:  # a record at a time
            view = view[self._tls.write(view) :]
        self._flush()

    def extra_info(self, name: str) -> Any:
        """``sslcontext``, and ``peercert``: the other end's certificate, which a CA has signed; None where it showed none."""
        if name == "sslcontext":
            return self._context
        return (self._tls.getpeercert() or None) if name == "peercert" else None

    def say_goodbye(self) -> None:
        """Write close_notify, and nothing after it. Idempotent."""
        if self._said_goodbye or self._transport.is_closing():
            return
        self._said_goodbye = True
        with suppress(ssl.SSLError):  # do not wait for the answer
            self._tls.unwrap()
        self._flush()


class TlsTransport(asyncio.Transport):
    """The transport of a TLS session. It has no buffer of its own: as without TLS, writing is paused while the socket has not
    taken everything."""

    __slots__ = ("_protocol", "_transport")

    def __init__(self, protocol: TlsProtocol, transport: asyncio.Transport) -> None:
        super().__init__()
        self._protocol = protocol
        self._transport = transport

    def write(self, data: Any) -> None:
        self._protocol.write(data)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._protocol.say_goodbye()
        self._transport.write_eof()

    def close(self) -> None:
        self._protocol.say_goodbye()
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """The bytes that the socket has not taken, encrypted: a few more than the session wrote."""
        return self._transport.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        found = self._protocol.extra_info(name)
        return self._transport.get_extra_info(name, default) if found is None else found
