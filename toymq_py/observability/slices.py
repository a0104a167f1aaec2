"""Time slices for a walk over the broker's state, so that it does not hold the event loop."""

import asyncio

from toymq_py.clock import Clock

SLICE_S = 0.004
"""About how long a walk blocks the event loop at a time: a fifth of the longest time allowed (performance.md)."""


class Slices:
    """Yields to the event loop when a time slice is used up."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._end = clock.monotonic() + SLICE_S

    async def turn(self) -> None:
        """Let other tasks run if the current time slice is used up."""
        if self._clock.monotonic() >= self._end:
            await asyncio.sleep(0)
            self._end = self._clock.monotonic() + SLICE_S
