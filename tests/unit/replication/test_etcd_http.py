"""HTTP/1.1 answers of etcd: whole and in chunks, split anywhere; too long, malformed or truncated ones are errors."""

import asyncio
import tracemalloc
from collections.abc import Awaitable, Callable

import pytest

from tests.support.fake_etcd import always, chunk, chunked, fake_etcd, silent, whole
from toymq_py.replication.etcd_http import ANSWER_BYTES_MAX, HEAD_BYTES_MAX, Answer, HttpConnection, HttpError
from toymq_py.replication.etcd_members import parse_endpoint

OK = b"HTTP/1.1 200 OK\r\n"


async def answered(*pieces: bytes, ended: bool = True) -> tuple[int, bytes]:
    """Return status and body of an answer that arrives in pieces."""

    async def respond(_: str, __: object, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0)
        if ended:
            writer.close()

    async with fake_etcd(respond) as fake, asyncio.timeout(10):
        connection = await HttpConnection.open(parse_endpoint(fake.url), None)
        try:
            answer = await connection.post("/a", b"{}")
            return answer.status, await answer.content()
        finally:
            connection.close()


async def read(data: bytes, use: Callable[[Answer], Awaitable[object]], step: int) -> object:
    """Return the result of ``use`` for an answer that arrives in pieces of ``step`` bytes, each only when more is waited
    for."""
    reader = asyncio.StreamReader(limit=HEAD_BYTES_MAX)
    connection = HttpConnection(parse_endpoint("http://e1:2379"), reader, _Nowhere())  # type: ignore[arg-type]
    loop = asyncio.get_running_loop()

    def feed(at: int) -> None:
        if at < len(data):
            reader.feed_data(data[at : at + step])
            loop.call_soon(loop.call_soon, feed, at + step)
        else:
            reader.feed_eof()

    loop.call_soon(feed, 0)
    return await use(await connection.post("/a", b""))


class _Nowhere:
    def write(self, data: bytes) -> None:
        pass

    async def drain(self) -> None:
        pass


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
async def test_an_answer_is_the_same_however_it_is_cut(step: int) -> None:
    assert await read(whole({"a": "b"}), Answer.content, step) == b'{"a": "b"}'
    assert await read(chunked({"a": 1}, {"b": 2}), Answer.content, step) == b'{"a": 1}\n{"b": 2}\n'


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
async def test_lines_of_an_endless_answer(step: int) -> None:
    """Chunks and lines are independent: a line may span chunks, and a chunk may hold several lines."""
    data = OK + b'Transfer-Encoding: chunked\r\n\r\n4\r\n{"a"\r\nC;x=y\r\n:1}\n\n{"b":2}\r\n1\r\n\n\r\n0\r\n\r\n'

    async def lines(answer: Answer) -> list[bytes | None]:
        return [await answer.line() for _ in range(4)]

    assert await read(data, lines, step) == [b'{"a":1}', b'{"b":2}', None, None]


@pytest.mark.parametrize("cut", range(len(chunked({"a": 1}, {"b": 2}))))
async def test_an_answer_that_ends_early_is_an_error(cut: int) -> None:
    with pytest.raises(HttpError, match="ended within"):
        await read(chunked({"a": 1}, {"b": 2})[:cut], Answer.content, 1000)


@pytest.mark.parametrize("cut", [0, 5, 40, len(whole({"a": 1})) - 1])
async def test_a_whole_answer_that_ends_early_is_an_error(cut: int) -> None:
    with pytest.raises(HttpError, match="ended within"):
        await read(whole({"a": 1})[:cut], Answer.content, 1000)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"toymq 5.0\r\n\r\n", "no HTTP status"),
        (b"HTTP/2 200\r\n\r\n", "no HTTP status"),
        (b"HTTP/1.1 100 Continue\r\n\r\n", "no HTTP status"),
        (OK + b"\r\n", "without a length"),
        (OK + b"Content-Length: -1\r\n\r\n", "without a length"),
        (OK + b"Content-Length: 1_0\r\n\r\n", "without a length"),
        (OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", "two lengths"),
        (OK + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", "unknown coding"),
        (OK + b"Transfer-Encoding: gzip\r\n\r\n", "unknown coding"),
        (OK + b"no colon\r\n\r\n", "headers"),
        (OK + b"a: b\r\n" * 4000 + b"\r\n", "headers that are too long"),
        (OK + b"a: " + b"b" * 40_000 + b"\r\n\r\n", "a line of more than 16384"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n", "a chunk without a length"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n", "a chunk without a length"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n", "longer than its length"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"a: b\r\n" * 4000, "headers that are too long"),
    ],
)
async def test_what_is_not_an_answer_is_an_error(data: bytes, words: str) -> None:
    with pytest.raises(HttpError, match=words):
        await read(data, Answer.content, 100_000)


@pytest.mark.parametrize(
    "claim",
    [
        OK + b"Content-Length: 1073741824\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n40000000\r\n",
    ],
)
async def test_a_length_of_1_gib_is_an_error_before_it_is_allocated(claim: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(HttpError, match="1073741824 bytes, more than 1048576"):
            await read(claim, Answer.content, 1000)
        assert tracemalloc.get_traced_memory()[1] < ANSWER_BYTES_MAX
    finally:
        tracemalloc.stop()


async def test_chunks_without_end_are_an_error() -> None:
    part = b"%x\r\n%b\r\n" % (1 << 16, b"x" * (1 << 16))
    data = OK + b"Transfer-Encoding: chunked\r\n\r\n" + part * 17
    with pytest.raises(HttpError, match="an answer of more than 1048576 bytes"):
        await read(data, Answer.content, len(data))
    with pytest.raises(HttpError, match="a line of more than 1048576 bytes"):
        await read(data, Answer.line, len(data))


async def test_a_cancelled_line_loses_nothing() -> None:
    """The wait may be cancelled any number of times, and the bytes split anywhere."""
    data = chunked({"a": 1}, {"b": 2}, end=b"") + chunk({"c": 3}) + b"0\r\n\r\n"
    reader = asyncio.StreamReader(limit=HEAD_BYTES_MAX)
    head, _, body = data.partition(b"\r\n\r\n")
    reader.feed_data(head + b"\r\n\r\n")
    answer = await HttpConnection(parse_endpoint("http://e1"), reader, _Nowhere()).post("/a", b"")  # type: ignore[arg-type]
    lines: list[bytes | None] = []
    for byte in body:
        reader.feed_data(bytes([byte]))
        task = asyncio.ensure_future(answer.line())
        for _ in range(3):
            await asyncio.sleep(0)
        if task.done():
            lines.append(task.result())
        task.cancel()
        await asyncio.wait([task])
    assert [line for line in lines if line is not None] == [b'{"a": 1}', b'{"b": 2}', b'{"c": 3}']
    assert lines[-1] is None


async def test_over_a_real_connection() -> None:
    assert await answered(whole({"a": "b"}, 503)) == (503, b'{"a": "b"}')
    assert await answered(OK, b"Transfer-Encoding: chunked\r\n", b"\r\n", b"1\r", b"\nx\r\n0\r\n\r\n") == (200, b"x")


async def test_a_connection_is_usable_until_the_other_end_closes_it() -> None:
    async with fake_etcd(always(whole({}), then_close=True)) as fake, asyncio.timeout(10):
        connection = await HttpConnection.open(parse_endpoint(fake.url), None)
        assert connection.usable
        assert await (await connection.post("/a", b"{}")).content() == b"{}"
        while connection.usable:  # noqa: ASYNC110 (nothing tells of it)
            await asyncio.sleep(0.001)
        connection.close()


async def test_close_ends_what_is_under_way() -> None:
    async with fake_etcd(silent) as fake, asyncio.timeout(10):
        connection = await HttpConnection.open(parse_endpoint(fake.url), None)
        waiting = asyncio.ensure_future(connection.post("/a", b"{}"))
        await fake.was_asked.wait()
        connection.close()
        with pytest.raises(OSError, match="ended within"):
            await waiting
