"""Server-sent events of a topic, and of the broker."""

import asyncio
import json
import random
from collections.abc import AsyncIterator

from starlette.types import Message

from tests.support.http_rig import listening
from tests.support.sim_disk import SimDisk
from toymq_py.clock import SystemClock
from toymq_py.gateway.events import stream_response
from toymq_py.gateway.turns import TURNS, Step, Turns
from toymq_py.net.fair_queue import FairQueue

DIR = "/data/d"


def disk() -> SimDisk:
    return SimDisk(random.Random(1))


async def test_a_stream_goes_on_where_it_was() -> None:
    async with listening(DIR, fs=disk()) as rig:
        await rig.publish("t", "a", "b", "c")
        async with rig.client.stream("GET", "/v1/topics/t/stream", headers={"Last-Event-ID": "0"}) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            events = stream.aiter_lines()
            seen: list[str] = []
            published = False
            async for line in events:
                if line.startswith("id: "):
                    seen.append(line)
                elif line.startswith("data: "):
                    seen.append(json.loads(line[6:])["payload"])
                if len(seen) == 4 and not published:
                    await rig.publish("t", "d")
                    published = True
                if len(seen) == 6:
                    break
        assert seen == ["id: 1", "b", "id: 2", "c", "id: 3", "d"]


async def test_snapshots_then_what_changed() -> None:
    async with listening(DIR, fs=disk()) as rig:
        await rig.publish("t", "a")
        await rig.publish("u", "a")
        async with rig.client.stream("GET", "/v1/events") as stream:
            lines = stream.aiter_lines()
            names = []
            async for line in lines:
                if line.startswith("event: "):
                    names.append(line[7:])
                elif line.startswith("data: "):
                    found = json.loads(line[6:])
                    if names == ["snapshot"]:
                        assert [topic["topic"] for topic in found["topics"]] == ["t", "u"]
                        await rig.publish("u", "b")
                    else:
                        assert [(topic["topic"], topic["messages"]) for topic in found["topics"]] == [("u", 2)]
                        break
        assert names == ["snapshot", "change"]


async def test_a_shutdown_ends_streams_and_answers_what_was_asked() -> None:
    async with listening(DIR, fs=disk()) as rig:
        await rig.publish("t", "a")
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
        async with asyncio.timeout(10):
            writer.write(b"GET /v1/topics/t/stream?from=earliest HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await reader.readuntil(b"data: ")
            rig.stop()
            assert (await reader.read()).endswith(b"0\r\n\r\n"), "the stream was ended, not cut"
        writer.close()


async def test_a_stream_goes_on_in_turns() -> None:
    """Found: two thousand streams opened at once each read and encoded their log outside of any share of the loop."""
    loop, steps, told = asyncio.get_running_loop(), list[str](), list[Message]()

    class Counted(Turns):
        def take(self, step: Step) -> None:
            steps.append("turn")
            super().take(step)

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(3):
            steps.append("piece")
            yield b"x"
            await asyncio.sleep(0)

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        told.append(message)

    scope = {"type": "http", "asgi": {"spec_version": "2.3"}, TURNS: Counted(FairQueue(SystemClock(), loop), loop)}
    await stream_response(pieces())(scope, receive, send)
    assert steps == ["turn", "piece"] * 3 + ["turn"]
    assert [message["type"].rpartition(".")[2] for message in told] == ["start", *["body"] * 4]
