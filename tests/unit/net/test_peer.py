"""The address of the other end of a connection."""

import asyncio
import socket

import pytest
import uvloop

from toymq_py.net.peer import described_peer, network_of, peer_address, peer_of


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_connection_that_is_gone_has_no_address(new_loop: object) -> None:
    """Found: uvloop asks the kernel each time, and raised ValueError for a closed transport."""

    async def connect() -> tuple[asyncio.Transport, str | None]:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        transport, _ = await loop.create_connection(asyncio.Protocol, "127.0.0.1", port)
        before = peer_of(transport)
        assert described_peer(transport) == f"127.0.0.1:{port}"
        transport.abort()
        for _ in range(5):
            await asyncio.sleep(0)
        server.close()
        return transport, before

    with asyncio.Runner(loop_factory=new_loop) as runner:  # type: ignore[arg-type]
        transport, before = runner.run(connect())
        assert before == "127.0.0.1"
        assert peer_of(transport) in (None, before)
        assert described_peer(transport)


def test_a_socket_that_is_gone_or_local_has_no_address() -> None:
    one, other = socket.socketpair()
    with one, other:
        assert peer_address(one) is None
    assert peer_address(one) is None


@pytest.mark.parametrize(
    ("address", "network"),
    [
        (None, None), ("127.0.0.1", None), ("::1", None), ("::ffff:127.0.0.1", None),
        ("198.51.100.7", "198.51.100.7"), ("::ffff:198.51.100.7", "198.51.100.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"), ("2001:db8:1:2::9", "2001:db8:1:2::/64"), ("fe80::1%eth0", "fe80::/64"),
    ],
)  # fmt: skip
def test_what_counts_as_one_address(address: str | None, network: str | None) -> None:
    assert network_of(address) == network
