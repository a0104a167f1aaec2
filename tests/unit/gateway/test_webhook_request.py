"""The POST of a webhook over a real connection: what is sent, and what is read of the answer."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.support.certificates import CERT, KEY, client_context
from tests.support.in_process import TIMEOUT_S
from toymq_py.config.webhooks import Target
from toymq_py.gateway.webhook_request import INTERIM_BYTES_MAX, LINE_BYTES_MAX, post

OK = b"HTTP/1.1 204 No Content\r\n\r\n"


class Receiver:
    """A server that answers each connection with the same bytes; ``heads`` has the requests."""

    def __init__(self, answer: bytes) -> None:
        self.port = 0
        self.heads: list[list[str]] = []
        self._answer = answer

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[:-2])
            writer.write(self._answer)
            await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def receiving(answer: bytes = OK, tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    receiver = Receiver(answer)
    async with await asyncio.start_server(receiver.handle, "127.0.0.1", 0, ssl=tls) as server, asyncio.timeout(TIMEOUT_S):
        receiver.port = server.sockets[0].getsockname()[1]
        yield receiver
        server.close()


async def ask(receiver: Receiver, path: str = "/", body: bytes = b"x", host: str = "example.org") -> int:
    return await post(Target.parse(f"http://{host}:{receiver.port}{path}"), "127.0.0.1", {"a": "b"}, body, None)


@pytest.mark.parametrize(
    ("path", "sent"),
    [("", "/"), ("/", "/"), ("/a%20b/c?d=e&f", "/a%20b/c?d=e&f"), ("?q", "/?q"), ('/{"x"}', "/%7B%22x%22%7D"),
     ("/a//b;c", "/a//b;c")],
)  # fmt: skip
async def test_the_request_is_that_of_the_url(path: str, sent: str) -> None:
    async with receiving() as receiver:
        assert await ask(receiver, path) == 204
    (head,) = receiver.heads
    assert head == [
        f"POST {sent} HTTP/1.1", f"host: example.org:{receiver.port}", "a: b", "content-length: 1", "connection: close",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("url", "host"),
    [("http://EXAMPLE.org:80/", "example.org"), ("https://example.org/", "example.org"), ("https://a:80/", "a:80"),
     ("http://[::1]:81", "[::1]:81")],
)  # fmt: skip
async def test_the_host_names_a_port_that_is_not_the_default(url: str, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = asyncio.open_connection
    async with receiving() as receiver:
        monkeypatch.setattr(asyncio, "open_connection", lambda *_args, **_more: connect("127.0.0.1", receiver.port))
        await post(Target.parse(url), "192.0.2.1", {}, b"", None)
    assert f"host: {host}" in receiver.heads[0]


@pytest.mark.parametrize("part", [b"HTTP/1.1 103 E\r\nLink: x\r\n\r\n", b"HTTP/1.1 100 Continue\r\n" + b"a: b\r\n" * 99])
async def test_interim_answers_have_an_end(part: bytes) -> None:
    """Found: endless 1xx answers kept the broker busy until the timeout, and again with each attempt: others' publishes took 3
    s."""
    async with receiving(part * (2 * INTERIM_BYTES_MAX // len(part))) as receiver:
        with pytest.raises(ConnectionError, match=r"example.org sent more than 65536 bytes of interim answers \(1xx\)"):
            await ask(receiver)


async def test_interim_answers_are_skipped() -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    async with receiving(interim + b"HTTP/1.0 410\r\n\r\n") as receiver:
        assert await ask(receiver) == 410


async def test_an_answer_before_the_body_was_read_counts() -> None:
    """A server that refuses a request by its head does not read the body, which is larger than the sockets' buffers."""
    async with receiving(b"HTTP/1.1 413 Too Large\r\n\r\n") as receiver:
        assert await ask(receiver, body=bytes(16 << 20)) == 413


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"", "example.org closed the connection without an HTTP status"),
        (b"HTTP/1.1 100 Continue\r\n", "without an HTTP status"),
        (b"SSH-2.0-x\r\n", "does not speak HTTP/1.1"),
        (b"HTTP/2 200\r\n\r\n", "does not speak HTTP/1.1"),
        (b"HTTP/1.1 2000 OK\r\n\r\n", "does not speak HTTP/1.1"),
        (b"HTTP/1.1 200 " + b"x" * 3 * LINE_BYTES_MAX, f"a line of more than {LINE_BYTES_MAX} bytes"),
        (b"HTTP/1.1 103 X\r\nLink: " + b"x" * 3 * LINE_BYTES_MAX, f"a line of more than {LINE_BYTES_MAX} bytes"),
    ],
)
async def test_what_is_not_http_is_an_error_that_says_so(answer: bytes, said: str) -> None:
    async with receiving(answer) as receiver:
        with pytest.raises(ConnectionError, match=said):
            await ask(receiver)


async def test_the_certificate_must_be_for_the_host_of_the_url() -> None:
    """The broker connects to an address, but TLS checks the host name of the URL."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(CERT, KEY)
    async with receiving(tls=tls) as receiver:

        async def push(host: str) -> int:
            return await post(Target.parse(f"https://{host}:{receiver.port}/"), "127.0.0.1", {}, b"x", client_context())

        assert await push("localhost") == 204
        with pytest.raises(ssl.SSLCertVerificationError, match=r"example\.org"):
            await push("example.org")
