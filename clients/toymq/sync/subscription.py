"""Deliveries of one consumer to blocking code: an iterator that outlives connections."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import get_ident
from types import TracebackType

from toymq import arguments
from toymq.arguments import Seconds
from toymq.confirmation import ANSWER_S, ROUNDS_MAX, confirmation
from toymq.delivery_window import Feed, FeedState
from toymq.errors import RequestTimeout, SubscriptionEnded
from toymq.leased_message import LeasedMessage, Processing
from toymq.mixups import PlainFor, PlainWith
from toymq.nack_reason import DeadOn, Reason
from toymq.sync.call_guard import HOLDER, CallGuard, one_thread, refused
from toymq.sync.link import BlockingLink, now
from toymq_py.errors import ConnectionLost, Moved
from toymq_py.protocol import MessagePush


class Message(LeasedMessage[BlockingLink]):
    """One delivery of a message, leased to its consumer until it is acked or nacked, or its time is over.

    Attributes:
        topic: where it was published.
        id: its number in the topic.
        attempt: one more than the attempts of its consumer that count, so from 1. A message may come again with the same one.
        ts_ns: when it was published, nanoseconds since the epoch.
        key: bytes; b"" for none.
        payload: bytes, without the headers.
        headers: a dict of str to str.
        lease: the number of its lease, for ``Client.nack(lease=…)``.
    """

    __slots__ = ()

    @property
    def _guard(self) -> CallGuard:
        return self._link.guard

    def ack(self, *, sync: bool = False) -> None:
        """Ack the message: it is not delivered to this consumer again. Does not wait for an answer. If handlers take less than
        0.2 ms, acks are sent together, at the next call that sends; otherwise at once. They are sent again after a lost
        connection.

        A second ack has no effect. An ack after the lease ended counts, too: the work was done. Without ``sync``, a broker that
        is killed within 100 ms may deliver the message again.

        Args:
            sync: wait until the ack is on stable storage.

        Raises: ClientClosed; with ``sync`` also RequestError, RequestTimeout.
        """
        holders, ours = self._link.guard.holders, [get_ident()]  # as ``one_thread``, which costs a third of an ack
        try:
            if (holder := holders.setdefault(HOLDER, ours)) is not ours and holder != ours:
                raise refused()
            self._check_open()
            if sync and arguments.flag("sync", sync):
                self._link.ack_synced(self._feed, self.topic, self.id)
            else:
                self._link.ack_soon(self._feed, self.topic, self.id)
        finally:
            if holders and holders[HOLDER] is ours:
                del holders[HOLDER]

    @one_thread
    def nack(
        self, delay: Seconds | None = None, *, reason: Reason = None, error: BaseException | None = None
    ) -> None:
        """Nack the message: give it back, to be delivered again in ``delay`` seconds; 0 means now, None takes the topic's
        backoff. A dead letter has ``reason`` and ``error`` of the last NACK. After an ack this has no effect.

        Raises: ClientClosed, RequestError, RequestTimeout, BadArgument.
        """
        self._check_open()
        request = self._nack(delay, reason, error)
        self._link.read_ahead()  # its lease ends with the connection
        self._given_back = True
        self._feed.settle(self.topic, self.id)
        if self._in_reach:
            self._link.ask(request.slot)
            with suppress(ConnectionLost, Moved):  # a worker that is gone gives it back, too, at once or by its time
                request.result()

    @one_thread
    def dead_letter(self, reason: Reason = None, *, error: BaseException | None = None) -> bool:
        """Move the message to the topic's dead letters, ``<topic>.dlq``, with ``reason`` and ``error``.

        Returns: False when its lease was over: the message is delivered again, here or elsewhere, unless it was acked.

        Raises: BadArgument (it is a dead letter itself), RequestError, ConnectionLost (it comes again), RequestTimeout.
        """
        request = self._nack(None, reason, error, dead=True)
        self._link.ask(request.slot)
        count = request.result()
        self._given_back = True
        self._feed.settle(self.topic, self.id)
        return count > 0

    @one_thread
    def extend(self, visibility: Seconds | None = None) -> bool:
        """Renew the message's lease for ``visibility`` seconds; None takes the subscription's.

        Returns: False when the lease was over or its connection was lost: another worker may have the message, or this
            subscription has it again.

        Raises: RequestError, RequestTimeout, BadArgument.
        """
        request = self._touch(visibility)
        self._link.read_ahead()
        if not self._in_reach:
            return self._is_extended(None)
        self._link.ask(request.slot)
        return self._is_extended(request)

    def process(self, *, retry_delay: Seconds | None = None, dead_on: DeadOn = ()) -> "_Processing":
        """``with message.process():`` acks when the block ends, and nacks when it raises: the message is delivered again
        ``retry_delay`` seconds later, None takes the topic's backoff. After exceptions of ``dead_on`` it goes to the dead
        letters at once. A dead letter has the last exception, as with the asyncio client."""
        return _Processing(self, retry_delay, dead_on)

    @one_thread
    def _failed(
        self, error: BaseException, retry_delay: Seconds | None, dead_on: DeadOn, dead_reason: str | None
    ) -> None:
        self._handler_failed(error, retry_delay, dead_on, dead_reason)
        self._link.exchange(0.0)


class _Processing(Processing[Message], PlainWith):
    __slots__ = ()

    _called = "message.process()"

    def __enter__(self) -> Message:
        self._handling.__enter__()
        return self._message

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self._handling.__exit__(kind, error, trace)
        except BaseException as failure:  # the tracer's, or a signal handler's
            self._message._failed(failure, self.retry_delay, self.dead_on, self.dead_reason)
            raise
        if error is not None:
            self._message._failed(error, self.retry_delay, self.dead_on, self.dead_reason)
        elif not self._message._given_back:
            self._message.ack()


class Subscription(PlainWith, PlainFor):
    """What ``Client.sub`` returns: a context manager and an iterator.

    The iteration ends only with ``close``, ``drain``, or an error: TakenOver, ConsumerDeleted, or the reason why the client
    gave up.
    """

    _called = "this subscription"

    def __init__(self, link: BlockingLink, feed: Feed, *, auto_ack: bool, on_end: Callable[[Feed], None] | None) -> None:
        """``on_end``: called when the subscription ends; None unless a ``LeaseKeeper`` renews its leases, for ``feed.kept_s``
        seconds each."""
        self.topic = feed.command.topic
        self.consumer = feed.command.consumer
        self._held = link
        self._guard = link.guard
        self._feed = feed
        self._auto_ack = auto_ack
        self._on_end = on_end
        self._last: list[Message] = []
        """The messages that ``auto_ack`` acks next."""

    @property
    def _link(self) -> BlockingLink:
        """The connection of the subscription; it changes when its topic moves to another worker."""
        self._held = self._feed.link(self._held)
        return self._held

    def __enter__(self) -> "Subscription":
        return self

    @one_thread
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None:
                self._ack_last()
        finally:
            self.close()

    def _ack_last(self) -> None:
        while self._last:
            if not self._last[0]._given_back:
                self._last[0]._check_open()
                self._link.ack_soon(self._feed, self._last[0].topic, self._last[0].id)
            del self._last[0]

    def __iter__(self) -> Iterator[Message]:
        return _Messages(self)

    def next(self, timeout: Seconds | None = None) -> Message:
        """The next message.

        Args:
            timeout: seconds; None waits for ever.

        Raises: RequestTimeout, SubscriptionEnded (also when the subscription is closed), ClientClosed.
        """
        timeout = None if timeout is None else arguments.timeout("timeout", timeout)
        deadline = None if timeout is None else now() + timeout
        message = self._take(deadline)
        if message is not None:
            return message
        if self._feed.state is FeedState.CLOSED:
            raise SubscriptionEnded(f"this subscription of {self.consumer} to {self.topic} is closed")
        waited = f"no message within {timeout:g} s: waited for one of {self.topic} for {self.consumer}"
        raise RequestTimeout(waited + self._link.trouble)

    def batches(self, max: int, wait: Seconds) -> Iterator[list[Message]]:
        """Messages in lists of 1 to ``max``, each complete at most ``wait`` seconds after its first message.

        Raises: SubscriptionEnded, ClientClosed.
        """
        return _Batches(self, arguments.count("max", max), arguments.duration_ms("wait", wait) / 1000)

    @one_thread
    def close(self) -> None:
        """Send acks and end the subscription; unacked messages go back at once. Idempotent."""
        done: list[None] = []
        link = self._link
        try:
            self._end(lambda: done.append(None))
            link.until(lambda: bool(done) or not link.conversation.online, now() + link.options.timeout_s)
        except BaseException:  # of a signal handler: it is closed all the same
            self._end(lambda: None)
            raise

    def _end(self, on_done: Callable[[], None]) -> None:
        """Send UNSUB; ``on_done`` is called at its answer."""
        if self._on_end is not None:
            self._on_end(self._feed)
        self._link.conversation.unsubscribe(self._feed, on_done)

    def _take(self, deadline: float | None) -> Message | None:
        """The next message; None at the deadline, or when the subscription is closed.

        Guarded like a method with ``one_thread``, but inline: the decorator would return after a call, where a signal handler
        could raise before the application has the message.
        """
        holders, ours = self._guard.holders, [get_ident()]
        try:
            if (holder := holders.setdefault(HOLDER, ours)) is not ours and holder != ours:
                raise refused()
            self._ack_last()
            push = self._next_push(deadline)
            if push is None:
                return None
            try:
                message = Message(push, self._feed, self._link)
            except BaseException:  # of a signal handler
                self._feed.put_back(push)
                raise
            if self._auto_ack:
                self._last = [message]
            return message
        finally:
            if holders and holders[HOLDER] is ours:
                del holders[HOLDER]

    def _take_batch(self, max_count: int, wait: float) -> list[Message]:
        """Return the next messages, see ``batches``; an empty list when the subscription is closed. Guarded as ``_take``."""
        holders, ours = self._guard.holders, [get_ident()]
        try:
            if (holder := holders.setdefault(HOLDER, ours)) is not ours and holder != ours:
                raise refused()
            self._ack_last()
            pushes: list[MessagePush] = []
            deadline = None
            try:
                while len(pushes) < max_count and (not pushes or self._feed.state is FeedState.LIVE):
                    push = self._next_push(deadline)
                    if push is None:
                        break
                    pushes += [push]  # no call between the two, where a signal handler may raise
                    deadline = now() + wait if deadline is None else deadline
                batch = [Message(push, self._feed, self._link) for push in pushes]
                last = batch.copy() if self._auto_ack else []
            except BaseException:
                for push in reversed(pushes):
                    self._feed.put_back(push)
                raise
            self._last = last
            return batch
        finally:
            if holders and holders[HOLDER] is ours:
                del holders[HOLDER]

    def _has_news(self) -> bool:
        """Whether a delivery waits, the subscription has ended, or it has moved to another connection."""
        feed = self._feed
        return bool(feed.arrived) or feed.state is not FeedState.LIVE or feed.link(self._held) is not self._held

    def _next_push(self, deadline: float | None) -> MessagePush | None:
        feed = self._feed
        if self._on_end is not None:
            self._link.exchange(0.0)  # only what was read is renewed, and the handler may take long
        while True:
            link = self._link
            if not feed.arrived:
                link.until(self._has_news, deadline)
                if feed.error is not None:
                    raise feed.error
            for _ in range(ROUNDS_MAX):
                if not feed.is_stale(now()):
                    break
                for asked in confirmation(feed, link.conversation.lease_of(feed), now):
                    if not link.try_all(asked, None if deadline is None else max(deadline, now() + ANSWER_S)):
                        break
                else:
                    continue
                if deadline is not None and now() >= deadline:
                    return None  # what waits is not confirmed, and stays
            push = feed.take()
            if push is None and feed.error is not None:
                raise feed.error
            if push is not None or feed.state is not FeedState.LIVE or (deadline is not None and now() >= deadline):
                return push


class _Messages(Iterator[Message]):
    """Iterates the messages of a subscription until it is closed."""

    __slots__ = ("_subscription",)

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription

    def __next__(self) -> Message:
        message = self._subscription._take(None)
        if message is None:
            raise StopIteration
        return message


class _Batches(Iterator[list[Message]], PlainFor):
    """Iterates the messages of a subscription in lists."""

    _called = "batches"
    __slots__ = ("_max", "_subscription", "_wait")

    def __init__(self, subscription: Subscription, max_count: int, wait: float) -> None:
        self._subscription, self._max, self._wait = subscription, max_count, wait

    def __next__(self) -> list[Message]:
        batch = self._subscription._take_batch(self._max, self._wait)
        if not batch:
            raise StopIteration
        return batch
