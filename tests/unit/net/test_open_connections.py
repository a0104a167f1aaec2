"""The description of an open connection, and what is unknown about one."""

import asyncio
import socket
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from toymq_py.net.open_connections import NAME_CHARS_MAX, SUBSCRIPTIONS_MAX, OpenConnection, OpenConnections, bytes_passed


class Transport:
    """A transport with only the information that is asked for."""

    def __init__(self, connection: Any = None, *, closing: bool = False) -> None:
        self._known = {"socket": connection, "peername": ("127.0.0.1", 5)}
        self._closing = closing

    def get_extra_info(self, name: str) -> Any:
        return self._known.get(name)

    def is_closing(self) -> bool:
        return self._closing

    def get_write_buffer_size(self) -> int:
        return 17


def opened(number: int, transport: Any = None, close: Callable[[], None] = lambda: None, **more: Any) -> OpenConnection:
    return OpenConnection("toymq", number, 1000, transport or Transport(), close, **more)


def test_long_names_and_many_subscriptions_are_cut_and_counted() -> None:
    one = SimpleNamespace(name="t", consumer_name="c", mode="shared", inflight=3, window=10, active_in=())
    described = opened(7, name="n" * 4000, token="billing", subscriptions=lambda: [one] * 1000).describe()
    assert described["connection"] == "toymq-7"
    assert described["name"] == "n" * NAME_CHARS_MAX
    assert described["address"] == "127.0.0.1:5"
    assert (described["token"], described["since_ms"], described["unsent_bytes"]) == ("billing", 1000, 17)
    assert (described["subscriptions_total"], described["inflight"]) == (1000, 3000), "of all of them"
    assert described["subscriptions"] == SUBSCRIPTIONS_MAX * [
        {"topic": "t", "consumer": "c", "mode": "shared", "inflight": 3, "window": 10, "active_in": None}
    ]
    one.mode, one.active_in = "single", ["t#1", "t#3"]
    (told,) = opened(7, subscriptions=lambda: [one]).describe()["subscriptions"]
    assert told["active_in"] == ["t#1", "t#3"]


def test_all_listeners_are_asked_for_what_is_open() -> None:
    connections = OpenConnections()
    ended = opened(2, Transport(closing=True))
    first, second = opened(1), opened(3)
    connections.sources += [lambda: [first, ended], lambda: [second]]
    assert list(connections) == [first, second]
    assert connections.find("toymq-3") is second
    assert connections.find("toymq-2") is None, "it is closing"
    assert connections.find("http-1") is None


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel does not say")
async def test_the_kernel_counts_bytes() -> None:
    accepted: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.get_running_loop().create_future()
    async with await asyncio.start_server(lambda *both: accepted.set_result(both), "127.0.0.1", 0) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        there, back = await accepted
        writer.write(b"x" * 1000)
        assert await there.readexactly(1000)
        back.write(b"y" * 500)
        assert await reader.readexactly(500)
        writer.write(b"x")  # acknowledges them
        assert await there.readexactly(1)
        assert bytes_passed(back.transport) == (1001, 500)
        writer.close()
        back.close()


def test_what_the_kernel_does_not_say_is_none() -> None:
    near, far = socket.socketpair()
    with near, far, socket.socket() as ended:
        assert bytes_passed(Transport(near)) == (None, None), "a Unix socket"  # type: ignore[arg-type]
        ended.close()
        assert bytes_passed(Transport(ended)) == (None, None)  # type: ignore[arg-type]
    assert bytes_passed(Transport(None)) == (None, None)  # type: ignore[arg-type]
    old = SimpleNamespace(family=socket.AF_INET, getsockopt=lambda *how: b"\0" * 104)
    assert bytes_passed(Transport(old)) == (None, None)  # type: ignore[arg-type]
