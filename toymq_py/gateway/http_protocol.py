"""The HTTP protocol of one connection: uvicorn's, with limits on what a client sends before the application runs.

Contract: gateway.md; ADR 0024, ADR 0078 (which uvicorn).
"""

import asyncio
import re
from collections.abc import Callable
from typing import Any, ClassVar, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from toymq_py.auth.quotas import Quotas, Seat
from toymq_py.clock import Clock
from toymq_py.errors import BadFraming, LineTooLong, RequestError, TooManyConnections
from toymq_py.gateway.bodies import DISCARD_BYTES_MAX, SEAT
from toymq_py.gateway.buffered_transport import BufferedTransport
from toymq_py.gateway.problems import TooSlow, UnsupportedVersion, encode_response, problem
from toymq_py.gateway.websocket_protocol import BODY_PIECE_BYTES, HEAD_TIMEOUT_S
from toymq_py.net.fair_queue import FairQueue, Runnable
from toymq_py.net.peer import peer_of

HEAD_BYTES_MAX = 64 * 1024
"""Request line and headers, with a message's own headers among them."""
BODY_PERIOD_S = 20
BODY_PERIOD_BYTES = 16 * 1024
"""A body must arrive at 800 bytes a second while it is read: a telephone with poor reception does that. A client that sends a
byte now and then, to hold a connection and its memory, gets 408."""
PIECE_BYTES = 1024
"""Parsed at once outside of a body: one read may hold ten thousand requests of 20 bytes, and a pipelined request is not parsed
before the one ahead is answered."""
KEEP_ALIVE_S = 75
"""Longer than common connection pools keep an idle connection, so the client closes it and not the server."""
ANONYMOUS_KEEP_ALIVE_S = 10
"""The same for a connection without a token where tokens are required: a probe of ``/healthz``, a page before its login."""
DISCARD_S = 1.0
"""How long the rest of an answered body is read and dropped; see ``DISCARD_BYTES_MAX``."""
HTTP_VERSIONS = ("1.0", "1.1")
"""The parser would also accept 0.9 and 2.0 on a request line."""
TRAILER_BYTES_MAX = 8 * 1024
"""Size of the fields behind the last chunk of a body, and of chunk extensions. They are parsed and dropped."""
BLANK_BYTES_MAX = 64
"""Empty lines before a request: some clients send one behind a body, and a server ignores it (RFC 9112, 2.2)."""
HOST = re.compile(rb"(\[[\w:.%]+\]|[\w.~!$&'()*+,;=%-]*)(:\d{0,5})?", re.ASCII)
"""RFC 3986, 3.2.2; checks the characters only."""
BODY_HEADERS = (b"content-length", b"transfer-encoding")


class GatewayProtocol(HttpToolsProtocol):
    """One connection: uvicorn's, with limits on the size of a head, the time of head and body, a body that the application does
    not read, and pipelined requests."""

    quotas: ClassVar[Quotas]
    clock: ClassVar[Clock]
    fair_queue: ClassVar[FairQueue]
    """Bytes of one read may be thousands of chunks: they are parsed in slices, in turn with other connections."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = True
        self._begun = False
        self._head_bytes = 0
        self._blank_bytes = 0
        self._discarded: int | None = None
        self._last = False
        self._timer: asyncio.TimerHandle | None = None
        self._refusal: RequestError | None = None
        self._upgraded = False
        self._declined = False
        self._unread = b""
        self._turn = Runnable(self.fair_queue, self._parse)
        self._body_bytes = 0
        self._chunk_steps = 0
        self._trailer_bytes = 0
        """Read since the last chunk began, in whole pieces."""
        self._trailer_field_bytes = 0
        self._seat: Seat | None = None
        self.handshake_done: Callable[[], None] = lambda: None
        """Called when a connection over TLS is established."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._outgoing = BufferedTransport(transport, self.loop, self._lingers)  # type: ignore[arg-type]  # uvloop's is one
        super().connection_made(self._outgoing)  # type: ignore[arg-type]  # all that is called there
        self.handshake_done()
        try:
            self._seat = self.quotas.enter(peer_of(transport), self._evicted)
        except TooManyConnections as error:
            self._refuse(error)
            return
        self.app_state = {**self.app_state, SEAT: self._seat}
        self._await_more()

    def _evicted(self) -> None:
        """Close the connection to make room for another."""
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
        else:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._set_timer(None)
        self._unread = b""
        self._turn.close()
        if self._seat is not None:
            self._seat.leave()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._discarded is not None:
            self._discarded += len(data)
            if self._discarded > DISCARD_BYTES_MAX:
                self._cut()
                return
        if self._unread or self.pipeline or len(data) > PIECE_BYTES:
            if self._unread:  # its turn has not come yet
                self._outgoing.hold_reading(held=True)
            self._unread += data
            self._turn.wake()
        else:
            self._parse_piece(data)

    def _parse(self, slice_end: float) -> bool:
        """Parse what was read, up to a request that waits for the one ahead of it (and continues when that is answered), or to
        the end of the slice. Returns: whether there is more to parse now."""
        data, at = self._unread, 0
        more = self._may_parse()
        while more and (not at or self.clock.monotonic() < slice_end):
            end = at + (PIECE_BYTES if self._in_head else BODY_PIECE_BYTES)
            self._parse_piece(data[at:end])
            at = end
            if self._upgraded:
                self._pass_on(data[at:])
                return False
            more = at < len(data) and self._may_parse()
        self._unread = data[at:]
        self._outgoing.hold_reading(held=bool(self._unread))
        return more

    def _may_parse(self) -> bool:
        return not self.pipeline and not self.transport.is_closing()

    def _parse_piece(self, data: bytes) -> None:
        if not self._begun:
            size = len(data)
            data = data.lstrip(b"\r\n")
            self._blank_bytes += size - len(data)
            if self._blank_bytes > BLANK_BYTES_MAX:
                self._refuse(BadFraming(f"more than {BLANK_BYTES_MAX} bytes of empty lines before a request"))
            if not data or self.transport.is_closing():
                return
        self._head_bytes += len(data)
        steps = self._chunk_steps
        self._feed(data)
        if self.transport.is_closing() or self._upgraded:
            return
        self._trailer_bytes = 0 if self._in_head or steps != self._chunk_steps else self._trailer_bytes + len(data)
        if self._trailer_bytes > TRAILER_BYTES_MAX:
            self._refuse_body(trailers_too_long())
            return
        if self._in_head and self._head_bytes > HEAD_BYTES_MAX:
            self._refuse(head_too_long())
        elif self._timer is None and (self._head_bytes if self._in_head else self.cycle.more_body):
            self._await_more()

    def _feed(self, data: bytes) -> None:
        """Uvicorn's ``data_received``, except that an upgrade to anything but a WebSocket is ignored (RFC 9110, 7.8), and the
        request is served with its body. The parser cannot be told so and would stop at the head: a new parser gets the head
        without ``Upgrade``, and the rest."""
        self._unset_keepalive_if_required()
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserError:
                self.send_400_response("")
            except httptools.HttpParserUpgrade as upgrade:
                if self._declined:
                    self._declined = False
                    data = self._head_without_upgrade() + data[upgrade.args[0] :]
                    self.parser = httptools.HttpRequestParser(self)
                    self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
                    continue
                self.handle_websocket_upgrade()
                self._pass_on(data[upgrade.args[0] :])
            return

    def _pass_on(self, frames: bytes) -> None:
        """Give the WebSocket what was read behind its handshake."""
        self._unread = b""
        self._outgoing.hold_reading(held=False)
        if frames:
            cast("asyncio.Protocol", self.transport.get_protocol()).data_received(frames)

    def _head_without_upgrade(self) -> bytes:
        line = b"%b %b HTTP/%b\r\n" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        return line + b"".join(b"%b: %b\r\n" % pair for pair in self.headers if pair[0] != b"upgrade") + b"\r\n"

    def _should_upgrade(self) -> bool:
        upgradable = self.parser.get_method() == b"GET" and self.parser.get_http_version() == "1.1"
        return upgradable and super()._should_upgrade()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = self._begun = True
        self._trailer_field_bytes = self._blank_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # a trailer must not become a header (RFC 9110, 6.5.1), least of all ``Authorization``
            super().on_header(name, value)
            return
        self._trailer_field_bytes += len(name) + len(value)
        if self._trailer_field_bytes > TRAILER_BYTES_MAX:
            self._refusal = trailers_too_long()
            raise self._refusal

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._set_timer(None)
        if self._last:
            raise BadFraming("the response before this request said Connection: close: open a new connection")
        version = self.parser.get_http_version()
        if version not in HTTP_VERSIONS:
            self._refusal = UnsupportedVersion(f"HTTP/{version} is not supported: use HTTP/1.1")
            raise self._refusal
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > HEAD_BYTES_MAX:
            self._refusal = head_too_long()
            raise self._refusal  # the parser turns it into the call of send_400_response
        hosts = [value for name, value in self.headers if name == b"host"]
        missing = not hosts and version == "1.1"
        if missing or len(hosts) > 1 or (hosts and not HOST.fullmatch(hosts[0])):  # RFC 9112, 3.2
            self._refusal = BadFraming("invalid Host: send one Host header, a name or an address with an optional port")
            raise self._refusal
        codings = [value for name, value in self.headers if name == b"transfer-encoding"]
        if codings and b",".join(codings).strip().lower() != b"chunked":  # of other codings the parser finds only the end
            self._refusal = BadFraming("unsupported Transfer-Encoding: send chunked, or Content-Length")
            raise self._refusal
        if codings and version == "1.0":  # RFC 9112, 6.1: a proxy ahead of the broker may frame it differently
            self._refusal = BadFraming("Transfer-Encoding needs HTTP/1.1: with HTTP/1.0 send Content-Length")
            raise self._refusal
        if self.parser.get_method() == b"CONNECT":  # what follows would not be HTTP
            self._refusal = BadFraming("CONNECT is not supported: the broker is not a proxy")
            raise self._refusal
        self._declined = self.parser.should_upgrade() and not self._should_upgrade()
        if self.parser.should_upgrade() and not self._declined and any(name in BODY_HEADERS for name, _ in self.headers):
            self._refusal = BadFraming("a WebSocket handshake must not have a body")
            raise self._refusal
        if self._seat is not None:
            self._seat.busy()
        if not self._declined:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        self._chunk_steps += 1
        super().on_body(body)

    def on_chunk_header(self) -> None:
        self._chunk_steps += 1

    def on_message_complete(self) -> None:
        if self._declined:  # its body is still to come
            return
        self._in_head = True
        self._begun = False
        self._head_bytes = self._body_bytes = 0  # what follows in the same piece is bounded by the piece
        self._discarded = None
        self._set_timer(None)
        super().on_message_complete()
        if self._last:
            self.transport.close()

    def handle_websocket_upgrade(self) -> None:
        self._upgraded = True
        super().handle_websocket_upgrade()

    def on_response_complete(self) -> None:
        self._outgoing.flush()
        if self.cycle.more_body and self.cycle.keep_alive and not self._in_head:
            self._discard()
        if self._seat is not None:
            self._seat.settle(0)  # the body is freed
            self._seat.unread(self.transport.get_write_buffer_size())
            if not self.pipeline:
                self._seat.idle()
            anonymous = self.quotas.guarded and self._seat.token is None
            self.timeout_keep_alive = ANONYMOUS_KEEP_ALIVE_S if anonymous else KEEP_ALIVE_S
        super().on_response_complete()
        if self._unread and not self.pipeline:
            self._turn.wake()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._seat is not None:
            streams = self.cycle is not None and not self.cycle.response_complete  # which holds the piece, too
            self._seat.unread(self.transport.get_write_buffer_size() * (2 if streams else 1))

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._seat is not None:
            self._seat.unread(self.transport.get_write_buffer_size())

    def _discard(self) -> None:
        """Read and drop the rest of an answered body for a moment, then close."""
        self._discarded = 0
        self._set_timer(self.loop.call_later(DISCARD_S, self.transport.close))

    def _lingers(self) -> bool:
        """Whether a close must wait: uvicorn closes right behind an answer with ``Connection: close``, and while the body still
        arrives that would reset the connection and drop the answer."""
        cycle = self.cycle
        if self._last or cycle is None or not cycle.response_complete or not cycle.more_body or cycle.keep_alive:
            return False
        self._last = True
        self._discard()
        return True

    def shutdown(self) -> None:
        idle = self.cycle is None or self.cycle.response_complete
        if self.scheme == "https" and idle and not self.transport.is_closing() and not self.transport.get_write_buffer_size():
            self.transport.abort()  # an idle client does not answer the close of TLS, and the shutdown would wait for it
        else:
            super().shutdown()

    def send_400_response(self, msg: str) -> None:
        refuse = self._refuse_body if self._trailer_field_bytes > TRAILER_BYTES_MAX else self._refuse
        refuse(self._refusal or BadFraming("invalid HTTP request: use HTTP/1.1 (RFC 9112)"))

    def _await_more(self) -> None:
        """Start the timer for the rest of a head or a body."""
        self._set_timer(self.loop.call_later(HEAD_TIMEOUT_S if self._in_head else BODY_PERIOD_S, self._late))

    def _late(self) -> None:
        answering = self.cycle is not None and not self.cycle.response_complete
        ours = self.pipeline or self._unread or not self._outgoing.reads or (self._in_head and answering)
        if ours or self._body_bytes >= BODY_PERIOD_BYTES:
            self._body_bytes = 0
            self._await_more()  # the broker is slow itself, or it comes fast enough
        elif self._in_head and not self._head_bytes:
            self.transport.close()  # there is no request to answer
        else:
            what = "request line and headers" if self._in_head else "the body"
            self._refuse_body(TooSlow(f"{what} arrived too slowly: send the whole request within the time limit"))

    def _refuse_body(self, error: RequestError) -> None:
        """Refuse the request; when its body is answered already, only close."""
        if not self._in_head and self.cycle.response_started:
            self.transport.close()
        else:
            self._refuse(error)

    def _set_timer(self, timer: asyncio.TimerHandle | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = timer

    def _refuse(self, error: RequestError) -> None:
        """Answer without the application, and close."""
        self.transport.write(encode_response(problem(error)))
        self._cut()

    def _cut(self) -> None:
        """Close; a client of TLS that goes on sending has a moment to take the answer. The event loop would wait longer for the
        answer to its own close, and decrypt what comes."""
        self.transport.close()
        if self.scheme == "https":
            self.loop.call_later(DISCARD_S, self.transport.abort)


def head_too_long() -> LineTooLong:
    """The error for a head beyond the limit."""
    return LineTooLong(f"request line and headers are too long: at most {HEAD_BYTES_MAX} bytes are accepted")


def trailers_too_long() -> LineTooLong:
    """The error for trailers and chunk extensions beyond the limit."""
    return LineTooLong(f"trailers and chunk extensions are too long: at most {TRAILER_BYTES_MAX} bytes are accepted")
