"""Accepted sockets: their options, and TLS handshakes of a burst. The effect of limits is in unit/net/test_tls.py."""

import asyncio
import socket
from collections.abc import Callable

import pytest

from tests.support.certificates import CERT, KEY
from tests.support.in_process import TIMEOUT_S
from toymq_py.auth.quotas import HANDSHAKE_BYTES, Quotas
from toymq_py.config.options import BrokerOptions
from toymq_py.entrance import KEEPALIVE_S, Entrance
from toymq_py.errors import RequestError
from toymq_py.metrics import Metrics
from toymq_py.net.bounded_reads import BoundedProtocol, ReadBuffer
from toymq_py.net.certificates import Certificates


def refuse(transport: asyncio.Transport, _: RequestError) -> None:
    transport.close()


def listening() -> socket.socket:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    return listener


class Greeter(BoundedProtocol):
    """A protocol that reports its transport."""

    def __init__(self, connected: Callable[[asyncio.Transport], None]) -> None:
        self.buffer = ReadBuffer()
        self._connected = connected

    def data_received(self, data: bytes) -> None:
        raise AssertionError("nothing is sent")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._connected(transport)


async def test_the_kernel_finds_a_dead_peer_and_leaves_one_alone_that_does_not_read() -> None:
    """For every protocol: a dead peer with leased messages would keep them for ever."""
    loop = asyncio.get_running_loop()
    metrics = Metrics()
    connected: asyncio.Future[asyncio.Transport] = loop.create_future()
    entrance = Entrance(
        loop, Quotas(BrokerOptions(), metrics), metrics, None, lambda address: Greeter(connected.set_result), refuse
    )
    listener = listening()
    async with asyncio.TaskGroup() as tasks:
        entrance.open([listener], [], tasks)
        with socket.create_connection(listener.getsockname()):
            transport = await connected
            server = transport.get_extra_info("socket")
            tcp = socket.IPPROTO_TCP
            assert server.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert server.getsockopt(tcp, socket.TCP_NODELAY) == 1
            assert server.getsockopt(tcp, socket.TCP_KEEPIDLE) == KEEPALIVE_S
            assert server.getsockopt(tcp, socket.TCP_USER_TIMEOUT) == 0, "it ends one that lives and does not read"
            transport.close()
        entrance.close()


async def test_a_burst_of_handshakes_over_the_limit_gives_way_in_one_pass(caplog: pytest.LogCaptureFixture) -> None:
    """The evicted connections were accepted in the same pass of the loop, so they have no transport yet."""
    loop = asyncio.get_running_loop()
    failures: list[dict[str, object]] = []
    loop.set_exception_handler(lambda _, context: failures.append(context))
    metrics = Metrics()
    quotas = Quotas(BrokerOptions(max_connections=3), metrics)
    entrance = Entrance(loop, quotas, metrics, Certificates(CERT, KEY), lambda address: Greeter(lambda transport: None), refuse)
    listener = listening()
    burst = [socket.create_connection(listener.getsockname()) for _ in range(9)]
    async with asyncio.TaskGroup() as tasks:
        entrance.open([], [listener], tasks)
        for client in burst[:6]:
            client.setblocking(False)
            assert await asyncio.wait_for(_rest(loop, client), 30) == b""
        assert len(entrance.handshakes) == 3
        entrance.close()
        entrance.abort_handshakes()
    for client in burst:
        client.close()
    assert failures == []
    assert metrics.connections_evicted_total == 6


async def test_handshakes_that_have_begun_give_way_to_others() -> None:
    """Found by a trial: each takes 50 KB, and 4,000 clients that sent one byte killed a broker in 192 MiB."""
    loop, metrics = asyncio.get_running_loop(), Metrics()
    quotas = Quotas(BrokerOptions(max_held_bytes=16 * HANDSHAKE_BYTES), metrics)
    entrance = Entrance(loop, quotas, metrics, Certificates(CERT, KEY), lambda address: Greeter(lambda transport: None), refuse)
    listener = listening()
    async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as tasks:
        entrance.open([], [listener], tasks)
        begun = [await asyncio.open_connection(*listener.getsockname()) for _ in range(20)]
        for _, writer in begun:
            writer.write(b"\x16")
        while sum(reader.at_eof() for reader, _ in begun) < 4:  # noqa: ASYNC110 (it takes a few passes)
            await asyncio.sleep(0)
        assert (len(entrance.handshakes), metrics.limits_reached["handshakes"]) == (16, 4)
        quotas.memory_high = True
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(b"\x16")
        assert await reader.read() == b"", "what is there stays, and no more comes"
        assert (len(entrance.handshakes), metrics.limits_reached["memory"]) == (16, 1)
        entrance.close()
        entrance.abort_handshakes()
        for _, each in (*begun, (reader, writer)):
            each.close()


async def _rest(loop: asyncio.AbstractEventLoop, client: socket.socket) -> bytes:
    try:
        return await loop.sock_recv(client, 1)
    except ConnectionResetError:
        return b""
