"""The ids of a written delivery, kept in case the socket does not take all of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from toymq_py.topic.deliverer import ranges_of


class Taker(Protocol):
    """The subscription or poll that leased the messages."""

    def unsend(self, first: int, last: int) -> None:
        """Return messages that never left the process, uncounted."""


@dataclass(frozen=True, slots=True)
class DeliveredIds:
    """The ids of a written delivery, rows ``start`` to ``stop``. Its payloads are not kept: an idle connection would hold them
    until its next write."""

    subscription: Taker
    ids: Sequence[int]
    start: int
    stop: int

    def unsend(self, written: int = 0) -> None:
        """Return all but the first ``written`` messages uncounted; see ``Delivery.unsend``."""
        for first, last in ranges_of(self.ids[self.start + written : self.stop]):
            self.subscription.unsend(first, last)
