"""What one commit stands for: the records that go to one segment with one sync, and what became of them.

Contract: storage.md, "Append and group commit"; ADR 0002. Belongs to the event loop; knows no file and no thread.
"""

from collections.abc import Callable, Sequence
from enum import Enum

from toymq_py.errors import RequestError
from toymq_py.storage.segment import INDEX_INTERVAL_BYTES

RUN_ROWS_MAX = 1024
"""Rows of one run in the tail, so that encoding it for subscribers never holds the loop for long."""


class CommitState(Enum):
    PENDING = "waiting for the disk"
    DONE = "on stable storage"
    FAILED = "refused"


class Commit:
    """The outcome of one batch; every publish in it waits for this one object."""

    __slots__ = ("_waiters", "error", "state")

    def __init__(self) -> None:
        self.state = CommitState.PENDING
        self.error: RequestError | None = None
        self._waiters: list[Callable[[], None]] = []

    def add_waiter(self, call: Callable[[], None]) -> None:
        """Have ``call`` called when the state changes; at once when it has."""
        if self.state is CommitState.PENDING:
            self._waiters.append(call)
        else:
            call()

    def resolve(self, error: RequestError | None) -> None:
        self.error = error
        self.state = CommitState.DONE if error is None else CommitState.FAILED
        waiters, self._waiters = self._waiters, []
        for call in waiters:
            call()


COMMITTED = Commit()
"""For what is on stable storage already."""
COMMITTED.resolve(None)


class Batch:
    """Filled by the committer until a sync thread takes it. ``roll``: it begins a new segment."""

    __slots__ = ("attributes", "commit", "first_id", "index", "keyed", "keys", "last_ts_ns", "next_id",
                 "pieces", "roll", "rows", "rows_next_id", "size")  # fmt: skip

    def __init__(self, first_id: int, *, roll: bool) -> None:
        self.commit = Commit()
        self.first_id = first_id
        self.next_id = first_id
        self.roll = roll
        self.pieces: list[bytes] = []
        """What is written, a piece for each run: joined at once, while it is in the cache. Held record by record, a batch took
        three times its bytes, and joining it kept all other threads waiting."""
        self.size = 0
        self.last_ts_ns = 0
        self.keyed = 0
        """How many records have a key."""
        self.keys: list[bytes] = []
        """Those keys."""
        self.index: list[tuple[int, int, int, int]] = []
        """Entries of the sparse index: id, offset in the batch, keyed records before it, time."""
        self.attributes: list[tuple[int, bytes, bytes]] = []
        """Id, key and attribute block of records that have one."""
        self.rows: list[tuple[list[int], list[bytes], list[bytes], list[bytes] | None]] = []
        """Runs for the tail in memory: times, keys, payloads, headers. They stand for the ids from ``first_id`` to
        ``rows_next_id``, without a gap."""
        self.rows_next_id = first_id

    def add(
        self, ts_ns: int, pieces: list[bytes], size: int, keys: Sequence[bytes], attributes: Sequence[bytes] | None
    ) -> None:
        """A run of records that follow each other, encoded (``size`` bytes)."""
        if size > INDEX_INTERVAL_BYTES:
            self._index_inside(size, pieces, keys, ts_ns)
        else:
            self.index.append((self.next_id, self.size, self.keyed, ts_ns))
        self.size += size
        self.pieces.append(b"".join(pieces))
        n = len(keys)
        keyed = n - keys.count(b"")
        self.keyed += keyed
        if keyed:
            self.keys += keys if keyed == n else filter(None, keys)
        if attributes is not None:
            for row, block in enumerate(attributes):
                if block:
                    self.attributes.append((self.next_id + row, keys[row], block))
        self.last_ts_ns = ts_ns
        self.next_id += n

    def _index_inside(self, size: int, pieces: list[bytes], keys: Sequence[bytes], ts_ns: int) -> None:
        """Entries for a run that is longer than the index's distance."""
        offset, keyed = self.size, self.keyed
        step = -(-len(keys) * INDEX_INTERVAL_BYTES // size)  # rounded up: nearer entries would not be taken
        for row in range(0, len(keys), step):
            self.index.append((self.next_id + row, offset, keyed, ts_ns))
            part = keys[row : row + step]
            offset += sum(map(len, pieces[2 * row : 2 * (row + step)]))
            keyed += len(part) - part.count(b"")

    def add_rows(
        self, ts_ns: int, keys: Sequence[bytes], payloads: Sequence[bytes], headers: Sequence[bytes] | None
    ) -> None:
        """The same run for the tail in memory; before ``add``."""
        rows = self.rows
        if self.rows_next_id != self.next_id:
            return  # nobody was subscribed for a part of the batch: from there on readers take it from disk
        self.rows_next_id += len(keys)
        if not rows or len(rows[-1][0]) >= RUN_ROWS_MAX or (headers is None) != (rows[-1][3] is None):
            rows.append(([], [], [], None))
        times, row_keys, row_payloads, row_headers = rows[-1]
        times.extend([ts_ns] * len(keys))
        row_keys.extend(keys)
        row_payloads.extend(payloads)
        if headers is not None:
            if row_headers is None:
                rows[-1] = (times, row_keys, row_payloads, row_headers := [])
            row_headers.extend(headers)
