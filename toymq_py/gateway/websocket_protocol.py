"""The WebSocket protocol: uvicorn's, with limits on reads and on unsent answers.

Contract: gateway.md; ADR 0024. ``websocket.py`` has the frames' meaning.
"""

import asyncio
import socket
from collections.abc import Sequence
from typing import Any, cast

import websockets.http11
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidHandshake, InvalidHeader
from websockets.frames import Frame
from websockets.protocol import State

from toymq_py.errors import BadFraming, RequestError
from toymq_py.gateway.bodies import SEAT
from toymq_py.gateway.buffered_transport import BufferedTransport
from toymq_py.gateway.problems import WEBSOCKET_VERSION, UpgradeRequired, encode_response, problem
from toymq_py.gateway.websocket import OUTLET

HEAD_TIMEOUT_S = 20
"""From accept, or from the first byte of a next request, to the end of its headers."""
BODY_PIECE_BYTES = 4096
"""Bytes of a body or of frames that are parsed before other tasks get a turn."""
UNANSWERED_MAX = 64
"""Pings whose pongs are not sent yet; at this number no more is read."""
UNTAKEN_BYTES_MAX = 1
"""Unsent bytes above which the transport reports a full buffer; with 0 that of TLS always does."""
UNSENT_BYTES = 64 * 1024
"""Unsent bytes in the kernel's buffer. It would hold 4 MiB: a client that reads 200 KB a second would get a ping behind them
too late, and count as dead."""
FAREWELL_S = 1.0
"""How long a WebSocket may take its last bytes once the shutdown began."""
ABNORMAL = 1006
NO_UTF8 = 1007
"""Close codes (RFC 6455, 7.4.1): lost without a close frame; text that is not UTF-8."""


class GatewayWebSocket(WebSocketsSansIOProtocol):
    """One WebSocket: uvicorn's, which stops reading from a client that does not read its pongs. A flood of pings would fill the
    memory with pongs, and one read of 40,000 pings would hold the loop. Messages are limited in ``websocket.py``. Unsent
    deliveries do not stop reading: a slow subscriber's acks and pongs must arrive."""

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
        self.frames = []
        self.conn.reader.discard()  # the parser is a circle, which would hold the part of a message for minutes
        self.conn.parser.close()

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
        """End the subscription now; the connection closes behind the last bytes, or after a timeout."""
        self.queue.put_nowait({"type": "websocket.disconnect", "code": ABNORMAL})
        if self._unwritten:
            self._set_timer(self.loop.call_later(self.close_timeout, self.transport.abort))

    def _shake_hands(self, head: bytes) -> None:
        """Parse the head, which is complete. The library reports too many or too long headers nowhere."""
        super().data_received(head)
        if not self.handshake_initiated:
            self._refuse(BadFraming("invalid WebSocket handshake: too many headers, or one is too long"))

    def _refuse(self, error: RequestError) -> None:
        """Answer without the application, and close."""
        self.handshake_initiated = self.handshake_complete = self.close_sent = True  # so that a shutdown does not answer again
        self.transport.write(encode_response(problem(error)))
        self.transport.close()

    def handle_connect(self, event: websockets.http11.Request) -> None:
        """Uvicorn's, except that an invalid handshake gets a problem as any other error."""
        try:
            self.conn.process_request(event)
        except (InvalidHandshake, ValueError) as error:  # the latter for headers that are not text
            wrong_version = isinstance(error, InvalidHeader) and error.name == "Sec-WebSocket-Version"
            refusal = UpgradeRequired if wrong_version else BadFraming
            self._refuse(refusal(f"invalid handshake of WebSocket version {WEBSOCKET_VERSION}: {error}"[:300]))
        else:
            super().handle_connect(event)
            self.scope["state"][OUTLET] = self

    async def send(self, message: Any) -> None:
        """Uvicorn's, except that a refusal completes the handshake; otherwise it would be logged as an error. Frames that came
        before the answer are parsed behind it."""
        shaking_hands = not self.handshake_complete
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            self.handshake_complete = True
        if shaking_hands and self.handshake_complete and self._unread:
            self._take()

    def data_received(self, data: bytes) -> None:
        if not self.handshake_initiated:
            self._shake_hands(data)
            return
        waiting = bool(self._unread)
        self._unread += data
        if not waiting:
            self._take()

    def _take(self) -> None:
        """Parse one piece a pass of the loop."""
        if self.transport.is_closing():
            self._unread = b""
            return
        if not self.handshake_complete:  # a client should wait for the answer (RFC 6455, 4.1); one that does not is served
            self._read_or_not()
            return
        piece, self._unread = self._unread[:BODY_PIECE_BYTES], self._unread[BODY_PIECE_BYTES:]
        super().data_received(piece)
        if self._unread:
            self.loop.call_soon(self._take)
        self._read_or_not()

    def send_receive_event_to_app(self) -> None:
        """Uvicorn's, except that text that is not UTF-8 is not logged as an error."""
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
        cast("BufferedTransport", self.transport).flush()
        while self._unwritten and not self.disconnected:
            await self.writable.wait()
        return not self.disconnected

    def write_texts(self, texts: Sequence[bytes]) -> bool:
        if self.conn.state is not State.OPEN or self.transport.is_closing():
            return False
        for text in texts:
            self.conn.send_text(text)
        self.transport.write(b"".join(self.conn.data_to_send()))
        cast("BufferedTransport", self.transport).flush()  # only now the transport reports a full buffer, or its loss
        return not self.transport.is_closing()

    @property
    def left_bytes(self) -> int:
        if not self._unwritten:
            return 0
        # Answers may have been written behind it, and a lost transport reports 0.
        return min(self.transport.get_write_buffer_size() or self._left_bytes, self._left_bytes)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unwritten = True
        self._left_bytes = self.transport.get_write_buffer_size()
        self._count_unread(self._left_bytes)
        self._read_or_not()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unwritten = False
        self._unanswered = 0
        self._count_unread(0)
        self._read_or_not()

    def _count_unread(self, unread_bytes: int) -> None:
        if (seat := self.app_state.get(SEAT)) is not None:
            seat.unread(unread_bytes)

    def handle_cont(self, event: Frame) -> None:
        """Uvicorn's, except that parts are joined as they come: in a list two bytes took fifty, and empty ones had no limit."""
        (before,) = self.frames
        joined = before if isinstance(before, bytearray) else bytearray(before)
        joined += event.data
        self.frames = [joined]  # type: ignore[list-item]
        if event.fin:
            self.frames = [bytes(joined)]
            self.send_receive_event_to_app()

    def handle_ping(self) -> None:
        super().handle_ping()
        self._unanswered += self._unwritten  # its pong is written behind unsent bytes

    def _read_or_not(self) -> None:
        held = self._unanswered >= UNANSWERED_MAX or bool(self._unread)
        cast("BufferedTransport", self.transport).hold_reading(held=held)
