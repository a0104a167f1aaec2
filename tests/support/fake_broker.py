"""A server that follows a script, one coroutine a connection, on the test's own event loop."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

GREETING = b"HELLO 1 server=fake/1 max_payload=2097152\n"
TIMEOUT_S = 60


class Peer:
    """The broker's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def line(self) -> str:
        async with asyncio.timeout(TIMEOUT_S):
            return (await self._reader.readline()).decode().removesuffix("\n")

    async def expect(self, *lines: str) -> None:
        for expected in lines:
            said = await self.line()
            assert said == expected, f"the client was to say {expected!r}, not {said!r}"

    async def greet(self, greeting: bytes = GREETING) -> None:
        assert (await self.line()).startswith("HELLO 1")
        self.say(greeting)

    def say(self, data: bytes) -> None:
        self._writer.write(data)

    def reset(self) -> None:
        """Reset the connection."""
        self._writer.transport.abort()

    async def gone(self) -> None:
        """Wait until the client has left, or sent QUIT."""
        async with asyncio.timeout(TIMEOUT_S):
            try:
                while (line := await self._reader.readline()) and line != b"QUIT\n":
                    pass
            except ConnectionResetError:
                pass


Script = Callable[[Peer], Awaitable[None]]


@asynccontextmanager
async def following(*scripts: Script, beyond: Script | None = None) -> AsyncIterator[str]:
    """Serve connections by scripts: the nth connection follows the nth script, later ones ``beyond``; without it no more may
    come. Raises: what a script raised.

    Yields: ``host:port``.
    """
    waiting = list(scripts)
    failures: list[BaseException] = []
    running: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        try:
            script = waiting.pop(0) if waiting else beyond
            assert script is not None, "a connection came that was not expected"
            await script(Peer(reader, writer))
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 (raised below, in the test's own task)
            failures.append(error)
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        if running:
            await asyncio.wait(running, timeout=TIMEOUT_S)
    for failure in failures:
        raise failure
    assert not waiting, f"{len(waiting)} connections were expected and did not come"
