"""A batch: the records that go to one segment with one sync, and the commit that stands for them.

Contract: storage.md, "Append and group commit"; ADR 0002. Belongs to the event loop; knows no file and no thread.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from toymq_py.callbacks import call_all
from toymq_py.errors import RequestError
from toymq_py.records import Records, Shape
from toymq_py.storage.log import Log
from toymq_py.storage.record import ENCODE_ALIKE_MIN, Extras, encode_alike, encode_records
from toymq_py.storage.segment import INDEX_INTERVAL_BYTES, Producers

OPEN_ROWS_MAX = 64
OPEN_BYTES_MAX = 64 * 1024
"""The size at which an open run is encoded, so that handing a batch over never holds the loop for long."""

TAIL_ROWS_MAX = 1024
"""Most rows of one run in the tail, so that encoding it for subscribers never holds the loop for long."""


class CommitState(Enum):
    PENDING = "waiting for the disk"
    DONE = "on stable storage"
    FAILED = "refused"


PENDING: Final = CommitState.PENDING
DONE: Final = CommitState.DONE
FAILED: Final = CommitState.FAILED
"""A constant, since an attribute of an ``Enum`` takes 170 ns on Python 3.11."""


class Commit:
    """The outcome of one batch of appended records: pending, on stable storage, or failed. All publishes whose records are in
    the batch wait for this one object."""

    __slots__ = ("_waiters", "error", "state")

    def __init__(self) -> None:
        self.state = PENDING
        self.error: RequestError | None = None
        self._waiters: list[Callable[[], None]] = []

    def add_waiter(self, call: Callable[[], None]) -> None:
        """Call ``call`` when the outcome is known; at once if it is already."""
        if self.state is PENDING:
            self._waiters.append(call)
        else:
            call()

    def resolve(self, error: RequestError | None) -> None:
        self.error = error
        self.state = DONE if error is None else FAILED
        waiters, self._waiters = self._waiters, []
        call_all(waiters)


COMMITTED = Commit()
"""The commit of records that are on stable storage already."""
COMMITTED.resolve(None)


@dataclass(slots=True)
class Appended:
    """A run of appended records: ``count`` ids from ``first_id``, ``size`` bytes in the log, all in one commit."""

    commit: Commit
    first_id: int
    count: int
    size: int

    @property
    def duplicate(self) -> bool:
        return False

    @property
    def error(self) -> None:
        return None


def producers_of(keys: Sequence[bytes], sequences: Sequence[int], first_id: int) -> Producers:
    """For each producer of a run, its highest sequence and the id of that record. Assumes that each producer's sequences
    ascend."""
    n = len(keys)
    if keys.count(keys[0]) == n:
        return {keys[0]: (sequences[-1], first_id + n - 1)}
    return dict(zip(keys, zip(sequences, range(first_id, first_id + n), strict=True), strict=True))


class Batch:
    """Records that one commit writes. The committer fills it until a sync thread takes it. ``roll``: it begins a new segment.

    Records are encoded a run at a time. Short runs with one time stamp, one from each of many connections, are collected and
    become one: a record that is encoded by itself costs three times as much (ADR 0012).
    """

    __slots__ = ("_attributes", "_extras", "_keys", "_open_bytes", "_payloads", "_sequenced", "_shape", "_tail", "_ts_ns",
                 "commit", "expires_at_ns", "expiring", "first_id", "index", "keyed", "keys", "next_id",
                 "pieces", "producers", "roll", "rows", "rows_next_id", "scheduled", "size")  # fmt: skip

    def __init__(self, first_id: int, *, roll: bool) -> None:
        self.commit = Commit()
        self.first_id = first_id
        self.next_id = first_id
        self.roll = roll
        self.size = 0
        """The bytes of all records, encoded or not."""
        self.pieces: list[bytes] = []
        """The bytes to write, a piece for each run: joined at once, while it is in the cache. Held record by record, a batch
        took three times its bytes, and joining it kept all other threads waiting. Whole after ``close``, as all below."""
        self.keyed = 0
        """How many records have a plain key."""
        self.keys: list[bytes] = []
        """Those keys."""
        self.index: list[tuple[int, int, int, int]] = []
        """Entries of the sparse index: id, offset in the batch, keyed records before it, time."""
        self.producers: Producers = {}
        """The producers' highest sequences, known at once, before ``close``."""
        self.scheduled: list[tuple[int, Sequence[int]]] = []
        """First ids of runs with a delay, and when each of their records is due."""
        self.expiring = 0
        """How many records expire."""
        self.expires_at_ns = 0
        """When the last of the records that expire does."""
        self.rows: list[tuple[list[int], list[bytes], list[bytes], list[bytes] | None, list[int] | None]] = []
        """Runs for the tail in memory: times, keys, payloads, headers, when they expire. They stand for the ids from
        ``first_id`` to ``rows_next_id``, without a gap."""
        self.rows_next_id = first_id
        # The open run: the newest records, not encoded yet.
        self._ts_ns = 0
        self._keys: list[bytes] = []
        self._payloads: list[bytes] = []
        self._attributes: list[bytes] = []  # none, or one of each
        self._extras: Extras | None = None
        self._shape: Shape | None = None
        self._open_bytes = 0
        self._tail = False
        self._sequenced = False  # its keys name producers

    @property
    def last_ts_ns(self) -> int:
        """Time of the newest record."""
        return self._ts_ns

    def add(
        self,
        ts_ns: int,
        keys: Sequence[bytes],
        payloads: Sequence[bytes],
        attributes: Sequence[bytes] | None,
        extras: Extras | None,
        size: int,
        *,
        tail: bool,
        sequences: Sequence[int] | None = None,
        shape: Shape | None = None,
    ) -> Appended:
        """Add a run of records.

        Args:
            ts_ns: the time of the records, not before that of the run before.
            extras: what the attributes hold.
            size: of all records in bytes, encoded.
            tail: whether the records also go to the log's tail in memory.
            sequences: the producers' sequences, which the attributes hold, too; None unless the keys name producers.
            shape: the lengths that all keys and all payloads have in common; None when they differ.
        """
        sequenced = sequences is not None and extras is None
        if self._keys and (
            ts_ns != self._ts_ns
            or sequenced != self._sequenced
            or (attributes is not None and not sequenced)
        ):
            self.close()
        if not self._keys:
            self._ts_ns = ts_ns
            self._shape = shape
        elif shape != self._shape:
            self._shape = None
        first_id = self.next_id
        count = len(keys)
        self.next_id = first_id + count
        self.size += size
        self._open_bytes += size
        self._keys += keys
        self._payloads += payloads
        self._tail = self._tail or tail
        if sequences is not None:
            self.producers.update(producers_of(keys, sequences, first_id))
            self._sequenced = True
        if attributes is not None:
            self._attributes += attributes
        if extras is not None:
            self._extras = extras
        if (
            (attributes is not None and not sequenced)
            or len(self._keys) >= OPEN_ROWS_MAX
            or self._open_bytes >= OPEN_BYTES_MAX
        ):
            self.close()
        return Appended(self.commit, first_id, count, size)

    def refused_keys(self) -> list[bytes]:
        """The keys of all appended records, which will not be stored."""
        return [*self.keys, *(() if self._sequenced else filter(None, self._keys))]

    def close(self) -> None:
        """Encode the run that is still being collected."""
        keys, attributes, ts_ns = self._keys, self._attributes or None, self._ts_ns
        count = len(keys)
        if not count:
            return
        first_id = self.next_id - count
        size = self._open_bytes
        shape = self._shape
        plain, keyed = keys, 0
        if self._sequenced:
            plain = [b""] * count
        elif shape is None:
            keyed = count - keys.count(b"")
        elif shape[0]:
            keyed = count
        pieces: list[bytes] | None = None
        if shape is not None and attributes is None and count >= ENCODE_ALIKE_MIN:
            piece = encode_alike(first_id, ts_ns, keys, self._payloads, shape)
        else:
            pieces = encode_records(first_id, ts_ns, keys, self._payloads, attributes)
            piece = b"".join(pieces)
        if size > INDEX_INTERVAL_BYTES:
            self._index_inside(first_id, size, pieces, plain, keyed, ts_ns)
        else:
            self.index.append((first_id, self.size - size, self.keyed, ts_ns))
        self.pieces.append(piece)
        self.keyed += keyed
        if keyed:
            self.keys += plain if keyed == count else filter(None, plain)
        extras = self._extras
        if extras is not None and extras.deliver_at_ns is not None:
            self.scheduled.append((first_id, extras.deliver_at_ns))
        if extras is not None and extras.expires_at_ns is not None:
            self.expiring += count - list(extras.expires_at_ns).count(0)
            self.expires_at_ns = max(self.expires_at_ns, *extras.expires_at_ns)
        if self._tail and self.rows_next_id == first_id:  # else there was no subscription for a part: that is read from disk
            self._add_rows(ts_ns, keys, self._payloads, extras)
        self._keys, self._payloads, self._attributes, self._extras, self._shape = [], [], [], None, None
        self._open_bytes, self._tail, self._sequenced = 0, False, False

    def append_to(self, log: Log) -> None:
        """Add the records, which are on the disk now, to the log's active segment, its tail in memory and its committed id."""
        active = log.segments[-1]
        for msg_id, offset, keyed, ts_ns in self.index:
            active.add_index_entry(msg_id, active.end + offset, active.keyed + keyed, ts_ns)
        for _, deliver_at_ns in self.scheduled:
            active.newest_deliver_at_ns = max(active.newest_deliver_at_ns, max(deliver_at_ns))
        active.expiring += self.expiring
        active.newest_expires_at_ns = max(active.newest_expires_at_ns, self.expires_at_ns)
        active.end += self.size
        active.keyed += self.keyed
        active.next_id = self.next_id
        active.newest_ts_ns = self.last_ts_ns
        active.dated_ns = None
        first = self.first_id
        for times, keys, payloads, headers, expires_at_ns in self.rows if log.tail.enabled else ():
            log.tail.push(Records(range(first, first + len(keys)), times, keys, payloads, headers, expires_at_ns))
            first += len(keys)
        log.advance(self.next_id)

    def _index_inside(
        self, first_id: int, size: int, pieces: list[bytes] | None, keys: list[bytes], run_keyed: int, ts_ns: int
    ) -> None:
        """Add entries to the sparse index for a run that is longer than the distance between two entries.

        Args:
            pieces: the encoded records, two pieces each; None when all records have one length.
            run_keyed: how many ``keys`` are not empty.
        """
        offset, keyed, count = self.size - size, self.keyed, len(keys)
        step = -(-count * INDEX_INTERVAL_BYTES // size)  # rounded up: nearer entries would not be taken
        for row in range(0, count, step):
            self.index.append((first_id + row, offset, keyed, ts_ns))
            offset += step * (size // count) if pieces is None else sum(map(len, pieces[2 * row : 2 * (row + step)]))
            if run_keyed == count:
                keyed += step
            elif run_keyed:
                part = keys[row : row + step]
                keyed += len(part) - part.count(b"")

    def _add_rows(self, ts_ns: int, keys: list[bytes], payloads: list[bytes], extras: Extras | None) -> None:
        """Add the run to the rows for the tail in memory."""
        rows = self.rows
        self.rows_next_id += len(keys)
        headers = expires_at_ns = None
        if extras is not None:
            headers = None if extras.headers is None else list(extras.headers)
            expires_at_ns = None if extras.expires_at_ns is None else list(extras.expires_at_ns)
        if (
            not rows
            or len(rows[-1][0]) >= TAIL_ROWS_MAX
            or (headers is None) != (rows[-1][3] is None)
            or (expires_at_ns is None) != (rows[-1][4] is None)
        ):
            rows.append(([ts_ns] * len(keys), keys, payloads, headers, expires_at_ns))
            return
        times, row_keys, row_payloads, row_headers, row_expires = rows[-1]
        times.extend([ts_ns] * len(keys))
        row_keys.extend(keys)
        row_payloads.extend(payloads)
        if headers is not None and row_headers is not None:
            row_headers.extend(headers)
        if expires_at_ns is not None and row_expires is not None:
            row_expires.extend(expires_at_ns)
