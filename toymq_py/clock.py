"""The only reader of time.

All other modules take a ``Clock``, so that tests and the simulation can jump in time instead of sleeping.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """The monotonic clock and the wall clock, which must not be mixed (contract: delivery.md, "Clocks")."""

    def wall_ns(self) -> int:
        """Nanoseconds since the epoch, which may jump. For time stamps of records, and compared with ``deliver_at``."""

    def monotonic(self) -> float:
        """Seconds of the event loop's clock, which never goes back; for visibility timeouts, backoff and waits."""


class SystemClock:
    """The machine's clocks."""

    wall_ns = staticmethod(time.time_ns)
    monotonic = staticmethod(time.monotonic)
