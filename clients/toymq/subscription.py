"""Deliveries of one consumer to asyncio code: an iterator that outlives connections."""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Coroutine, Generator
from contextlib import suppress
from types import TracebackType
from typing import Any

from toymq import arguments
from toymq.arguments import Seconds
from toymq.confirmation import ANSWER_S, ROUNDS_MAX, confirmation
from toymq.delivery_window import CONFIRM_S, Feed, FeedState
from toymq.errors import RequestTimeout, SubscriptionEnded
from toymq.leased_message import LeasedMessage, Processing
from toymq.link import Link, settle
from toymq.mixups import AsyncFor, AsyncWith
from toymq.nack_reason import DeadOn, Reason
from toymq.renewal import Renewal
from toymq_py.errors import ConfigError, ConnectionLost, Moved, ToymqError
from toymq_py.protocol import MessagePush, Subscribe

logger = logging.getLogger("toymq")


class Message(LeasedMessage[Link]):
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

    async def ack(self, *, sync: bool = False) -> None:
        """Ack the message: it is not delivered to this consumer again. Does not wait: the ack is sent with others at the end of
        this pass of the event loop, and again after a lost connection.

        A second ack has no effect. An ack after the lease ended counts, too: the work was done. Without ``sync``, a broker that
        is killed within 100 ms may deliver the message again.

        Args:
            sync: wait until the ack is on stable storage: then not even a power cut brings the message back.

        Raises: ClientClosed; with ``sync`` also RequestError, RequestTimeout.
        """
        self._link.check_loop()
        self._check_open()
        if sync and arguments.flag("sync", sync):
            await self._link.ack_synced(self._feed, self.topic, self.id)
        elif self._link.conversation.ack(self._feed, self.topic, self.id):
            self._link.flush()

    async def nack(
        self, delay: Seconds | None = None, *, reason: Reason = None, error: BaseException | None = None
    ) -> None:
        """Nack the message: give it back, to be delivered again. After an ack this has no effect.

        Args:
            delay: seconds until redelivery; 0 means now, None takes the topic's backoff. Without a connection this raises
                nothing: the broker has given the messages of a subscription back at once, and a message of ``pull`` is nacked
                after the reconnect.
            reason, error: why, as a text and an exception, or the exception alone as ``reason``. A dead letter has those of the
                last NACK; see ``process``.

        Raises: ClientClosed, RequestError, RequestTimeout, BadArgument.
        """
        self._link.check_loop()
        self._check_open()
        request = self._nack(delay, reason, error)
        self._given_back = True
        self._feed.settle(self.topic, self.id)
        if self._in_reach:
            await self._link.ask(request.slot)
            with suppress(ConnectionLost, Moved):  # a worker that is gone gives it back, too, at once or by its time
                request.result()

    async def dead_letter(self, reason: Reason = None, *, error: BaseException | None = None) -> bool:
        """Move the message to the topic's dead letters, ``<topic>.dlq``.

        Args:
            reason, error: why, as of ``nack``; the dead letter has both.

        Returns: False when its lease was over: the message is delivered again, here or elsewhere, unless it was acked.

        Raises: BadArgument (it is a dead letter itself), RequestError, ConnectionLost (it comes again), RequestTimeout.
        """
        self._link.check_loop()
        request = self._nack(None, reason, error, dead=True)
        await self._link.ask(request.slot)
        count = request.result()
        self._given_back = True
        self._feed.settle(self.topic, self.id)
        return count > 0

    async def extend(self, visibility: Seconds | None = None) -> bool:
        """Renew the message's lease.

        Args:
            visibility: seconds of the new lease; None takes that of the ``sub`` or ``pull`` that it came with.

        Returns: False when the lease was over or its connection was lost: another worker may have the message, or this
            subscription has it again.

        Raises: RequestError, RequestTimeout, BadArgument.
        """
        self._link.check_loop()
        request = self._touch(visibility)
        if not self._in_reach:
            return self._is_extended(None)
        await self._link.ask(request.slot)
        return self._is_extended(request)

    def process(self, *, retry_delay: Seconds | None = None, dead_on: DeadOn = ()) -> "_Processing":
        """``async with message.process():`` acks when the block ends, and nacks when it raises.

        The NACK carries the exception: type, text and the innermost lines of the traceback, some KB together; a dead letter has
        the last one. With ``connect(describe_errors=False)`` it carries the type alone.

        Args:
            retry_delay: seconds until redelivery after an exception; None takes the topic's backoff. After a cancellation it
                is redelivered at once.
            dead_on: exceptions after which a retry would fail, too: the message goes to the dead letters at once. Subclasses of
                ``Exception``, one or a tuple.

        Raises: TypeError, BadArgument.
        """
        return _Processing(self, retry_delay, dead_on)


class _Processing(Processing[Message], AsyncWith):
    __slots__ = ()

    _called = "message.process()"

    async def __aenter__(self) -> Message:
        self._message._link.check_loop()
        self._handling.__enter__()
        return self._message

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._handling.__exit__(kind, error, trace)
        except BaseException as failure:  # the tracer's
            self._message._handler_failed(failure, self.retry_delay, self.dead_on, self.dead_reason)
            raise
        if error is not None:
            self._message._handler_failed(error, self.retry_delay, self.dead_on, self.dead_reason)
        elif not self._message._given_back:
            await self._message.ack()


class Subscription(AsyncWith, AsyncFor):
    """What ``Client.sub`` returns: ``async with`` it, or await it; then iterate. Several tasks may iterate it, but not with
    ``auto_ack``.

    The iteration ends only with ``close``, ``drain``, or an error: TakenOver, ConsumerDeleted, or the reason why the client
    gave up.
    """

    _called = "this subscription"

    def __init__(
        self, link: Link, command: Subscribe, *, auto_ack: bool, auto_extend_s: float | None, timeout_s: float
    ) -> None:
        self.topic = command.topic
        self.consumer = command.consumer
        self._feed = Feed(command, self._wake)
        self._held = link
        self._auto_ack = auto_ack
        self._renewal: Renewal | None = None
        if auto_extend_s is not None:
            self._feed.kept_s = auto_extend_s
            feed = self._feed
            self._renewal = Renewal(feed, lambda: feed.link(link).conversation, auto_extend_s, asyncio.get_running_loop())
        self._timeout_s = timeout_s
        self._last: list[Message] = []
        """The messages that ``auto_ack`` acks next."""
        self._holder: asyncio.Task[Any] | None = None
        """With ``auto_ack``, the task that has the last message, or waits for the next."""
        self._waiters: list[asyncio.Future[None]] = []
        self._begun = False

    @property
    def _link(self) -> Link:
        """The connection of the subscription; it changes when its topic moves to another worker."""
        self._held = self._feed.link(self._held)
        return self._held

    def _stop(self) -> None:
        """Stop renewing leases: the client is closed."""
        if self._renewal is not None:
            self._renewal.stop()

    async def _start(self) -> "Subscription":
        """Subscribe, and wait for the broker's OK. Raises: RequestError, RequestTimeout, ClientClosed, ConfigError."""
        self._link.check_loop()
        if not self._begun:
            self._begun = True
            self._link.conversation.subscribe(self._feed)
        try:
            async with asyncio.timeout(self._timeout_s):
                while self._feed.state is FeedState.ASKED:
                    await self._news()
        except BaseException as error:
            self._end()
            if isinstance(error, TimeoutError):
                text = f"no answer within {self._timeout_s:g} s: waited for {self._feed.awaited}"
                raise RequestTimeout(text + self._link.trouble) from None
            raise
        if self._feed.error is not None:
            raise self._feed.error
        if self._renewal is not None:
            self._renewal.start()
        return self

    def __await__(self) -> Generator[object, None, "Subscription"]:
        return self._start().__await__()

    async def __aenter__(self) -> "Subscription":
        return await self._start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and not self._held_by_another():
            await self._ack_last()
        await self.close()

    async def _ack_last(self) -> None:
        self._link.check_loop()
        last, self._last = self._last, []
        for message in last:
            if not message._given_back:
                await message.ack()

    def _held_by_another(self) -> bool:
        """Whether another task, still running, has the messages that ``auto_ack`` would ack now. The messages of a failed task
        are not acked."""
        holder = self._holder
        if holder is None or holder is asyncio.current_task():
            return False
        if not holder.done():
            return True
        error = asyncio.CancelledError() if holder.cancelled() else holder.exception()
        if error is not None and self._last:
            logger.warning("%d messages of %s are not acked: their task ended with %r", len(self._last), self.topic, error)
            self._last = []
        return False

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    def __anext__(self) -> Coroutine[Any, Any, Message]:
        self._link.check_loop()
        return self._ack_and_take() if self._auto_ack else self._take()

    async def _ack_and_take(self) -> Message:
        await self._ack_what_is_done()
        try:
            message = await self._take()
        except BaseException:
            self._holder = None
            raise
        self._last = [message]
        return message

    async def _ack_what_is_done(self) -> None:
        """For ``auto_ack``: ack the messages that the calling task has finished, since it asks for the next ones."""
        if self._held_by_another():
            raise ConfigError(
                f"auto_ack acks a message when the next one is asked for; another task still has the last one of {self.topic}:"
                " iterate in one task, or leave auto_ack out and ack each message (`async with message.process()`)"
            )
        self._holder = asyncio.current_task()
        try:
            await self._ack_last()
        except BaseException:
            self._holder = None
            raise

    async def _take(self) -> Message:
        push = await self._take_push()
        return Message(push, self._feed, self._held if self._feed.gone_to is None else self._link)

    async def _take_push(self) -> MessagePush:
        if not self._begun:
            await self._start()
        feed = self._feed
        while True:
            # Each message pays for what is here: with ``auto_extend`` a call less where nothing is stale.
            trusts = feed.kept_s and self._held.now() - feed.since <= feed.kept_s / 2
            push = feed.take() if trusts else await self._next_push()
            if push is not None:
                return push
            if feed.error is not None:
                raise feed.error
            if feed.state is FeedState.CLOSED:
                raise StopAsyncIteration
            await self._news()

    async def _next_push(self) -> MessagePush | None:
        """Return the next waiting delivery whose lease this client still holds; None if there is none."""
        feed, link = self._feed, self._link
        for _ in range(ROUNDS_MAX):
            if not feed.is_stale(link.now()):
                break
            for asked in confirmation(feed, link.conversation.lease_of(feed), link.now):
                await asyncio.gather(*map(link.ask, asked))
        return feed.take()

    async def next(self, timeout: Seconds | None = None) -> Message:  # noqa: ASYNC109 (asyncio.timeout cannot say what was awaited)
        """The next message.

        Args:
            timeout: seconds; None waits for ever.

        Raises: RequestTimeout, SubscriptionEnded (also when the subscription is closed), ClientClosed; with ``auto_ack``
            ConfigError, when another task still has the last message.
        """
        timeout = None if timeout is None else arguments.timeout("timeout", timeout)
        allowed = timeout
        if timeout is not None and self._feed.is_stale(self._link.now()):
            allowed = max(timeout, ANSWER_S)
        try:
            async with asyncio.timeout(allowed):
                return await self.__anext__()
        except StopAsyncIteration:
            raise SubscriptionEnded(f"this subscription of {self.consumer} to {self.topic} is closed") from None
        except TimeoutError as error:
            if isinstance(error, ToymqError):
                raise
            text = f"no message within {timeout:g} s: waited for one of {self.topic} for {self.consumer}"
            raise RequestTimeout(text + self._link.trouble) from None

    async def batches(self, max: int, wait: Seconds) -> AsyncIterator[list[Message]]:
        """Messages in lists of 1 to ``max``, each complete at most ``wait`` seconds after its first message arrived.

        Args:
            max: most messages of a batch; the subscription's window limits it, too.
            wait: seconds.

        Raises: SubscriptionEnded.
        """
        max, wait = arguments.count("max", max), arguments.duration_ms("wait", wait) / 1000
        while True:
            self._link.check_loop()
            if self._auto_ack:
                await self._ack_what_is_done()
            taken: list[MessagePush] = []
            try:
                batch = await self._collect(taken, max, wait)
            except BaseException as error:
                for push in reversed(taken):  # the application never had them
                    self._feed.put_back(push)
                self._holder = None
                if isinstance(error, StopAsyncIteration):
                    return
                raise
            self._last = batch.copy() if self._auto_ack else []
            yield batch

    async def _collect(self, taken: list[MessagePush], max_count: int, wait_s: float) -> list[Message]:
        """Return the next batch; each of its deliveries is also appended to ``taken`` at once. Raises: as ``_take``."""
        loop = asyncio.get_running_loop()
        taken.append(await self._take_push())
        batch = [Message(taken[0], self._feed, self._link)]
        deadline = loop.time() + wait_s
        while len(batch) < max_count:
            try:
                async with asyncio.timeout_at(deadline):
                    push = await self._next_push()
                    if push is not None:
                        taken.append(push)
                        batch.append(Message(push, self._feed, self._link))
                        continue
                    if self._feed.state is not FeedState.LIVE:
                        break
                    await self._news()
            except TimeoutError:
                break
        return batch

    async def close(self) -> None:
        """Send acks and end the subscription; unacked messages go back at once. Idempotent.

        Waits for the broker's OK, at most ``timeout_s``.
        """
        self._link.check_loop()
        done = self._end()
        await asyncio.wait((done,), timeout=self._timeout_s)

    async def drain(self, timeout: Seconds) -> bool:  # noqa: ASYNC109 (clients.md names it)
        """Hand out nothing more, wait until everything handed out is acked or nacked, then close.

        Args:
            timeout: seconds for all of it; messages that the handlers have not settled by then go back.

        Returns: whether all were settled in time.
        """
        self._link.check_loop()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + arguments.timeout("timeout", timeout)
        self._feed.close()
        try:
            async with asyncio.timeout_at(deadline):
                while self._feed.open:
                    await self._settled()
        except TimeoutError:
            pass
        settled = not self._feed.open
        await asyncio.wait((self._end(),), timeout=max(deadline - loop.time(), 0.0))  # a silent broker does not answer
        return settled

    async def _settled(self) -> None:
        """Wait until a message is settled."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._feed.on_settled = lambda: settle(future, None)
        try:
            await future
        finally:
            self._feed.on_settled = None

    def _end(self) -> "asyncio.Future[None]":
        """Close the feed and send UNSUB. Returns: a future that is done when UNSUB is answered, or when no answer will come."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stop()
        self._link.conversation.unsubscribe(self._feed, lambda: settle(done, None))
        return done

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        self._feed.waits_since = math.inf
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _news(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not self._waiters:
            link = self._held if self._feed.gone_to is None else self._link
            self._feed.waits_since = link.now()
            if self._feed.waits_since - link.conversation.looked_at > CONFIRM_S:
                link.look()
        self._waiters.append(waiter)
        try:
            await waiter
        except BaseException:
            with suppress(ValueError):  # it was woken
                self._waiters.remove(waiter)
            if not self._waiters:
                self._feed.waits_since = math.inf
            raise
