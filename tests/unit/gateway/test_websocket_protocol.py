"""Parts of a WebSocket message. The rest of the protocol: tests/unit/gateway/test_websocket.py."""

import sys

import pytest
from websockets.frames import Frame, Opcode

from toymq_py.gateway.websocket_protocol import GatewayWebSocket


class Parts(GatewayWebSocket):
    """Records whole messages instead of passing them on."""

    def __init__(self) -> None:  # without a connection
        self.frames: list[bytes] = []
        self.whole: list[list[bytes]] = []

    def send_receive_event_to_app(self) -> None:
        self.whole.append(self.frames)


def held(frames: list[bytes]) -> int:
    return sys.getsizeof(frames) + sum(map(sys.getsizeof, frames))


@pytest.mark.parametrize("part", [b"", b"x", b"xy"])
def test_parts_of_a_message_take_the_memory_of_their_bytes(part: bytes) -> None:
    """Each part stood in a list: empty ones, which no limit of a message's size counts, filled the memory."""
    ws = Parts()
    ws.frames = [b"{"]
    for _ in range(20_000):
        ws.handle_cont(Frame(Opcode.CONT, part, fin=False))
    assert held(ws.frames) < 1000 + 2 * 20_000 * len(part)
    ws.handle_cont(Frame(Opcode.CONT, b"}", fin=True))
    assert ws.whole == [[b"{" + 20_000 * part + b"}"]]
    assert type(ws.whole[0][0]) is bytes
