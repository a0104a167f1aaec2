"""Unanswered publishes: after a lost connection they are repeated, and still stored once.

The broker recognises a repeat by the caller's key. Without a key the client adds its own producer name and an ascending number
(protocol.md, ``PUB … seq``); of these the broker remembers only the highest number per producer. Sans-IO.

After it has refused a numbered publish, the broker refuses all later numbers, too (``OUT_OF_SEQUENCE``), so that no message
overtakes another. The client then does this:

1. wait for the publishes in flight, and hold new ones;
2. number the refused publishes anew from the lowest refused number, which is above all confirmed ones: these numbers are
   certainly not in the log;
3. but where a refusal leaves the outcome open (``STORAGE_FAILED``), no other message may use its number: take a new producer
   name instead. The same holds if another partition of the topic has confirmed a later number, or if the number is refused
   again: a partition waits for a number of its own, whose repeat went to another partition (ADR 0184).
"""

import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Self

from toymq import arguments
from toymq.arguments import Seconds
from toymq.message import BATCH_MAX, Item, Outgoing, Receipt
from toymq.pending_replies import Slot, leaves_no_trace, unexpected
from toymq_py.errors import ConnectionLost, OutOfSequence, PlacementUnknown, ToymqError
from toymq_py.protocol import DupReply, OkReply, Reply, publish_head

Outcome = Receipt | ToymqError


class Batch:
    """Publishes whose outcomes are awaited together, in order."""

    __slots__ = ("abandoned", "deadline", "missing", "on_done", "outcomes")

    def __init__(self, count: int, deadline: float | None, on_done: Callable[[], None]) -> None:
        self.outcomes: list[Outcome | None] = [None] * count
        self.missing = count
        self.deadline = deadline
        self.on_done = on_done
        self.abandoned = False
        """Whether the caller stopped waiting. Publishes under way continue, but are not repeated."""

    def settle(self, index: int, outcome: Outcome) -> None:
        if self.outcomes[index] is None:
            self.outcomes[index] = outcome
            self.missing -= 1
            if not self.missing:
                self.on_done()


class PublishMany:
    """Base of what ``pub_many`` returns. An object that is dropped unused warns, like a coroutine that is never awaited:
    nothing was published.
    """

    _begun = True

    def __init__(
        self, topic: str, items: Iterable[Item], delay: Seconds | None, ttl: Seconds | None, window: int, remedy: str
    ) -> None:
        """Check the arguments of ``pub_many``; ``remedy`` says in the warning how to use the result. Raises: TypeError,
        BadName, BadArgument."""
        self._topic = arguments.topic(topic)
        self._items = arguments.items(items)
        self._times = arguments.publish_times(delay, ttl)
        self._window = arguments.count("window", window)
        self._size = min(max(window // 2, 1), BATCH_MAX)
        self._remedy = remedy
        self._begun = False

    def __del__(self) -> None:
        if not self._begun:
            text = f"pub_many to {self._topic} was dropped before it published anything: {self._remedy}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)


class Outstanding:
    """Counts the bytes of the unanswered publishes of one connection."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0


class PublishSlot(Slot):
    """One publish that waits for its answer."""

    __slots__ = ("batch", "body", "index", "is_repeat", "key", "options", "seq", "stream")
    is_repeat: bool
    """Set on a repeat alone: setting it on every publish would cost each of them."""

    def __init__(self, stream: "Stream", item: Outgoing, batch: Batch, index: int) -> None:
        """Make a slot. It does not call ``super().__init__``, to save time: this runs for each message."""
        self.deadline = batch.deadline
        self.stream = stream
        self.key, self.body, self.options = item
        self.seq: int | None = None
        self.batch = batch
        self.index = index

    @property
    def awaited(self) -> str:
        return self.stream.awaited

    @property
    def repeatable(self) -> bool:
        return self.seq is not None or bool(self.key)

    @property
    def done(self) -> bool:
        return self.batch.abandoned or self.batch.outcomes[self.index] is not None

    def frame(self) -> bytes:
        body = self.body
        if self.seq is None:
            return b"%b%b %d%b\n%b\n" % (self.stream.head, self.key or b"-", len(body), self.options, body)
        return b"%b%b %d%b seq=%d\n%b\n" % (self.stream.head, self.stream.producer, len(body), self.options, self.seq, body)

    def as_repeat(self) -> Self:
        self.is_repeat = True
        return self

    def answered(self, reply: Reply) -> None:
        if type(reply) is OkReply:
            receipt = Receipt(reply.value, False)
        elif isinstance(reply, DupReply):
            receipt = Receipt(reply.msg_id, duplicate=True)
        else:
            raise unexpected("PUB", reply)
        if self.seq is not None:
            self.stream.confirmed(self.seq)
        self._settle(receipt)

    def refused(self, error: ToymqError) -> None:
        if self.seq is None or not self.stream.holds(self, self.seq, error):
            if isinstance(error, PlacementUnknown) and hasattr(self, "is_repeat"):  # nothing of the repeat was done
                error = ConnectionLost(f"the outcome is unknown: it was sent on a connection that was lost, and {error}")
            self._settle(error)

    def failed(self, error: ToymqError) -> None:
        """Report the error to the caller. If the publish was sent, its reply still comes."""
        self._settle(error)

    def dropped(self) -> None:
        self._settle(ConnectionLost("the caller stopped waiting for this publish before the connection was lost"))
        if self.seq is not None:
            self.stream.gone()

    def _settle(self, outcome: Outcome) -> None:
        if self.body:
            self.stream.outstanding.bytes -= len(self.body)
            self.body = b""
        self.batch.settle(self.index, outcome)


class Stream:
    """The publishes to one topic, and the numbers of those without a key."""

    def __init__(
        self, topic: str, names: Iterator[str] | None, outstanding: Outstanding, send: Callable[[list[PublishSlot]], object]
    ) -> None:
        """
        Args:
            names: an iterator of new producer names; None: publishes are not numbered, and one without a key is never repeated.
            send: sends publishes now, or once there is a connection.

        Raises: BadName.
        """
        self.topic = topic
        self.place = ""
        """The place that has the topic, as the last MOVED said."""
        self.head = publish_head(arguments.topic(topic))
        self.outstanding = outstanding
        self.producer = next(names).encode() if names is not None else b""
        self._names = names
        self.send = send
        self._next = 0
        self._in_flight = 0  # numbered, without a final answer
        self._highest = -1  # confirmed number
        self._refused: int | None = None  # the lowest refused number; new publishes are held while it is set
        self._outcome_is_open = False
        self._is_new = True  # the producer's name: no partition can wait for a number of it
        self._waited_for = False  # a partition waits for a number that went elsewhere
        self._held: list[PublishSlot] = []
        self._first: PublishSlot | None = None  # of the renumbered ones

    @property
    def held(self) -> list[PublishSlot]:
        """Publishes that are held back until a refused publish before them has been repeated."""
        return self._held

    @property
    def awaited(self) -> str:
        """The answer that its publishes await, in the words of a time-out error."""
        return f"the OK of a publish to {self.topic}" + (f"; {self.place}" if self.place else "")

    @property
    def idle(self) -> bool:
        return not self._in_flight and not self._held

    def add(self, slots: list[PublishSlot]) -> None:
        """Send publishes, in this order."""
        self.outstanding.bytes += sum([len(slot.body) for slot in slots])
        if self._names is not None:
            numbered = [slot for slot in slots if not slot.key]
            if self._refused is None:
                self._number(numbered)
            elif numbered:
                self._held += numbered
                slots = [slot for slot in slots if slot.key]
        self.send(slots)

    def confirmed(self, seq: int) -> None:
        if seq > self._highest:
            self._highest = seq
        self._is_new = False
        self.gone()

    def gone(self) -> None:
        """Note that a numbered publish got its final answer, or will never be sent."""
        self._in_flight -= 1
        if self._refused is not None and not self._in_flight:
            self._renumber()

    def holds(self, slot: PublishSlot, seq: int, error: ToymqError) -> bool:
        """Hold a refused publish back if it can be repeated, after the earlier publish because of which it was refused.
        Returns: whether it is held."""
        again = isinstance(error, OutOfSequence) and not (slot is self._first and self._is_new) and not slot.done
        self._waited_for |= again and slot is self._first
        if again:
            self._held.append(slot)
        self._refused = seq if self._refused is None else min(seq, self._refused)
        self._outcome_is_open |= not leaves_no_trace(error)
        self.gone()
        return again

    def _renumber(self) -> None:
        assert self._refused is not None
        held, self._held = self._held, []
        held.sort(key=lambda slot: (slot.seq is None, slot.seq or 0))
        if self._outcome_is_open or self._waited_for or self._refused <= self._highest:
            assert self._names is not None, "only numbered publishes are held"
            self.producer = next(self._names).encode()
            self._next, self._highest = 0, -1
            self._is_new = True
        else:
            self._next = self._refused
        self._refused, self._outcome_is_open, self._waited_for, self._first = None, False, False, None
        for slot in held:
            slot.seq = None
            if slot.done:
                slot.dropped()
        held = [slot for slot in held if not slot.done]
        self._first = held[0] if held else None
        self._number(held)
        self.send(held)

    def _number(self, slots: list[PublishSlot]) -> None:
        self._in_flight += len(slots)
        for slot in slots:
            slot.seq = self._next
            self._next += 1
