"""The asyncio protocol of a session: bytes in, flow control, the end."""

import asyncio
from collections.abc import Callable
from typing import cast

from toymq_py.errors import RequestError
from toymq_py.net.bounded_reads import BoundedProtocol, ReadBuffer
from toymq_py.net.half_close import end_writing
from toymq_py.protocol import encode_error
from toymq_py.session.session import Session


class SessionProtocol(BoundedProtocol):
    """Forwards transport events to the session."""

    __slots__ = ("_accept", "address", "buffer", "session", "transport")

    def __init__(
        self, accept: Callable[["SessionProtocol"], Session | None], buffer: ReadBuffer, address: str = ""
    ) -> None:
        """
        Args:
            accept: makes the session, or returns None to refuse.
            buffer: what a read fills.
            address: of the client, "" at a Unix socket; a transport whose connection is gone no longer knows it.
        """
        self._accept = accept
        self.buffer = buffer
        self.address = address
        self.transport: asyncio.Transport
        self.session: Session | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is not a subclass
        # "Not paused" means "the socket took everything". The loop's own TLS, of nodes, takes 0 for "always above".
        self.transport.set_write_buffer_limits(high=0 if transport.get_extra_info("sslcontext") is None else 1)
        self.session = self._accept(self)

    def data_received(self, data: bytes) -> None:
        if self.session is not None:
            self.session.received(data)

    def eof_received(self) -> bool:
        if self.session is None:
            return False
        self.session.received_eof()
        return True  # stay open: replies are still written

    def pause_writing(self) -> None:
        if self.session is not None:
            self.session.pause_writing()

    def resume_writing(self) -> None:
        if self.session is not None:
            self.session.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.session is not None:
            self.session.connection_lost()


def refuse(transport: asyncio.Transport, error: RequestError, *, linger_s: float) -> None:
    """Write why a connection is refused and close it after a moment: a reset could lose the reason."""
    transport.write(encode_error(error))
    if not linger_s:
        transport.close()
        return
    end_writing(transport)
    asyncio.get_running_loop().call_later(linger_s, transport.close)
