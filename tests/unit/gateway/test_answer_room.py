"""``answer_room``: the memory for clients that do not read is bounded, whatever they request."""

import asyncio
import contextlib
import json
import random
import socket

import pytest

from tests.support.http_rig import HttpRig, listening
from tests.support.sim_disk import SimDisk
from tests.support.websockets import HANDSHAKE, frame_of
from toymq_py.auth.quotas import Seat
from toymq_py.gateway import answer_room
from toymq_py.observability.prometheus import OBJECT_BYTES

DIR = "/data/d"
MESSAGE_BYTES = 8_000_000
"""The kernel's buffers take half of one."""
UNREAD_BYTES = 2_000_000
HELD_BYTES_MAX = 32 << 20
LARGEST_ANSWER_BYTES = 4 * MESSAGE_BYTES
"""Two messages, as payloads and as JSON: more than a limit may be exceeded by one."""
CONNECTIONS = 16


def connect(rig: HttpRig, request: bytes) -> socket.socket:
    """Send a request, and never read."""
    connection = socket.create_connection(("127.0.0.1", rig.port))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setblocking(False)
    connection.send(request)
    return connection


def get(path: str) -> bytes:
    return b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % path.encode()


async def subscribe(rig: HttpRig, consumer: str) -> socket.socket:
    """Subscribe over a WebSocket, and read only the handshake's answer."""
    connection = connect(rig, HANDSHAKE + b"\r\n")
    loop = asyncio.get_running_loop()
    assert b" 101 " in await loop.sock_recv(connection, 4096)
    connection.send(frame_of(1, json.dumps({"op": "subscribe", "consumer": consumer}).encode()))
    return connection


@pytest.mark.parametrize(
    "path",
    [
        "/v1/topics/t/messages?consumer=c{}&max=9",
        "/v1/topics/t/messages?consumer=c{}&max=9&wait_s=60",
        "/v1/topics/t/stream?from=earliest",
        "/v1/topics/t/log",
        "/consume/t?group=g{}&limit=9",
        "/consume/t?group=g{}&peek=true&limit=9",
        "websocket",
    ],
)
async def test_answers_that_are_not_read_count_as_held(path: str) -> None:
    """Found by a trial: unread answers to 120 connections of one token took the process to its memory limit, and all publishes
    were refused."""
    async with listening(DIR, fs=SimDisk(random.Random(1)), max_held_bytes=HELD_BYTES_MAX, dialects=["tinymq"]) as rig:
        for _ in range(3):
            rig.broker.topic_or_new("t").publisher.publish([b""], [b"x" * MESSAGE_BYTES])
        await rig.until(lambda: rig.broker.topic("t").log.committed_id >= 2)
        silent = [
            await subscribe(rig, f"c{n}") if path == "websocket" else connect(rig, get(path.replace("{}", str(n))))
            for n in range(CONNECTIONS)
        ]
        quotas, most = rig.broker.quotas, 0
        await rig.until(lambda: quotas.held_bytes >= UNREAD_BYTES)
        for _ in range(60):
            await rig.publish("u", "y")
            most = max(most, quotas.held_bytes)
        assert most <= HELD_BYTES_MAX + LARGEST_ANSWER_BYTES
        assert len(await rig.lease("u")) == 1, "small messages still pass"
        for connection in silent:
            connection.close()
        await rig.until(lambda: quotas.held_bytes == 0)
        assert [(m["id"], m["attempt"]) for m in await rig.lease("t", consumer="reader")] == [(0, 1)], "it was not counted"


async def test_a_websocket_goes_on_when_others_have_read() -> None:
    async with listening(DIR, fs=SimDisk(random.Random(1)), max_held_bytes=HELD_BYTES_MAX) as rig:
        rig.broker.topic_or_new("t").publisher.publish([b""] * 3, [b"x" * MESSAGE_BYTES] * 3)
        silent = [await subscribe(rig, f"c{n}") for n in range(CONNECTIONS)]
        await rig.until(lambda: rig.broker.quotas.held_bytes > HELD_BYTES_MAX)
        waiting = await subscribe(rig, "c99")
        await rig.until(lambda: "c99" in rig.broker.topic("t").consumers)
        assert not rig.broker.topic("t").consumers["c99"].inflight
        for connection in silent:
            connection.close()
        await rig.until(lambda: rig.broker.topic("t").consumers["c99"].inflight)
        waiting.close()


@pytest.mark.parametrize(
    "path", ["/v1/topics/t/log?max=1000", "/consume/t?peek=true&limit=1000", "/v1/topics/t/messages?consumer=c&max=9"]
)
async def test_the_request_of_a_client_that_is_gone_is_not_answered(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: the bytes of such an answer counted for no limit: 800 clients that asked for 60 MB each and left took 5.5 GiB."""
    async with listening(DIR, fs=SimDisk(random.Random(1)), dialects=["tinymq"]) as rig:
        await rig.publish("t", *["x" * 1_000_000 for _ in range(8)])
        held: list[int] = []
        hold = Seat.hold

        def counted(seat: Seat, more_bytes: int) -> None:
            held.append(more_bytes)
            hold(seat, more_bytes)

        monkeypatch.setattr(Seat, "hold", counted)
        for _ in range(5):
            connect(rig, get(path)).close()
        for _ in range(500):
            await asyncio.sleep(0)
        assert sum(held) <= 5 * 2_000_000, "a slice each, and not all that was asked for"
        described = rig.broker.topic("t").describe()
        assert all(found["inflight"] == 0 for found in described["consumers"])


TOPICS = 2000


@pytest.mark.parametrize("path", ["/v1/topics", "/metrics", "/api/queues"])
async def test_what_tells_of_the_broker_counts_while_it_is_made(path: str) -> None:
    """Found: two hundred lists of a MB each were made at a time, and publishes were refused for lack of memory."""
    disk = SimDisk(random.Random(1))
    async with listening(DIR, fs=disk, max_held_bytes=1 << 20, dialects=["tinymq"]) as rig, asyncio.timeout(60):
        for number in range(TOPICS):
            rig.broker.topic_or_new(f"t{number}")
        silent = [connect(rig, get(path)) for _ in range(20)]
        quotas, most, answers = rig.broker.quotas, 0, [b""] * len(silent)
        before = rig.broker.metrics.errors.get("QUEUE_FULL", 0)
        while not all(answers):
            await asyncio.sleep(0)
            most = max(most, quotas.held_bytes)
            for place, connection in enumerate(silent):
                with contextlib.suppress(BlockingIOError):
                    answers[place] = answers[place] or connection.recv(12)
        refused = answers.count(b"HTTP/1.1 429")
        assert 0 < refused < 20
        assert rig.broker.metrics.errors["QUEUE_FULL"] - before == refused
        assert most <= (1 << 20) + TOPICS * OBJECT_BYTES, "more than a limit may be exceeded by one"
        for connection in silent:
            connection.close()
        await rig.until(lambda: quotas.held_bytes == 0)


async def test_a_watcher_gets_all_topics_when_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: each client of ``/v1/events`` that did not read held a list of all topics, and no limit was checked before it was
    made."""
    monkeypatch.setattr(answer_room, "LOOK_S", 0.0)
    async with listening(DIR, fs=SimDisk(random.Random(1)), max_held_bytes=1 << 20) as rig, asyncio.timeout(60):
        rig.broker.topic_or_new("t")
        other = rig.broker.quotas.enter(None)
        other.settle(2 << 20)
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
        writer.write(get("/v1/events"))
        head = await reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in head
        for _ in range(50):
            await asyncio.sleep(0)
        assert not reader._buffer  # type: ignore[attr-defined]
        other.settle(0)
        assert b"event: snapshot" in await reader.readuntil(b"\n\n")
        writer.close()


async def test_pages_and_answers_that_are_not_read_leave_no_room_for_more() -> None:
    async with listening(DIR, fs=SimDisk(random.Random(1)), max_held_bytes=1 << 20) as rig:
        other = rig.broker.quotas.enter(None)
        for path, status in (("/openapi.json", 200), ("/v1/broker", 200)):
            assert (await rig.ask("GET", path)).status_code == status
        other.settle(2 << 20)
        answer = await rig.ask("GET", "/openapi.json")
        assert (answer.status_code, answer.json()["code"]) == (429, "QUEUE_FULL")
        assert (await rig.ask("GET", "/v1/broker")).status_code == 200, "small ones always"
        assert (await rig.ask("GET", "/static/app.js")).status_code == 200
