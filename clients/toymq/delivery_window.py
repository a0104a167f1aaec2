"""A subscription's books: what arrived and was not handed out, what was handed out and is not settled, what is acked.

Sans-IO; both clients' subscriptions are thin shells around it.
"""

from collections import deque
from collections.abc import Callable
from enum import Enum

from toymq.errors import ConsumerDeleted, SubscriptionEnded, TakenOver
from toymq.message import lines_of, to_ranges
from toymq.pending_replies import Slot
from toymq_py.errors import ToymqError
from toymq_py.names import TopicPattern, is_pattern
from toymq_py.protocol import Ack, MessagePush, Reply, Subscribe, encode_command
from toymq_py.records import IdRange

Told = Callable[[ToymqError | None], None]
"""Called with None once an ack is on stable storage, else with the reason why it never will be."""
Place = tuple[str, int]
"""Topic and id."""


class FeedState(Enum):
    ASKED = "SUB is not answered yet"
    LIVE = "subscribed, or to be again as soon as there is a connection"
    ENDED = "the broker ended it"
    CLOSED = "we ended it"


class AckList:
    """Ids of one topic that are done and not said yet."""

    __slots__ = ("consumer", "ids", "listed", "topic", "waiters")

    def __init__(self, topic: str, consumer: str) -> None:
        self.topic = topic
        self.consumer = consumer
        self.ids: list[int] = []
        self.waiters: list[Told] = []
        """Callbacks of acks that wait for stable storage."""
        self.listed = False

    def take(self) -> list["AckSlot"]:
        """Take the ACK lines that are due, as few as the ids fit into."""
        ids, self.ids = self.ids, []
        waiters, self.waiters = self.waiters, []
        lines = list(lines_of(to_ranges(ids)))
        return [
            AckSlot(self, line, sync=bool(waiters), waiters=waiters if at == len(lines) else [])
            for at, line in enumerate(lines, 1)
        ]


class AckSlot(Slot):
    """One line of acks. Without an answer the ids go back to the list, and are said before the next SUB."""

    __slots__ = ("_line", "_sync", "_waiters", "acks")

    def __init__(
        self, acks: AckList, line: tuple[IdRange, ...], *, sync: bool, waiters: list[Told]
    ) -> None:
        super().__init__()
        self.acks, self._line, self._sync, self._waiters = acks, line, sync, waiters

    @property
    def awaited(self) -> str:
        return "the reply to ACK"

    def frame(self) -> bytes:
        return encode_command(Ack(self.acks.topic, self.acks.consumer, self._line, self._sync))

    def answered(self, reply: Reply) -> None:
        super().answered(reply)
        for tell in self._waiters:
            tell(None)

    def refused(self, error: ToymqError) -> None:
        """Drop acks of a deleted topic; report the error to synced acks."""
        for tell in self._waiters:
            tell(error)

    def failed(self, error: ToymqError) -> None:
        for first, last in self._line:
            self.acks.ids.extend(range(first, last + 1))
        self.acks.waiters.extend(self._waiters)


class Feed:
    """One consumer's deliveries over every connection there will be."""

    def __init__(self, command: Subscribe, wake: Callable[[], None]) -> None:
        """
        Args:
            command: what opens it, also after a reconnect.
            wake: called when something arrived, or the state changed.

        Raises: BadName, BadArgument.
        """
        encode_command(command)  # what cannot be said is the caller's mistake, now
        self.command = command
        self.wake = wake
        self.pattern = TopicPattern(command.topic) if is_pattern(command.topic) else None
        self.state = FeedState.ASKED
        self.error: ToymqError | None = None
        self.arrived: deque[MessagePush] = deque()
        self.open: dict[Place, None] = {}
        """Handed out, neither acked nor given back."""
        self.on_settled: Callable[[], None] | None = None
        self._still_open: set[Place] = set()  # over a reconnect: their next delivery is not news
        self._acks: dict[str, AckList] = {}

    def overlaps(self, topic: str) -> bool:
        """Whether a message could belong to this and to a subscription of ``topic``. Two patterns: assumed."""
        if self.pattern is not None:
            return is_pattern(topic) or self.pattern.matches(topic)
        return TopicPattern(topic).matches(self.command.topic) if is_pattern(topic) else topic == self.command.topic

    def take(self) -> MessagePush | None:
        """The next one, which is open from now on."""
        if not self.arrived:
            return None
        push = self.arrived.popleft()
        self.open[push.topic, push.msg_id] = None
        return push

    def leased(self) -> list[Place]:
        """What the broker gave us and does not know to be settled, an ack that is not said yet included. Another thread may
        ask: each copy is made at once."""
        waiting = [(push.topic, push.msg_id) for push in self.arrived.copy()]
        unsaid = [(acks.topic, msg_id) for acks in self._acks.copy().values() for msg_id in acks.ids.copy()]
        return [*self.open.copy(), *waiting, *unsaid]

    def settle(self, topic: str, msg_id: int) -> None:
        """Remove a message that was acked or given back."""
        self.open.pop((topic, msg_id), None)
        if self.on_settled is not None:
            self.on_settled()

    def acks_of(self, topic: str) -> AckList:
        acks = self._acks.get(topic)
        if acks is None:
            acks = self._acks[topic] = AckList(topic, self.command.consumer)
        return acks

    def arrive(self, push: MessagePush) -> None:
        if self.state is not FeedState.LIVE:
            return
        if self._still_open and (push.topic, push.msg_id) in self._still_open:
            self._still_open.discard((push.topic, push.msg_id))
            if (push.topic, push.msg_id) in self.open:
                return  # its handler runs on, and is the one that acks it
        self.arrived.append(push)

    def lost(self) -> None:
        """The connection is gone: what was not handed out comes again."""
        self.arrived.clear()
        self._still_open = set(self.open)

    def subscribed(self) -> None:
        if self.state is FeedState.ASKED:
            self.state = FeedState.LIVE
            self.wake()

    def end(self, error: ToymqError) -> None:
        if self.state in (FeedState.ASKED, FeedState.LIVE):
            self.state = FeedState.ENDED
            self.error = error
            self.arrived.clear()
            self.wake()

    def close(self) -> None:
        """Nothing is handed out any more."""
        if self.state is not FeedState.ENDED:
            self.state = FeedState.CLOSED
        self.arrived.clear()
        self.wake()


def ended(topic: str, consumer: str, code: str) -> SubscriptionEnded:
    """The error that iteration raises in state ``CLOSED``."""
    kinds = {"TAKEN_OVER": TakenOver, "DELETED": ConsumerDeleted}
    return kinds.get(code, SubscriptionEnded)(f"the subscription of {consumer} to {topic} was ended: {code}")
