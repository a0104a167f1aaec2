"""A web server that webhooks and alerts are sent to."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class Receiver:
    """A web server that records what is pushed, and answers as it is told."""

    def __init__(self) -> None:
        self.port = 0
        self.cookie = ""
        self.answer: Callable[[int], int] = lambda number: 200
        self.pushes: asyncio.Queue[tuple[dict[str, str], bytes]] = asyncio.Queue()
        self.connections: list[set[str]] = []
        """The names that each was asked by."""
        self._number = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.append(asked := set())
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode():
                lines = head.split("\r\n")
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:] if line)}
                asked.add(headers["host"].partition(":")[0])
                body = await reader.readexactly(int(headers["content-length"]))
                status = self.answer(self._number)
                self._number += 1
                location = "Location: http://169.254.169.254/\r\n" if status == 302 else ""
                writer.write(f"HTTP/1.1 {status} X\r\n{location}{self.cookie}Content-Length: 0\r\n\r\n".encode())
                self.pushes.put_nowait((headers, body))
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()

    async def next(self) -> tuple[dict[str, str], bytes]:
        async with asyncio.timeout(10):
            return await self.pushes.get()


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    async with await asyncio.start_server(receiver.handle, "127.0.0.1", 0) as server:
        receiver.port = server.sockets[0].getsockname()[1]
        yield receiver
        server.close()
