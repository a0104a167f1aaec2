"""Trailer fields behind the last chunk of a body are parsed, bounded and dropped. The rest:
tests/unit/gateway/test_http_server.py."""

import asyncio
import random
from contextlib import suppress

import pytest

from tests.support.http_exchange import CODED, exchange, problem_of
from tests.support.http_rig import listening
from tests.support.sim_disk import SimDisk
from tests.support.tokens import EVERYTHING, authority, token
from toymq_py.gateway.http_heads import TRAILER_BYTES_MAX

DIR = "/data/d"


def disk() -> SimDisk:
    return SimDisk(random.Random(1))


async def test_a_trailer_is_no_header() -> None:
    """Found by a trial: ``Authorization`` in a trailer was obeyed, and ``X-Header-*`` stored."""
    async with listening(DIR, fs=disk(), authority=authority(EVERYTHING)) as rig:
        trailer = b"Authorization: Bearer %b\r\nX-Header-Color: red\r\n" % token("all").encode()
        sent = CODED.replace(b"0\r\n\r\n", b"0\r\n" + trailer + b"\r\n") % b"chunked"
        assert b" 401 " in await exchange(rig.port, sent, until_closed=False)
        sent = sent.replace(b"\r\nTransfer", b"\r\nAuthorization: Bearer %b\r\nTransfer" % token("all").encode())
        assert b" 201 " in await exchange(rig.port, sent, until_closed=False)
        (run, row, _) = rig.broker.topic("t").log.read(0, 1, 1000)
        assert run is not None
        assert run.headers is None or run.headers[row] == b""


async def test_of_an_answered_body_chunk_extensions_are_not_read_for_ever() -> None:
    """Found: only the bytes of the body were counted: a MiB of it, in chunks of one byte with an extension each, is
    gigabytes."""
    async with listening(DIR, fs=disk()) as rig, asyncio.timeout(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
        writer.write(b"POST /v1/nothing HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert b" 404 " in await reader.readuntil(b"}")
        sent = 0
        with suppress(OSError):
            while not reader.at_eof() and sent < 50_000_000:
                writer.write((b"1;e=" + b"y" * 1000 + b"\r\nx\r\n") * 64)
                sent += 64 * 1009
                await writer.drain()
        assert sent < 20_000_000, "what the sockets hold, and a MiB"
        writer.close()


@pytest.mark.parametrize(
    "endless", [b"0\r\n" + b"x: y\r\n" * 200_000, b"0\r\nx: " + b"y" * 1_000_000, b"1;e=" + b"y" * 1_000_000]
)
async def test_trailers_and_chunk_extensions_are_bounded(endless: bytes) -> None:
    """Found by a trial: 16 MiB of them, without a token, took 400 MiB of memory."""
    async with listening(DIR, fs=disk()) as rig:
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
        async with asyncio.timeout(10):
            writer.write(CODED[: CODED.index(b"1\r\nx")] % b"chunked" + endless)
            answer = await reader.readuntil(b"}")
        writer.close()
        assert problem_of(answer) == (431, "LINE_TOO_LONG")
        assert not rig.broker.topics
        assert b" 201 " in await exchange(rig.port, CODED.replace(b"1\r\nx", b"1;e=1\r\nx") % b"chunked", until_closed=False)


@pytest.mark.parametrize(("over", "status"), [(0, b" 201 "), (1, b" 431 ")])
@pytest.mark.parametrize("fields", [1, 2, 7])
async def test_trailers_have_eight_kib_and_no_byte_more(fields: int, over: int, status: bytes) -> None:
    """Found by a trial: 9,000 bytes of trailers were accepted and kept."""
    sizes = [TRAILER_BYTES_MAX // fields] * (fields - 1)
    sizes.append(TRAILER_BYTES_MAX + over - sum(sizes))
    trailers = b"".join(b"x: " + b"y" * (size - 1) + b"\r\n" for size in sizes)
    async with listening(DIR, fs=disk()) as rig:
        sent = CODED.replace(b"0\r\n\r\n", b"0\r\n" + trailers + b"\r\n") % b"chunked"
        assert status in await exchange(rig.port, sent, until_closed=bool(over))
        assert bool(rig.broker.topics) is not bool(over)
