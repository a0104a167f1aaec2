"""A fake etcd server that answers as a test says: whole, in pieces, wrongly, late, or not at all."""

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

CLUSTER_ID = "324952591200643719"

Respond = Callable[[str, dict[str, Any], asyncio.StreamWriter], Awaitable[None]]


def header(revision: int = 5, cluster_id: str = CLUSTER_ID) -> dict[str, str]:
    return {"cluster_id": cluster_id, "member_id": "1", "revision": str(revision), "raft_term": "2"}


def whole(value: object, status: int = 200) -> bytes:
    """Encode an HTTP answer with a length."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return b"HTTP/1.1 %d Some Words\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


def chunk(value: object) -> bytes:
    """Encode a line of an endless answer."""
    body = json.dumps(value).encode() + b"\n"
    return b"%x\r\n%b\r\n" % (len(body), body)


def chunked(*values: object, end: bytes = b"0\r\nGrpc-Trailer-Content-Type: application/grpc\r\n\r\n") -> bytes:
    """Encode an HTTP answer in chunks, one for each value; without ``end`` the answer goes on."""
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"".join(map(chunk, values)) + end


def key_value(key: str, value: object, revision: int = 5) -> dict[str, str]:
    encoded = b64encode(json.dumps(value).encode()).decode()
    return {
        "key": b64encode(key.encode()).decode(), "value": encoded,
        "create_revision": str(revision), "mod_revision": str(revision), "version": "1",
    }  # fmt: skip


def done(revision: int = 6, changes: int = 1) -> dict[str, Any]:
    return {"header": header(revision), "succeeded": True, "responses": [{"response_put": {}}] * changes}


@dataclass
class FakeEtcd:
    """What clients asked. ``asked``: paths and bodies of all requests, in order; ``connections``: how many were made."""

    url: str
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    was_asked: asyncio.Event = field(default_factory=asyncio.Event)
    connections: int = 0

    def count(self, path: str) -> int:
        return sum(asked == path for asked, _ in self.asked)


def always(answer: bytes, *, then_close: bool = False) -> Respond:
    """Return a responder that answers each request with the same bytes."""

    async def respond(_: str, __: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        if then_close:
            writer.close()

    return respond


def in_turn(*answers: bytes) -> Respond:
    """Return a responder that answers each request with the next bytes, and all later ones with the last bytes."""
    left = list(answers)

    async def respond(_: str, __: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(left.pop(0) if len(left) > 1 else left[0])

    return respond


async def silent(_: str, __: dict[str, Any], ___: asyncio.StreamWriter) -> None:
    """A responder that answers nothing."""


async def closing(_: str, __: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    """A responder that closes the connection instead of answering."""
    writer.close()


@asynccontextmanager
async def fake_etcd(respond: Respond) -> AsyncIterator[FakeEtcd]:
    """Serve as one member of etcd."""
    serving: dict[asyncio.StreamWriter, asyncio.Event] = {}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        fake.connections += 1
        ended = serving[writer] = asyncio.Event()
        try:
            while not writer.is_closing():
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                length = next(int(line.split(":")[1]) for line in head if line.startswith("content-length:"))
                path, body = head[0].split()[1], json.loads(await reader.readexactly(length))
                fake.asked.append((path, body))
                fake.was_asked.set()
                await respond(path, body, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()
            ended.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        fake = FakeEtcd(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        yield fake
        server.close()
        for writer, ended in serving.items():
            writer.transport.abort()
            await ended.wait()
