"""A timer that can be set again: a new time replaces the old one."""

import asyncio
from collections.abc import Callable


class Deadline:
    """Calls a function at a set time; holds one pending call at most. Belongs to the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    def set(self, delay_s: float, call: Callable[[], None]) -> None:
        """Make the call in ``delay_s`` seconds; it replaces a pending one."""
        self.cancel()
        self._timer = self._loop.call_later(delay_s, call)

    def cancel(self) -> None:
        """Cancel the timer. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
