"""FETCH: records by id, without a consumer. Contract: protocol.md, "FETCH"."""

import asyncio
from collections.abc import Callable
from functools import partial

from toymq_py.errors import NoSuchTopic, OutOfRange
from toymq_py.protocol import Fetch, encode_batch_header
from toymq_py.session.deliveries import Deliveries
from toymq_py.session.replies import WAIT_COST_BYTES, PendingReply, Replies
from toymq_py.topic import Topic

FETCH_BYTES_MAX = 2 * 1024 * 1024
"""The most that one FETCH reads, except for one larger record."""
PIECE_BYTES = 256 * 1024
"""Bytes that one turn reads: a MiB blocks the loop for 5 ms."""


class Fetches:
    """The FETCHes of one session that wait for a commit."""

    __slots__ = ("_deliveries", "_loop", "_replies", "_waits")

    def __init__(self, replies: Replies, deliveries: Deliveries, loop: asyncio.AbstractEventLoop) -> None:
        self._replies = replies
        self._deliveries = deliveries
        self._loop = loop
        self._waits: dict[Callable[[], None], None] = {}

    def end_waits(self) -> bool:
        """Answer all waiting FETCHes, empty. Returns: whether there were any."""
        waits = list(self._waits)
        for finish in waits:
            finish()
        return bool(waits)

    def fetch(self, topic: Topic, command: Fetch) -> None:
        """Reply with the records that exist when the reply is at the head of the queue, or wait for one."""
        waits = command.wait_ms and command.from_id == topic.next_id
        held = self._replies.hold(PendingReply(WAIT_COST_BYTES) if waits else None)
        make = _Batch(topic, command, self._deliveries, partial(self._replies.charge, held)).make
        if waits:
            self._wait_for_commit(topic, command.wait_ms / 1000, lambda: self._replies.fill(held, make))
        else:
            self._replies.fill(held, make)

    def _wait_for_commit(self, topic: Topic, wait_s: float, done: Callable[[], None]) -> None:
        """Call ``done`` at the topic's next commit, after ``wait_s`` seconds, or when the client's stream ends."""

        def finish() -> None:
            if finish in self._waits:
                self._waits.pop(finish, None)
                timer.cancel()
                withdraw()
                done()

        self._waits[finish] = None
        timer = self._loop.call_later(wait_s, finish)
        withdraw = topic.when_committed(finish)


class _Batch:
    """The reply to one FETCH, read in pieces. Each piece counts for the connection at once; the reply ends with what was read
    when the client's token or address has used up its share, or when the rest cannot be read now."""

    __slots__ = ("_charge", "_command", "_count", "_deliveries", "_frames", "_next_id", "_size", "_topic")

    def __init__(self, topic: Topic, command: Fetch, deliveries: Deliveries, charge: Callable[[int], None]) -> None:
        self._topic = topic
        self._command = command
        self._deliveries = deliveries
        self._charge = charge
        self._frames: list[bytes] = []
        self._count = self._size = 0
        self._next_id = command.from_id

    def make(self) -> bytes | None:
        """Read a piece, and make the reply after the last; see ``replies.MakeReply``. Raises: NoSuchTopic, PlacementUnknown,
        OutOfRange, QueueFull, OSError."""
        topic = self._topic.living()
        _check_incarnation(topic, self._command.incarnation)
        enough = self._size + PIECE_BYTES // 2
        while self._read():
            if self._size >= enough:
                return None
        return b"".join((encode_batch_header(topic.name, self._count, self._next_id, self._size), *self._frames, b"\n"))

    def _read(self) -> bool:
        """Read a piece. Returns: whether there may be more to read. Raises: as ``make``, while there is no record."""
        command, from_id, first = self._command, self._next_id, not self._frames
        room = self._deliveries.bytes_to_take(min(command.max_bytes, FETCH_BYTES_MAX)) - self._size
        left, piece_bytes = command.max_count - self._count, min(room, PIECE_BYTES)
        try:
            frames, count, next_id = self._topic.fetch(from_id, left, piece_bytes, whole=first)
            if next_id == from_id and piece_bytes < room:  # a record longer than a piece
                frames, count, next_id = self._topic.fetch(from_id, min(left, 1), room, whole=first)
        except (OSError, OutOfRange):
            if first:
                raise
            return False
        if next_id == from_id:
            return False
        if frames:
            self._deliveries.check_room(len(frames))
            self._charge(len(frames))
            self._frames.append(frames)
        self._count += count
        self._size += len(frames)
        self._next_id = next_id
        return self._count < command.max_count and next_id < self._topic.next_id


def _check_incarnation(topic: Topic, wanted: str | None) -> None:
    """Check the incarnation that the client gave. Raises: NoSuchTopic when that topic was deleted, and one of its name created
    since."""
    present = topic.settings_queue.incarnation
    if wanted is not None and wanted != present:
        raise NoSuchTopic(f"{topic.name} was made anew: its incarnation is {present or 'new'}, and not {wanted[:64]}")
