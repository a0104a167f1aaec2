"""WebSocket clients that read slowly, or not at all: how much is buffered for them, what counts as delivered, and which other
client gets the message."""

import asyncio
import json
import random
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

import pytest

from tests.support.http_rig import JSON_LINES, HttpRig, lines, listening
from tests.support.sim_disk import SimDisk
from tests.support.websockets import frame_of, frames, rest_of, sessions, silent_websocket, unread_websocket
from toymq_py.gateway import websocket_protocol
from toymq_py.gateway.websocket import OUTSTANDING_MAX, Conversation, Frame
from toymq_py.gateway.websocket_protocol import BODY_PIECE_BYTES, COLLECTED_BYTES, UNANSWERED_MAX, GatewayWebSocket
from toymq_py.topic import Subscription

DIR = "/data/d"


@pytest.fixture
async def rig() -> AsyncIterator[HttpRig]:
    async with listening(DIR, fs=SimDisk(random.Random(1)), max_payload_bytes=1000) as rig:
        yield rig


async def test_who_does_not_read_answers_is_not_read(rig: HttpRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by a flood of frames whose client read no answers: the broker buffered 400 MB in four seconds."""
    sending: list[int] = [0]
    most = 0
    usual = Conversation._send

    async def counted(self: Conversation, frame: dict[str, Any]) -> None:
        nonlocal most
        sending[0] += 1
        most = max(most, sending[0])
        try:
            await usual(self, frame)
        finally:
            sending[0] -= 1

    monkeypatch.setattr(Conversation, "_send", counted)
    writer = await unread_websocket(rig.port)
    writer.write(b"\x81\x82\x00\x00\x00\x00{}" * 50_000)
    await rig.until(lambda: sending[0] >= OUTSTANDING_MAX)
    for _ in range(1000):
        await asyncio.sleep(0)
    assert most == OUTSTANDING_MAX, "no more answers wait than may be outstanding"
    writer.transport.abort()


async def test_pings_whose_answers_nobody_takes(rig: HttpRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pings are read in pieces, and only as long as their answers can be sent."""
    pieces: list[int] = []
    protocols: list[GatewayWebSocket] = []
    usual = GatewayWebSocket.take_piece

    def watched(self: GatewayWebSocket, piece: bytes) -> None:
        pieces.append(len(piece))
        protocols[:] = [self]
        usual(self, piece)

    monkeypatch.setattr(GatewayWebSocket, "take_piece", watched)
    writer = await unread_websocket(rig.port)
    ping = b"\x89\xfd\x00\x00\x00\x00" + bytes(125)
    writer.write(ping * 200_000)
    await rig.until(lambda: protocols and protocols[0]._unanswered >= UNANSWERED_MAX and not protocols[0]._unread)
    taken = sum(pieces)
    for _ in range(100):
        await asyncio.sleep(0)
    assert sum(pieces) == taken < 200_000 * len(ping), "nothing more is read"
    assert max(pieces) <= BODY_PIECE_BYTES
    writer.transport.abort()


async def test_no_more_is_delivered_than_the_socket_takes(rig: HttpRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by a window of 10,000 messages that were all in memory: writes were collected without asking the transport for
    room."""
    delivered = 0
    protocols: list[GatewayWebSocket] = []
    carried_out: list[str] = []
    usual, usual_pause, usual_settle = GatewayWebSocket.write_texts, GatewayWebSocket.pause_writing, Conversation._settle

    def counted(self: GatewayWebSocket, texts: Sequence[bytes]) -> bool:
        nonlocal delivered
        delivered += len(texts)
        return usual(self, texts)

    async def settle(self: Conversation, frames: list[Frame]) -> list[int]:
        carried_out.extend(frame.op for frame in frames)
        return await usual_settle(self, frames)

    def watched(self: GatewayWebSocket) -> None:
        protocols[:] = [self]
        usual_pause(self)

    monkeypatch.setattr(GatewayWebSocket, "write_texts", counted)
    monkeypatch.setattr(GatewayWebSocket, "pause_writing", watched)
    monkeypatch.setattr(Conversation, "_settle", settle)
    for _ in range(10):
        batch = lines(*[{"payload": "p" * 1000}] * 1000)
        assert (await rig.ask("POST", "/v1/topics/t/messages:batch", content=batch, headers=JSON_LINES)).status_code == 201
    writer = await unread_websocket(rig.port)
    writer.write(frame_of(1, json.dumps({"op": "subscribe", "consumer": "c", "window": 10_000}).encode()))
    await rig.until(lambda: protocols)
    for _ in range(100):
        await asyncio.sleep(0)
    assert 0 < delivered < 1000, "what is not taken stays in the topic, not in the kernel, where a ping would wait behind it"
    assert protocols[0].transport.get_write_buffer_size() < 1_000_000

    # What it says is heard all the same: it is slow, not gone.
    assert protocols[0]._unwritten
    writer.write(frame_of(1, json.dumps({"op": "ack", "ids": [0]}).encode()))
    await rig.until(lambda: "ack" in carried_out)
    pong = protocols[0].pending_ping_payload = b"here"
    writer.write(frame_of(10, pong))
    await rig.until(lambda: protocols[0].pending_ping_payload is None)
    assert protocols[0]._unwritten, "nothing was read meanwhile"
    writer.transport.abort()


@pytest.fixture
def stalled(monkeypatch: pytest.MonkeyPatch) -> list[GatewayWebSocket]:
    """Return a list to which each WebSocket is added when its socket takes no more."""
    found: list[GatewayWebSocket] = []
    usual = GatewayWebSocket.pause_writing

    def watched(self: GatewayWebSocket) -> None:
        found.append(self)
        usual(self)

    monkeypatch.setattr(GatewayWebSocket, "pause_writing", watched)
    return found


async def publish_megabyte(rig: HttpRig, payload: str = "p" * 900) -> None:
    """Publish a thousand messages, about a megabyte."""
    batch = lines(*[{"payload": payload}] * 1000)
    assert (await rig.ask("POST", "/v1/topics/t/messages:batch", content=batch, headers=JSON_LINES)).status_code == 201


@pytest.mark.parametrize("payload", ["p" * 900, "\x01" * 500], ids=["plain", "escaped"])
@pytest.mark.parametrize("end", ["lost", "closed"])
async def test_what_never_left_the_process_is_not_counted(
    rig: HttpRig, stalled: list[GatewayWebSocket], end: str, payload: str
) -> None:
    """Found with max_attempts=1 and a client that read nothing: 70 messages had left, and 253 were dead letters. Found later
    with payloads that are six times as long in JSON: 60 had left, and were not counted."""
    await publish_megabyte(rig, payload)
    connection, loop = await silent_websocket(rig.port), asyncio.get_running_loop()
    with connection:
        await loop.sock_sendall(connection, frame_of(1, b'{"op": "subscribe", "consumer": "c", "window": 1000}'))
        await rig.until(lambda: stalled)
        if end == "lost":
            stalled[0].transport.abort()  # what the kernel has it sends all the same
        else:
            await loop.sock_sendall(connection, frame_of(8, (1000).to_bytes(2, "big")))
        await rig.until(lambda: not sessions(rig))
        received = [frame["id"] for frame in await rest_of(connection) if frame["op"] == "message"]
    delivered = [rig.broker.topics["t"].consumers["c"].has_delivered(msg_id, msg_id) for msg_id in range(1000)]
    counted = sum(delivered)
    assert delivered == [True] * counted + [False] * (1000 - counted)
    assert 0 < counted <= len(received) < 1000, "what is counted was received"
    left_bytes = sum(len(json.dumps(payload)) for _ in received[counted:])
    assert left_bytes <= COLLECTED_BYTES, "and what was received is counted, but what left while it ended"
    assert received == list(range(len(received)))


async def test_who_is_stalled_is_passed_over(rig: HttpRig, stalled: list[GatewayWebSocket]) -> None:
    """One message, and two consumers that wait for it: the first one does not read its answers."""
    subscribe = {"op": "subscribe", "consumer": "c", "mode": "shared"}
    connection, flood = await silent_websocket(rig.port), frame_of(1, b"{}") * 50_000

    def idle() -> int:
        attached = rig.broker.topic_or_new("t").channels.get("c")
        return 0 if attached is None else len(attached.idle)

    def flooded() -> bool:
        nonlocal flood
        with suppress(BlockingIOError):
            flood = flood[connection.send(flood) :]
        return bool(stalled) and stalled[0].stalled

    with connection:
        connection.send(frame_of(1, json.dumps(subscribe).encode()))
        await rig.until(idle)
        await rig.until(flooded)
        async with frames(rig) as ws:
            assert (await ws.ask(**subscribe))["op"] == "subscribed"
            await rig.until(lambda: idle() == 2)
            await rig.publish("t", "a")
            assert (await ws.hear())["payload"] == "a"


@pytest.mark.parametrize("end", ["no pong", "half closed"])
async def test_who_is_stalled_and_leaves_is_not_waited_for(rig: HttpRig, stalled: list[GatewayWebSocket], end: str) -> None:
    """Found: a connection closes after its pending output, which a stalled peer does not read, so the subscription was held as
    long as the peer's kernel lived."""
    await publish_megabyte(rig)
    connection, loop = await silent_websocket(rig.port), asyncio.get_running_loop()
    with connection:
        await loop.sock_sendall(connection, frame_of(1, b'{"op": "subscribe", "consumer": "c", "window": 1000}'))
        await rig.until(lambda: stalled)
        stalled[0].close_timeout = 0.01
        if end == "no pong":
            stalled[0].keepalive_timeout()
        else:
            connection.shutdown(socket.SHUT_WR)
        await rig.until(lambda: not sessions(rig))
        await rig.until(lambda: stalled[0].disconnected)


async def test_who_is_stalled_after_it_was_woken_is_passed_over(rig: HttpRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: a consumer stalled after it had been notified, because an answer filled its socket; the message waited for it
    while another one was idle."""
    woken: list[GatewayWebSocket] = []
    usual = Conversation._wake

    def stalling(self: Conversation, subscription: Subscription) -> bool:
        will_look = usual(self, subscription)
        assert isinstance(self._outlet, GatewayWebSocket)
        woken.append(self._outlet)
        if len(woken) == 1:
            self._outlet.pause_writing()
        return will_look

    monkeypatch.setattr(Conversation, "_wake", stalling)
    subscribe = {"op": "subscribe", "consumer": "c", "mode": "shared"}
    async with frames(rig) as one, frames(rig) as other:
        assert [(await ws.ask(**subscribe))["op"] for ws in (one, other)] == ["subscribed"] * 2

        def idle() -> int:
            attached = rig.broker.topics["t"].channels.get("c")
            return 0 if attached is None else len(attached.idle)

        await rig.until(lambda: idle() == 2)
        await rig.publish("t", "a")
        await rig.until(lambda: len(woken) == 2)
        await rig.until(lambda: rig.broker.topics["t"].consumers["c"].inflight == 1)
        woken[0].resume_writing()


async def test_frames_that_wait_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_go_on = 0, asyncio.Event()

    async def waits(self: Conversation, frame: Frame) -> dict[str, Any]:
        nonlocal begun
        begun += 1
        await may_go_on.wait()
        return {"op": "published"}

    monkeypatch.setattr(Conversation, "_carry_out", waits)
    async with listening(DIR, fs=SimDisk(random.Random(1)), max_inflight_bytes=1 << 16) as rig, frames(rig) as ws:
        for _ in range(9):
            await ws.say(op="publish", payload="x" * 30_000)
        await rig.until(lambda: begun == 3)
        for _ in range(100):
            await asyncio.sleep(0)
        assert begun == 3
        may_go_on.set()
        assert [(await ws.hear())["op"] for _ in range(9)] == ["published"] * 9


async def test_who_is_stalled_holds_nothing_when_it_has_to_leave(
    rig: HttpRig, stalled: list[GatewayWebSocket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found: when the broker ends a stalled connection, the close frame waits behind unread output, and the subscription
    waited, too."""
    found: list[Conversation] = []
    usual = Conversation.run

    async def run(self: Conversation) -> None:
        found.append(self)
        await usual(self)

    monkeypatch.setattr(Conversation, "run", run)
    await publish_megabyte(rig)
    connection, loop = await silent_websocket(rig.port), asyncio.get_running_loop()
    with connection:
        await loop.sock_sendall(connection, frame_of(1, b'{"op": "subscribe", "consumer": "c", "window": 1000}'))
        await rig.until(lambda: stalled)
        assert sessions(rig) == 1
        found[0]._gateway.waiting.stop()
        await rig.until(lambda: not sessions(rig))
        assert not stalled[0].disconnected, "and none has read anything"


async def test_a_shutdown_waits_a_moment_for_who_is_stalled(
    rig: HttpRig, stalled: list[GatewayWebSocket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found: a shutdown waited for all of --shutdown-timeout, and logged an error."""
    monkeypatch.setattr(websocket_protocol, "FAREWELL_S", 0.01)
    await publish_megabyte(rig)
    connection, loop = await silent_websocket(rig.port), asyncio.get_running_loop()
    with connection:
        await loop.sock_sendall(connection, frame_of(1, b'{"op": "subscribe", "consumer": "c", "window": 1000}'))
        await rig.until(lambda: stalled)
        stalled[0].shutdown()
        await rig.until(lambda: stalled[0].disconnected)
