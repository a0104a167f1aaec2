"""Detects a blocked event loop: a coroutine that blocks stops all others, and the renewal of leases with them."""

import asyncio
import logging
from collections.abc import Sequence

logger = logging.getLogger("toymq.workers")
LOOK_S = 1.0
HELD_S = 5.0
"""The time for which the loop may be held. A lease of 30 s, the default, is renewed each 10 s: code that holds the loop for
longer than half of that will end leases."""


class LoopWatch:
    """Logs a warning when its timer fires late. ``names``: of the coroutine functions in this loop, one of which blocked it."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        due = self._loop.time() + LOOK_S
        self._timer = self._loop.call_at(due, self.look, due)

    def stop(self) -> None:
        """Stop watching. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def look(self, due: float) -> None:
        """Compare the time with ``due``, at which the timer should have called this."""
        if (held_s := self._loop.time() - due) >= HELD_S and self._names:
            logger.warning(
                "the event loop was held for %.0f s: a call in %s blocks. Leases end meanwhile, and jobs run twice: write `def`"
                " in place of `async def`, or `await asyncio.to_thread(…)`", held_s, " or ".join(self._names),
            )  # fmt: skip
        self.start()
