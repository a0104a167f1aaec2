"""A refused connection gets the reason; a transport without a session passes nothing on."""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from tests.support.certificates import CERT, KEY, client_context
from toymq_py.errors import TooManyConnections
from toymq_py.net.bounded_reads import ReadBuffer
from toymq_py.session.transport import SessionProtocol, refuse


class Transport(asyncio.Transport):
    """A transport that records the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    def write(self, data: Any) -> None:
        self.calls.append(data)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.calls.append("eof")

    def close(self) -> None:
        self.calls.append("close")

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.calls.append(("high", high))


@pytest.mark.parametrize(("linger_s", "calls"), [(0, ["close"]), (0.001, ["eof"])])
async def test_a_refused_connection_hears_why(linger_s: float, calls: list[str]) -> None:
    transport = Transport()
    refuse(transport, TooManyConnections("5 connections are the limit"), linger_s=linger_s)
    assert transport.calls == [b"ERR TOO_MANY_CONNECTIONS 5 connections are the limit\n", *calls]
    if linger_s:
        closed = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(linger_s, closed.set_result, None)
        await closed
        assert transport.calls[-1] == "close"


def test_events_of_a_refused_connection_are_dropped() -> None:
    protocol = SessionProtocol(lambda protocol: None, ReadBuffer())
    transport = Transport()
    protocol.connection_made(transport)
    assert transport.calls == [("high", 0)], "so that not paused means that the socket took everything"
    protocol.data_received(b"PING\n")
    protocol.pause_writing()
    protocol.resume_writing()
    assert protocol.eof_received() is False
    protocol.connection_lost(None)


def server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERT, KEY)
    return context


class Told(SessionProtocol):
    """A protocol that answers each read, and records the last pause or resume."""

    def __init__(self) -> None:
        super().__init__(lambda protocol: None, ReadBuffer())
        self.paused = False

    def data_received(self, data: bytes) -> None:
        self.transport.write(b"OK\n")

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_over_the_tls_of_the_loop_a_session_is_not_paused_for_nothing(
    make_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """Found: with a write limit of 0 the loop calls pause and resume by turns, whatever is written, so every second answer
    waited for a read."""

    async def scenario() -> None:
        loop, told = asyncio.get_running_loop(), Told()
        server = await loop.create_server(lambda: told, "127.0.0.1", 0, ssl=server_context())
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname(), ssl=client_context())
        seen = set()
        for _ in range(5):
            writer.write(b"PING\n")
            assert await reader.readline() == b"OK\n"
            seen.add(told.paused)
        assert seen == {False}
        writer.close()
        server.close()

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(scenario())
