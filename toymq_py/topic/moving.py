"""Messages on their way from one topic to another: to the dead letters, and back. What both ways have in common.

Contract: delivery.md, "Attempts"; ADR 0023. Belongs to the event loop.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from toymq_py.errors import RequestError
from toymq_py.model import Records
from toymq_py.topic.publishing import Published

if TYPE_CHECKING:
    from toymq_py.topic.topic import Topic

SLICE_ROWS_MAX = 256
SLICE_BYTES_MAX = 1024 * 1024
"""What is moved in one piece, with one commit: 2 ms of the loop, or one larger message."""
LOOK_AHEAD_ROWS = 2 * SLICE_ROWS_MAX
"""Read at once: one read serves every second message, too."""
UNSTORED_MAX = 4096
"""Moves whose acks are not stored yet, about: a topic's offsets are stored before it has more of them, so that the keys that a
dead-letter topic remembers are enough after a kill."""
LETTER_KEYS = 4 * UNSTORED_MAX
"""How many keys a dead-letter topic remembers at least, whatever ``dedupe_keys`` and its total say."""

ORIGIN_TOPIC, ORIGIN_ID, ORIGIN_KEY = b"toymq-origin-topic", b"toymq-origin-id", b"toymq-origin-key"
CONSUMER, ATTEMPTS, REASON = b"toymq-consumer", b"toymq-attempts", b"toymq-reason"
ERROR_TYPE, ERROR, FAILED_AT = b"toymq-error-type", b"toymq-error", b"toymq-failed-at"
TRACEBACK = b"toymq-traceback"
"""A JSON string: it has line breaks."""
FIRST_DELIVERED, LAST_DELIVERED = b"toymq-first-delivered", b"toymq-last-delivered"
"""Unix milliseconds."""
REDRIVES, REDRIVE_CONSUMER = b"toymq-redrives", b"toymq-redrive-consumer"
OURS = frozenset((
    ORIGIN_TOPIC, ORIGIN_ID, ORIGIN_KEY, CONSUMER, ATTEMPTS, REASON, ERROR_TYPE, ERROR, TRACEBACK, FAILED_AT, FIRST_DELIVERED,
    LAST_DELIVERED, REDRIVES, REDRIVE_CONSUMER,
))  # fmt: skip
LETTER_KEY = b"dlq:"
"""Begins the keys of dead letters."""
REDRIVE_KEY = b"redrive:"
"""Begins the keys of records that came back from a dead-letter topic."""


class Slice:
    """Messages on their way from one topic to another, as columns. ``ids`` are those in the topic they come from."""

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
        topic: "Topic",
        stored: Callable[[int, int, Published], None],
        done: Callable[[RequestError | None], None],
    ) -> None:
        """Publish into ``topic``.

        Args:
            stored: called with the rows (first, after the last) that are on stable storage, and what became of them.
            done: called once, when that is known of all of them, with what refused some.

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


class Reading:
    """Records of a topic by id, mostly ascending: neighbours come with one read, also those of the next slice."""

    __slots__ = ("_run", "_topic")

    def __init__(self, topic: "Topic") -> None:
        self._topic = topic
        self._run: Records | None = None

    def find(self, msg_id: int) -> tuple[Records | None, int]:
        """The run and the row of a record; None and the id behind it, where there is none that can be read.

        Raises: OSError.
        """
        run = self._run
        if run is None or not run.ids[0] <= msg_id <= run.ids[-1]:
            self._run, _, next_id = self._topic.log.read(msg_id, LOOK_AHEAD_ROWS)
            run = self._run
            if run is None:
                return None, next_id
        return run, msg_id - run.ids[0]


def split_headers(block: bytes) -> tuple[bytes, dict[bytes, bytes]]:
    """A header block without the broker's own headers, ended by a line break, and those."""
    if not block:
        return b"", {}
    ended = block if block.endswith(b"\n") else block + b"\n"
    if b"toymq-" not in block:
        return ended, {}
    kept: list[bytes] = []
    ours: dict[bytes, bytes] = {}
    for line in ended[:-1].split(b"\n"):
        name, _, value = line.partition(b":")
        if name in OURS:
            ours[name] = value.removeprefix(b" ")
        else:
            kept.append(line + b"\n")
    return b"".join(kept), ours
