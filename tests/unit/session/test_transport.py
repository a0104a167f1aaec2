"""A refused connection hears why; a transport without a session passes nothing on."""

import asyncio
from typing import Any

import pytest

from toymq_py.errors import TooManyConnections
from toymq_py.session.transport import SessionProtocol, refuse


class Transport(asyncio.Transport):
    """Remembers the calls."""

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
    protocol = SessionProtocol(lambda protocol: None)
    transport = Transport()
    protocol.connection_made(transport)
    assert transport.calls == [("high", 0)], "so that not paused means that the socket took everything"
    protocol.data_received(b"PING\n")
    protocol.pause_writing()
    protocol.resume_writing()
    assert protocol.eof_received() is False
    protocol.connection_lost(None)
