"""Transfer of messages from one topic to another in batches, shared by dead-lettering and REDRIVE.

Contract: delivery.md, "Attempts"; ADR 0023. Belongs to the event loop.
"""

from collections.abc import Callable
from functools import partial

from toymq_py.errors import RequestError
from toymq_py.letter import Return
from toymq_py.records import Records
from toymq_py.topic import Published, Topic

SLICE_ROWS_MAX = 256
SLICE_BYTES_MAX = 1024 * 1024
"""Most bytes of messages moved in one piece, with one commit: 2 ms of the loop, or one larger message."""
LOOK_AHEAD_ROWS = 2 * SLICE_ROWS_MAX
"""Rows that are read at once: one read serves every second message, too."""
UNSTORED_MAX = 4096
"""Most moves whose acks are not stored yet, about: a topic's offsets are stored before it has more of them, so that the keys
that a dead-letter topic remembers are enough after a kill."""
LETTER_KEYS = 4 * UNSTORED_MAX
"""How many keys a dead-letter topic remembers at least, whatever ``dedupe_keys`` and its total say."""


class TransferBatch:
    """Messages that move from one topic to another with one commit, as columns. ``ids`` are their ids in the source."""

    __slots__ = ("_rows_max", "bytes", "headers", "ids", "keys", "payloads")

    def __init__(self, rows_max: int = SLICE_ROWS_MAX) -> None:
        self._rows_max = rows_max
        self.ids: list[int] = []
        self.keys: list[bytes] = []
        self.payloads: list[bytes] = []
        self.headers: list[bytes] = []
        self.bytes = 0

    @property
    def full(self) -> bool:
        return len(self.ids) >= self._rows_max or self.bytes >= SLICE_BYTES_MAX

    def add(self, msg_id: int, key: bytes, payload: bytes, headers: bytes) -> None:
        self.ids.append(msg_id)
        self.keys.append(key)
        self.payloads.append(payload)
        self.headers.append(headers)
        self.bytes += len(payload) + len(headers)

    def append_to(
        self,
        topic: Topic,
        stored: Callable[[int, int, Published], None],
        done: Callable[[RequestError | None], None],
    ) -> None:
        """Publish the batch into ``topic``.

        Args:
            stored: called with the rows (first, after the last) that are on stable storage, and their outcome.
            done: called once, when the outcome of all rows is known, with the error that refused some.

        Raises: RequestError, OSError; then neither is called.
        """
        outcomes = topic.publisher.publish_unlimited(self.keys, self.payloads, self.headers)
        open_ = len(outcomes)
        refused: RequestError | None = None

        def resolved(outcome: Published, start: int) -> None:
            nonlocal open_, refused
            error = outcome.error or outcome.commit.error
            if error is None:
                stored(start, start + outcome.count, outcome)
            refused = refused or error
            open_ -= 1
            if not open_:
                done(refused)

        start = 0
        for outcome in outcomes:
            outcome.commit.add_waiter(partial(resolved, outcome, start))
            start += outcome.count


class RecordReader:
    """Reads records of a topic by id, mostly ascending. One read of the log serves neighbouring records, also those of the next
    batch."""

    __slots__ = ("_run", "_topic")

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._run: Records | None = None

    def find(self, msg_id: int) -> tuple[Records | None, int]:
        """Find a record. Returns: a run of records, and the row of this record in it; if it cannot be read, None and the id to
        go on with.

        Raises: OSError.
        """
        run = self._run
        if run is None or not run.ids[0] <= msg_id <= run.ids[-1]:
            self._run, _, next_id = self._topic.log.read(msg_id, LOOK_AHEAD_ROWS)
            run = self._run
            if run is None:
                return None, next_id
        return run, msg_id - run.ids[0]


def is_redriven_letter(origin: Topic, reader: RecordReader, msg_id: int, back: Return) -> bool:
    """Whether this record is the redriven letter: committed, with the same key, payload and headers, neither delayed nor
    expiring (ADR 0041).

    Raises: OSError.
    """
    if msg_id >= origin.log.committed_id or msg_id in origin.delays.schedule.ids:
        return False
    run, row = reader.find(msg_id)
    if run is None or (run.expires_at_ns is not None and run.expires_at_ns[row]):
        return False
    headers = b"" if run.headers is None else run.headers[row]
    return (run.keys[row], run.payloads[row], headers) == (back.key, back.payload, back.headers)
