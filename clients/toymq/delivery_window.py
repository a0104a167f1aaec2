"""State of a subscription: deliveries that arrived, those that the application got and has not settled, and acks to send.

Sans-IO; the subscriptions of both clients are thin shells around ``Feed``.
"""

import logging
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable
from enum import Enum
from typing import Any, TypeVar
from weakref import ref

from toymq.errors import ConsumerDeleted, SubscriptionEnded, TakenOver
from toymq.message import lines_of, to_ranges
from toymq.pending_replies import Slot
from toymq_py.errors import ToymqError
from toymq_py.lease_number import new_lease_number
from toymq_py.names import TopicPattern, is_pattern, whole_name
from toymq_py.protocol import Ack, MessagePush, Reply, Subscribe, encode_command
from toymq_py.records import IdRange

logger = logging.getLogger("toymq")

OnSynced = Callable[[ToymqError | None], None]
"""Called with None when an ack is on stable storage, or with the error that prevents it."""
Place = tuple[str, int]
"""Topic and id of a message."""
GOES_ON = ("SEEK", "MOVED")
"""Codes of CLOSED after which a subscription is asked for again: from another position, or, where the answer says so, at
another group."""
CAREFUL_MESSAGES = 1024
"""The number of messages that are acked one by one behind a message that was delivered before. A worker that died may do so
again, and would give back with its message all those before it whose acks had not been sent: each would count an attempt in
turn."""
CONFIRM_S = 0.5
"""A message that has waited longer is handed out only when the broker has said that its lease is still ours (ADR 0092)."""


L = TypeVar("L")


class FeedState(Enum):
    ASKED = "SUB is not answered yet"
    LIVE = "subscribed, or about to be after a reconnect"
    ENDED = "ended by the broker"
    CLOSED = "ended by the client"


class AckList:
    """Acked ids of one topic that are not sent or not answered yet."""

    __slots__ = ("consumer", "ids", "listed", "topic", "unanswered", "waiters")

    def __init__(self, topic: str, consumer: str) -> None:
        self.topic = topic
        self.consumer = consumer
        self.ids: list[int] = []
        """The ids that are not sent yet."""
        self.unanswered: list[tuple[IdRange, ...]] = []
        """The ranges that are sent and not answered yet."""
        self.waiters: list[OnSynced] = []
        """Callbacks of acks that wait for stable storage."""
        self.listed = False

    def holds(self, msg_id: int) -> bool:
        return msg_id in self.ids or any(first <= msg_id <= last for line in self.unanswered for first, last in line)

    def take(self) -> list["AckSlot"]:
        """Take all unsent ids, in as few ACK lines as they fit into."""
        waiters, self.waiters = self.waiters, []
        lines = list(lines_of(to_ranges(self.ids)))
        self.unanswered += lines
        self.ids = []  # last: an id that an exception leaves in both lists is acked twice, one in neither never
        return [
            AckSlot(self, line, sync=bool(waiters), waiters=waiters if at == len(lines) else [])
            for at, line in enumerate(lines, 1)
        ]


    def repeat(self) -> None:
        """Send all unanswered ids again."""
        self.listed = False
        for line in self.unanswered:
            for first, last in line:
                self.ids.extend(range(first, last + 1))
        self.unanswered = []


class AckSlot(Slot):
    """One ACK line. If the connection is lost before its answer, its ids go back to the ``AckList``, which is sent before the
    next SUB."""

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
        self.acks.unanswered.remove(self._line)
        for on_synced in self._waiters:
            on_synced(None)

    def refused(self, error: ToymqError) -> None:
        """Drop acks of a deleted topic; report the error to the callers that wait for synced acks."""
        self.acks.unanswered.remove(self._line)
        for on_synced in self._waiters:
            on_synced(error)

    def failed(self, error: ToymqError) -> None:
        for first, last in self._line:
            self.acks.ids.extend(range(first, last + 1))
        self.acks.unanswered.remove(self._line)
        self.acks.waiters.extend(self._waiters)


class Feed:
    """The deliveries of one subscription, over all connections that it lives through."""

    def __init__(self, command: Subscribe, wake: Callable[[], None]) -> None:
        """
        Args:
            command: the SUB, which is sent again after each reconnect.
            wake: called when a message arrives or the state changes.

        Raises: BadName, BadArgument.
        """
        encode_command(command)  # raises now, to the caller
        self.command = command
        self.lease = new_lease_number()
        """The number of its leases: a NACK that names it leaves those of others alone."""
        self.place = ""
        """The place that has its topic, as the last MOVED said."""
        self.pulled = False
        """Whether it has the messages of one PULL, whose leases do not end with the connection."""
        self.wake = wake
        self.gone_to: ref[Any] | None = None  # weakly: the connection refers to its feeds
        self.pattern = TopicPattern(command.topic) if is_pattern(command.topic) else None
        self.state = FeedState.ASKED
        self.error: ToymqError | None = None
        self.since = math.inf
        """The time since when the waiting messages may have been there, or their leases were renewed: seconds of the client's
        clock."""
        self._since_asked = math.inf
        """The same time, for messages that came after the broker was asked for leases: an interrupted question changes
        nothing."""
        self.kept_s = 0.0
        """The time of leases that are renewed all the time (``auto_extend``); else 0."""
        self.waits_since = math.inf
        """The time since when the application waits for a message, if it does and its client cannot receive while a handler
        computes."""
        self._arrived: deque[MessagePush] = deque()
        self._with_repeats: OrderedDict[Place, MessagePush] | None = None
        """Used in place of ``_arrived``, from the first message that is delivered again until all are handed out: a later
        delivery replaces the earlier one, whose lease is over, in its own turn. Many applications never need it, and it costs
        more."""
        self.turn = 0
        """A counter that rises with each message that comes again."""
        self._again: dict[Place, int] = {}
        """The turn of the last delivery of messages that came again and are not settled."""
        self._highest: dict[str, int] = {}
        """The highest id that arrived, by topic."""
        self.open: dict[Place, None] = {}
        """The messages that are handed out, and neither acked nor nacked."""
        self.on_settled: Callable[[], None] | None = None
        self.careful = 0
        """The number of further acks to send at once (``CAREFUL_MESSAGES``)."""
        self._warned = False
        self._still_open: set[Place] = set()  # since before a reconnect: their next delivery is a repeat
        self._moved_open: set[Place] = set()  # since before a SEEK: their next delivery is a new one
        self._acks: dict[str, AckList] = {}

    def link(self, present: L) -> L:
        """The client's connection that now carries the feed; ``present``: the connection that carried it when the caller last
        asked."""
        if self.gone_to is None:
            return present
        link: L | None = self.gone_to()
        return present if link is None else link

    def goes_to(self, link: object) -> None:
        """Note that the feed goes on over another connection of its client, with all its acks, even of earlier deliveries."""
        self.gone_to = ref(link)

    @property
    def awaited(self) -> str:
        """The answer that the SUB awaits, in the words of a time-out error."""
        return f"the OK of SUB {self.command.topic} {self.command.consumer}" + (f"; {self.place}" if self.place else "")

    def overlaps(self, topic: str) -> bool:
        """Whether a message could belong both to this subscription and to one of ``topic``. Two patterns count as overlapping;
        either name may be a partitioned topic."""
        mine = self.command.topic
        if topic in (mine, whole_name(mine)) or whole_name(topic) == mine:
            return True
        if self.pattern is not None:
            return is_pattern(topic) or self.pattern.matches(topic)
        return is_pattern(topic) and TopicPattern(topic).matches(mine)

    def take(self) -> MessagePush | None:
        """Hand out the next delivery. Its removal from ``arrived`` is the last step: if a signal handler raises, either the
        delivery is still there or the caller has it."""
        if self._with_repeats is not None:
            return self._take_with_repeats(self._with_repeats)
        if not self._arrived:
            return None
        push = self._arrived[0]
        self.open[push.topic, push.msg_id] = None
        if push.attempt > 1:
            self.careful = CAREFUL_MESSAGES
        del self._arrived[0]
        return push

    def _take_with_repeats(self, waiting: OrderedDict[Place, MessagePush]) -> MessagePush | None:
        push = None
        if waiting:
            place = next(iter(waiting))
            push = waiting[place]
            self.open[place] = None
            self.careful = CAREFUL_MESSAGES
            del waiting[place]
        if not waiting:
            self._with_repeats = None
        return push

    def handed_out(self, pulled: Iterable[MessagePush]) -> None:
        """Note that the application got the messages of a PULL."""
        if any(push.attempt > 1 for push in pulled):
            self.careful = CAREFUL_MESSAGES

    def put_back(self, push: MessagePush) -> None:
        """Put a delivery that did not reach the application back to the front. A later delivery of the same message, if one
        waits, replaces it."""
        if self.state is not FeedState.LIVE:
            return
        if self._with_repeats is not None:
            place = push.topic, push.msg_id
            if place not in self._with_repeats:
                self._with_repeats[place] = push
                self._with_repeats.move_to_end(place, last=False)
        else:
            self._arrived.appendleft(push)
        self.open.pop((push.topic, push.msg_id), None)

    @property
    def arrived(self) -> Collection[object]:
        """The deliveries that were not handed out yet."""
        return self._arrived if self._with_repeats is None else self._with_repeats

    def drop_arrived(self) -> None:
        self._arrived.clear()
        self._with_repeats = None

    def leased(self) -> list[Place]:
        """Messages that the broker still counts as leased: handed out, waiting, or with an unsent ack. Any thread may call
        this, since each collection is copied in one step."""
        unsaid = [(acks.topic, msg_id) for acks in self._acks.copy().values() for msg_id in acks.ids.copy()]
        return [*self.open.copy(), *self.waiting(), *unsaid]

    def seen_topics(self, max_count: int) -> Collection[str]:
        """The topics from which messages came; empty if there are more than ``max_count``. Any thread may call this."""
        return self._highest.copy() if len(self._highest) <= max_count else ()

    def waiting(self) -> list[Place]:
        """Topic and id of each delivery in ``arrived``."""
        repeats = self._with_repeats
        return [(push.topic, push.msg_id) for push in self._arrived.copy()] if repeats is None else list(repeats.copy())

    def came_again(self, topic: str, msg_id: int, turn: int) -> bool:
        """Whether an unsettled message, handed out at ``turn``, was delivered again later. If so, its first lease is over,
        wherever the later delivery is now."""
        return self._again.get((topic, msg_id), 0) > turn

    def is_stale(self, now: float) -> bool:
        """Whether the leases of the waiting messages may have ended, so that another worker may have the messages. Renewed
        leases can end, too, when a handler blocks the event loop that renews them."""
        return now - self.since > (self.kept_s / 2 or CONFIRM_S) and bool(self.arrived)

    def asked(self) -> None:
        """Note that the broker is being asked for the leases of all waiting messages."""
        self._since_asked = math.inf

    def confirmed(self, now: float) -> None:
        """Note that this client holds the leases of all messages that waited at ``asked`` and have not been dropped since."""
        self.since = min(self._since_asked, now)

    def came(self, at: float, looked_at: float = math.inf) -> None:
        """Note that deliveries are about to arrive at time ``at``; they may have waited unread in the socket before.

        Args:
            looked_at: when the connection was last read. If the application has not waited for a message for half a second
                since, it may have blocked its event loop, and the deliveries may have waited since then.
        """
        if (at if self.open or at < self.waits_since else self.waits_since) - looked_at > CONFIRM_S:
            at = looked_at
        self._since_asked = min(self._since_asked, at)
        if at < self.since or not self.arrived:
            self.since = at

    def drop(self, topic: str, msg_id: int) -> None:
        """Drop a waiting delivery: its lease is over."""
        if self._with_repeats is not None:
            self._with_repeats.pop((topic, msg_id), None)
        else:
            self._arrived = deque(push for push in self._arrived if (push.topic, push.msg_id) != (topic, msg_id))

    def settle(self, topic: str, msg_id: int) -> None:
        """Note that a delivery was acked or nacked: it is no longer open, and a later delivery of the same message that waits
        is dropped."""
        self.open.pop((topic, msg_id), None)
        if self._again:
            self._again.pop((topic, msg_id), None)
        if self._with_repeats is not None:
            self._with_repeats.pop((topic, msg_id), None)
        if self.on_settled is not None:
            self.on_settled()

    def let_go(self, topic: str, msg_id: int) -> None:
        """Stop counting a delivery as open: its handler was told that the lease is over, and stops. The message's next delivery
        will be handed out."""
        self.open.pop((topic, msg_id), None)

    @property
    def ack_lists(self) -> Collection[AckList]:
        return self._acks.values()

    def acks_of(self, topic: str) -> AckList:
        acks = self._acks.get(topic)
        if acks is None:
            acks = self._acks[topic] = AckList(topic, self.command.consumer)
        return acks

    def arrive(self, push: MessagePush) -> None:
        """Keep a delivery until it is handed out. It is dropped if its message is acked already: when a lease ends before the
        application comes to its message, the broker delivers the message again."""
        if self.state is not FeedState.LIVE:
            return
        if push.msg_id > self._highest.get(push.topic, -1):
            self._highest[push.topic] = push.msg_id
            if self._with_repeats is None:
                self._arrived.append(push)
                return
        place = push.topic, push.msg_id
        if place in self._still_open:
            self._still_open.discard(place)
            if place in self.open:
                return  # its handler runs on, and is the one that acks it
        if push.topic in self._acks and self._acks[push.topic].holds(push.msg_id):
            return
        if place in self._moved_open:
            self._moved_open.discard(place)
        elif place in self.open and not self._warned:
            self._warned = True
            logger.warning(
                "%s %d: its lease ended before it was acked; each time counts an attempt. Use auto_extend=True, or a longer"
                " visibility", *place,
            )  # fmt: skip
        if self._with_repeats is None:
            self._with_repeats = OrderedDict(((one.topic, one.msg_id), one) for one in self._arrived)
            self._arrived.clear()
        self.turn += 1
        self._again[place] = self.turn
        self._with_repeats.pop(place, None)  # what comes again comes behind what was sent before it
        self._with_repeats[place] = push

    def lost(self) -> None:
        """Handle the loss of the connection: the broker will deliver again the messages that were not handed out."""
        self.drop_arrived()
        self._still_open = set(self.open) - self._moved_open

    def moved(self, topic: str) -> None:
        """Handle a SEEK or a move of the topic, by which the broker forgets the consumer's leases on that topic: messages that
        were handed out may come again, and the application shall handle them again."""
        if self._with_repeats is not None:
            waiting = [push for push in self._with_repeats.values() if push.topic != topic]
            self._with_repeats = OrderedDict(((push.topic, push.msg_id), push) for push in waiting) or None
        else:
            self._arrived = deque(push for push in self._arrived if push.topic != topic)
        self._still_open = {place for place in self._still_open if place[0] != topic}
        elsewhere = {place for place in self._moved_open if place[0] != topic}
        self._moved_open = elsewhere.union(place for place in self.open if place[0] == topic)

    def mend(self) -> None:
        """Repair the state after an exception interrupted a change; the connection is gone."""
        self.lost()
        if self.error is not None:
            self.end(self.error)

    def subscribed(self) -> None:
        if self.state is FeedState.ASKED:
            self.state = FeedState.LIVE
            self.wake()

    def end(self, error: ToymqError) -> None:
        if self.state in (FeedState.ASKED, FeedState.LIVE):
            self.error = error
            self.state = FeedState.ENDED
            self.drop_arrived()
            self.wake()

    def close(self) -> None:
        """Hand out nothing more."""
        if self.state is not FeedState.ENDED:
            self.state = FeedState.CLOSED
        self.drop_arrived()
        self.wake()


def ended(topic: str, consumer: str, code: str) -> SubscriptionEnded:
    """Make the error that iteration raises after the broker's ``CLOSED``."""
    kinds = {"TAKEN_OVER": TakenOver, "DELETED": ConsumerDeleted}
    hint = ""
    if code == "TAKEN_OVER":
        hint = f', another session subscribed as {consumer}; mode="shared" in both shares its messages'
    return kinds.get(code, SubscriptionEnded)(f"the subscription of {consumer} to {topic} was ended: {code}{hint}")
