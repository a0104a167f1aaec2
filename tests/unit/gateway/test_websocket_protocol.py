"""Parts of a WebSocket message. The rest of the protocol: tests/unit/gateway/test_websocket.py."""

import random
import sys
from collections.abc import AsyncIterator

import pytest
from websockets.frames import Frame, Opcode

from tests.support.http_rig import HttpRig, listening
from tests.support.sim_disk import SimDisk
from toymq_py.gateway.websocket_protocol import GatewayWebSocket


@pytest.fixture
async def rig() -> AsyncIterator[HttpRig]:
    async with listening("/data/d", fs=SimDisk(random.Random(1))) as rig:
        yield rig


class Parts(GatewayWebSocket):
    """Records whole messages instead of passing them on."""

    def __init__(self) -> None:  # without a connection
        self._frames = bytearray()
        self._is_text = False
        self.whole: list[tuple[bool, bytes]] = []

    def take_message(self, data: bytes) -> None:
        self.whole.append((self._is_text, data))


@pytest.mark.parametrize("part", [b"", b"x", b"xy"])
def test_parts_of_a_message_take_the_memory_of_their_bytes(part: bytes) -> None:
    """Each part stood in a list: empty ones, which no limit of a message's size counts, filled the memory."""
    ws = Parts()
    ws.take_frame(Frame(Opcode.TEXT, b"{", fin=False))
    for _ in range(20_000):
        ws.take_frame(Frame(Opcode.CONT, part, fin=False))
    assert sys.getsizeof(ws._frames) < 1000 + 2 * 20_000 * len(part)
    ws.take_frame(Frame(Opcode.CONT, b"}", fin=True))
    ws.take_frame(Frame(Opcode.BINARY, b"next"))
    assert ws.whole == [(True, b"{" + 20_000 * part + b"}"), (False, b"next")]
    assert type(ws.whole[0][1]) is bytes
