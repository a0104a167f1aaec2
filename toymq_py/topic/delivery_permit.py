"""The permit to deliver: until when no other machine can lead this broker's group.

Contract: replication.md, section 5; ADR 0119. Belongs to the event loop. Without a cluster it never ends.
"""

from collections.abc import Callable
from math import inf

from toymq_py.callbacks import call_all


class DeliveryPermit:
    """The time until which a broker may deliver; all its channels share it."""

    __slots__ = ("_waiting", "until_s")

    def __init__(self) -> None:
        self.until_s = inf
        """The monotonic time at which deliveries stop, redeliveries included."""
        self._waiting: dict[Callable[[], None], None] = {}  # one of each channel

    def wait(self, call: Callable[[], None]) -> None:
        """Call ``call`` once, when the permit is next extended, even if ``wait`` was called with it several times."""
        self._waiting[call] = None

    def extend(self, until_s: float) -> None:
        """Set the end of the permit, and call the waiting functions; each checks the time itself."""
        self.until_s = until_s
        if self._waiting:
            waiting, self._waiting = list(self._waiting), {}
            call_all(waiting)
