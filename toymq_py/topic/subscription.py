"""A session's hold on one consumer of one topic, and what it is handed."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from toymq_py.consumer import Consumer
from toymq_py.model import Records

if TYPE_CHECKING:
    from toymq_py.topic.topic import Topic


class Registration(Enum):
    """Whether a consumer is on the disk when it subscribes (ADR 0009)."""

    KNOWN = "it was there before"
    NEW = "made at the first id: its SUB waits for the flush, but a disk that refuses it does not refuse the SUB"
    NEW_AHEAD = "made above the first id: without the flush a restart would bring back what it skips"


@dataclass(frozen=True, slots=True)
class Delivery:
    """Leased records: rows ``start`` to ``stop`` of a run, all at the same attempt."""

    records: Records
    start: int
    stop: int
    attempt: int
    size: int
    """Payload bytes, about."""

    @property
    def first_id(self) -> int:
        return self.records.ids[self.start]

    @property
    def last_id(self) -> int:
        return self.records.ids[self.stop - 1]


class Subscription:
    """A session's hold on one consumer of one topic. It is itself the owner of its leases.

    ``wake`` is called when there may be something to take; ``ended`` with a CLOSED code when the topic ends it. After
    ``close`` or ``ended`` it takes nothing and does nothing.
    """

    __slots__ = ("closed", "consumer", "ended", "last_sent", "paused", "topic", "visibility_s", "wake", "window")

    def __init__(
        self,
        topic: "Topic",
        consumer: Consumer,
        *,
        window: int,
        visibility_s: float | None,
        wake: Callable[["Subscription"], None],
        ended: Callable[["Subscription", str], None],
    ) -> None:
        self.topic = topic
        self.consumer = consumer
        self.window = window
        self.visibility_s = visibility_s
        self.wake = wake
        self.ended = ended
        self.closed = False
        self.paused = False
        """Its session holds its deliveries (PAUSE)."""
        self.last_sent = -1
        """The highest id that was delivered through this subscription."""

    def take(self, max_bytes: int) -> Delivery | None:
        """Lease what comes next, redeliveries first; None when there is nothing or the window is full.

        Raises: OSError when the log cannot be read.
        """
        return None if self.closed else self.topic.take(self, max_bytes)

    def unsend(self, first: int, last: int) -> None:
        """A delivery that never left our buffer: it goes back uncounted."""
        if not self.closed:
            self.consumer.unsend(self, first, last)

    def close(self) -> None:
        """The session lets go: its inflight is ready again at once. Idempotent."""
        if not self.closed:
            self.closed = True
            self.topic.detach(self)
