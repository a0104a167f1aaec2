"""A WebSocket's bytes: uvicorn's protocol, with bounds on what is read and what waits to be written.

Contract: gateway.md; ADR 0024. What the frames say is in ``websocket.py``.
"""

import asyncio
import socket
from collections.abc import Sequence
from typing import Any, cast

import websockets.http11
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidHandshake, InvalidHeader
from websockets.protocol import State

from toymq_py.errors import BadFraming, RequestError
from toymq_py.gateway.bodies import SEAT
from toymq_py.gateway.buffered_transport import Outgoing
from toymq_py.gateway.problems import WEBSOCKET_VERSION, UpgradeRequired, encode_response, problem
from toymq_py.gateway.websocket import OUTLET

HEAD_TIMEOUT_S = 20
"""From a connection's first byte, or its beginning, until its request line and headers are there."""
BODY_PIECE_BYTES = 4096
"""Of a body or of frames are parsed in one piece."""
UNANSWERED_MAX = 64
"""Pings, whose answers wait to be written; while there are so many no more are read."""
UNTAKEN_BYTES_MAX = 1
"""Of a WebSocket may wait in the transport before it says so; 0 is taken for always by that of TLS."""
UNSENT_BYTES = 64 * 1024
"""So much of a WebSocket waits in the kernel, as in the process. It would take 4 MiB: a ping behind that is answered too late
by who reads 200 KB a second, and who is only slow is taken for dead."""
FAREWELL_S = 1.0
"""A WebSocket takes what is written for it so long after a shutdown began."""
ABNORMAL = 1006
NO_UTF8 = 1007
"""Ends of a WebSocket (RFC 6455, 7.4.1): without a word, and for text that is none."""


class GatewayWebSocket(WebSocketsSansIOProtocol):
    """One WebSocket: uvicorn's, and of who does not read no more is read than can be answered. Else a flood of pings whose
    answers nobody takes would fill the memory, and one read of them, 40,000, hold the loop. Frames are bounded by who answers
    them. Deliveries that do not go out are no reason: a slow subscriber's acks and pongs say that it is there."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._unread = b""
        self._unwritten = False
        self._left_bytes = 0
        self._unanswered = 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.set_write_buffer_limits(UNTAKEN_BYTES_MAX)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        self._set_timer(self.loop.call_later(HEAD_TIMEOUT_S, self._late))

    def connection_lost(self, exc: Exception | None) -> None:
        self._set_timer(None)
        if (seat := self.app_state.get(SEAT)) is not None:
            seat.leave()
        super().connection_lost(exc)

    def _set_timer(self, timer: asyncio.TimerHandle | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = timer

    def _late(self) -> None:
        if not self.handshake_complete:
            self.transport.close()

    def eof_received(self) -> None:
        self._leave()  # the transport closes by itself

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self._leave()

    def shutdown(self) -> None:
        super().shutdown()
        if self._unwritten:
            self._set_timer(self.loop.call_later(FAREWELL_S, self.transport.abort))

    def _leave(self) -> None:
        """The connection closes behind what is written: its subscription ends now, and who does not take that is not waited
        for."""
        self.queue.put_nowait({"type": "websocket.disconnect", "code": ABNORMAL})
        if self._unwritten:
            self._set_timer(self.loop.call_later(self.close_timeout, self.transport.abort))

    def _shake_hands(self, head: bytes) -> None:
        """The whole head is there. What the library does not take for one, for its number of headers or the length of one, it
        only says to itself."""
        super().data_received(head)
        if not self.handshake_initiated:
            self._refuse(BadFraming("this is no handshake of a WebSocket"))

    def _refuse(self, error: RequestError) -> None:
        """Answer before any application is asked, and close."""
        self.handshake_initiated = self.handshake_complete = self.close_sent = True  # a shutdown finds it answered
        self.transport.write(encode_response(problem(error)))
        self.transport.close()

    def handle_connect(self, event: websockets.http11.Request) -> None:
        """Uvicorn's, but a handshake that is wrong is a problem as any other refusal."""
        try:
            self.conn.process_request(event)
        except (InvalidHandshake, ValueError) as error:  # the latter for headers that are no text, in some versions of it
            wrong_version = isinstance(error, InvalidHeader) and error.name == "Sec-WebSocket-Version"
            refusal = UpgradeRequired if wrong_version else BadFraming
            self._refuse(refusal(f"this is no handshake of a WebSocket of version {WEBSOCKET_VERSION}: {error}"[:300]))
        else:
            super().handle_connect(event)
            self.scope["state"][OUTLET] = self

    async def send(self, message: Any) -> None:
        """Uvicorn's, but an application that has refused has completed the handshake: else that would be logged as an error,
        and anybody could fill the log."""
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            self.handshake_complete = True

    def data_received(self, data: bytes) -> None:
        if not self.handshake_initiated:
            self._shake_hands(data)
            return
        waiting = bool(self._unread)
        self._unread += data
        if not waiting:
            self._take()

    def _take(self) -> None:
        """A piece a pass."""
        if self.transport.is_closing():
            self._unread = b""
            return
        piece, self._unread = self._unread[:BODY_PIECE_BYTES], self._unread[BODY_PIECE_BYTES:]
        super().data_received(piece)
        if self._unread:
            self.loop.call_soon(self._take)
        self._read_or_not()

    def send_receive_event_to_app(self) -> None:
        """Uvicorn's, but text that is no UTF-8 is no error of ours to be logged."""
        try:
            if self.curr_msg_data_type == "text":
                b"".join(self.frames).decode()
        except UnicodeDecodeError:
            self.conn.send_close(NO_UTF8)
            self.handle_parser_exception()
        else:
            super().send_receive_event_to_app()

    # -- an Outlet

    @property
    def stalled(self) -> bool:
        return self._unwritten

    async def wait_taken(self) -> bool:
        cast("Outgoing", self.transport).flush()
        while self._unwritten and not self.disconnected:
            await self.writable.wait()
        return not self.disconnected

    def write_texts(self, texts: Sequence[bytes]) -> bool:
        if self.conn.state is not State.OPEN or self.transport.is_closing():
            return False
        for text in texts:
            self.conn.send_text(text)
        self.transport.write(b"".join(self.conn.data_to_send()))
        cast("Outgoing", self.transport).flush()  # only now it may say that it is stalled, or lost
        return not self.transport.is_closing()

    @property
    def left_bytes(self) -> int:
        if not self._unwritten:
            return 0
        # Others may have written behind it, and a transport that was lost does not know it any more.
        return min(self.transport.get_write_buffer_size() or self._left_bytes, self._left_bytes)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unwritten = True
        self._left_bytes = self.transport.get_write_buffer_size()
        self._read_or_not()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unwritten = False
        self._unanswered = 0
        self._read_or_not()

    def handle_ping(self) -> None:
        super().handle_ping()
        self._unanswered += self._unwritten  # its answer, written behind what waits

    def _read_or_not(self) -> None:
        held = self._unanswered >= UNANSWERED_MAX or bool(self._unread)
        cast("Outgoing", self.transport).hold_reading(held=held)
