"""The only reader of time.

Everything else takes a ``Clock``, so that tests and the simulation jump time instead of sleeping.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """The monotonic clock and the wall clock, which must not be mixed (contract: delivery.md, "Clocks")."""

    def wall_ns(self) -> int:
        """Nanoseconds since the epoch. May jump; stamps records and is compared with ``deliver_at``."""

    def monotonic(self) -> float:
        """Seconds of the event loop's clock, which never go back; for visibility timeouts, backoff and waits."""


class SystemClock:
    """The machine's clocks."""

    wall_ns = staticmethod(time.time_ns)
    monotonic = staticmethod(time.monotonic)
