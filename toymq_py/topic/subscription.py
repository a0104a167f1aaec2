"""A hold on one consumer of one topic, what it is handed, and who else takes from that consumer."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from toymq_py.consumer import Consumer, Lessee
from toymq_py.model import IdRange, Mode, Records, TopicPattern

if TYPE_CHECKING:
    from toymq_py.topic.topic import Topic


class Registration(Enum):
    """Whether a consumer is on the disk when it subscribes (ADR 0009)."""

    KNOWN = "it was there before"
    NEW = "made at the first id: its SUB waits for the flush, but a disk that refuses it does not refuse the SUB"
    NEW_AHEAD = "made above the first id: without the flush a restart would bring back what it skips"


@dataclass(frozen=True, slots=True)
class Delivery:
    """Leased records: rows ``start`` to ``stop`` of a run, all at the same attempt; ids ascend, with gaps in what fell due."""

    subscription: "Subscription"
    """What they were leased through; of a pattern or a poll, the part that is the topic's."""
    records: Records
    start: int
    stop: int
    attempt: int
    size: int
    """Payload bytes, about."""

    def ranges(self, skip: int = 0) -> list[IdRange]:
        """The ids behind the first so many, as ranges: they need not follow each other."""
        return ranges_of(self.records.ids[self.start + skip : self.stop])

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self.subscription.topic.name

    @property
    def first_id(self) -> int:
        return self.records.ids[self.start]

    @property
    def last_id(self) -> int:
        return self.records.ids[self.stop - 1]

    def __len__(self) -> int:
        return self.stop - self.start

def ranges_of(ids: Sequence[int]) -> list[IdRange]:
    """Ascending ids as ranges."""
    if not ids:
        return []
    if ids[-1] - ids[0] + 1 == len(ids):
        return [(ids[0], ids[-1])]
    ranges = [(ids[0], ids[0])]
    for msg_id in ids[1:]:
        if msg_id == ranges[-1][1] + 1:
            ranges[-1] = ranges[-1][0], msg_id
        else:
            ranges.append((msg_id, msg_id))
    return ranges


class Attached:
    """Who takes from one consumer of one topic: the sessions, all in one mode, and polls beside them.

    ``idle`` are those that found nothing, the longest idle first: each message that comes wakes one of them, so they are
    served in turn, and a thousand do not get up for one message. Lives as long as the consumer.
    """

    __slots__ = ("idle", "mode", "polls", "sessions")

    def __init__(self, mode: Mode) -> None:
        self.mode = mode
        """Of the sessions; when there are none, of the last one. A consumer that PULL made is shared."""
        self.sessions: dict[Subscription, None] = {}
        self.polls: dict[Subscription, None] = {}
        self.idle: OrderedDict[Subscription, None] = OrderedDict()

    @property
    def takers(self) -> int:
        """How many share what there is."""
        return len(self.sessions) + len(self.polls)

    def wake(self, messages: int) -> None:
        """So many became ready. Who cannot take now is passed over, and looks by itself when it can."""
        idle = self.idle
        while messages > 0 and idle:
            subscription, _ = idle.popitem(last=False)
            messages -= subscription.wake(subscription)


class Subscription(Lessee):
    """A hold on one consumer of one topic: a session's, or one topic's part of a pattern or a poll.

    ``wake`` is called when there may be something to take, and says whether that will be looked at soon; ``ended`` with a
    CLOSED code when the topic ends it. After ``close`` or ``ended`` it takes nothing and does nothing.
    """

    __slots__ = ("attached", "closed", "consumer", "ended", "lessee", "mode", "paused", "topic", "visibility_s", "wake")

    def __init__(
        self,
        topic: "Topic",
        consumer: Consumer,
        attached: Attached,
        *,
        mode: Mode | None,
        window: int,
        visibility_s: float | None,
        wake: Callable[["Subscription"], bool],
        ended: Callable[["Subscription", str], None],
        lessee: Lessee | None = None,
    ) -> None:
        """
        Args:
            mode: None for a poll, whose leases end by their deadline alone.
            lessee: whose the leases are, and whose window counts; by default its own.
        """
        Lessee.__init__(self, window)
        self.topic = topic
        self.consumer = consumer
        self.attached = attached
        self.mode = mode
        self.visibility_s = visibility_s
        self.wake = wake
        self.ended = ended
        self.lessee: Lessee = lessee or self
        self.closed = False
        self.paused = False
        """Its session holds its deliveries (PAUSE)."""

    @property
    def pattern(self) -> TopicPattern | None:
        """None: it is of one topic."""
        return None

    @property
    def name(self) -> str:
        """The topic's."""
        return self.topic.name

    @property
    def consumer_name(self) -> str:
        return self.consumer.name

    def roomy(self) -> None:
        self.wake(self)

    def take(self, max_bytes: int, max_count: int | None = None) -> Delivery | None:
        """Lease what comes next, redeliveries first; None when there is nothing or the window is full. Where others take from
        the same consumer, no more than its share of what is ready, and one at least.

        Raises: OSError when the log cannot be read.
        """
        lessee = self.lessee
        room = lessee.window - lessee.inflight
        if room <= 0 and not self.closed:
            lessee.wants_room = True
            return None
        return self.take_some(room if max_count is None else min(room, max_count), max_bytes)

    def take_some(self, max_count: int, max_bytes: int) -> Delivery | None:
        """The same with another limit than the window."""
        if self.closed:
            return None
        if (takers := self.attached.takers) > 1:
            max_count = min(max_count, max(self.topic.available(self.consumer) // takers, 1))
        return self.topic.take(self, max_count, max_bytes)

    def unsend(self, first: int, last: int) -> None:
        """A delivery that never left our buffer: it goes back uncounted."""
        self.topic.unsend(self, first, last)

    def pass_on(self) -> None:
        """It was woken and cannot take now: someone else is woken for what is there."""
        if self.attached.idle:
            self.attached.wake(self.topic.available(self.consumer))

    def close(self) -> None:
        """Its holder lets go: unless it is a poll's, its inflight is ready again at once. Idempotent."""
        if not self.closed:
            self.closed = True
            self.topic.attachments.detach(self)
