"""The WebSocket protocol of one connection: websockets' sans-IO protocol, with limits on reads and on unsent answers.

Contract: gateway.md; ADR 0094. ``websocket.py``, an ASGI application, knows what frames mean; this file is its server.
"""

import asyncio
import logging
import random
import socket
from collections.abc import Sequence
from typing import Any, Final, cast

from starlette.types import Message, Scope
from websockets.exceptions import InvalidHandshake, InvalidHeader, InvalidState
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol

from toymq_py.auth.quotas import Seat
from toymq_py.errors import BadFraming, InternalError, RequestError, ShuttingDown
from toymq_py.gateway.answers import HEADERS, encode_last
from toymq_py.gateway.bodies import SEAT
from toymq_py.gateway.problems import WEBSOCKET_VERSION, UpgradeRequired, problem
from toymq_py.gateway.serving import Serving
from toymq_py.gateway.websocket import OUTLET
from toymq_py.net.bounded_reads import BoundedProtocol
from toymq_py.net.peer import is_unix
from toymq_py.topic import Subscription

logger = logging.getLogger("toymq_py.gateway")

REASON_CHARS_MAX = 120
"""Most characters of the reason in a close frame, which has 125 bytes."""
HEAD_TIMEOUT_S = 20
"""The time from accept, or from the first byte of a next request, to the end of its headers."""
BODY_PIECE_BYTES = 4096
"""Bytes of a body or of frames that are parsed before other tasks get a turn."""
UNANSWERED_MAX = 64
"""Most pings whose pongs are not sent yet; at this number no more is read."""
UNTAKEN_BYTES_MAX = 1
"""Unsent bytes above which the transport reports a full buffer; with 0 a transport with TLS always does."""
UNSENT_BYTES = 64 * 1024
"""Unsent bytes in the kernel's buffer. It would hold 4 MiB: a client that reads 200 KB a second would get a ping behind them
too late, and count as dead."""
FAREWELL_S = 1.0
"""How long a WebSocket may take its last bytes once the shutdown began."""
PING_S = 20.0
"""The time between two pings, and how long a pong may take."""
COLLECTED_BYTES = 64 * 1024
"""Joined writes are sent at this size: a pass may write megabytes, and only the transport reports a full buffer."""
SILENT: Final = logging.Logger("websockets", logging.CRITICAL)  # noqa: LOG001 (no handler is to see it)
"""The library's logger. A hostile client must not fill the log."""


class GatewayWebSocket(BoundedProtocol):
    """One WebSocket, an ``Outlet`` of the application. It stops reading from a client that does not read its pongs: a flood of
    pings would fill the memory with pongs, and one read of 40,000 pings would block the event loop. Unsent deliveries do not
    stop reading, since a slow subscriber's acks and pongs must arrive. ``websocket.py`` limits messages."""

    transport: asyncio.Transport

    def __init__(self, serving: Serving, scope: Scope) -> None:
        """``scope``: the ASGI scope of the handshake."""
        self._serving = serving
        self.loop = serving.loop
        self.buffer = serving.quotas.read_buffer
        self.seat: Seat | None = scope["state"].get(SEAT)
        self.held: Subscription | None = None
        """The subscription of its application."""
        scope["state"][OUTLET] = self
        self._scope = scope
        self.conn = ServerProtocol(max_size=serving.frame_bytes_max, logger=SILENT)
        self._request: Request | None = None
        self._refusal: Message = {}
        self.accepted = False
        """Whether the handshake is answered, by acceptance or refusal."""
        self._ending = False
        """Whether our close is sent, or a refusal."""
        self._leaving = False
        """Whether the broker shuts down."""
        self._parting = b""
        """The answer to the client's close, and pongs before it: written after the answers to the frames that were begun."""
        self._eof = False
        self.disconnected = False
        self._events: asyncio.Queue[Message] = asyncio.Queue()
        self._frames = bytearray()  # the message that arrives
        self._is_text = False
        self._full = False
        self._unread = b""
        self._written: list[bytes] = []
        self._written_bytes = 0
        self._writable = asyncio.Event()
        self._writable.set()
        self._unwritten = False
        self._left_bytes = 0
        self._unanswered = 0
        self._timer: asyncio.TimerHandle | None = None
        self._ping_timer: asyncio.TimerHandle | None = None
        self.pending_ping_payload: bytes | None = None
        self.close_timeout = 10.0

    # -- the transport's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._serving.join(self, "websocket", lambda: [] if self.held is None or self.held.closed else [self.held])
        self.transport.set_write_buffer_limits(UNTAKEN_BYTES_MAX)
        if hasattr(socket, "TCP_NOTSENT_LOWAT") and not is_unix(transport):
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        self._set_timer(HEAD_TIMEOUT_S, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._set_timer()
        self._set_ping_timer()
        if self.seat is not None:
            self.seat.leave()
        self._disconnect(CloseCode.ABNORMAL_CLOSURE)
        self.accepted = self.disconnected = True
        self._writable.set()
        self._frames.clear()
        self.conn.reader.discard()  # the parser is a circle, which would hold the part of a message for minutes
        self.conn.parser.close()
        self._serving.leave(self)

    def eof_received(self) -> bool:
        """Handle the end of input: frames in progress are answered, then the connection closes. Over TLS the event loop closes
        at once."""
        self._eof = True
        if self._request is None or self._ending or self.transport.is_closing() or self._scope["scheme"] == "wss":
            self._disconnect(CloseCode.ABNORMAL_CLOSURE)
            return False
        if not self._unread:
            self._leave()
        return True

    def data_received(self, data: bytes) -> None:
        if self._request is None:
            self._shake_hands(data)
            return
        waiting = bool(self._unread)
        self._unread += data
        if not waiting:
            self._take()

    def pause_writing(self) -> None:
        self._writable.clear()
        self._unwritten = True
        self._left_bytes = self.transport.get_write_buffer_size()
        self._count_unread(self._left_bytes)
        self._read_or_not()
        if self._leaving and self._timer is None:
            self._set_timer(FAREWELL_S, self.transport.abort)

    def resume_writing(self) -> None:
        self._writable.set()
        self._unwritten = False
        self._unanswered = 0
        self._count_unread(0)
        self._read_or_not()

    def _count_unread(self, unread_bytes: int) -> None:
        if self.seat is not None:
            self.seat.unread(unread_bytes)

    # -- the handshake

    def _shake_hands(self, head: bytes) -> None:
        """Parse a complete head, and start the application. An invalid handshake gets a problem document as its answer."""
        self.conn.receive_data(head)
        request = next(iter(self.conn.events_received()), None)
        if not isinstance(request, Request):  # the library reports it nowhere
            self._refuse(BadFraming("invalid WebSocket handshake: too many headers, or one is too long"))
            return
        self._request = request
        try:
            self.conn.process_request(request)
        except (InvalidHandshake, ValueError) as error:  # the latter for headers that are not text
            wrong_version = isinstance(error, InvalidHeader) and error.name == "Sec-WebSocket-Version"
            refusal = UpgradeRequired if wrong_version else BadFraming
            self._refuse(refusal(f"invalid handshake of WebSocket version {WEBSOCKET_VERSION}: {error}"[:300]))
            return
        self._events.put_nowait({"type": "websocket.connect"})
        self._serving.own(self.loop.create_task(self.run()))

    def _refuse(self, error: RequestError) -> None:
        """Answer the handshake with an error, without calling the application, and close."""
        refusal = problem(error)
        self._end_with(encode_last(refusal.status_code, refusal.raw_headers, bytes(refusal.body)))

    def _end_with(self, answer: bytes) -> None:
        self.accepted = self._ending = True  # so that a shutdown does not answer again
        self._write(answer)
        self.close()

    async def run(self) -> None:
        """Call the application."""
        try:
            await self._serving.application(self._scope, self.receive, self.send)
        except Exception:
            logger.exception("bug in a WebSocket")
        except asyncio.CancelledError:
            self.transport.abort()
            raise
        if not self.accepted:
            self._refuse(InternalError())
        if self._parting:
            self._write(self._parting)
        if not (self._ending and self._timer is not None):  # else it waits for the client's close
            self.close()

    # -- frames that arrive

    def _take(self) -> None:
        """Parse one piece in each pass of the event loop."""
        if self.transport.is_closing():
            self._unread = b""
            return
        if not self.accepted:  # a client should wait for the answer (RFC 6455, 4.1); one that does not is served
            self._read_or_not()
            return
        piece, self._unread = self._unread[:BODY_PIECE_BYTES], self._unread[BODY_PIECE_BYTES:]
        self.take_piece(piece)
        self._count_arriving()
        if self._unread:
            self.loop.call_soon(self._take)
        elif self._eof:
            self._leave()
        self._read_or_not()

    def _count_arriving(self) -> None:
        """Account for the bytes of an incomplete message; close when there is no room for it."""
        seat, size = self.seat, len(self._unread) + len(self._frames) + len(self.conn.reader.buffer)
        if seat is None or (size <= seat.floor_bytes and not seat.arriving_bytes):
            return
        if not seat.arriving(size) and not (self._ending or self.transport.is_closing()):
            self.conn.fail(CloseCode.TRY_AGAIN_LATER, str(seat.too_much())[:REASON_CHARS_MAX])
            self._unread = b""
            self._frames.clear()
            self.conn.reader.discard()
            self._fail(CloseCode.TRY_AGAIN_LATER)

    def take_piece(self, piece: bytes) -> None:
        """Parse some bytes of frames."""
        self.conn.receive_data(piece)
        if self.conn.parser_exc is not None:
            self._fail()
            return
        for frame in self.conn.events_received():
            if isinstance(frame, Frame):
                self.take_frame(frame)

    def take_frame(self, frame: Frame) -> None:
        """Handle one frame."""
        if frame.opcode is Opcode.PING:
            self._send_data()
            self._unanswered += self._unwritten  # its pong is written behind unsent bytes
        elif frame.opcode is Opcode.PONG:
            if self.pending_ping_payload is not None and bytes(frame.data) == self.pending_ping_payload:
                self.pending_ping_payload = None
                self._set_ping_timer(PING_S, self._ping)
        elif frame.opcode is Opcode.CLOSE:
            self._closed_by_peer()
        else:  # parts are joined as they come: in a list two bytes took fifty, and empty ones had no limit
            if frame.opcode is not Opcode.CONT:
                self._is_text = frame.opcode is Opcode.TEXT
            self._frames += frame.data
            if frame.fin:
                data = bytes(self._frames)
                self._frames.clear()
                self.take_message(data)

    def take_message(self, data: bytes) -> None:
        """Pass a whole message on to the application."""
        if self._ending:
            return
        try:
            self._put({"type": "websocket.receive", "text": data.decode()} if self._is_text
                      else {"type": "websocket.receive", "bytes": data})  # fmt: skip
        except UnicodeDecodeError:
            self.conn.send_close(CloseCode.INVALID_DATA)
            self._fail()

    def _put(self, event: Message) -> None:
        self._events.put_nowait(event)
        self._full = True
        self._read_or_not()

    def _fail(self, code: int = CloseCode.PROTOCOL_ERROR) -> None:
        """Fail the connection: the client violated the protocol or a limit. The close frame says which."""
        self._disconnect(code)
        self._ending = True
        self._send_data()
        self.close()

    def _closed_by_peer(self) -> None:
        if self._ending:  # it answers our close
            self._set_timer()
            self.close()
        elif not self.transport.is_closing():
            self._send_data()
            self._leave(CloseCode.NO_STATUS_RCVD)

    def _disconnect(self, code: int) -> None:
        """Tell the application that no more frames come."""
        self._events.put_nowait({"type": "websocket.disconnect", "code": code})

    def _read_or_not(self) -> None:
        """Pause or resume reading. Repeated calls are harmless."""
        if self.transport.is_closing():
            return
        if self._full or self._unread or self._unanswered >= UNANSWERED_MAX:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    # -- what is written

    def _write(self, data: bytes) -> None:
        """Write at the end of this pass of the event loop, together with other writes of the pass."""
        if not self._written:
            self.loop.call_soon(self.flush)
        self._written.append(data)
        self._written_bytes += len(data)
        if self._written_bytes >= COLLECTED_BYTES:
            self.flush()

    def _send_data(self) -> None:
        data = b"".join(self.conn.data_to_send())
        if self.is_parting:
            self._parting += data
        else:
            self._write(data)

    @property
    def is_parting(self) -> bool:
        """Whether the client has sent its close frame while some of its frames are unanswered."""
        return self.conn.close_rcvd is not None and not self._ending

    def flush(self) -> None:
        """Write collected data now: only then does the transport report a full buffer or a lost connection."""
        if self._written:
            data = b"".join(self._written)
            self._written.clear()
            self._written_bytes = 0
            if not self.transport.is_closing():  # uvloop refuses to write then
                self.transport.write(data)

    def close(self) -> None:
        """Close the connection once the bytes already written are sent."""
        self.flush()
        self.transport.close()

    # -- timers

    def _set_timer(self, seconds: float = 0, call: Any = None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if call is None else self.loop.call_later(seconds, call)

    def _set_ping_timer(self, seconds: float = 0, call: Any = None) -> None:
        if self._ping_timer is not None:
            self._ping_timer.cancel()
        self._ping_timer = None if call is None else self.loop.call_later(seconds, call)

    def _ping(self) -> None:
        if self._ending or self.transport.is_closing():
            return
        self.pending_ping_payload = random.randbytes(4)
        self.conn.send_ping(self.pending_ping_payload)
        self._send_data()
        self._set_ping_timer(PING_S, self.keepalive_timeout)

    def keepalive_timeout(self) -> None:
        """End the connection: no pong came in time."""
        if not (self._ending or self.transport.is_closing()):
            self.conn.fail(CloseCode.INTERNAL_ERROR, "keepalive ping timeout")
            self._ending = True
            self._send_data()
            self.close()
        self._leave()

    def _leave(self, code: int = CloseCode.ABNORMAL_CLOSURE) -> None:
        """End the subscription now. The connection closes after the answers to frames in progress, or after a timeout."""
        self._disconnect(code)
        self._set_ping_timer()
        self._set_timer(FAREWELL_S if self._leaving else self.close_timeout, self.transport.abort)

    # -- a Connection of its server

    def shutdown(self) -> None:
        """Let the application close the connection, after the answers to frames in progress (``websocket_end.py``)."""
        self._leaving = True
        self._set_ping_timer()
        self._set_timer()
        if not self.accepted:
            self._refuse(ShuttingDown("the broker is shutting down: try again later"))
        elif self._ending:  # the client's close is not waited for
            self.close()
        if self._unwritten:
            self._set_timer(FAREWELL_S, self.transport.abort)

    def cancel(self) -> None:
        """Do nothing: a WebSocket runs nothing without a task, and the server cancels its tasks."""

    # -- ASGI

    async def receive(self) -> Message:
        message = await self._events.get()
        if self._full and self._events.empty():
            self._full = False
            self._read_or_not()
        return message

    async def send(self, message: Message) -> None:
        """Send an ASGI message. Raises: OSError when the connection has ended."""
        await self._writable.wait()
        if self.disconnected:
            raise ConnectionResetError("the WebSocket has ended")
        try:
            match message["type"]:
                case "websocket.send" if self.is_parting:  # RFC 6455, 5.5.1: the answer to a close may wait for messages
                    self._write(Frame(Opcode.TEXT, message["text"].encode()).serialize(mask=False))
                case "websocket.send":
                    self.conn.send_text(message["text"].encode())
                    self._send_data()
                case "websocket.close":
                    self._send_close(message["code"], message["reason"] or "")
                case "websocket.accept":
                    self._accept()
                case "websocket.http.response.start":
                    self._refusal = message
                case _:  # the body of a refusal
                    self._end_with(encode_last(self._refusal["status"], self._refusal["headers"], message["body"]))
        except InvalidState:
            raise ConnectionResetError("the WebSocket is closing") from None

    def _accept(self) -> None:
        if self.transport.is_closing() or self.accepted:
            return
        assert self._request is not None
        response = self.conn.accept(self._request)
        response.headers.update(HEADERS)
        self.accepted = True
        self._set_timer()
        self.conn.send_response(response)
        self._send_data()
        self._set_ping_timer(PING_S, self._ping)
        if self._unread:
            self._take()

    def _send_close(self, code: int, reason: str) -> None:
        if self.transport.is_closing():
            return
        self._disconnect(code)
        self.conn.send_close(code, reason)
        self._ending = True
        self._send_data()
        self._full = False
        self._read_or_not()
        if self._leaving:
            self.close()
        else:
            self._set_timer(self.close_timeout, self.transport.close)

    # -- an Outlet

    @property
    def stalled(self) -> bool:
        return self._unwritten

    async def wait_taken(self) -> bool:
        self.flush()
        while self._unwritten and not self.disconnected:
            await self._writable.wait()
        return not self.disconnected

    def write_texts(self, texts: Sequence[bytes]) -> bool:
        if self.conn.state is not State.OPEN or self.transport.is_closing():
            return False
        for text in texts:
            self.conn.send_text(text)
        self._send_data()
        self.flush()
        return not self.transport.is_closing()

    @property
    def left_bytes(self) -> int:
        if not self._unwritten:
            return 0
        # Answers may have been written behind it, and a lost transport reports 0.
        return min(self.transport.get_write_buffer_size() or self._left_bytes, self._left_bytes)
