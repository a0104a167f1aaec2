"""The send buffer of an AMQP connection: counts and keeps the frames that its socket has not taken.

Contract: amqp.md, "Limits". Belongs to the event loop.
"""

import asyncio
from collections.abc import Callable

from toymq_py.callbacks import call_all
from toymq_py.clock import Clock

OUT_BYTES = 256 * 1024
"""With so many bytes of frames that wait for the socket, no further method is applied."""


class Outbox:
    """Frames that wait for the socket, and the calls to make once it has taken them."""

    def __init__(self, clock: Clock) -> None:
        self.transport: asyncio.Transport
        self.last_write = clock.monotonic()
        self._clock = clock
        self.held_bytes = 0
        """Bytes of frames that wait here."""
        self.stalled = False
        """Whether the socket is full. Frames wait here meanwhile: the transport would hold any number of them."""
        self._frames: list[bytes] = []
        self._when_taken: list[Callable[[None], object]] = []

    def __bool__(self) -> bool:
        return bool(self._frames)

    @property
    def full(self) -> bool:
        return self.held_bytes > OUT_BYTES

    def add(self, *frames: bytes) -> None:
        self._frames += frames
        self.held_bytes += sum(map(len, frames))

    def when_taken(self, call: Callable[[None], object]) -> None:
        """Call ``call(None)`` once the socket has taken all frames added so far."""
        self._when_taken.append(call)

    def flush(self) -> bool:
        """Give the frames to the socket if it has room. Returns: whether there were any."""
        if self.stalled:
            return False
        written = self.write_all()
        if not self.stalled:
            self._taken()
        return written

    def write_all(self) -> bool:
        """Write all frames to the transport even if the socket is full: the last ones. Returns: whether there were any."""
        if not self._frames:
            return False
        data, self._frames, self.held_bytes = b"".join(self._frames), [], 0
        self.last_write = self._clock.monotonic()
        self.transport.write(data)
        return True

    def stall(self, stalled: bool) -> None:
        """Note that the socket is full, or has taken everything."""
        self.stalled = stalled
        if not stalled and not self._frames:
            self._taken()

    def _taken(self) -> None:
        if self._when_taken:
            calls, self._when_taken = self._when_taken, []
            call_all(calls, None)
