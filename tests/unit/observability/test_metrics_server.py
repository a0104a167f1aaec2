"""``--metrics``: how long a connection may keep its place, and requests that are not a scraper's."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.in_process import TIMEOUT_S, serving
from toymq_py.net.host_names import AllowedHosts
from toymq_py.observability import metrics_server
from toymq_py.observability.metrics_server import HEAD_BYTES_MAX, MetricsServer, broker_pages
from toymq_py.server import Server

SCRAPE = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
async def port(tmp_path: Path) -> AsyncIterator[int]:
    async with serving(tmp_path / "d") as served, asyncio.timeout(TIMEOUT_S):
        listeners = Server.bind("127.0.0.1", 0)
        metrics = MetricsServer(broker_pages(served.broker), asyncio.get_running_loop(), listeners, AllowedHosts())
        port = listeners[0].getsockname()[1]
        metrics.start()
        yield port
        metrics.stop()


async def say(port: int, *pieces: bytes, ends: bool = False) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0)
        if ends:
            writer.write_eof()
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_a_head_that_comes_in_drops_ends_at_one_deadline(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "HEAD_TIMEOUT_S", 0.01)
    for _ in range(metrics_server.WAITING_MAX + 1):  # and its place is free again
        assert await say(port, b"G", b"E", b"T") == b""


async def connected(port: int, *, says: bytes = b"G") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection that is accepted, and gets no answer yet."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
    writer.write(says)
    return reader, writer


async def test_silent_connections_keep_no_scrape_out(port: int) -> None:
    """Found by a trial: eight connections that sent one byte stopped every scrape."""
    silent = [await connected(port) for _ in range(2 * metrics_server.WAITING_MAX)]
    for _ in range(3):
        assert (await say(port, SCRAPE)).startswith(b"HTTP/1.1 200 OK")
    for _, writer in silent:
        writer.close()


async def test_silent_connections_that_come_back_keep_no_scrape_out(port: int) -> None:
    came = 0

    async def come_back() -> None:
        nonlocal came
        while True:
            reader, writer = await connected(port)
            came += 1
            try:
                with suppress(ConnectionResetError):
                    await reader.read()
            finally:
                writer.close()

    async with asyncio.TaskGroup() as tasks:
        attackers = [tasks.create_task(come_back()) for _ in range(metrics_server.WAITING_MAX + 4)]
        while came < len(attackers):  # noqa: ASYNC110 (the accept has no event)
            await asyncio.sleep(0)
        for _ in range(20):
            assert (await say(port, SCRAPE)).startswith(b"HTTP/1.1 200 OK")
        for attacker in attackers:
            attacker.cancel()
    assert came > 2 * metrics_server.WAITING_MAX


async def test_clients_that_take_no_answer_keep_no_scrape_out(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def page(_broker: object, *, accept: str) -> tuple[bytes, str]:
        return b"x" * (32 << 20 if accept == "large" else 1), "text/plain"

    monkeypatch.setattr(metrics_server, "render", page)
    ask = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: large\r\n\r\n"
    slow = [await connected(port, says=ask) for _ in range(2 * metrics_server.REQUESTS_MAX)]
    for reader, _ in slow:
        with suppress(asyncio.LimitOverrunError, asyncio.IncompleteReadError, ConnectionResetError):
            await reader.readuntil(b"\r\n\r\n")  # it is being answered, or was hung up on
    assert (await say(port, SCRAPE)).startswith(b"HTTP/1.1 200 OK")
    for _, writer in slow:
        writer.close()


async def test_a_flood_from_one_address_ends_no_connection_of_another(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = ["198.51.100.1", *["198.51.100.2"] * metrics_server.WAITING_MAX * 2]
    monkeypatch.setattr(metrics_server, "peer_address", lambda _: addresses.pop(0))
    reader, writer = await connected(port, says=SCRAPE[:10])
    flood = [await connected(port) for _ in range(2 * metrics_server.WAITING_MAX)]
    while addresses:  # noqa: ASYNC110 (the accept has no event)
        await asyncio.sleep(0)
    writer.write(SCRAPE[10:])
    assert await reader.read(12) == b"HTTP/1.1 200"
    for _, each in [*flood, (reader, writer)]:
        each.close()


async def test_the_head_may_come_in_pieces(port: int) -> None:
    answer = await say(port, b"GET /met", b"rics?x=y HTTP/1.1\r\nho", b"st: localhost\r\n", b"\r\n")
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")


async def test_a_head_that_is_cut_off_is_hung_up_on(port: int) -> None:
    assert await say(port, b"GET /metrics HTTP/1.1\r\n", ends=True) == b""


@pytest.mark.parametrize("end", [b"", b"\r\n\r\n"], ids=["without an end", "whole"])
async def test_a_head_that_is_too_long_is_answered_as_the_gateway_does(port: int, end: bytes) -> None:
    """Found: the connection was closed without an answer."""
    answer = await say(port, b"GET /metrics HTTP/1.1\r\nX: " + b"x" * HEAD_BYTES_MAX + end)
    assert answer.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
    assert answer.endswith(b"\r\n\r\nat most 8192 bytes are accepted\n")


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"\r\n\r\n", b"400 Bad Request"),
        (b"\xff\xfe\r\n\x00\r\n\r\n", b"400 Bad Request"),
        (b"GET\r\n\r\n", b"400 Bad Request"),
        (b"GET /metrics HTTP/1.1 HTTP/1.1\r\nHost: localhost\r\n\r\n", b"400 Bad Request"),
        (b"GET /metrics http/1.1\r\nHost: localhost\r\n\r\n", b"400 Bad Request"),
        (b"GET /metrics\r\nHost: localhost\r\n\r\n", b"505 HTTP Version Not Supported"),
        (b"GET /metrics HTTP/0.9\r\nHost: localhost\r\n\r\n", b"505 HTTP Version Not Supported"),
        (b"GET /metrics HTTP/2.0\r\nHost: localhost\r\n\r\n", b"505 HTTP Version Not Supported"),
        (b"GET /metrics HTTP/1.2\r\nHost: localhost\r\n\r\n", b"505 HTTP Version Not Supported"),
        (b"GET /metrics HTTP/1.10\r\nHost: localhost\r\n\r\n", b"400 Bad Request"),
        (b"PRI * HTTP/2.0\r\n\r\n", b"505 HTTP Version Not Supported"),
        (b"GET /metrics HTTP/1.1\r\n\r\n", b"400 Bad Request"),
        (b"GET /metrics HTTP/1.1\r\nHost:\r\n\r\n", b"400 Bad Request"),
        (b"GET /metrics HTTP/1.1\r\nHost : localhost\r\n\r\n", b"400 Bad Request"),
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n x\r\n\r\n", b"400 Bad Request"),
        (b"GET /metrics HTTP/1.1\r\nHost: localhost:evil\r\n\r\n", b"400 Bad Request"),
        (b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:80@evil.example\r\n\r\n", b"400 Bad Request"),
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", b"400 Bad Request"),
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", b"400 Bad Request"),
        (b"GET /metrics HTTP/1.0\r\nHost: evil.example\r\n\r\n", b"403 Forbidden"),
        (b"DELETE /metrics HTTP/1.0\r\n\r\n", b"405 Method Not Allowed"),
        (b"DELETE /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", b"405 Method Not Allowed"),
    ],
)
async def test_a_head_that_is_not_a_scrapers_is_refused(port: int, head: bytes, status: bytes) -> None:
    answer, _, said = (await say(port, head)).partition(b"\r\n\r\n")
    assert answer.split(b"\r\n")[0] == b"HTTP/1.1 " + status
    assert said, "a line says why"


async def test_a_host_that_is_not_allowed_is_in_the_audit_trail(port: int, caplog: pytest.LogCaptureFixture) -> None:
    await say(port, b"GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n")
    assert caplog.messages == ["action=request token=- address=127.0.0.1 via=http result=FORBIDDEN"]


@pytest.mark.parametrize("head", [b"0\r\n", b"1\r\nHost: 127.0.0.1:9\r\n", b"1\r\nhost: toymq.localhost\r\n"])
async def test_heads_of_scrapers(port: int, head: bytes) -> None:
    assert (await say(port, b"GET /metrics HTTP/1." + head + b"Accept: */*\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")


async def test_stop_closes_the_connections(tmp_path: Path) -> None:
    async with serving(tmp_path / "d") as served, asyncio.timeout(TIMEOUT_S):
        listeners: list[socket.socket] = Server.bind("127.0.0.1", 0)
        metrics = MetricsServer(broker_pages(served.broker), asyncio.get_running_loop(), listeners, AllowedHosts())
        metrics.start()
        reader, writer = await asyncio.open_connection(*listeners[0].getsockname())
        while not metrics._waiting:  # noqa: ASYNC110 (the accept has no event)
            await asyncio.sleep(0)
        metrics.stop()
        assert await reader.read() == b""
        writer.close()
