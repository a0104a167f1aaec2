"""One request and its answer on a connection.

An API operation that waits only for the disk runs step by step without a task, and its answer is written at once. All other
requests, such as streams and pages, are ASGI calls in a task. Contract: gateway.md; ADR 0094.
"""

import asyncio
import logging
from functools import partial
from typing import Protocol

from starlette.responses import Response
from starlette.types import Message, Scope

from toymq_py.errors import InternalError
from toymq_py.gateway.answers import encode_head
from toymq_py.gateway.app import Application
from toymq_py.gateway.bodies import DISCARD_BYTES_MAX, LENGTH_DIGITS_MAX
from toymq_py.gateway.http_request import HttpRequest
from toymq_py.gateway.poll_operations import LeasedResponse
from toymq_py.gateway.problems import problem
from toymq_py.gateway.read_ahead import CROWDED
from toymq_py.gateway.steps import Steps
from toymq_py.gateway.turns import TURNS, Turns, in_turns

logger = logging.getLogger("toymq_py.gateway")

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
NO_BODY = (204, 304)
READING = ("GET", "HEAD")
"""Methods that change nothing: to carry them out is of no use when the client is gone."""


class Link(Protocol):
    """What a cycle needs of its connection."""

    loop: asyncio.AbstractEventLoop
    application: Application
    transport: asyncio.Transport
    turns: Turns
    writable: asyncio.Event
    """Unset while the client does not read."""

    @property
    def eof(self) -> bool:
        """Whether the client sends no more, and may be gone."""

    @property
    def is_crowded(self) -> bool:
        """Whether reading has stopped because too many bytes wait behind the request, so that a lost client is not noticed."""

    @property
    def common_headers(self) -> bytes:
        """Encoded headers of every answer."""

    def own(self, task: "asyncio.Task[None]") -> None:
        """Keep a task until it ends, and cancel it when a shutdown takes too long."""

    def take_more(self) -> None:
        """Called when the application asks for more of the body."""

    def answered(self, cycle: "Cycle") -> None:
        """Called when the answer is written."""


class Cycle:
    """One request, from its head to the end of its answer. Also the ASGI side of it: ``receive`` and ``send``."""

    __slots__ = ("_awaited", "_cancelled", "_chunked", "_crowded", "_expects", "_left_bytes", "_link", "_news", "_steps",
                 "answered", "body", "gone", "keep_alive", "more_body", "scope", "started")  # fmt: skip

    def __init__(self, link: Link, scope: Scope, *, keep_alive: bool, expects: bool) -> None:
        """``expects``: the client waits for ``100 Continue`` before it sends the body."""
        self._link = link
        self.scope = scope
        self.keep_alive = keep_alive
        self._expects = expects
        self.body = bytearray()
        """Bytes of the body that arrived and that the application has not received yet."""
        self.more_body = True
        self.started = self.answered = self.gone = False
        """Whether the answer's head is written; whether its end is written; whether the client is gone."""
        self._news = self._crowded = self._cancelled = False
        self._awaited: asyncio.Future[None] | None = None
        self._steps: Steps[Response | None] | None = None
        self._chunked = False
        self._left_bytes = 0  # of the Content-Length

    def begin(self) -> None:
        """Carry out the request, in turns. The rest of its body is received meanwhile."""
        self._link.turns.take(self._begin)

    def _begin(self) -> None:
        request = HttpRequest(self.scope, self.receive)
        if self._link.application.identify(request):
            self._link.turns.take(partial(self._carry_out, request))
        else:
            self._carry_out(request)

    def _carry_out(self, request: HttpRequest) -> None:
        link = self._link
        if self._cancelled or (self.gone and self.scope["method"] in READING):
            return  # many may have come and gone while others had their turns
        coroutine = link.application.answer_of(request)
        if coroutine is None:
            self.scope[TURNS] = link.turns
            link.own(link.loop.create_task(in_turns(self._call, link.turns)))
        else:
            self._steps = Steps(link.turns, coroutine, self._end)
            self._steps.start()

    def cancel(self) -> None:
        """Cancel a request that runs without a task, or has not begun."""
        self._cancelled = True
        if self._steps is not None:
            self._steps.cancel()

    # -- what arrives

    def feed(self, body: bytes) -> int:
        """Take a part of the body. Returns: how many bytes wait for ``receive``."""
        self.body += body
        self._tell()
        return len(self.body)

    def whole(self) -> None:
        """Note that the body is complete."""
        self.more_body = False
        self._tell()

    def wake(self) -> None:
        """Note that the client has ended its input, or that its end could not be noticed. A wait for messages ends: a lease
        could go to a client that is gone."""
        if not self.more_body:
            self._wake()

    def lost(self) -> None:
        """Note that the connection is lost."""
        self.gone = not self.answered
        self._tell()

    def _tell(self) -> None:
        self._news = True
        self._wake()

    def _wake(self) -> None:
        if self._awaited is not None and not self._awaited.done():
            self._awaited.set_result(None)

    async def receive(self) -> Message:
        """The next part of the body; or a disconnect, when the client is gone, may be gone, or has its answer (ASGI)."""
        if self._expects and not self._link.transport.is_closing():
            self._expects = False
            self._link.transport.write(CONTINUE)
        if not (self.gone or self.answered or self._news or self._left or self._is_crowded):
            self._link.take_more()
            self._awaited = self._link.loop.create_future()
            await self._awaited
        news, self._news = self._news, False
        if self.gone or self.answered or (self._left and not (news and self.scope["method"] != "GET")):
            return {"type": "http.disconnect"}
        if not news and self._is_crowded:
            self._crowded = True
            return {"type": CROWDED}
        body = bytes(self.body)
        self.body.clear()
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    @property
    def _left(self) -> bool:
        """Whether the client may be gone: it has ended its input after a complete request."""
        return self._link.eof and not self.more_body

    @property
    def _is_crowded(self) -> bool:
        return self._link.is_crowded and not self._crowded

    # -- what is answered

    def _end(self, result: Response | BaseException | None) -> None:
        """Write the answer that the operation returned; if the client is gone, give leased messages back and close."""
        if isinstance(result, BaseException):
            logger.error("bug in an HTTP request", exc_info=result)
            result = problem(InternalError())
        self._steps = None
        gone = self.gone or self._link.transport.is_closing()
        if isinstance(result, LeasedResponse) and (gone or self._left):
            result.give_back()
            result = None
        if result is None or gone:
            self._link.transport.close()
        else:
            self.write(result)

    def write(self, response: Response) -> None:
        """Write a whole answer at once."""
        head = self._head(response.status_code, response.raw_headers, sized=True)
        body = b"" if self.scope["method"] == "HEAD" else response.body
        self._link.transport.write(head + body if body else head)
        self._complete()

    def _head(self, status: int, headers: list[tuple[bytes, bytes]], *, sized: bool) -> bytes:
        self.started = True
        self._expects = False
        if self.more_body and not self._rest_is_short():
            self.keep_alive = False
        says_close = False
        for name, value in headers:
            if name == b"connection" and b"close" in value.lower():
                says_close = True
                self.keep_alive = False
        if not (self.keep_alive and sized) and (extra := self._framing(says_close=says_close, sized=sized)):
            headers = [*headers, *extra]
        return encode_head(status, headers, self._link.common_headers)

    def _rest_is_short(self) -> bool:
        """Whether the unread rest of an answered request is so short that it is read and dropped, and the connection kept."""
        length = next((value for name, value in self.scope["headers"] if name == b"content-length"), b"")
        return 0 < len(length) <= LENGTH_DIGITS_MAX and int(length) <= DISCARD_BYTES_MAX

    def _framing(self, *, says_close: bool, sized: bool) -> list[tuple[bytes, bytes]]:
        """The headers that frame the answer and say whether the connection closes."""
        extra = []
        if not sized:
            self._chunked = self.scope["http_version"] == "1.1"
            self.keep_alive = self.keep_alive and self._chunked
            if self._chunked:
                extra.append((b"transfer-encoding", b"chunked"))
        if not (self.keep_alive or says_close):
            extra.append((b"connection", b"close"))
        return extra

    async def send(self, message: Message) -> None:
        """Write a part of the answer as soon as the client reads (ASGI)."""
        link = self._link
        if not link.writable.is_set() and not self.gone:
            await link.writable.wait()
        if self.gone:
            return
        head_only = self.scope["method"] == "HEAD"
        if message["type"] == "http.response.start":
            headers, status = message["headers"], message["status"]
            length = next((int(value) for name, value in headers if name == b"content-length"), None)
            self._left_bytes = length or 0
            link.transport.write(self._head(status, headers, sized=length is not None or head_only or status in NO_BODY))
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        if head_only:
            self._left_bytes, body = 0, b""
        if self._chunked:
            body = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            body += b"" if more else b"0\r\n\r\n"
        elif self.keep_alive or self._left_bytes:
            self._left_bytes -= len(body)
            if self._left_bytes < 0 or (self._left_bytes and not more):
                raise RuntimeError("the answer's body is not as long as its Content-Length")
        if body:
            link.transport.write(body)
        if not more:
            self._complete()

    def _complete(self) -> None:
        self.answered = True
        self._tell()
        self._link.answered(self)

    async def _call(self) -> None:
        """Call the application. A bug closes the connection, after an error answer if none has begun."""
        try:
            await self._link.application(self.scope, self.receive, self.send)
        except asyncio.CancelledError:
            self._link.transport.abort()
            raise
        except Exception:
            logger.exception("bug in an HTTP request")
        if self.gone or self.answered:
            return
        if self.started or self._left:
            self._link.transport.close()
        else:
            self.write(problem(InternalError()))
