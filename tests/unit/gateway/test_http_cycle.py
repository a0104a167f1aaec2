"""One request and its answer, over a connection that keeps what is written."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from tests.support.fake_clock import FakeClock
from toymq_py.clock import SystemClock
from toymq_py.gateway.answers import COMMON
from toymq_py.gateway.http_cycle import Cycle
from toymq_py.gateway.http_request import HttpRequest
from toymq_py.gateway.poll_operations import LeasedResponse
from toymq_py.gateway.turns import Turns
from toymq_py.net.fair_queue import FairQueue

START: Message = {"type": "http.response.start", "status": 200, "headers": []}
SIZED: Message = {**START, "headers": [(b"content-length", b"4")]}


def part(body: bytes, *, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}


class Transport:
    def __init__(self) -> None:
        self.written = b""
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close


class Application:
    """Answers with ``brief``, without a task, if that is set; otherwise calls ``call``."""

    brief: Coroutine[Any, Any, Response | None] | None = None
    parts: tuple[Message, ...] = ()

    def identify(self, request: HttpRequest) -> bool:
        return False

    def answer_of(self, request: HttpRequest) -> Coroutine[Any, Any, Response | None] | None:
        return self.brief

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        for message in self.parts:
            await send(message)


class Link:
    """A connection that keeps what is written."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.turns = Turns(FairQueue(SystemClock(), self.loop), self.loop)
        self.transport = Transport()
        self.application = Application()
        self.writable = asyncio.Event()
        self.writable.set()
        self.common_headers = COMMON
        self.eof = self.is_crowded = False
        self.tasks: list[asyncio.Task[None]] = []
        self.own = self.tasks.append
        self.asked_for_more = 0
        self.ended: list[Cycle] = []
        self.answered = self.ended.append

    def take_more(self) -> None:
        self.asked_for_more += 1


@pytest.fixture
async def link() -> Link:
    return Link()


def cycle_of(link: Link, method: str = "GET", version: str = "1.1", *, keep_alive: bool = True, expects: bool = False) -> Cycle:
    scope = {"type": "http", "method": method, "http_version": version, "headers": []}
    return Cycle(link, scope, keep_alive=keep_alive, expects=expects)  # type: ignore[arg-type]  # as much as is needed


async def answered(link: Link, *parts: Message, **of: Any) -> tuple[list[bytes], bytes, Cycle]:
    """Return the lines of a head, the body, and the cycle of an application that sends these parts."""
    link.application.parts = parts
    cycle = cycle_of(link, **of)
    cycle.whole()
    cycle.begin()
    await asyncio.sleep(0)  # its turn
    await asyncio.gather(*link.tasks)
    head, _, body = link.transport.written.partition(b"\r\n\r\n")
    return head.split(b"\r\n"), body, cycle


async def test_a_body_of_unknown_length_is_chunked(link: Link) -> None:
    head, body, cycle = await answered(link, START, part(b"ab", more=True), part(b"", more=True), part(b"c"))
    assert b"transfer-encoding: chunked" in head
    assert body == b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
    assert (link.ended, cycle.keep_alive) == ([cycle], True)


async def test_http_1_0_knows_no_chunks_and_is_closed_behind_the_body(link: Link) -> None:
    head, body, cycle = await answered(link, START, part(b"ab", more=True), part(b"c"), version="1.0", keep_alive=False)
    assert b"connection: close" in head
    assert not any(line.startswith(b"transfer-encoding") for line in head)
    assert (body, cycle.keep_alive) == (b"abc", False)


async def test_a_sized_body_is_written_as_it_is(link: Link) -> None:
    head, body, cycle = await answered(link, SIZED, part(b"ab", more=True), part(b"cd"))
    assert (b"content-length: 4" in head, body, link.ended) == (True, b"abcd", [cycle])
    assert not any(line.startswith((b"transfer-encoding", b"connection")) for line in head)


@pytest.mark.provokes_bugs
@pytest.mark.parametrize("body", [b"abcde", b"abc"])
async def test_a_body_of_another_length_is_a_bug_and_closes(link: Link, body: bytes) -> None:
    await answered(link, SIZED, part(body))
    assert (link.transport.closed, link.ended) == (True, [])


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 204), ("GET", 304)])
async def test_answers_without_a_body(link: Link, method: str, status: int) -> None:
    body = part(b"ignored" if method == "HEAD" else b"")
    head, rest, cycle = await answered(link, {**START, "status": status}, body, method=method)
    assert (rest, link.ended) == (b"", [cycle])
    assert not any(line.startswith(b"transfer-encoding") for line in head)


async def test_an_answer_that_says_close_is_the_last(link: Link) -> None:
    start = {**START, "headers": [(b"content-length", b"0"), (b"connection", b"close")]}
    head, _, cycle = await answered(link, start, part(b""))
    assert (head.count(b"connection: close"), cycle.keep_alive) == (1, False)


async def test_an_application_that_answers_nothing_is_a_bug(link: Link) -> None:
    head, body, _ = await answered(link)
    assert head[0] == b"HTTP/1.1 500 Internal Server Error"
    assert b'"code": "INTERNAL"' in body


async def test_a_part_waits_until_the_client_reads(link: Link) -> None:
    link.writable.clear()
    cycle = cycle_of(link)
    sending = asyncio.ensure_future(cycle.send(SIZED))
    await asyncio.sleep(0)
    assert not link.transport.written
    link.writable.set()
    await sending
    assert link.transport.written.startswith(b"HTTP/1.1 200 OK\r\n")


async def test_a_body_is_received_as_it_comes(link: Link) -> None:
    cycle = cycle_of(link, "POST")
    assert (cycle.feed(b"a"), cycle.feed(b"b")) == (1, 2)
    assert await cycle.receive() == {"type": "http.request", "body": b"ab", "more_body": True}
    waiting = asyncio.ensure_future(cycle.receive())
    await asyncio.sleep(0)
    assert (waiting.done(), link.asked_for_more) == (False, 1)
    cycle.whole()
    assert await waiting == {"type": "http.request", "body": b"", "more_body": False}
    waiting = asyncio.ensure_future(cycle.receive())
    await asyncio.sleep(0)
    cycle.lost()
    assert await waiting == {"type": "http.disconnect"}
    assert (await cycle.receive(), cycle.gone) == ({"type": "http.disconnect"}, True)


async def test_who_waits_for_100_gets_it_when_the_body_is_wanted(link: Link) -> None:
    cycle = cycle_of(link, "POST", expects=True)
    waiting = asyncio.ensure_future(cycle.receive())
    await asyncio.sleep(0)
    assert link.transport.written == b"HTTP/1.1 100 Continue\r\n\r\n"
    cycle.whole()
    await waiting
    refused = cycle_of(link, "POST", expects=True)
    link.transport.written = b""
    refused.write(Response(status_code=413))
    await refused.receive()
    assert b" 100 " not in link.transport.written, "nothing is asked for that is not wanted"


async def brief(result: Response | None, error: Exception | None = None) -> Response | None:
    if error is not None:
        raise error
    return result


async def test_a_brief_operation_is_answered_at_once_in_one_write(link: Link) -> None:
    link.application.brief = brief(Response(b"hello", 201))
    cycle = cycle_of(link)
    cycle.whole()
    cycle.begin()
    await asyncio.sleep(0)
    assert link.transport.written == b"HTTP/1.1 201 Created\r\n" + COMMON + b"content-length: 5\r\n\r\nhello"
    assert link.tasks == []


@pytest.mark.parametrize(
    ("headers", "kept"),
    [
        ([(b"content-length", b"1048576")], True),
        ([(b"content-length", b"1048577")], False),
        ([(b"content-length", b"9" * 5000)], False),
        ([(b"transfer-encoding", b"chunked")], False),
    ],
)
async def test_an_answer_ahead_of_a_long_rest_of_the_body_says_that_the_connection_closes(
    link: Link, headers: list[tuple[bytes, bytes]], kept: bool
) -> None:
    """Found: with a chunked body the answer did not announce it, and the next request on that connection failed."""
    link.application.brief = brief(Response(b"no", 413))
    cycle = cycle_of(link, "POST")
    cycle.scope["headers"] = headers
    cycle.begin()
    await asyncio.sleep(0)
    assert (b"connection: close\r\n" in link.transport.written) is not kept
    assert cycle.keep_alive is kept


@pytest.mark.provokes_bugs
async def test_a_bug_in_a_brief_operation_is_answered(link: Link, caplog: pytest.LogCaptureFixture) -> None:
    link.application.brief = brief(None, ValueError("a bug"))
    cycle_of(link).begin()
    await asyncio.sleep(0)
    assert link.transport.written.startswith(b"HTTP/1.1 500 ")
    assert "bug in an HTTP request" in caplog.text


@pytest.mark.parametrize("gone", [True, False], ids=["lost", "closing"])
async def test_leases_of_a_client_that_is_gone_are_given_back(link: Link, gone: bool) -> None:
    given: list[str] = []

    class Leased(LeasedResponse):
        def give_back(self) -> None:
            given.append("back")

    async def leave() -> Response:
        cycle.gone, link.transport.closed = gone, not gone
        return Leased(b"x", [], {}, "text/plain")

    link.application.brief = leave()
    cycle = cycle_of(link)
    cycle.begin()
    await asyncio.sleep(0)
    assert (given, link.transport.written) == (["back"], b"")


class Seat:
    def __init__(self, holder: str) -> None:
        self.holder = holder


async def test_a_request_has_its_turn_whatever_another_owner_asked_for_before(link: Link) -> None:
    """Found by an attacker: each request was executed as it came, and a hundred large answers were made before all others."""
    clock = FakeClock(monotonic_s=0.0)
    queue = FairQueue(clock, link.loop)
    done: list[str] = []

    async def answer(owner: str) -> Response:
        clock.advance(0.015)
        done.append(owner)
        return Response(b"x")

    def ask(owner: str) -> None:
        other = Link()
        other.turns = Turns(queue, link.loop)
        other.turns.sit(Seat(owner))
        other.application.brief = answer(owner)
        cycle_of(other).begin()

    for _ in range(100):
        ask("greedy")
    ask("other")
    assert done == [], "in its turn"
    await asyncio.sleep(0)
    assert "other" in done
    assert len(done) < 5
    while len(done) < 101:  # noqa: ASYNC110 (a pass each)
        await asyncio.sleep(0)


@pytest.mark.parametrize("ends", ["lost", "cancelled"])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_what_nobody_waits_for_is_not_begun(link: Link, method: str, ends: str) -> None:
    """Found: the requests of four thousand clients were executed after they had disconnected."""
    done: list[str] = []

    class Asked(Application):
        def answer_of(self, request: HttpRequest) -> Coroutine[Any, Any, Response | None] | None:
            done.append(request.method)
            return brief(None)

    link.application = Asked()
    cycle = cycle_of(link, method)
    cycle.begin()
    if ends == "lost":
        cycle.lost()
    else:
        cycle.cancel()
    await asyncio.sleep(0)
    assert done == (["POST"] if (method, ends) == ("POST", "lost") else []), "what came whole and changes something is done"


async def test_a_connection_of_a_new_token_takes_a_turn_of_it(link: Link) -> None:
    """Found: first requests of new connections ran in the share of their address, before an admin's request from the same
    address."""
    seat = Seat("the address")
    owners: list[str] = []

    class Asked(Application):
        def identify(self, request: HttpRequest) -> bool:
            seat.holder = "the token"
            return True

        def answer_of(self, request: HttpRequest) -> Coroutine[Any, Any, Response | None] | None:
            owners.append(seat.holder)
            return brief(Response())

    link.turns.sit(seat)
    link.application = Asked()
    cycle_of(link).begin()
    await asyncio.sleep(0)
    assert owners == []
    await asyncio.sleep(0)
    assert owners == ["the token"]
