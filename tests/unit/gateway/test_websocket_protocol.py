"""Parts of a WebSocket message, and its end. The rest of the protocol: tests/unit/gateway/test_websocket.py."""

import asyncio
import json
import random
import sys
from collections.abc import AsyncIterator, Callable
from functools import partial

import pytest
from websockets.frames import Frame, Opcode

from tests.support.http_rig import HttpRig, listening
from tests.support.sim_disk import SimDisk
from tests.support.websockets import HANDSHAKE, frame_of, sessions
from toymq_py.auth.quotas import FLOOR_BYTES
from toymq_py.gateway.websocket_protocol import GatewayWebSocket
from toymq_py.topic import Commit


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
    """Found: each fragment was an entry of a list: empty ones, which do not count towards a message's size, filled the
    memory."""
    ws = Parts()
    ws.take_frame(Frame(Opcode.TEXT, b"{", fin=False))
    for _ in range(20_000):
        ws.take_frame(Frame(Opcode.CONT, part, fin=False))
    assert sys.getsizeof(ws._frames) < 1000 + 2 * 20_000 * len(part)
    ws.take_frame(Frame(Opcode.CONT, b"}", fin=True))
    ws.take_frame(Frame(Opcode.BINARY, b"next"))
    assert ws.whole == [(True, b"{" + 20_000 * part + b"}"), (False, b"next")]
    assert type(ws.whole[0][1]) is bytes


CLOSE = frame_of(8, (1000).to_bytes(2, "big"))


@pytest.mark.parametrize(
    ("end", "last"),
    [
        (CLOSE, b"\x88\x02\x03\xe8"),
        (frame_of(9, b"ping") + CLOSE, b"\x8a\x04ping\x88\x02\x03\xe8"),
        (b"", b""),
        (frame_of(2, b"bytes"), b"\x88\x12\x03\xebsend text frames"),
    ],
    ids=["a close frame", "a ping and a close frame", "FIN", "a frame of bytes"],
)
async def test_what_was_begun_is_answered_before_the_connection_closes(
    rig: HttpRig, monkeypatch: pytest.MonkeyPatch, end: bytes, last: bytes
) -> None:
    """Found: five publishes were stored, and none was answered, so their client published them again."""
    held: list[Callable[[], None]] = []
    usual = Commit.add_waiter
    monkeypatch.setattr(Commit, "add_waiter", lambda self, call: held.append(partial(usual, self, call)))
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
    publish = frame_of(1, json.dumps({"op": "publish", "payload": "x"}).encode())
    writer.write(HANDSHAKE + b"\r\n" + 200 * publish + end)
    if not end:
        writer.write_eof()
    await reader.readuntil(b"\r\n\r\n")
    await rig.until(lambda: len(held) == 200)
    await asyncio.sleep(0)
    for release in held:
        release()
    async with asyncio.timeout(10):
        answers = await (reader.read() if last[:2] != b"\x88\x12" else reader.readuntil(last))
    assert answers.count(b'"published"') == 200
    assert answers.endswith(b"}" + last)
    assert rig.broker.topics["t"].describe()["messages"] == 200
    writer.close()


async def test_a_subscription_that_is_begun_at_the_end_is_undone_with_its_answer(rig: HttpRig) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
    subscribe = frame_of(1, json.dumps({"op": "subscribe", "consumer": "c"}).encode())
    writer.write(HANDSHAKE + b"\r\n" + subscribe)
    writer.write_eof()
    async with asyncio.timeout(10):
        assert b'"subscribed"' in await reader.read()
    assert not sessions(rig)
    writer.close()


async def test_messages_that_do_not_end_have_room_together_or_end_their_connection() -> None:
    """Found: a hundred connections with unfinished messages of up to six MB each got the broker killed by the kernel."""
    whole = b"\x81\xff" + (900_000).to_bytes(8, "big") + bytes(4) + b"x" * 900_000
    async with listening("/data/d", fs=SimDisk(random.Random(1)), max_held_bytes=1 << 20) as rig, asyncio.timeout(10):
        wires = [await asyncio.open_connection("127.0.0.1", rig.port) for _ in range(3)]
        for reader, writer in wires:
            writer.write(HANDSHAKE + b"\r\n")
            await reader.readuntil(b"\r\n\r\n")
            writer.write(whole[:700_000])
        quotas = rig.broker.quotas
        answers = [asyncio.ensure_future(reader.read(4)) for reader, _ in wires]
        await rig.until(lambda: sum(answer.done() for answer in answers) == 2)
        assert {answer.result()[2:] for answer in answers if answer.done()} == {(1013).to_bytes(2, "big")}
        assert FLOOR_BYTES < quotas.held_bytes < 1 << 20
        at = next(n for n, answer in enumerate(answers) if not answer.done())
        wires[at][1].write(whole[700_000:])
        assert await answers[at]
        assert b"BAD_FRAMING" in await wires[at][0].readuntil(b"}")
        for _, writer in wires:
            writer.close()
        await rig.until(lambda: not quotas.held_bytes)
