"""A connection in virtual time."""

import asyncio
from collections.abc import Callable

from tests.support.sim_event_loop import SimEventLoop


class Pipe:
    """One direction of a connection, with the part of ``StreamWriter``'s interface that moves of topics use."""

    def __init__(self, loop: SimEventLoop, reader: asyncio.StreamReader) -> None:
        self._loop = loop
        self._reader = reader
        self._at = loop.now
        self.closed = False
        self.other: Pipe | None = None
        self.transport = self

    def write(self, data: bytes) -> None:
        if not self.closed:
            self._later(self._reader.feed_data, bytes(data))

    def writelines(self, parts: list[bytes]) -> None:
        self.write(b"".join(parts))

    async def drain(self) -> None:
        await asyncio.sleep(0)
        if self.closed:
            raise ConnectionResetError("the connection is gone")

    def abort(self) -> None:
        """Close both directions."""
        for pipe in (self, self.other):
            if pipe is not None and not pipe.closed:
                pipe.closed = True
                pipe._later(pipe._reader.feed_eof)

    def _later(self, call: Callable[..., None], *args: bytes) -> None:
        self._at = max(self._at, self._loop.now + self._loop.rng.choice((0.0, 0.0002, 0.002)))
        self._loop.call_at(self._at, call, *args)
