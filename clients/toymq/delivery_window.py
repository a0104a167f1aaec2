"""State of a subscription: deliveries that arrived, those that were handed out and are open, and acks to send.

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

OnSynced = Callable[[ToymqError | None], None]
"""Called with None when an ack is on stable storage, or with the error that prevents it."""
Place = tuple[str, int]
"""Topic and id."""


class FeedState(Enum):
    ASKED = "SUB is not answered yet"
    LIVE = "subscribed, or about to be after a reconnect"
    ENDED = "ended by the broker"
    CLOSED = "ended by the client"


class AckList:
    """Acked ids of one topic that are not sent yet."""

    __slots__ = ("consumer", "ids", "listed", "topic", "waiters")

    def __init__(self, topic: str, consumer: str) -> None:
        self.topic = topic
        self.consumer = consumer
        self.ids: list[int] = []
        self.waiters: list[OnSynced] = []
        """Callbacks of acks that wait for stable storage."""
        self.listed = False

    def take(self) -> list["AckSlot"]:
        """Take all, as few ACK lines as they fit into."""
        ids, self.ids = self.ids, []
        waiters, self.waiters = self.waiters, []
        lines = list(lines_of(to_ranges(ids)))
        return [
            AckSlot(self, line, sync=bool(waiters), waiters=waiters if at == len(lines) else [])
            for at, line in enumerate(lines, 1)
        ]


class AckSlot(Slot):
    """One ACK line. Unanswered, its ids go back to the list and are sent before the next SUB."""

    __slots__ = ("_line", "_sync", "_waiters", "acks")

    def __init__(
        self, acks: AckList, line: tuple[IdRange, ...], *, sync: bool, waiters: list[OnSynced]
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
        for on_synced in self._waiters:
            on_synced(None)

    def refused(self, error: ToymqError) -> None:
        """Drop acks of a deleted topic; report the error to synced acks."""
        for on_synced in self._waiters:
            on_synced(error)

    def failed(self, error: ToymqError) -> None:
        for first, last in self._line:
            self.acks.ids.extend(range(first, last + 1))
        self.acks.waiters.extend(self._waiters)


class Feed:
    """Deliveries of one consumer over all connections."""

    def __init__(self, command: Subscribe, wake: Callable[[], None]) -> None:
        """
        Args:
            command: the SUB, also after a reconnect.
            wake: called when a message arrives or the state changes.

        Raises: BadName, BadArgument.
        """
        encode_command(command)  # raises now, to the caller
        self.command = command
        self.wake = wake
        self.pattern = TopicPattern(command.topic) if is_pattern(command.topic) else None
        self.state = FeedState.ASKED
        self.error: ToymqError | None = None
        self.arrived: deque[MessagePush] = deque()
        self.open: dict[Place, None] = {}
        """Handed out, neither acked nor nacked."""
        self.on_settled: Callable[[], None] | None = None
        self._still_open: set[Place] = set()  # since before a reconnect: their next delivery is a repeat
        self._acks: dict[str, AckList] = {}

    def overlaps(self, topic: str) -> bool:
        """Whether a message could belong to this and to a subscription of ``topic``; of two patterns: assumed."""
        if self.pattern is not None:
            return is_pattern(topic) or self.pattern.matches(topic)
        return TopicPattern(topic).matches(self.command.topic) if is_pattern(topic) else topic == self.command.topic

    def take(self) -> MessagePush | None:
        """Hand out the next delivery."""
        if not self.arrived:
            return None
        push = self.arrived.popleft()
        self.open[push.topic, push.msg_id] = None
        return push

    def leased(self) -> list[Place]:
        """Deliveries that the broker still counts as leased, those with an unsent ack included. For any thread: each copy is
        made at once."""
        waiting = [(push.topic, push.msg_id) for push in self.arrived.copy()]
        unsaid = [(acks.topic, msg_id) for acks in self._acks.copy().values() for msg_id in acks.ids.copy()]
        return [*self.open.copy(), *waiting, *unsaid]

    def settle(self, topic: str, msg_id: int) -> None:
        """A delivery is acked or nacked: it is no longer open."""
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
                return  # its handler still runs, and acks it
        self.arrived.append(push)

    def lost(self) -> None:
        """The connection is gone: the broker delivers again what was not handed out."""
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
        """Hand out nothing more."""
        if self.state is not FeedState.ENDED:
            self.state = FeedState.CLOSED
        self.arrived.clear()
        self.wake()


def ended(topic: str, consumer: str, code: str) -> SubscriptionEnded:
    """The error that iteration raises in state ``CLOSED``."""
    kinds = {"TAKEN_OVER": TakenOver, "DELETED": ConsumerDeleted}
    return kinds.get(code, SubscriptionEnded)(f"the subscription of {consumer} to {topic} was ended: {code}")
