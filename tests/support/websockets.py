"""Clients of the gateway's WebSockets: one that follows the protocol, and raw ones that read only when asked."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from tests.support.http_rig import HttpRig

HANDSHAKE = (
    b"GET /v1/topics/t/ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


class Frames:
    """One WebSocket connection; a test waits for an answer by its op or its ref."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def say(self, **frame: Any) -> None:
        await self.socket.send(json.dumps(frame))

    async def hear(self) -> dict[str, Any]:
        async with asyncio.timeout(10):
            frame: dict[str, Any] = json.loads(await self.socket.recv())
        return frame

    async def ask(self, **frame: Any) -> dict[str, Any]:
        await self.say(**frame)
        return await self.hear()


@asynccontextmanager
async def frames(rig: HttpRig, topic: str = "t", **more: Any) -> AsyncIterator[Frames]:
    async with connect(f"ws://127.0.0.1:{rig.port}/v1/topics/{topic}/ws", **more) as socket:
        yield Frames(socket)


def sessions(rig: HttpRig, topic: str = "t", consumer: str = "c") -> int:
    """Return how many sessions are attached to a consumer."""
    attached = rig.broker.topics[topic].channels.get(consumer)
    return 0 if attached is None else len(attached.sessions)


def frame_of(opcode: int, content: bytes) -> bytes:
    """Encode a WebSocket frame, masked with zeros."""
    length = bytes([0x80 | len(content)]) if len(content) < 126 else b"\xfe" + len(content).to_bytes(2, "big")
    return bytes([0x80 | opcode]) + length + bytes(4) + content


async def unread_websocket(port: int) -> asyncio.StreamWriter:
    """Open a WebSocket whose client has a small receive buffer and never reads."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=connection)
    writer.write(HANDSHAKE + b"\r\n")
    async with asyncio.timeout(10):
        assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
    return writer


async def silent_websocket(port: int) -> socket.socket:
    """Open a WebSocket whose client reads nothing until the test reads; only the kernel's buffer takes bytes."""
    loop = asyncio.get_running_loop()
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setblocking(False)
    await loop.sock_connect(connection, ("127.0.0.1", port))
    await loop.sock_sendall(connection, HANDSHAKE + b"\r\n")
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += await loop.sock_recv(connection, 1)
    return connection


async def rest_of(connection: socket.socket) -> list[dict[str, Any]]:
    """Return all complete frames that came."""
    data, found = b"", []
    async with asyncio.timeout(10):
        while piece := await asyncio.get_running_loop().sock_recv(connection, 1 << 20):
            data += piece
    while len(data) > 4:
        begin, length = (2, data[1]) if data[1] < 126 else (4, int.from_bytes(data[2:4], "big"))
        if data[0] == 0x81 and len(data) >= begin + length:
            found.append(json.loads(data[begin : begin + length]))
        data = data[begin + length :]
    return found
