"""The HTTP protocol of one connection: httptools' parser, with limits on what a client sends before the application runs.

Contract: gateway.md; ADR 0094. One request at a time is carried out; pipelined ones behind it are parsed and answered in order.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import cast

import httptools
from starlette.types import Scope

from toymq_py.auth.quotas import Seat
from toymq_py.errors import BadFraming, RequestError, TooManyConnections
from toymq_py.gateway.bodies import DISCARD_BYTES_MAX, SEAT
from toymq_py.gateway.http_cycle import Cycle
from toymq_py.gateway.http_heads import (
    BLANK,
    HEAD_BYTES_MAX,
    INTERNAL,
    TRAILER_BYTES_MAX,
    asks_for_websocket,
    check_begun,
    check_count,
    check_head,
    head_bytes,
    head_too_long,
    invalid,
    request_scope,
    trailers_too_long,
    websocket_scope,
    with_host_of_target,
)
from toymq_py.gateway.http_request_line import RequestLine
from toymq_py.gateway.idle_timer import IdleTimer
from toymq_py.gateway.last_answer import LastAnswer
from toymq_py.gateway.problems import TooSlow
from toymq_py.gateway.read_ahead import HEAD_FREE_BYTES, ReadAhead
from toymq_py.gateway.serving import Serving
from toymq_py.gateway.turns import Turns
from toymq_py.gateway.websocket_protocol import BODY_PIECE_BYTES, HEAD_TIMEOUT_S, GatewayWebSocket
from toymq_py.net.bounded_reads import BoundedProtocol
from toymq_py.net.fair_queue import Runnable
from toymq_py.net.peer import is_unix, peer_of, socket_address

BODY_PERIOD_S = 20
BODY_PERIOD_BYTES = 16 * 1024
"""Bytes of a body that must arrive in a period, 800 bytes a second: a telephone with poor reception does that. A slower one
gets 408."""
PIECE_BYTES = 1024
"""Bytes outside of a body that are parsed at once: one read may hold ten thousand requests of 20 bytes, and a pipelined request
is not parsed before the one ahead is answered."""
DISCARD_S = 1.0
"""How long the rest of an answered body, which is dropped, may pause; see ``DISCARD_BYTES_MAX``."""


class GatewayProtocol(BoundedProtocol):
    """One connection, with limits on the size of a head, the time of head and body, an unread body, and pipelined requests.
    A ``Link`` of its cycles, a ``Connection`` of its server, and the parser's callbacks (``on_…``)."""

    transport: asyncio.Transport
    _ahead: ReadAhead
    _idle: IdleTimer
    _last_answer: LastAnswer

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self.loop = serving.loop
        self.buffer = serving.quotas.read_buffer
        self.application = serving.application
        self.own = serving.own
        self.writable = asyncio.Event()
        self.writable.set()
        self.handshake_done: Callable[[], None] = lambda: None
        """Called when a connection over TLS is established."""
        self.cycle: Cycle | None = None
        """The request that is parsed, or was last."""
        self._current: Cycle | None = None
        """The request that is carried out."""
        self.pipeline: deque[Cycle] = deque()
        """Requests that wait for the one ahead."""
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._in_head = True
        self._head_bytes = 0
        self._line = RequestLine()
        self._discarded: int | None = None
        self._last = False
        self._timer: asyncio.TimerHandle | None = None
        self._parting: RequestError | None = None
        """The error to send as the last answer, after the answers to earlier complete requests."""
        self._upgrades = False
        self._declined = False
        self._turn = Runnable(serving.fair_queue, self._parse)
        self.turns = Turns(serving.fair_queue, serving.loop)
        self._body_bytes = 0
        self._chunk_steps = 0
        self._trailer_bytes = self._trailer_field_bytes = 0
        """Bytes read since the last chunk began, in whole pieces; and bytes of names and values."""
        self.seat: Seat | None = None
        self._state: dict[str, object] = {}
        self._new_parser()

    def _new_parser(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)  # ``on_headers_complete`` refuses it

    # -- the transport's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._ahead = ReadAhead(self.transport)
        self._idle = IdleTimer(self.loop, self.transport.close)
        self._serving.join(self)
        self._scheme = "https" if transport.get_extra_info("sslcontext") else "http"
        self._last_answer = LastAnswer(self.transport, self._ahead, self.loop, over_tls=self._scheme == "https")
        self._client = socket_address(transport)
        self.handshake_done()
        try:
            self.seat = self._serving.quotas.enter(peer_of(transport), self._evicted)
        except TooManyConnections as error:
            self._refuse(error)
            return
        self._ahead.seat = self._turn.seat = self.seat
        self.turns.sit(self.seat)
        self._state = {SEAT: self.seat, INTERNAL: is_unix(transport)}
        self._await_more()

    def _evicted(self) -> None:
        """Close the connection to make room for another."""
        if self._current is None:
            self.transport.close()
        else:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._serving.leave(self)
        self._set_timer(None)
        self._idle.cancel()
        self._ahead.data = b""
        self.turns.close()
        if self.seat is not None:
            self.seat.leave()
        self.pipeline.clear()
        if self._current is not None:
            self._current.lost()
        self.writable.set()
        self._let_go()

    def pause_writing(self) -> None:
        self.writable.clear()
        if self.seat is not None:
            streams = self._current is not None and not self._current.answered  # which holds the piece, too
            self.seat.unread(self.transport.get_write_buffer_size() * (2 if streams else 1))

    def resume_writing(self) -> None:
        self.writable.set()
        if self.seat is not None:
            self.seat.unread(self.transport.get_write_buffer_size())

    def eof_received(self) -> bool:
        """Handle the end of input: the client has shut down its writing side or closed, which looks the same. Complete requests
        are answered, waits for messages end at once, then the connection closes. Over TLS the event loop closes."""
        self._ahead.eof = True
        if self.seat is not None:
            self.seat.takes_no_messages = True
        if self._scheme == "https" or self.transport.is_closing():
            return False
        if self._current is not None:
            self._current.wake()
        return bool(self._ahead.data) or self._end_input()

    def _end_input(self) -> bool:
        """End the parsing, and drop an incomplete request. Returns: whether requests are still to be answered."""
        self._set_timer(None)
        cut = self.cycle
        if cut is not None and cut.more_body and cut in self.pipeline:
            self.pipeline.remove(cut)
        last = self.pipeline[-1] if self.pipeline else self._current
        if last is None or last.more_body:
            return False
        last.keep_alive = last.keep_alive and self._parting is not None
        return True

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing() or self._parting is not None:
            self._last_answer.drop(len(data))
            return
        ahead = self._ahead
        if ahead.data or self.pipeline or len(data) > PIECE_BYTES:
            ahead.add(data, stays=bool(self.pipeline))
            self._end_wait_ahead()
            self._turn.wake()
        else:
            self._parse_piece(data)

    # -- parsing

    def _parse(self, slice_end: float) -> bool:
        """Parse the bytes that were read, until a request has to wait for the one ahead of it, or until the time ``slice_end``.
        Returns: whether there is more to parse now."""
        ahead, at = self._ahead, 0
        data = ahead.data
        more = self._may_parse()
        while more and (not at or self._serving.clock.monotonic() < slice_end):
            end = at + (PIECE_BYTES if self._in_head else BODY_PIECE_BYTES)
            self._parse_piece(data[at:end])
            at = end
            if self._upgrades:
                self._pass_on(data[at:])
                return False
            more = at < len(data) and self._may_parse()
        ahead.keep(data[at:] if self._parting is None else b"", stays=bool(self.pipeline))
        self._end_wait_ahead()
        if ahead.eof and not (ahead.data or self._end_input()):
            self.transport.close()
        return more

    def _end_wait_ahead(self) -> None:
        """End a request's wait for messages if reading has stopped behind it: the loss of the client would not be noticed."""
        if self.is_crowded and self._current is not None:
            self._current.wake()

    def _may_parse(self) -> bool:
        return not self.pipeline and self._parting is None and not self.transport.is_closing()

    def _parse_piece(self, data: bytes) -> None:
        try:
            data = self._line.feed(data, in_head=self._in_head)
        except BadFraming as error:
            self._refuse(error.bare())
        if not data or self.transport.is_closing() or self._parting is not None:
            return
        self._head_bytes += len(data)
        if self._discarded is not None:
            self._discarded += len(data)
            if self._discarded > DISCARD_BYTES_MAX + BODY_PIECE_BYTES:  # a piece may have the next request
                self._last_answer.cut()
        steps = self._chunk_steps
        self._idle.end()
        self._feed(data)
        self._begin_next()
        if self.transport.is_closing() or self._upgrades or self._parting is not None:
            return
        self._trailer_bytes = 0 if self._in_head or steps != self._chunk_steps else self._trailer_bytes + len(data)
        if self._trailer_bytes > TRAILER_BYTES_MAX:
            self._refuse_body(trailers_too_long())
            return
        if self._in_head and self._head_bytes > HEAD_BYTES_MAX:
            self._refuse(head_too_long())
        elif self._in_head and self._head_bytes > HEAD_FREE_BYTES and not self._ahead.head(self._head_bytes):
            self._refuse(seat.too_much() if (seat := self.seat) is not None else head_too_long())
        elif self._timer is None and (self._head_bytes if self._in_head else self.cycle is not None and self.cycle.more_body):
            self._await_more()

    def _feed(self, data: bytes) -> None:
        """Feed the parser. An upgrade to anything but a WebSocket is ignored (RFC 9110, 7.8). The parser would stop at such a
        head, so a new parser gets the head without ``Upgrade``, and the rest."""
        while True:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserError as error:
                raised = error.__context__  # by a callback
                refuse = self._refuse_body if self._trailer_field_bytes > TRAILER_BYTES_MAX else self._refuse
                refusal = raised.bare() if isinstance(raised, RequestError) else None
                refuse(refusal or invalid(str(error), self._parser.get_http_version()))
            except httptools.HttpParserUpgrade as upgrade:
                rest = data[upgrade.args[0] :]
                if self._declined:
                    self._declined = False
                    data = self._head_again(upgrade=False) + rest
                    self._new_parser()
                    continue
                self._upgrade()
                self._pass_on(rest)
                self._let_go()
            return

    def _let_go(self) -> None:
        """Drop what refers back to this object: a cycle would wait for the garbage collector."""
        self._turn.close()
        self.cycle, self._parser = None, cast("httptools.HttpRequestParser", None)

    def _head_again(self, *, upgrade: bool) -> bytes:
        parser = self._parser
        return head_bytes(parser.get_method(), parser.get_http_version(), self._url, self._headers, upgrade=upgrade)

    def _upgrade(self) -> None:
        """Let the connection go on as a WebSocket."""
        self._serving.leave(self)
        self.turns.close()
        scope = self._scope(b"GET", "1.1")
        socket = self._serving.pipe(scope, self.seat) or GatewayWebSocket(self._serving, websocket_scope(scope))
        socket.connection_made(self.transport)
        socket.data_received(self._head_again(upgrade=True))
        self.transport.set_protocol(socket)

    def _pass_on(self, frames: bytes) -> None:
        """Pass frames that were read after the handshake to the WebSocket."""
        self._ahead.keep(b"", stays=False)
        self._ahead.head(0)
        if frames:
            cast("BoundedProtocol", self.transport.get_protocol()).data_received(frames)
        if self._ahead.eof:  # the WebSocket is not told
            self.transport.close()

    # -- the parser's callbacks; what they raise becomes an HttpParserError

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers = []
        self._in_head = True
        self._trailer_field_bytes = 0
        self._line.begin()

    def on_url(self, url: bytes) -> None:
        self._url += url
        check_begun(self._parser.get_method(), self._url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # a trailer must not become a header (RFC 9110, 6.5.1), least of all ``Authorization``
            check_count(self._headers)
            self._headers.append((name.lower(), value.rstrip(BLANK)))
            return
        self._trailer_field_bytes += len(name) + len(value)
        if self._trailer_field_bytes > TRAILER_BYTES_MAX:
            raise trailers_too_long()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._set_timer(None)
        if self._last:
            raise BadFraming("the response before this request said Connection: close: open a new connection")
        parser, headers = self._parser, self._headers
        method, version = parser.get_method(), parser.get_http_version()
        expects = check_head(method, version, self._url, headers)
        self._line.check(method, self._url, version)
        self._headers = headers = with_host_of_target(self._url, headers)
        if parser.should_upgrade():
            upgrades = asks_for_websocket(method, version, headers)
            if upgrades and (self._current is not None or self.pipeline):
                raise BadFraming("a WebSocket handshake must not be sent ahead: wait for the answer before it")
            self._upgrades, self._declined = upgrades, not upgrades
        if self.seat is not None:
            self.seat.busy()
        if self._upgrades or self._declined:
            return
        keep_alive = version != "1.0" and parser.should_keep_alive()
        self.cycle = Cycle(self, self._scope(method, version), keep_alive=keep_alive, expects=expects)
        self.pipeline.append(self.cycle)

    def _scope(self, method: bytes, version: str) -> Scope:
        """Make the ASGI scope of a request. Raises: HttpParserInvalidURLError, BadFraming."""
        url = httptools.parse_url(self._url)
        return request_scope(method, version, url, self._headers, self._scheme, self._client, self._state)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        self._chunk_steps += 1
        assert self.cycle is not None
        if not self.cycle.answered and self.cycle.feed(body) > self._ahead.bytes_max:
            self._ahead.wait_for_body(True)

    def on_chunk_header(self) -> None:
        self._chunk_steps += 1

    def on_message_complete(self) -> None:
        if self._declined or self._upgrades:  # its body is still to come, or it has none
            return
        self._in_head = True
        self._line.end()
        self._head_bytes = self._body_bytes = 0  # what follows in the same piece is bounded by the piece
        self._discarded = None
        self._set_timer(None)
        assert self.cycle is not None
        self.cycle.whole()
        if self._last:
            self.transport.close()

    # -- requests and their answers

    @property
    def common_headers(self) -> bytes:
        return self._serving.common_headers

    def _begin_next(self) -> None:
        """Begin the next request unless one runs. Not called within a parser's callback, as the answer may come at once."""
        while self._current is None and self.pipeline and not self.transport.is_closing():
            self._current = self.pipeline.popleft()
            self._current.begin()

    @property
    def eof(self) -> bool:
        return self._ahead.eof

    @property
    def is_crowded(self) -> bool:
        return (self._ahead.held and bool(self.pipeline)) or self._ahead.stopped

    def take_more(self) -> None:
        self._ahead.wait_for_body(False)

    def _go_on(self) -> None:
        """Carry out the next request. Its body may be incomplete: the rest is then among the unparsed bytes."""
        self._begin_next()
        if self._ahead.data and not self.pipeline and not self.transport.is_closing():
            self._turn.wake()

    def answered(self, cycle: Cycle) -> None:
        self._current = None
        if cycle.more_body:  # closed while the body arrives, the connection would be reset and the answer lost
            self._last = not cycle.keep_alive
            self._discard()
        elif not cycle.keep_alive:
            self.transport.close()
        if (seat := self.seat) is not None:
            seat.settle(0)  # the body is freed
            self._ahead.head(0)
            seat.unread(self.transport.get_write_buffer_size())
            if not self.pipeline:
                seat.idle()
        if self.transport.is_closing():
            return
        self.take_more()
        if self.pipeline:
            self.loop.call_soon(self._go_on)  # not deeper in the stack for each request that is answered at once
            return
        if self._parting is not None:
            self._last_answer.say(self._parting, lingers=True)
            return
        self._idle.begin(anonymous=self._serving.quotas.guarded and seat is not None and seat.token is None)
        if self._ahead.data:
            self._turn.wake()

    def _discard(self, before: int = -1) -> None:
        """Drop the rest of an answered body while it arrives, then close. ``before``: how many bytes had been dropped at the
        last call."""
        if self._discarded == before and not self._ahead.data:
            self.transport.close()
            return
        self._discarded = self._discarded or 0
        self._set_timer(self.loop.call_later(DISCARD_S, self._discard, self._discarded))

    def shutdown(self) -> None:
        if self._current is not None and self.cycle is not None:
            self.cycle.keep_alive = False
        elif self._scheme == "https" and not self.transport.is_closing() and not self.transport.get_write_buffer_size():
            self.transport.abort()  # an idle client does not answer the close of TLS, and the shutdown would wait for it
        else:
            self.transport.close()

    def cancel(self) -> None:
        if self._current is not None:
            self._current.cancel()

    # -- limits

    def _await_more(self) -> None:
        """Start the timer for the rest of a head or a body."""
        self._set_timer(self.loop.call_later(HEAD_TIMEOUT_S if self._in_head else BODY_PERIOD_S, self._late))

    def _late(self) -> None:
        ours = self.pipeline or self._ahead.data or not self._ahead.reads or (self._in_head and self._current is not None)
        if ours or self._body_bytes >= BODY_PERIOD_BYTES:
            self._body_bytes = 0
            self._await_more()  # the broker is slow itself, or it comes fast enough
        elif self._in_head and not self._head_bytes:
            self.transport.close()  # there is no request to answer
        else:
            what = "request line and headers" if self._in_head else "the body"
            self._refuse_body(TooSlow(f"{what} arrived too slowly: send the whole request within the time limit"))

    def _set_timer(self, timer: asyncio.TimerHandle | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = timer

    def _refuse_body(self, error: RequestError) -> None:
        """Refuse the request; when its body is answered already, only close."""
        if not self._in_head and self.cycle is not None and self.cycle.started:
            self.transport.close()
        else:
            self._refuse(error)

    def _refuse(self, error: RequestError) -> None:
        """Answer with an error, after the answers to the complete requests before, and close. Nothing more is read. The order
        matters: a client would take the error for the answer to its first request, which may have been stored."""
        broken = self.cycle
        if broken is not None and broken.more_body and broken in self.pipeline:
            self.pipeline.remove(broken)
        self._parting = error
        if self.pipeline or (self._current is not None and not self._current.more_body):
            self._ahead.stop()
            self._set_timer(None)
            self._end_wait_ahead()
        else:
            self._last_answer.say(error, lingers=self.seat is not None and self._current is None)
