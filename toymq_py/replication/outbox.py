"""The send queue of one follower: frames of many operations are sent together.

Contract: replication.md, section 4, "Order" and "Flow". Holds references to the written bytes, not copies.
"""

import threading
from collections import deque
from collections.abc import Callable

from toymq_py.replication.operations import Beat, Bye, Copied, Data, Operation, Sync, SyncDir
from toymq_py.replication.stream import Frame

WAKE_BYTES = 1 << 20
"""With so many bytes the sender is woken although nothing waits for them yet."""
WAITED_FOR = (Sync, SyncDir, Beat, Copied, Bye)
"""Operations that something waits for. A tuple: ``isinstance`` of a union takes several times as long, and this is asked for
each operation."""
PARTS_MAX = 1023
"""Most buffers of one ``sendmsg``: below IOV_MAX of Linux and macOS by the one that was sent in part."""

PARTS_OF_A_FRAME = 3


class Outbox:
    """A ``Sink``. Wakes its owner for an operation that must be acknowledged (a sync, a sign of life) and for each MiB, not for
    each operation: a write is sent with the sync behind it. It wakes once until everything was taken, so that operations of
    several threads in one pass of the event loop are sent together.

    Holds at most ``bytes_max``. Beyond that it drops everything, is ``overflowed`` for good, and wakes its owner: a follower
    that misses one operation has to join again.
    """

    def __init__(self, wake: Callable[[], None], bytes_max: int, *, copying: bool = False) -> None:
        """
        Args:
            wake: called on any thread, under the stream's lock: neither blocks nor raises (``call_soon_threadsafe``).
            bytes_max: ``--replicate-buffer``.
            copying: as ``Sink.copying``.
        """
        self.copying = copying
        self.overflowed = False
        self.waiting_bytes = 0
        """Bytes that were put and not taken."""
        self.put_bytes = 0
        """All bytes that were ever put."""
        self._wake = wake
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._frames: deque[Frame] = deque()
        self._awake = False

    def put(self, operation: Operation, frame: Frame) -> None:
        """Queue an operation's encoded frame (``Sink.put``)."""
        with self._lock:
            if self.overflowed:
                return
            head, data, end = frame
            size = len(head) + len(data) + len(end)
            self.put_bytes += size
            self.waiting_bytes += size
            if self.waiting_bytes > self._bytes_max:
                self.overflowed = True
                self._frames.clear()
                self.waiting_bytes = 0
            else:
                self._frames.append(frame)
            if not self.overflowed and (
                self._awake or (self.waiting_bytes < WAKE_BYTES and not isinstance(operation, WAITED_FOR))
            ):
                return
            self._awake = True
        self._wake()

    def take(self, bytes_max: int = WAKE_BYTES) -> list[Data]:
        """Take the buffers of the next frames for one ``sendmsg``, in order; [] when all were taken. At most ``PARTS_MAX``
        buffers, and about ``bytes_max`` bytes. Only whole frames, since the owner may send a piece of the bulk copy between
        two calls. Belongs to one thread."""
        taken: list[Data] = []
        size = 0
        with self._lock:
            while self._frames and len(taken) <= PARTS_MAX - PARTS_OF_A_FRAME and size < bytes_max:
                head, data, end = self._frames.popleft()
                taken += (head, data, end) if data else (head, end)
                size += len(head) + len(data) + len(end)
            self.waiting_bytes -= size
            if not taken:
                self._awake = False
        return taken
