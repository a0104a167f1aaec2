"""What the broker counts: plain integers, no third party, nothing on the hot path but an addition.

Every metric stands once in ``TABLE`` with its unit and help; exporters are adapters elsewhere.
"""

from collections import deque

TABLE: dict[str, tuple[str, str]] = {
    "publish_total": ("messages", "Publishes that were answered OK."),
    "duplicate_total": ("messages", "Publishes that were answered DUP."),
    "deliver_total": ("messages", "Deliveries that were handed to a session."),
    "redeliver_total": ("messages", "Deliveries with an attempt above 1."),
    "ack_total": ("messages", "Messages acked, each once per consumer."),
    "nack_total": ("messages", "Messages given back by NACK."),
    "fsync_total": ("commits", "Commits that were synced."),
    "connections": ("sessions", "Open connections."),
    "connections_total": ("sessions", "Connections accepted since the start."),
    "torn_total": ("sessions", "Connections that ended inside a frame."),
    "error_total": ("replies", "ERR replies since the start."),
}
"""Name to (unit, help)."""

FSYNC_SAMPLES = 1024


class Metrics:
    """The counters, as attributes named in ``TABLE``. Belongs to the event loop."""

    __slots__ = (*TABLE, "_fsync_s")

    publish_total: int
    duplicate_total: int
    deliver_total: int
    redeliver_total: int
    ack_total: int
    nack_total: int
    fsync_total: int
    connections: int
    connections_total: int
    torn_total: int
    error_total: int

    def __init__(self) -> None:
        for name in TABLE:
            setattr(self, name, 0)
        self._fsync_s: deque[float] = deque(maxlen=FSYNC_SAMPLES)

    def synced(self, seconds: float) -> None:
        """A commit reached stable storage, ``seconds`` after it was handed to the disk."""
        self.fsync_total += 1
        self._fsync_s.append(seconds)

    def fsync_p99_s(self) -> float:
        """99th percentile over the newest commits, in seconds; 0 before the first."""
        samples = sorted(self._fsync_s)
        return samples[(len(samples) - 1) * 99 // 100] if samples else 0.0
