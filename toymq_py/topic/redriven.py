"""What went back from a dead-letter topic, and whom that is for where it came from.

Contract: delivery.md, "Attempts" (REDRIVE); ADR 0023. Belongs to the event loop.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from toymq_py.clock import Clock
from toymq_py.consumer import Consumer
from toymq_py.model import Records
from toymq_py.storage.log import Log
from toymq_py.storage.offsets import OffsetsState
from toymq_py.topic.moving import REDRIVE_CONSUMER, REDRIVE_KEY, split_headers

REDRIVER = "#redrive"
"""Name of the consumer that has acked what went back; no client can name it."""
RANGES_MAX = 1000
"""Shown by DESCRIBE."""


class Redriven:
    """The letters of one topic that went back: those that its consumer ``#redrive`` has acked."""

    def __init__(self, log: Log, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self.consumers: list[Consumer] = []
        """That consumer, once there was a REDRIVE; stored with the others, and none of those that clients know."""
        self.total = 0
        """How many went back since the start of the broker."""

    def consumer(self) -> Consumer:
        if not self.consumers:
            consumer = Consumer(REDRIVER, start=self._log.first_id, since_ns=self._clock.wall_ns())
            for first, last in self._log.lost:
                consumer.skip(first, last)
            self.consumers.append(consumer)
        return self.consumers[0]

    def add(self, ids: Sequence[int]) -> int:
        """Returns: how many are new."""
        consumer = self.consumer()
        before = consumer.unacked(self._log.committed_id)
        for msg_id in ids:
            consumer.skip(msg_id, msg_id)
        return before - consumer.unacked(self._log.committed_id)

    def has(self, msg_id: int) -> bool:
        """Whether this letter went back."""
        return any(consumer.has_acked_all(msg_id, msg_id) for consumer in self.consumers)

    def describe(self) -> dict[str, Any]:
        """For DESCRIBE: the first id ranges of retained letters that went back, and how many did since the start."""
        first_id = self._log.first_id
        acked = self.consumers[0].snapshot().acked_above if self.consumers else ()
        ranges = [(max(first, first_id), last) for first, last in acked if last >= first_id]
        return {"redriven": ranges[:RANGES_MAX], "redriven_total": self.total}

    def pinning(self, stored: OffsetsState, consumers: list[Consumer]) -> tuple[OffsetsState, list[Consumer]]:
        """Which of the consumers hold segments back, as stored and now: ``#redrive`` only where there is no other."""
        if not self.consumers:
            return stored, consumers
        others = {name: raw for name, raw in stored.consumers.items() if name != REDRIVER}
        return replace(stored, consumers=others or stored.consumers), consumers or self.consumers


def for_consumer(records: Records, start: int, stop: int, name: bytes) -> tuple[int, int]:
    """Which rows of a run a consumer is to see: records that came back for another one count as acked for it.

    Returns: (first row that is for it, row after the last of those that follow it and are, too); (stop, stop) for none.
    """
    assert records.headers is not None
    first = -1
    for row in range(start, stop):
        if _is_for(records.keys[row], records.headers[row], name):
            if first < 0:
                first = row
        elif first >= 0:
            return first, row
    return (first, stop) if first >= 0 else (stop, stop)


def _is_for(key: bytes, block: bytes, name: bytes) -> bool:
    if not key.startswith(REDRIVE_KEY):
        return True
    _, ours = split_headers(block)
    return ours.get(REDRIVE_CONSUMER, name) == name
