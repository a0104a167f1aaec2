"""A fake broker of two workers, one of which is lost for good: from then on the other one has its topic."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_ANSWERS = {b"HELLO": b"HELLO 1 server=x/1 max_payload=99 workers=1 lease=1\n", b"CLUSTER": b"JSON 2\n{}\n"}


class LostWorker:
    """At first worker 1 has the topic, and delivers message 0. It is lost at the first ACK, or by ``lose``; then worker 0 has
    the topic, and delivers message 1."""

    def __init__(self) -> None:
        self.touched = asyncio.Event()
        """Worker 0 got a TOUCH."""
        self.acks: list[str] = []
        """The ids of the ACKs that worker 0 got."""
        self._servers: list[asyncio.Server] = []
        self._wires: list[asyncio.StreamWriter] = []  # of worker 1
        self._lost = False

    async def start(self) -> str:
        """Start to listen. Returns: the URL of worker 0."""
        self._servers = [await asyncio.start_server(serve, "127.0.0.1", 0) for serve in (self._serve_0, self._serve_1)]
        return f"toymq://127.0.0.1:{self._port(0)}"

    def _port(self, worker: int) -> int:
        return int(self._servers[worker].sockets[0].getsockname()[1])

    async def _serve_0(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            match line.split():
                case [b"SUB" | b"PULL" as word, *_]:
                    writer.write(_delivering(word, 1) if self._lost else b"ERR MOVED 127.0.0.1:%d has it\n" % self._port(1))
                    continue
                case [b"ACK", _, _, ids, *_]:
                    self.acks.append(ids.decode())
                case [b"TOUCH", *_]:
                    self.touched.set()
            writer.write(_ANSWERS.get(line.split()[0], b"OK 0\n"))
        writer.close()

    async def _serve_1(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._wires.append(writer)
        while (line := await reader.readline()) and not line.startswith(b"ACK"):
            word = line.split()[0]
            writer.write(_delivering(word, 0) if word in (b"SUB", b"PULL") else _ANSWERS.get(word, b"OK 0\n"))
        if line:
            self.lose()
        writer.close()

    def lose(self) -> None:
        """Lose worker 1: nothing listens at its address any more."""
        self._lost = True
        self._servers[1].close()
        for wire in self._wires:
            wire.transport.abort()

    def close(self) -> None:
        for server in self._servers:
            server.close()


def _delivering(word: bytes, msg_id: int) -> bytes:
    """Encode the answer to a SUB or PULL, with one delivery."""
    message = b"MSG t %d 1 1781767800000000000 - 1\nx\n" % msg_id
    return b"OK 0\n" + message if word == b"SUB" else message + b"OK 1\n"


@asynccontextmanager
async def losing_a_worker() -> AsyncIterator[tuple[LostWorker, str]]:
    broker = LostWorker()
    try:
        yield broker, await broker.start()
    finally:
        broker.close()
