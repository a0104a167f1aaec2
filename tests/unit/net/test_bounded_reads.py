"""A read returns at most as many bytes as there is room for. ``BoundedProtocol`` over a real socket."""

import asyncio
import socket
from itertools import chain

import pytest
import uvloop

from toymq_py.net.bounded_reads import READ_BYTES, BoundedProtocol, ReadBuffer


class Reader(BoundedProtocol):
    def __init__(self, buffer: ReadBuffer, ended: asyncio.Event) -> None:
        self.buffer = buffer
        self.pieces: list[bytes] = []
        self._ended = ended

    def data_received(self, data: bytes) -> None:
        self.pieces.append(data)

    def eof_received(self) -> bool:
        self._ended.set()
        return False


async def read(most: int, sent: bytes) -> list[list[bytes]]:
    """Return what two connections with one buffer receive, each of ``sent``."""
    buffer, loop = ReadBuffer(), asyncio.get_running_loop()
    buffer.limit(most)
    readers: list[Reader] = []
    for data in (sent, sent[::-1]):
        ended = asyncio.Event()
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        transport, reader = await loop.create_connection(lambda ended=ended: Reader(buffer, ended), sock=ours)
        await loop.sock_sendall(theirs, data)
        theirs.close()
        await ended.wait()
        transport.close()
        readers.append(reader)
    return [reader.pieces for reader in readers]


@pytest.mark.parametrize("factory", [asyncio.SelectorEventLoop, uvloop.new_event_loop])
@pytest.mark.parametrize("most", [1000, READ_BYTES])
def test_a_read_brings_no_more_than_there_is_room_for(factory: type[asyncio.AbstractEventLoop], most: int) -> None:
    sent = bytes(range(256)) * 200
    with asyncio.Runner(loop_factory=factory) as runner:
        first, second = runner.run(read(most, sent))
    assert b"".join(first) == sent
    assert b"".join(second) == sent[::-1], "each has its own"
    assert max(map(len, chain(first, second))) <= most
