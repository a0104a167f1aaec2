"""What is kept of a delivery that was written, in case the socket does not take all of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from toymq_py.topic.deliverer import ranges_of


class Taker(Protocol):
    """What they were leased through."""

    def unsend(self, first: int, last: int) -> None:
        """Return messages that never left the process, uncounted."""


@dataclass(frozen=True, slots=True)
class DeliveredIds:
    """The ids without the payloads, which an idle connection would hold until its next write: ``start`` to ``stop``."""

    subscription: Taker
    ids: Sequence[int]
    start: int
    stop: int

    def unsend(self, written: int = 0) -> None:
        """See ``Delivery.unsend``."""
        for first, last in ranges_of(self.ids[self.start + written : self.stop]):
            self.subscription.unsend(first, last)
