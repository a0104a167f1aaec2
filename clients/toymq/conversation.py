"""A client's side of the protocol, over successive connections. Sans-IO: bytes and connections come in, bytes go out; no
socket, no clock.

Subscriptions, unanswered acks, and commands that can be repeated outlive a connection. After a reconnect acks are sent first,
so that nothing acked is delivered again, then SUBs, then the rest in order. Each reply belongs to the oldest unanswered
command, also when its caller stopped waiting: the next caller never gets it.
"""

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from itertools import chain

from toymq import arguments
from toymq.delivery_window import GOES_ON, AckList, AckSlot, Feed, OnSynced, ended
from toymq.departures import Elsewhere, place_of
from toymq.errors import ClientClosed, RequestTimeout
from toymq.message import Outgoing
from toymq.pending_publishes import Batch, Outstanding, PublishSlot, Stream
from toymq.pending_replies import FollowSlot, HelloSlot, PullSlot, Slot
from toymq.streams import Streams
from toymq.subscribe_slots import SubscribeSlot, UnsubscribeSlot
from toymq.wire_log import Wire
from toymq_py.errors import Moved, ProtocolViolation, RequestError, ToymqError
from toymq_py.names import whole_name
from toymq_py.protocol import ClientConnection, ClosedPush, ErrReply, Hello, HelloReply, MessagePush
from toymq_py.records import IdRange

logger = logging.getLogger("toymq")

class State(Enum):
    OFFLINE = "no connection"
    GREETING = "HELLO is not answered yet"
    ONLINE = "commands are sent"
    CLOSED = "closed for good"


class Conversation:
    """One client's commands in order, those that await a reply, and its subscriptions."""

    def __init__(self, producer: str | None, on_output: Callable[[], None]) -> None:
        """
        Args:
            producer: the beginning of the producer names for publishes without a key; None: these are not numbered.
            on_output: called when there is output and was none before. It must take the output, or drop the connection.
        """
        self.feeds: list[Feed] = []
        self.server: HelloReply | None = None
        self.farewell: ToymqError | None = None  # why the broker is about to close the connection
        self.received_at = 0.0
        """The time since when the bytes of the next ``receive`` may have been there, in seconds of the caller's clock."""
        self.looked_at = math.inf
        """When bytes were looked for before, if handlers may have held that up; see ``Feed.came``."""
        self.progress = 0
        """A counter that rises with each answer to a command, and when messages come; 0 on a connection that has just begun."""
        self._on_output = on_output
        self._state = State.OFFLINE
        self._wire = ClientConnection()
        self._debug: Wire | None = None
        self._out: list[bytes] = []
        self._unanswered: deque[Slot] = deque()
        self._waiting: deque[Slot] = deque()
        self._acks: list[AckList] = []
        self._routes: dict[str, Feed] = {}
        self._patterns: list[Feed] = []
        self._streams = Streams(producer, self._send)
        self.elsewhere: Elsewhere | None = None
        """Set by a client that follows MOVED."""
        self._end: ToymqError = ClientClosed("this client is closed: connect again")

    @property
    def outstanding(self) -> Outstanding:
        """Bytes of this connection's unanswered publishes."""
        return self._streams.outstanding

    def is_leaving(self, topic: str) -> bool:
        """Whether publishes to a topic that another worker has by now still await answers on this connection."""
        return self._streams.departures.has(topic)

    @property
    def online(self) -> bool:
        return self._state is State.ONLINE

    @property
    def is_closed(self) -> bool:
        return self._state is State.CLOSED

    @property
    def idle(self) -> bool:
        """Whether no reply is due, and nothing has to be sent."""
        return not (self._unanswered or self._waiting or self._acks or self._out or self._streams.held)

    # -- the connection

    def connected(self, hello: Hello, on_answer: Callable[[HelloReply | ToymqError], None]) -> None:
        """Say HELLO on a new connection; commands follow once it is answered."""

        def answer(reply: HelloReply | ToymqError) -> None:
            if isinstance(reply, HelloReply):
                self._online(reply)
            on_answer(reply)

        self._state = State.GREETING
        self.progress = 0
        self._debug = Wire.made()
        self._note("=", "greeting")
        self.farewell = None
        self._put((HelloSlot(hello, answer),))

    def _online(self, hello: HelloReply) -> None:
        self._send_acks()  # collected while offline, not announced
        self._state = State.ONLINE
        self._note("=", "online")
        self.server = hello
        if hello.has_workers and self.elsewhere is not None:
            self._put((FollowSlot(),))
        self._put([SubscribeSlot(self, feed) for feed in self.feeds])
        Conversation.drop_done(self)
        waiting, self._waiting = self._waiting, deque()
        self._put(waiting)

    def lost(self, error: ToymqError) -> None:
        """Handle the loss of the connection: commands that cannot be repeated fail with ``error``."""
        if self._state in (State.OFFLINE, State.CLOSED):
            return
        self._state = State.OFFLINE
        self._note("!" if isinstance(error, ProtocolViolation) else "x", str(error))
        self._debug = None
        self._wire = ClientConnection()
        self._out.clear()
        self._routes.clear()
        self._patterns.clear()
        for feed in self.feeds:
            feed.lost()
        repeated: list[Slot] = []
        for slot in self._unanswered:
            if slot.done:
                slot.dropped()
            elif slot.repeatable:
                repeated.append(slot.as_repeat())
            else:
                slot.failed(error)
                if isinstance(slot, AckSlot):
                    self._list(slot.acks)
        self._unanswered = deque()
        repeated = [slot for slot in repeated if not self._streams.departures.take(slot)]
        self._waiting.extendleft(reversed(repeated))
        self._streams.go(())

    @property
    def unanswered_count(self) -> int:
        """The number of commands without a reply, including abandoned ones."""
        return len(self._unanswered)

    def close(self, error: ToymqError) -> None:
        """Close for good: all waiting and later calls fail with ``error``."""
        if self._state is State.CLOSED:
            return
        Conversation.lost(self, error)
        self._end = error
        self._state = State.CLOSED
        waiting, self._waiting = self._waiting, deque()
        for slot in [*waiting, *self._streams.held]:
            slot.failed(error)
        for acks in self._acks:
            for on_synced in acks.waiters:
                on_synced(error)
        for feed in list(self.feeds):
            self.end(feed, error)

    def receive(self, data: bytes) -> None:
        """Process received bytes. Raises: ProtocolViolation, after which the connection has to be dropped."""
        self._wire.receive_data(data)
        woken: list[Feed] = []
        feed: Feed | None = None
        topic = ""
        unanswered, routes = self._unanswered, self._routes
        try:
            replies = self._wire.next_replies()
            if self._debug is not None:
                self._debug.received(replies)
            for reply in replies:
                if type(reply) is MessagePush:
                    if feed is None or reply.topic != topic:
                        topic = reply.topic
                        feed = routes.get(topic) or self._match(topic)
                        self.progress += 1
                        if feed is not None:
                            woken.append(feed)
                            feed.came(self.received_at, self.looked_at)
                    if feed is not None:
                        feed.arrive(reply)
                    elif unanswered and isinstance(unanswered[0], PullSlot):
                        unanswered[0].messages.append(reply)
                elif type(reply) is ErrReply:
                    feed = None
                    self._refused(reply)
                    if self.farewell is not None:
                        break
                elif type(reply) is ClosedPush:
                    feed = None
                    self._closed(reply)
                else:
                    if not unanswered:
                        raise ProtocolViolation(f"the broker sent {type(reply).__name__} without a request")
                    slot = unanswered.popleft()
                    self.progress += slot.is_work
                    try:
                        slot.answered(reply)
                    except ProtocolViolation:
                        if not slot.done:
                            unanswered.appendleft(slot)  # it had no answer
                        raise
                    feed = None
        finally:
            self._streams.go(self._unanswered)
            for one in woken:
                one.wake()

    def _refused(self, reply: ErrReply) -> None:
        error = reply.to_exception()
        fatal = isinstance(error, RequestError) and error.fatal
        greeting = self._state is State.GREETING
        if fatal:
            self.farewell = error
        if fatal and error.retryable and not greeting:
            return  # of the connection, not of the command, which the next connection repeats
        if self._unanswered:
            self.progress += 1
            slot = self._unanswered.popleft()
            if not (isinstance(error, Moved) and self._goes_elsewhere(slot, error)):
                slot.refused(error)
        elif not fatal:
            raise ProtocolViolation(f"the broker sent an error without a request: {error}")

    # -- topics of other workers

    def _goes_elsewhere(self, slot: Slot, moved: Moved) -> bool:
        """Let a refused publish or subscription go on over another connection. Returns: False: the caller gets the error."""
        if isinstance(slot, PublishSlot):
            stream = slot.stream
            if self._streams.departures.take(slot):
                return True
            stream.place = place_of(moved) or stream.place
            target = self.elsewhere.publishes(stream.topic, moved) if self.elsewhere is not None else None
            if target is None or not self._streams.leave(stream, target, chain((slot,), self._unanswered, self._waiting)):
                return False
            return self._streams.departures.take(slot)
        if isinstance(slot, SubscribeSlot) and slot.feed in self.feeds:
            return self._feed_goes(slot.feed, moved)
        return False

    def adopt(self, stream: Stream, size: int) -> bool:
        """Take over a stream of publishes from another connection; see ``departures.Target``."""
        return self._streams.adopt(stream, size)

    def forsake(self, stream: Stream) -> None:
        self._streams.forsake(stream)

    def accept(self, stream: Stream, slots: Sequence[PublishSlot]) -> None:
        """Send the publishes of an adopted stream; see ``departures.Target``."""
        self._streams.accept(stream, slots)

    def _feed_goes(self, feed: Feed, moved: Moved) -> bool:
        target = self.elsewhere.subscribes(feed, moved) if self.elsewhere is not None else None
        if target is None:
            return False
        self.feeds.remove(feed)
        acks = [one for one in self._acks if one in feed.ack_lists]
        self._acks = [one for one in self._acks if one not in acks]
        target.adopt_feed(feed, acks)
        return True

    def adopt_feed(self, feed: Feed, acks: Sequence[AckList]) -> None:
        """Subscribe a feed that comes from another connection, after sending the acks that were not sent there."""
        Conversation.adopt_acks(self, acks)
        if self.online:
            self._send_acks()
        Conversation.subscribe(self, feed)

    def adopt_acks(self, acks: Sequence[AckList]) -> None:
        """Send acks that another connection has not sent: any worker passes an ACK on to the one that has the topic."""
        for one in acks:
            one.listed = False
            self._list(one)

    def hand_back(self) -> None:
        """Move everything that waits for an unreachable worker to the connections that ``elsewhere`` names."""
        gone = Moved("-")
        for feed in list(self.feeds):
            self._feed_goes(feed, gone)
        for acks in self._acks.copy():  # of what was pulled
            if self.elsewhere is not None and (target := self.elsewhere.publishes(acks.topic, gone)) is not None:
                self._acks.remove(acks)
                target.adopt_acks((acks,))
        for _ in range(len(self._waiting)):  # the rest stays there: it belongs to the stream that leaves with the first
            slot = self._waiting.popleft()
            if not self._goes_elsewhere(slot, gone):
                slot.refused(gone)
        self._streams.go(())

    def _closed(self, push: ClosedPush) -> None:
        feed = self._routes.get(push.topic) or next((one for one in self._patterns if one.command.topic == push.topic), None)
        if feed is None:
            if (lost := self._match(push.topic)) is not None and push.code in GOES_ON:
                lost.moved(push.topic)  # what comes from now on begins there
            elif lost is not None:
                logger.warning("%s no longer gets %s: %s", lost.command.consumer, push.topic, push.code)
            return
        self.unroute(feed)
        if push.code in GOES_ON and feed in self.feeds:
            feed.moved(push.topic)
            self._put((SubscribeSlot(self, feed),))
        elif push.code not in (*GOES_ON, "SHUTTING_DOWN"):  # at the latter the connection ends, and the next one subscribes
            self.end(feed, ended(push.topic, push.consumer, push.code))

    def _match(self, topic: str) -> Feed | None:
        found = (feed for feed in self._patterns if feed.pattern is not None and feed.pattern.matches(topic))
        return self._routes.get(whole_name(topic)) or next(found, None)

    # -- what there is to send

    @property
    def _due(self) -> bool:
        """Whether there is output to send. Computed, since a flag would outlive a lost connection."""
        return bool(self._out or (self._acks and self._state is State.ONLINE))

    def take_output(self) -> bytes:
        """Take all output that has to be sent now."""
        if self._acks and self._state is State.ONLINE:
            self._send_acks()
        out, self._out = self._out, []
        data = b"".join(out)
        if self._debug is not None:
            self._debug.sent(data)
        return data

    def _note(self, mark: str, text: str) -> None:
        if self._debug is not None:
            self._debug.note(mark, text)

    def _send_acks(self) -> None:
        self._put([slot for acks in self._acks for slot in acks.take()])
        for acks in self._acks:
            acks.listed = False
        self._acks = []

    def _put(self, slots: Sequence[Slot]) -> None:
        """Append commands to the output. Assumes that there is a connection."""
        announced = self._due
        self._out += [slot.frame() for slot in slots]
        self._unanswered += slots
        if not announced and slots:
            self._on_output()

    def send(self, slot: Slot) -> None:
        """Send a command now, or once there is a connection."""
        if self._acks and self.online and slot.follows_acks:
            self._send_acks()
        self._send((slot,))

    def _send(self, slots: Sequence[Slot]) -> None:
        if self._state is State.ONLINE:
            self._put(slots)
        elif self._state is State.CLOSED:
            for slot in slots:
                slot.failed(self._end)
        else:
            self._waiting += slots

    def send_last(self, slot: Slot) -> None:
        """Send the last command of a connection, after all acks."""
        if self.online:
            self._send_acks()
            self._put((slot,))

    def send_now(self, slot: Slot) -> bool:
        """Send a command on this connection or not at all. Returns: whether it was sent."""
        if self.online:
            self._put((slot,))
        return self.online

    # -- publishing

    def check_topic(self, topic: str) -> None:
        """Check a topic's name, unless it was published to before. Raises: TypeError, BadName."""
        if type(topic) is not str or topic not in self._streams:
            arguments.topic(topic)

    def publish(self, topic: str, items: Iterable[Outgoing], batch: Batch) -> Stream:
        """Publish the items, whose outcomes ``batch`` awaits. Returns: the topic's stream. Raises: BadName."""
        stream = self._streams.of(topic)
        stream.add([PublishSlot(stream, item, batch, index) for index, item in enumerate(items)])
        return stream

    # -- subscriptions

    def subscribe(self, feed: Feed) -> None:
        self.feeds.append(feed)
        if self.online:
            self._put((SubscribeSlot(self, feed),))
        elif self._state is State.CLOSED:
            self.end(feed, self._end)

    def unsubscribe(self, feed: Feed, on_done: Callable[[], None]) -> None:
        """End a subscription; unacked deliveries become ready again. ``on_done``: at the answer, or at once when offline."""
        known = feed in self.feeds
        feed.close()
        if known:
            self.feeds.remove(feed)
        if known and self.online:
            self._send_acks()  # before UNSUB gives them back
            self._put((UnsubscribeSlot(self, feed, on_done),))
        else:
            on_done()

    def ack(self, feed: Feed, topic: str, msg_id: int) -> bool:
        """Ack with the next output, or before the next SUB. Returns: whether the caller should send the output at once."""
        feed.settle(topic, msg_id)
        acks = feed.acks_of(topic)
        acks.ids.append(msg_id)
        if not acks.listed:
            self._list(acks)
        if feed.careful:
            feed.careful -= 1
            return True
        return False

    def settle(self, topic: str, consumer: str, ids: Sequence[IdRange]) -> None:
        """Stop counting deliveries as open: the caller acks or nacks them by id."""
        for feed in self.feeds:
            if feed.command.consumer == consumer:
                for place in [*feed.open, *feed.waiting()]:
                    if place[0] == topic and any(first <= place[1] <= last for first, last in ids):
                        feed.settle(*place)

    def ack_synced(self, feed: Feed, topic: str, msg_id: int, on_synced: OnSynced) -> None:
        """Ack a message; ``on_synced`` is called when the ack is on stable storage or has failed."""
        if self._state is State.CLOSED:
            on_synced(self._end)
            return
        feed.acks_of(topic).waiters.append(on_synced)
        Conversation.ack(self, feed, topic, msg_id)

    def _list(self, acks: AckList) -> None:
        if acks.listed:
            return
        announced = self._due
        acks.listed = True
        self._acks.append(acks)
        if not announced and self._due:
            self._on_output()

    def lease_of(self, feed: Feed) -> int | None:
        """The lease number of a feed, so that NACK and TOUCH change its own leases only; None for an older broker."""
        return feed.lease if self.server is not None and self.server.numbers_leases else None

    def route(self, feed: Feed) -> None:
        """Route deliveries of the feed's topic to the feed, now that its SUB is answered."""
        if feed.pattern is not None:
            self._patterns.append(feed)
        else:
            self._routes[feed.command.topic] = feed
        feed.subscribed()

    def unroute(self, feed: Feed) -> None:
        if feed in self._patterns:
            self._patterns.remove(feed)
        elif self._routes.get(feed.command.topic) is feed:
            del self._routes[feed.command.topic]

    def end(self, feed: Feed, error: ToymqError) -> None:
        feed.end(error)
        if feed in self.feeds:
            self.feeds.remove(feed)

    def is_overdue(self, now: float) -> bool:
        """Whether the answer that is due first is overdue; since answers come in order, the broker then owes all later ones."""
        return next((slot.deadline for slot in self._unanswered if slot.deadline is not None), math.inf) <= now

    def expire(self, now: float, timeout_s: float, trouble: str) -> float | None:
        """Fail overdue commands; ``trouble`` is added to the error's text. Returns: the next deadline, or None."""
        earliest: float | None = None
        for slot in [*self._unanswered, *self._waiting, *self._streams.held]:
            if slot.deadline is None or slot.done:
                continue
            if slot.deadline <= now:
                slot.failed(RequestTimeout(f"no answer within {timeout_s:g} s: waited for {slot.awaited}{trouble}"))
            elif earliest is None or slot.deadline < earliest:
                earliest = slot.deadline
        Conversation.drop_done(self)
        return earliest

    def drop_done(self) -> None:
        """Drop commands that no caller waits for and that were never sent. The numbers of such publishes are not used again."""
        waiting, self._waiting = self._waiting, deque(slot for slot in self._waiting if not slot.done)
        for slot in (one for one in waiting if one.done):
            slot.dropped()
