"""Memory that connections held is freed with them, without a cyclic collection of Python: a few large bodies do not start
one."""

import asyncio
import base64
import gc
import random
import struct
from collections.abc import Iterator

import pytest

from tests.support.http_rig import HttpRig, listening
from tests.support.sim_disk import SimDisk
from toymq_py.errors import BadArgument

MIB = 1 << 20
UPGRADE = (
    b"GET /v1/topics/t/ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + base64.b64encode(bytes(16)) + b"\r\n\r\n"
)
BATCH = (
    b"POST /v1/topics/t/messages:batch HTTP/1.1\r\nHost: localhost\r\nContent-Length: 16000000\r\n"
    b"Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n\r\n"
)


@pytest.fixture(autouse=True)
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def held_bytes() -> int:
    """Return the size of all large blocks that the collector knows, without those from before the first test."""
    large = {}
    for holder in gc.get_objects():
        for block in gc.get_referents(holder):
            if isinstance(block, bytes | bytearray) and len(block) >= MIB // 4:
                large[id(block)] = len(block)
    return sum(large.values())


async def say(rig: HttpRig, head: bytes, body: bytes) -> None:
    """Send a request, wait until it was read or refused, and disconnect."""
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
    writer.write(head)
    if head is UPGRADE:
        await reader.readuntil(b"\r\n\r\n")
    writer.write(body)
    await writer.drain()
    writer.close()
    del body
    await rig.until(lambda: not rig.broker.quotas.take_most_connections()[1])
    for _ in range(100):
        await asyncio.sleep(0)  # the tasks of the connection end


@pytest.mark.parametrize("first", [b"\x81", b"\x01"], ids=["frame", "fragment"])
async def test_a_websocket_that_ends_within_a_message_leaves_nothing(first: bytes) -> None:
    async with listening("/data/d", fs=SimDisk(random.Random(1))) as rig:
        for size in (3 * MIB, 2 * MIB):  # the second one is whole where it is a fragment
            before = held_bytes()
            await say(rig, UPGRADE, first + b"\xff" + struct.pack(">Q", size) + bytes(4) + bytes(2 * MIB))
            assert held_bytes() - before < MIB


@pytest.mark.parametrize("limit", [256 * MIB, 2 * MIB], ids=["cut off", "refused"])
async def test_a_body_that_does_not_end_leaves_nothing(limit: int) -> None:
    """Found: a refused body stayed alive in the traceback of its refusal: with --memory-max, publishes were refused for
    good."""
    async with listening("/data/d", fs=SimDisk(random.Random(1)), max_held_bytes=limit) as rig:
        before = held_bytes()
        await say(rig, BATCH, bytes(4 * MIB))
        assert held_bytes() - before < MIB


@pytest.mark.parametrize(
    "line", [b'{"key":1}', b"x", b'{"payload":"a","delay_ms":-1}', b'{"payload_base64":"!"}', b'{"payload":"\\ud800"}']
)
async def test_a_batch_of_bad_lines_leaves_nothing(line: bytes) -> None:
    """Found: each refusal was kept by the frames of its traceback, and these by the list of refusals: a batch of one MiB held
    140 MiB until a full collection, which hardly ever comes."""
    async with listening("/data/d", fs=SimDisk(random.Random(1))) as rig:
        body = (line + b"\n") * 300
        head = (
            b"POST /v1/topics/t/messages:batch HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            b"Content-Type: application/x-ndjson\r\nContent-Length: %d\r\n\r\n" % len(body)
        )
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
        writer.write(head + body)
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 422 ")
        assert answer.count(b"BAD_ARGUMENT") > 300
        writer.close()
        for _ in range(100):
            await asyncio.sleep(0)  # the tasks of the connection end
        assert sum(isinstance(each, BadArgument) for each in gc.get_objects()) < 5
