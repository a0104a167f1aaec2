"""The order of a leader's changes: numbers operations and puts them into the queues of the followers.

Contract: replication.md, section 4, "Order"; ADR 0098. Thread-safe: one lock around "number and enqueue".
"""

import threading
from collections.abc import Callable
from typing import Protocol

from toymq_py.replication.operations import (
    PIECE_BYTES,
    Beat,
    Bye,
    Copied,
    Data,
    Operation,
    Rename,
    Sync,
    SyncDir,
    Write,
    encode,
)
from toymq_py.replication.tickets import Tickets

Frame = tuple[bytes, Data, bytes]


class Sink(Protocol):
    """The interface of a follower's send queue.

    ``copying``: the follower has not redone its spool after a bulk copy, so it may have a renamed file under the old name, the
    new one, both or neither. Set before ``Stream.attach``, and only ever cleared.
    """

    copying: bool

    def put(self, operation: Operation, frame: Frame) -> None:
        """Take the next operation and its encoded frame. Called on any thread, under the stream's lock, in the order of
        ``seq``: neither blocks nor raises."""


class Stream:
    """Numbers the changes of the leader's disk: 1, 2, 3, … for as long as it leads, whether there are followers or not."""

    def __init__(self, tickets: Tickets) -> None:
        self._tickets = tickets
        self._lock = threading.Lock()
        self._sinks: list[Sink] = []
        self._last = 0
        self._begun: set[int] = set()  # numbered, and not done on this disk yet
        self._waiting: list[tuple[int, Callable[[], None]]] = []

    @property
    def last(self) -> int:
        """The highest number given so far."""
        return self._last

    # -- followers, on the loop

    def attach(self, sink: Sink) -> int:
        """Send all operations from now on to a follower. Returns: the last seq before them, s₀ of the join.

        A bulk copy may begin once ``is_done`` is true for that seq: a write that was numbered before, but is not done, is
        neither in the stream nor in the files.
        """
        with self._lock:
            self._sinks.append(sink)
            return self._last

    def detach(self, sink: Sink) -> None:
        """Stop sending to a follower. No error when it is not attached."""
        with self._lock:
            self._sinks = [each for each in self._sinks if each is not sink]

    def end_copy(self, sink: Sink) -> int:
        """Tell a follower that its bulk copy is complete: send COPIED after all operations so far. Returns: the seq of COPIED,
        which is that of the last operation before."""
        with self._lock:
            sink.copying = False
            operation = Copied(self._last)
            sink.put(operation, encode(operation))
            return self._last

    def is_done(self, seq: int) -> bool:
        """Whether all operations numbered up to ``seq`` are done on this disk."""
        return all(number > seq for number in self._begun.copy())

    def when_done(self, seq: int, call: Callable[[], None]) -> None:
        """Call a function when ``is_done`` is true for ``seq``; at once if it is.

        Args:
            call: called on any thread; neither blocks nor raises.
        """
        with self._lock:
            self._waiting.append((seq, call))
        self._call_waiting()

    def _call_waiting(self) -> None:
        with self._lock:
            done = [each for each in self._waiting if self.is_done(each[0])]
            self._waiting = [each for each in self._waiting if each not in done]
        for _, call in done:
            call()

    def beat(self, wall_ns: int, synced: int) -> int:
        """Send a sign of life (``Beat``). Returns: its seq."""
        with self._lock:
            return self._put(Beat, wall_ns, synced)

    def bye(self) -> int:
        """Send BYE: the leader ends its term. Returns: its seq."""
        with self._lock:
            return self._put(Bye)

    # -- changes, on any thread

    def begin(self, kind: Callable[..., Operation], *fields: object) -> int:
        """Number an operation that is about to be done on this disk. Returns: its seq, for ``end``."""
        with self._lock:
            seq = self._put(kind, *fields)
            self._begun.add(seq)
            return seq

    def begin_sync(self, kind: type[Sync] | type[SyncDir], path: str) -> int:
        """Number and send a sync, as ``begin`` does, and let the job of this thread wait for its acknowledgements."""
        with self._lock:
            self._tickets.expect(self._last + 1)
            seq = self._put(kind, path)
            self._begun.add(seq)
            return seq

    def begin_write(self, path: str, offset: int, data: Data) -> int:
        """Number and send a write, in pieces, as ``begin`` does. Returns: the first piece's seq, for ``end``."""
        with self._lock:
            first = self._last + 1
            if len(data) <= PIECE_BYTES:
                self._put(Write, path, offset, data)
            else:
                view = memoryview(data)
                for at in range(0, len(view), PIECE_BYTES):
                    self._put(Write, path, offset + at, view[at : at + PIECE_BYTES])
            self._begun.add(first)
            return first

    def end(self, seq: int) -> None:
        """Note that an operation numbered by ``begin`` is done on this disk, or has failed."""
        self._begun.discard(seq)
        if self._waiting:
            self._call_waiting()

    def put(self, kind: Callable[..., Operation], *fields: object) -> None:
        """Number an operation that is already done on this disk."""
        with self._lock:
            self._put(kind, *fields)

    def put_rename(self, path: str, to: str) -> bool:
        """Number and send the rename of a file, unless a follower is copying. Returns: whether it was sent."""
        with self._lock:
            if any(sink.copying for sink in self._sinks):
                return False
            self._put(Rename, path, to)
            return True

    def _put(self, kind: Callable[..., Operation], *fields: object) -> int:
        self._last = seq = self._last + 1
        if self._sinks:
            operation = kind(seq, *fields)
            frame = encode(operation)
            for sink in self._sinks:
                sink.put(operation, frame)
        return seq
