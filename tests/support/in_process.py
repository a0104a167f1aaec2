"""The real broker and server on the test's own event loop, which is fast, and included in coverage."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from toymq_py.broker import Broker
from toymq_py.clock import SystemClock
from toymq_py.config.options import BrokerOptions
from toymq_py.runtime.broker_loop import LoopScheduler
from toymq_py.runtime.heap_trimming import rss_bytes
from toymq_py.server import Server
from toymq_py.storage.fs import RealFileSystem

TIMEOUT_S = 60


class AsyncWire:
    """A connection that sends bytes and reads lines."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def line(self) -> bytes:
        async with asyncio.timeout(TIMEOUT_S):
            return (await self.reader.readline()).removesuffix(b"\n")

    async def read(self, count: int) -> bytes:
        async with asyncio.timeout(TIMEOUT_S):
            return await self.reader.readexactly(count)

    async def rest(self) -> bytes:
        """Read everything up to the end of the stream."""
        async with asyncio.timeout(TIMEOUT_S):
            return await self.reader.read()

    async def ask(self, data: bytes) -> bytes:
        self.send(data)
        return await self.line()

    async def message(self) -> tuple[int, int, bytes]:
        """Read the next line, which must be a MSG, as (id, attempt, body)."""
        line = await self.line()
        tokens = line.split(b" ")
        assert tokens[0] == b"MSG", f"a delivery was expected, not {line!r}"
        return int(tokens[2]), int(tokens[3]), (await self.read(int(tokens[6]) + 1))[:-1]

    async def body(self, line: bytes) -> bytes:
        """Read the body that a JSON or BATCH line announces."""
        return (await self.read(int(line.split(b" ")[-1]) + 1))[:-1]

    async def nothing_before_pong(self) -> None:
        answer = await self.ask(b"PING\n")
        assert answer == b"PONG", f"nothing was expected, {answer!r} came"

    async def close(self) -> None:
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()


class InProcess:
    """A served broker. ``broker`` and ``server`` are the real objects."""

    def __init__(self, broker: Broker, server: Server, port: int) -> None:
        self.broker = broker
        self.server = server
        self.port = port
        self.tls_port = 0
        self._wires: list[AsyncWire] = []

    async def connect(self, tls: ssl.SSLContext | None = None) -> AsyncWire:
        """Connect; with ``tls`` to the TLS port."""
        port = self.port if tls is None else self.tls_port
        wire = AsyncWire(*await asyncio.open_connection("127.0.0.1", port, ssl=tls))
        self._wires.append(wire)
        return wire

    async def close_connections(self) -> None:
        for wire in self._wires:
            await wire.close()


@asynccontextmanager
async def serving(data_dir: Path | str, **options: Any) -> AsyncIterator[InProcess]:
    """Serve a broker on a free port, and shut it down gracefully at the end. Options: ``fs`` replaces the file system,
    ``authority`` makes tokens required, ``certificates`` adds TLS, ``tracer`` traces messages."""
    loop = asyncio.get_running_loop()
    fs = options.pop("fs", None) or RealFileSystem()
    tracer = options.pop("tracer", None)
    authority, certificates = options.pop("authority", None), options.pop("certificates", None)
    defaults = BrokerOptions(data_dir=str(data_dir), min_free_bytes=0, shutdown_timeout_ms=200)
    scheduler = LoopScheduler(loop)
    clock = SystemClock()
    broker = Broker(
        replace(defaults, **options), fs=fs, scheduler=scheduler, clock=clock,
        rss_bytes=rss_bytes, tasks=lambda: len(asyncio.all_tasks(loop)), tracer=tracer,
    )  # fmt: skip
    listeners = Server.bind("127.0.0.1", 0)
    tls_listeners = Server.bind("127.0.0.1", 0) if certificates is not None else []
    broker.open(1)
    server = Server(broker, clock, loop, authority=authority, certificates=certificates)
    served = InProcess(broker, server, listeners[0].getsockname()[1])
    served.tls_port = tls_listeners[0].getsockname()[1] if tls_listeners else 0
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(server.run(listeners, tls_listeners))
        await asyncio.sleep(0)  # it listens now
        try:
            yield served
        finally:
            await served.close_connections()
            server.stop()
            await running
            scheduler.close(drop_waiting=broker.shutting_down)
            broker.close()
