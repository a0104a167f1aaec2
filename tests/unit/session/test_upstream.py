"""The connection of a session to another worker, over real sockets."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from toymq_py.session import upstream
from toymq_py.session.upstream import Upstream


class Far:
    """The worker's end."""

    def __init__(self) -> None:
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter
        self.there = asyncio.Event()


@asynccontextmanager
async def connected(
    path: Path, *, answers: bool = True, stands_still: Callable[[], object] = lambda: False
) -> AsyncIterator[tuple[Upstream, Far, asyncio.Queue[list[bytes] | None]]]:  # fmt: skip
    far, came = Far(), asyncio.Queue[list[bytes] | None]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far.reader, far.writer = reader, writer
        far.there.set()

    server = await asyncio.start_unix_server(serve, path / "s")
    loop, lost = asyncio.get_running_loop(), lambda: came.put_nowait(None)
    link = Upstream(str(path / "s"), loop, came.put_nowait, lost, stands_still=stands_still)
    await far.there.wait()
    if answers:
        assert await far.reader.readline() == b"PING\n"
        far.writer.write(b"PONG\n")
        while not link.reached:  # noqa: ASYNC110 (of a socket)
            await asyncio.sleep(0)
    try:
        yield link, far, came
    finally:
        link.close()
        far.writer.close()
        server.close()


async def test_bytes_go_there_and_frames_come_back(tmp_path: Path) -> None:
    async with connected(tmp_path) as (link, far, came):
        big = b"x" * 3_000_000
        link.send([b"PUB t - 3000000\n", big, b"\n"])
        link.send([b"PING\n"])
        assert await far.reader.readexactly(3_000_000 + 22) == b"PUB t - 3000000\n" + big + b"\nPING\n"
        far.writer.write(b"OK 1\nPO")
        assert await came.get() == [b"OK 1\n"]
        far.writer.write(b"NG\n")
        assert await came.get() == [b"PONG\n"]
        link.finish()
        assert await far.reader.read() == b""
        far.writer.write(b"OK 2\n")
        assert await came.get() == [b"OK 2\n"], "its answers come all the same"


async def test_paused_nothing_is_read(tmp_path: Path) -> None:
    async with connected(tmp_path) as (link, far, came):
        link.pause()
        far.writer.write(b"OK 1\n")
        await far.writer.drain()
        for _ in range(3):
            await asyncio.sleep(0)
        assert came.empty()
        link.resume()
        assert await came.get() == [b"OK 1\n"]


async def test_nothing_is_sent_before_the_worker_has_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel keeps bytes sent to a worker that is not up, and the worker would execute them after the sender gave up."""
    async with connected(tmp_path, answers=False) as (link, far, came):
        link.pause()
        link.send([b"PUB t - 1\nx\n"])
        link.finish()
        assert await far.reader.readexactly(5) == b"PING\n"
        assert not link.reached
        far.writer.write(b"PONG\n")
        assert await far.reader.read() == b"PUB t - 1\nx\n"
        assert link.reached
        assert came.empty(), "the answer to the greeting is not passed on"
    monkeypatch.setattr(upstream, "REACH_S", 0.0)
    async with connected(tmp_path, answers=False) as (link, far, came):
        link.send([b"PUB t - 1\nx\n"])
        assert await came.get() is None
        assert not link.reached
        assert await far.reader.read() in (b"PING\n", b"")


async def test_one_that_is_found_to_stand_still_is_waited_for_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """Found: each session waited 20 s for the worker, and later commands of its client, too. A worker that has answered is
    kept."""
    monkeypatch.setattr(upstream, "LOOK_AT_BEATS_S", 0.0)
    found = iter((False, False, True))
    async with connected(tmp_path, answers=False, stands_still=lambda: next(found)) as (link, far, came):
        link.send([b"PUB t - 1\nx\n"])
        async with asyncio.timeout(upstream.REACH_S / 2):
            assert await came.get() is None
        assert await far.reader.read() in (b"PING\n", b"")
        assert next(found, "all were used") == "all were used"
    still = False
    async with connected(tmp_path, stands_still=lambda: still) as (link, far, came):
        still = True
        link.send([b"PUB t - 1\nx\n"])
        assert await far.reader.readexactly(12) == b"PUB t - 1\nx\n"
        assert came.empty()


@pytest.mark.parametrize("last", [b"", b"MSG t x y z - q\n"])
async def test_its_end_is_told_once(tmp_path: Path, last: bytes) -> None:
    async with connected(tmp_path) as (link, far, came):
        far.writer.write(b"OK 1\n")
        assert await came.get() == [b"OK 1\n"]
        if last:
            far.writer.write(last)
        else:
            far.writer.close()
        assert await came.get() is None
        link.send([b"PING\n"])
        link.close()
        assert came.empty()


async def test_a_worker_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        Upstream(str(tmp_path / "s"), asyncio.get_running_loop(), lambda frames: None, lambda: None)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "s"))
        with pytest.raises(OSError, match="refused"):
            Upstream(str(tmp_path / "s"), asyncio.get_running_loop(), lambda frames: None, lambda: None)
