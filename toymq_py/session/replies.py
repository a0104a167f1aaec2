"""Replies of a session that are not written yet, in the order of its commands.

Contract: protocol.md, "Framing" (one reply per command, in order); ADR 0007. Knows no transport and no broker.
"""

import logging
from collections import deque
from collections.abc import Callable

from toymq_py.clock import Clock
from toymq_py.disk_errors import storage_error
from toymq_py.errors import InternalError, RequestError
from toymq_py.metrics import Metrics
from toymq_py.protocol import encode_dup, encode_error, encode_ok_run
from toymq_py.session.fair_queue import Runnable
from toymq_py.topic import Appended, Commit, CommitState, Duplicate

logger = logging.getLogger("toymq_py.session")

WRITE_BYTES = 256 * 1024
"""Bytes per write: what one session writes in a turn, about."""
REPLY_COST_BYTES = 128
"""What a held reply counts towards ``max_inflight_bytes``, beside the payload."""
MADE_COST_BYTES = 640
"""What one counts that is still to be made: it holds its command, and how it will be answered."""
WAIT_COST_BYTES = 3072
"""And one that waits for something to come: a timer, and a place in the topic's list."""
REPLIES_PER_WRITE = 4096
"""The shortest are five bytes: a whole write of them would take 10 ms."""

MakeReply = Callable[[], bytes | None]
"""Makes a reply, or a part of it: None means that there is more to do, in another turn, or, when it took itself out of the
``PendingReply``, that it waits to be filled again."""


class PendingReply:
    """A reply that comes later. ``make`` is set when it is due, and called when it is its turn to be written, so that many
    large ones that fall due at once are not in memory at once. ``released`` is called then, too, with the place of its first
    byte in the write that it is part of."""

    __slots__ = ("cost", "make", "released")

    def __init__(self, cost: int = MADE_COST_BYTES) -> None:
        self.cost = cost
        self.make: MakeReply | None = None
        self.released: Callable[[int], None] | None = None


class Replies:
    """One FIFO: a reply that waits for a commit holds the ones behind it. Pushes stand beside it.

    Unbounded by itself: the handler takes no commands while ``held_bytes`` is above ``--max-inflight-bytes``.
    """

    __slots__ = ("_clock", "_fifo", "_metrics", "_pushes", "_runnable", "_waited_for", "due", "held_bytes", "unfinished")

    def __init__(self, metrics: Metrics, place: Runnable, clock: Clock) -> None:
        """``place`` is woken when something falls due."""
        self.due = False
        """There is something to write, or there may be. Cleared when the head waits for something, or nothing is there."""
        self.held_bytes = 0
        """Replies and payloads that wait."""
        self.unfinished = False
        """The reply at the head is due, and is made in more turns than the last one."""
        self._metrics = metrics
        self._clock = clock
        self._runnable = place
        self._fifo: deque[bytes | PendingReply | Appended | Duplicate] | None = None  # as the session's inbox
        self._waited_for: Commit | None = None
        self._pushes: list[bytes] = []

    def __bool__(self) -> bool:
        return bool(self._fifo or self._pushes)

    def _wake(self) -> None:
        self.due = True
        self._runnable.wake()

    def _wait_for(self, commit: Commit) -> None:
        if commit is not self._waited_for:
            self._waited_for = commit
            commit.add_waiter(self._wake)

    def _queue(self, reply: bytes | PendingReply | Appended | Duplicate) -> None:
        if self._fifo is None:
            self._fifo = deque()
        self._fifo.append(reply)

    def add(self, reply: bytes) -> None:
        self._queue(reply)
        self.held_bytes += REPLY_COST_BYTES + len(reply)
        self.due = True

    def add_error(self, error: RequestError) -> None:
        self._metrics.refused(error.code)
        self.add(encode_error(error))

    def add_appended(self, appended: Appended) -> None:
        """``OK`` for each of its ids, due with its commit."""
        if not self._fifo:
            self._wait_for(appended.commit)
        self._queue(appended)
        self.held_bytes += REPLY_COST_BYTES * appended.count + appended.size

    def add_duplicate(self, duplicate: Duplicate) -> None:
        """``DUP``, due with the commit of what it repeats."""
        self._queue(duplicate)
        self.held_bytes += REPLY_COST_BYTES * duplicate.count
        self.due = True

    def hold(self, held: PendingReply | None = None) -> PendingReply:
        """A place in the FIFO for a reply that comes later."""
        held = held or PendingReply()
        self._queue(held)
        self.held_bytes += held.cost
        return held

    def fill(self, held: PendingReply, make: MakeReply) -> None:
        """The reply is due."""
        held.make = make
        self._wake()

    def fail(self, held: PendingReply, error: OSError | RequestError) -> None:
        """The reply is due, and it is an error."""
        error = error if isinstance(error, RequestError) else storage_error(error)
        self._metrics.refused(error.code)
        refused = encode_error(error)
        self.fill(held, lambda: refused)

    def in_turn(self, make: MakeReply) -> None:
        """A reply that is made when it is its turn to be written: it sees what every command before it did, commits
        included."""
        self.fill(self.hold(), make)

    def push(self, push: bytes) -> None:
        """Not an answer: goes out with the next write."""
        self._pushes.append(push)
        self._wake()

    def take_due(self, slice_end: float) -> list[bytes]:
        """The pushes, and everything at the head of the FIFO that waits for nothing, up to about one write, and until
        ``slice_end`` where it takes time; one at least.

        The pushes come first: a CLOSED is older than the OK of a newer SUB of the same topic, and newer than no delivery.
        """
        out: list[bytes] = []
        if self._pushes:
            out, self._pushes = self._pushes, out
        fifo = self._fifo
        self.due = self.unfinished = False
        freed = 0
        size = sum(map(len, out)) if out else 0
        while fifo:
            reply = fifo[0]
            kind = type(reply)
            if kind is Appended or kind is Duplicate:
                commit = reply.commit  # type: ignore[union-attr]
                if commit.state is CommitState.PENDING:
                    self._wait_for(commit)
                    break
                text, cost = self._encode(reply)  # type: ignore[arg-type]
            elif kind is bytes:
                text = reply  # type: ignore[assignment]
                cost = REPLY_COST_BYTES + len(text)
            else:
                assert isinstance(reply, PendingReply)
                if reply.make is None:
                    break
                made = self._make_safely(reply.make)
                if made is None:
                    self.due = self.unfinished = reply.make is not None
                    break
                text, cost, reply.make = made, reply.cost, None
                if reply.released is not None:
                    reply.released(size)
            fifo.popleft()
            out.append(text)
            freed += cost
            size += len(text)
            if fifo and (
                size >= WRITE_BYTES
                or len(out) >= REPLIES_PER_WRITE
                or (kind is not bytes and self._clock.monotonic() > slice_end)
            ):
                self.due = True
                break
        if not fifo:
            self._fifo = None
        self.held_bytes -= freed
        return out

    def _encode(self, reply: Appended | Duplicate) -> tuple[bytes, int]:
        """The answer to publishes whose commit is settled, and what it counted."""
        count, error = reply.count, reply.commit.error
        cost = REPLY_COST_BYTES * count + (reply.size if type(reply) is Appended else 0)
        if error is not None:
            self._metrics.refused(error.code, count)
            return encode_error(error) * count, cost
        return encode_dup(reply.first_id) * count if type(reply) is Duplicate else encode_ok_run(reply.first_id, count), cost

    def _make_safely(self, make: MakeReply) -> bytes | None:
        try:
            return make()
        except RequestError as error:
            refusal = error
        except OSError as error:
            logger.error("a reply could not be made: %s", error)  # noqa: TRY400 (the disk, not us)
            refusal = storage_error(error)
        except Exception:
            logger.exception("bug in a reply")
            refusal = InternalError("a bug in the broker; its log has the details")
        self._metrics.refused(refusal.code)
        return encode_error(refusal)
