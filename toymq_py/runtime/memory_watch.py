"""Watches the memory of the process: above its limit the broker refuses publishes; after connections have ended, heap is
trimmed."""

import asyncio
import logging
from collections.abc import Callable

from toymq_py.auth.quotas import Quotas
from toymq_py.runtime import heap_trimming

logger = logging.getLogger("toymq_py.broker")

MEMORY_PERIOD_S = 0.25
MEMORY_PERCENT = 80
"""Default limit, as a share of the memory of the machine or cgroup, to stay clear of the OOM killer."""
MEMORY_LOW_PERCENT = 90
"""Publishes are accepted again below this share of the limit."""


def default_max_bytes(processes: int = 1) -> int:
    """The memory limit of one of several processes that share the machine or cgroup."""
    return heap_trimming.available_bytes() * MEMORY_PERCENT // (100 * processes)


class MemoryWatch:
    """Sets ``Quotas.memory_high`` while the process is above its memory limit."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        quotas: Quotas,
        max_bytes: int,
        rss_bytes: Callable[[], int] = heap_trimming.rss_bytes,
        on_disconnects: Callable[[int, int], None] = lambda most, now: None,
    ) -> None:
        """
        Args:
            max_bytes: 0 stands for ``default_max_bytes``.
            on_disconnects: called when connections of any kind have ended, with the highest number of connections since the
                last look and the present number.
        """
        self._loop = loop
        self._quotas = quotas
        self.max_bytes = max_bytes or default_max_bytes()
        quotas.limit_memory(self.max_bytes)
        self._rss_bytes = rss_bytes
        self._on_disconnects = on_disconnects
        self._timer: asyncio.TimerHandle | None = None

    def look(self) -> None:
        """Compare the process's memory with its limit, now and every ``MEMORY_PERIOD_S`` until ``stop``."""
        rss_bytes, high = self._rss_bytes(), self._quotas.memory_high
        if high:
            heap_trimming.trim()
        if not high and rss_bytes > self.max_bytes:
            self._quotas.memory_high = True
            logger.error("memory is %d bytes, above --memory-max %d: publishes are refused", rss_bytes, self.max_bytes)
        elif high and rss_bytes < self.max_bytes * MEMORY_LOW_PERCENT // 100:
            self._quotas.memory_high = False
            logger.warning("memory is %d bytes: publishes are accepted again", rss_bytes)
        most, now = self._quotas.take_most_connections()
        if now < most:
            self._on_disconnects(most, now)
        self._timer = self._loop.call_later(MEMORY_PERIOD_S, self.look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
