"""The unwritten replies of a session, in the order of its commands.

Contract: protocol.md, "Framing" (one reply per command, in order); ADR 0007. Knows no transport and no broker.
"""

import logging
from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from typing import Final

from toymq_py.auth.quotas import FLOOR_BYTES
from toymq_py.clock import Clock
from toymq_py.disk_errors import BeingExamined, storage_error
from toymq_py.errors import InternalError, RequestError
from toymq_py.metrics import Metrics
from toymq_py.net.fair_queue import Runnable
from toymq_py.protocol import encode_dup, encode_error, encode_ok_run
from toymq_py.session.listing import Listed, Listing
from toymq_py.topic import Appended, Commit, CommitState, Duplicate

logger = logging.getLogger("toymq_py.session")

WRITE_BYTES = 256 * 1024
"""The bytes that a session writes in one turn, about."""
REPLY_COST_BYTES = 128
"""What a queued reply adds to ``held_bytes``, beside its payload."""
MADE_COST_BYTES = 640
"""The same for a reply that is still to be made: it holds its command."""
WAIT_COST_BYTES = 3072
"""The same for a reply that waits: it holds a timer and a place in the topic's list."""
_PENDING: Final = CommitState.PENDING
"""A constant, since an attribute of an ``Enum`` takes 170 ns on Python 3.11."""
REPLIES_PER_WRITE = 4096
"""Most replies of one write: a full write of the shortest, five bytes each, would take 10 ms."""

MakeReply = Callable[[], bytes | None]
"""Makes a reply. None: it needs another turn, or, if it has reset ``PendingReply.make``, waits to be filled again."""


class PendingReply:
    """A reply that cannot be written yet.

    ``make`` is set when the reply is due. It is called when the reply is at the head of the queue, so that many large replies
    are not in memory at once. Then ``released`` is called with the offset of the reply's first byte in the write, and ``told``
    with the reply. After a reply with ``last`` nothing more is written.
    """

    __slots__ = ("cost", "last", "make", "released", "told")

    def __init__(self, cost: int = MADE_COST_BYTES) -> None:
        self.cost = cost
        self.make: MakeReply | None = None
        self.released: Callable[[int], None] | None = None
        self.told: Callable[[bytes], None] | None = None
        self.last = False


class Replies:
    """One FIFO queue: a reply that waits for a commit blocks those behind it. Pushes have their own list.

    The bound is the handler's: it applies no command while ``held_bytes`` is above ``--max-inflight-bytes``.
    """

    __slots__ = ("_clock", "_fifo", "_metrics", "_pushes", "_runnable", "_waited_for", "due", "grow", "held_bytes",
                 "room", "unfinished")  # fmt: skip

    def __init__(self, metrics: Metrics, place: Runnable, clock: Clock) -> None:
        """``place``: the session's place in the fair queue; it is woken when a reply is due."""
        self.due = False
        """Whether there may be something to write."""
        self.held_bytes = 0
        """Memory of queued replies and their payloads."""
        self.unfinished = False
        """Whether the reply at the head needs another turn."""
        self.room: Callable[[int], int] = lambda wanted_bytes: wanted_bytes
        """Returns how many of the wanted bytes a write may have; asked above ``FLOOR_BYTES``."""
        self.grow: Callable[[int], None] = lambda size: None
        """Counts a part of a large reply at once; ``held_bytes`` is checked after the turn. Raises: QueueFull."""
        self._metrics = metrics
        self._clock = clock
        self._runnable = place
        self._fifo: deque[bytes | PendingReply | Appended | Duplicate] | None = None  # None while empty: most sessions are idle
        self._waited_for: Commit | None = None
        self._pushes: list[bytes] = []

    def __bool__(self) -> bool:
        return bool(self._fifo or self._pushes)

    def wake(self) -> None:
        """Give the session a turn."""
        self._runnable.wake()

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
        """Queue an ``OK`` for each id, due with the commit."""
        if not self._fifo:
            self._wait_for(appended.commit)
        self._queue(appended)
        self.held_bytes += REPLY_COST_BYTES * appended.count + appended.size

    def add_duplicate(self, duplicate: Duplicate) -> None:
        """Queue a ``DUP``, due with the commit of the original."""
        self._queue(duplicate)
        self.held_bytes += REPLY_COST_BYTES * duplicate.count
        self.due = True

    def hold(self, held: PendingReply | None = None) -> PendingReply:
        """Queue a reply that is filled later."""
        held = held or PendingReply()
        self._queue(held)
        self.held_bytes += held.cost
        return held

    def holds_up(self, held: Collection[PendingReply | None]) -> bool:
        """Whether one of these replies is at the head of the queue while others wait behind it."""
        theirs = [isinstance(reply, PendingReply) and reply in held for reply in self._fifo or ()]
        return bool(theirs) and theirs[0] and not all(theirs)

    def when_told(self, call: Callable[[bytes], None]) -> None:
        """Call ``call`` with the content of the last queued reply, which is filled later, once that is written."""
        last = self._fifo[-1] if self._fifo else None
        assert isinstance(last, PendingReply)
        last.told = call

    def charge(self, held: PendingReply, size: int) -> None:
        """Count more memory for a reply that is still queued, until it is written."""
        held.cost += size
        self.held_bytes += size

    def fill(self, held: PendingReply, make: MakeReply) -> None:
        """Make a reply due."""
        held.make = make
        self._wake()

    def fail(self, held: PendingReply, error: OSError | RequestError, count: int = 1) -> None:
        """Make a reply due as an error; for a run of commands, as ``count`` equal errors."""
        error = error if isinstance(error, RequestError) else storage_error(error)
        self._metrics.refused(error.code, count)
        refused = encode_error(error) * count
        self.fill(held, lambda: refused)

    def in_turn(self, make: MakeReply) -> None:
        """Queue a reply that is made when it is at the head: it sees the effects and commits of every command before it."""
        self.fill(self.hold(), make)

    def counted(self, make: Callable[[], bytes]) -> None:
        """As ``in_turn``, for a reply that may be large: its size counts for the connection before it is written; without room
        the reply is an error."""
        held = self.hold()

        def counted() -> bytes:
            made = make()
            self.grew(held, len(made))
            return made

        self.fill(held, counted)

    def listed(self, begin: Callable[[], Listed]) -> None:
        """As ``in_turn``, for a list of topics (``Listing``)."""
        held = self.hold()
        self.fill(held, Listing(begin, partial(self.grew, held)).make)

    def grew(self, held: PendingReply, size: int) -> None:
        """Count ``size`` bytes that were added to a reply while it is being made. Raises: QueueFull."""
        self.charge(held, size)
        self.grow(size)

    def push(self, push: bytes) -> None:
        """Send a push with the next write."""
        self._pushes.append(push)
        self._wake()

    def take_due(self, slice_end: float) -> list[bytes]:
        """Take the pushes and the replies that are due, about one write of them, until ``slice_end`` but at least one.

        The pushes come first: a CLOSED is older than the OK of a newer SUB of the same topic.
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
                if commit.state is _PENDING:
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
                made = self._make_safely(reply, reply.make)
                if made is None:
                    self.due = self.unfinished = reply.make is not None
                    break
                text, cost, reply.make = made, reply.cost, None
                if reply.released is not None:
                    reply.released(size)
                if reply.told is not None:
                    reply.told(text)
                if reply.last:
                    fifo.clear()
                    fifo.append(PendingReply())  # it has its place, and is never filled
                    out.append(text)
                    return out
            fifo.popleft()
            out.append(text)
            freed += cost
            size += len(text)
            if fifo and (
                (size >= FLOOR_BYTES and size >= self.room(WRITE_BYTES))
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
        """Encode the replies to publishes whose commit is done. Returns: the bytes, and how much ``held_bytes`` counts for
        them."""
        count, error = reply.count, reply.commit.error
        cost = REPLY_COST_BYTES * count + (reply.size if type(reply) is Appended else 0)
        if error is not None:
            self._metrics.refused(error.code, count)
            return encode_error(error) * count, cost
        return encode_dup(reply.first_id) * count if type(reply) is Duplicate else encode_ok_run(reply.first_id, count), cost

    def _make_safely(self, held: PendingReply, make: MakeReply) -> bytes | None:
        try:
            return make()
        except BeingExamined as busy:
            if busy.problem is None:
                held.make = None
                busy.when_done(lambda: self.fill(held, make))
                return None
            refusal = storage_error(busy)
        except RequestError as error:
            refusal = error.bare()  # its traceback is a cycle with this frame, and knows the messages that had no room
        except OSError as error:
            logger.error("a reply could not be made: %s", error)  # noqa: TRY400 (the disk, not us)
            refusal = storage_error(error)
        except Exception:
            logger.exception("bug in a reply")
            refusal = InternalError()
        self._metrics.refused(refusal.code)
        return encode_error(refusal)
