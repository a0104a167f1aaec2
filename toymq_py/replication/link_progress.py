"""The send queue of one follower, and the operations that it has yet to acknowledge.

``put`` is called on any thread, all other methods on the event loop.
"""

import threading
from collections.abc import Callable

from toymq_py.clock import Clock
from toymq_py.metrics import Histogram
from toymq_py.replication.operations import Beat, Copied, Operation, Sync, SyncDir
from toymq_py.replication.outbox import Outbox
from toymq_py.replication.stream import Frame

SYNCS = (Sync, SyncDir)
ACKNOWLEDGED = (*SYNCS, Beat, Copied)


class FollowerSink:
    """A ``Sink``: an ``Outbox`` that notes what a follower has to acknowledge: COPIED, and each later SYNC, SYNCDIR and BEAT.

    Bounded by the outbox, which all these pass: a follower that is behind by more than the outbox holds is dropped.
    """

    def __init__(self, wake: Callable[[], None], bytes_max: int, clock: Clock, sync_s: Histogram) -> None:
        """``wake`` and ``bytes_max``: as for ``Outbox``; ``sync_s``: a histogram of the time until a sync is acknowledged."""
        self.copying = True
        self.outbox = Outbox(wake, bytes_max)
        self.copied_seq: int | None = None
        """The seq of COPIED, once that was put."""
        self._clock = clock
        self._lock = threading.Lock()
        self._due: dict[int, tuple[int, float, bool]] = {}  # seq: bytes put before it, when it was put, whether a sync
        self._sync_s = sync_s
        self._moved_at = clock.monotonic()  # when the oldest that is due was acknowledged

    def put(self, operation: Operation, frame: Frame) -> None:
        """Queue an operation with its encoded frame, and note it if it has to be acknowledged (``Sink.put``)."""
        if not self.copying and isinstance(operation, ACKNOWLEDGED):
            with self._lock:
                if isinstance(operation, Copied):
                    self.copied_seq = operation.seq
                is_sync = isinstance(operation, SYNCS)
                self._due[operation.seq] = (self.outbox.put_bytes, self._clock.monotonic(), is_sync)
        self.outbox.put(operation, frame)

    def acknowledge(self, seq: int) -> float | None:
        """Note an acknowledgement. Returns: how many seconds the operation took; None if it was not awaited."""
        with self._lock:
            oldest = next(iter(self._due), None)
            due = self._due.pop(seq, None)
        if due is None:
            return None
        now = self._clock.monotonic()
        if seq == oldest:
            self._moved_at = now
        if due[2]:
            self._sync_s.observe(now - due[1])
        return now - due[1]

    def is_due_through(self, seq: int) -> bool:
        """Whether an operation up to ``seq`` still has to be acknowledged."""
        with self._lock:
            oldest = next(iter(self._due), None)
        return oldest is not None and oldest <= seq

    def stuck_s(self, now: float) -> float:
        """For how many seconds the oldest unacknowledged operation has been the oldest; 0 without one."""
        with self._lock:
            oldest = next(iter(self._due.values()), None)
        return 0.0 if oldest is None else now - max(oldest[1], self._moved_at)

    def lag(self, now: float) -> tuple[int, float]:
        """The bytes queued since the oldest unacknowledged operation, and the seconds since then; during a bulk copy, the bytes
        that wait in the queue."""
        with self._lock:
            oldest = next(iter(self._due.values()), None)
        if oldest is None:
            return (self.outbox.waiting_bytes if self.copying else 0), 0.0
        return self.outbox.put_bytes - oldest[0], now - oldest[1]
