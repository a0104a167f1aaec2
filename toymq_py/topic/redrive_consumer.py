"""The consumer ``#redrive`` of a dead-letter topic: it acks the letters that were redriven.

Contract: delivery.md, "Attempts" (REDRIVE); ADR 0023. Belongs to the event loop.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from toymq_py.clock import Clock
from toymq_py.consumer import Consumer
from toymq_py.records import IdRange
from toymq_py.storage.log import Log
from toymq_py.storage.offsets import OffsetsState

REDRIVER = "#redrive"
"""The consumer's name, which no client can use."""
RANGES_MAX = 1000
"""Most ranges that DESCRIBE shows."""


class RedriveConsumer:
    """Tracks which letters of a dead-letter topic went back, as acks of the consumer ``#redrive``."""

    def __init__(self, log: Log, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self.consumers: list[Consumer] = []
        """The consumer, once there was a REDRIVE; stored with the others, and none of those that clients know."""
        self.total = 0
        """The number of messages that went back since the start of the broker."""

    def consumer(self) -> Consumer:
        """The consumer ``#redrive``; it is made if it does not exist."""
        if not self.consumers:
            consumer = Consumer(REDRIVER, start=self._log.first_id, since_ns=self._clock.wall_ns())
            for first, last in self._log.lost:
                consumer.skip(first, last)
            self.consumers.append(consumer)
        return self.consumers[0]

    def ack(self, ids: Sequence[int]) -> int:
        """Mark letters as redriven. Returns: how many were not before."""
        consumer = self.consumer()
        before = consumer.unacked(self._log.committed_id)
        for msg_id in ids:
            consumer.skip(msg_id, msg_id)
        return before - consumer.unacked(self._log.committed_id)

    def discard(self, ids: Sequence[IdRange]) -> int:
        """Settle dead letters that are to be dropped: they neither wait nor go back. Ids that are not retained are left out.
        Returns: how many were unsettled."""
        consumer, log = self.consumer(), self._log
        before = consumer.unacked(log.committed_id)
        for first, last in ids:
            first, last = max(first, log.first_id), min(last, log.committed_id - 1)
            if first <= last:
                consumer.skip(first, last)
        return before - consumer.unacked(log.committed_id)

    def has_acked(self, msg_id: int) -> bool:
        """Whether this dead letter was redriven or discarded."""
        return any(consumer.has_acked_all(msg_id, msg_id) for consumer in self.consumers)

    def waiting(self) -> int:
        """How many retained letters were not redriven."""
        waiting = self._log.messages()
        for consumer in self.consumers:
            waiting = min(waiting, consumer.unacked(self._log.committed_id) - consumer.unacked(self._log.first_id))
        return waiting

    def describe(self) -> dict[str, Any]:
        """Fields for DESCRIBE: the first id ranges of retained letters that were redriven, the number redriven since the start,
        and the number that wait (``letters``)."""
        first_id = self._log.first_id
        acked = self.consumers[0].snapshot().acked_above if self.consumers else ()
        ranges = [(max(first, first_id), last) for first, last in acked if last >= first_id]
        return {"letters": self.waiting(), "redriven": ranges[:RANGES_MAX], "redriven_total": self.total}

    def pinning(self, stored: OffsetsState, consumers: list[Consumer]) -> tuple[OffsetsState, list[Consumer]]:
        """The consumers whose missing acks keep segments: their state on disk, and as they are now. ``#redrive`` counts only if
        there are no other consumers."""
        if not self.consumers:
            return stored, consumers
        others = {name: raw for name, raw in stored.consumers.items() if name != REDRIVER}
        return replace(stored, consumers=others or stored.consumers), consumers or self.consumers
