"""The asyncio client."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar, get_args

from toymq import arguments, requests
from toymq.arguments import Seconds
from toymq.client_base import ClientBase, as_method
from toymq.codecs import AnyCodec, encoded
from toymq.conversation import Conversation
from toymq.delivery_window import Feed, FeedState
from toymq.errors import ClientClosed
from toymq.homes import Following, Homes
from toymq.keyword_hints import hinted
from toymq.link import Link, close_all
from toymq.message import Item, Key, Receipt, outgoing
from toymq.mixups import AsyncWith
from toymq.options import DRAIN_S, Options
from toymq.outages import Outages
from toymq.pending_replies import CallSlot
from toymq.publishing import Publishing, receipt_of
from toymq.spare_links import SpareLinks
from toymq.subscription import Message, Subscription
from toymq.url import Address
from toymq_py.consumer_options import Mode
from toymq_py.errors import AlreadySubscribed, ConnectionLost
from toymq_py.protocol import OkReply, Pause, Resume, Subscribe

P = ParamSpec("P")
T = TypeVar("T")

NOT_OPEN = "this client is not open yet: write `async with toymq.connect(...) as mq`, or `mq = await toymq.connect(...)`"


def _asking(request: Callable[P, requests.Request[T]]) -> Callable[Concatenate["Client", P], Coroutine[Any, Any, T]]:
    """Return a method of ``Client`` that sends the request which the function ``request`` makes, and awaits its result."""
    asked = hinted(request)

    async def method(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._ask(asked(*args, **kwargs))

    return as_method(method, request, get_args(request.__annotations__["return"])[0])


def _counting(
    several: Callable[Concatenate[ClientBase, P], Iterator[requests.Request[int]]],
) -> Callable[Concatenate["Client", P], Coroutine[Any, Any, int]]:
    """Return a method of ``Client`` that sends the requests which ``several`` makes, one after the other, and returns the sum
    of their results."""

    async def method(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> int:
        return sum([await self._ask(request) for request in several(self, *args, **kwargs)])

    return as_method(method, several, int)


class Client(ClientBase, AsyncWith):
    """A connection to a broker that reconnects by itself; made by ``connect``.

    A client belongs to the event loop in which it was connected: in another loop every call raises ConfigError. Every call may
    be cancelled at any await: the connection stays usable, and a reply that comes later is dropped. A request that is under way
    when the connection is lost is repeated when that is safe, otherwise it raises ConnectionLost. A request that takes longer
    than ``timeout_s`` raises RequestTimeout, a TimeoutError.
    """

    _called = "this client"

    def __init__(self, options: Options) -> None:
        """Make a client that is not connected yet; see ``connect``."""
        self._options = options
        self._main: Link | None = None
        self._homes: Homes[Link] = Homes()
        self._links: list[Link] = []
        self._waiting: set[Link] = set()
        """Connections for requests that wait, one at a time on each: the broker holds all replies behind such a request."""
        self._spare: SpareLinks[Link] = SpareLinks(self._retire)
        """Connections of ``_waiting`` without a request."""
        self._leaving: set[asyncio.Task[None]] = set()
        self._subscriptions: list[Subscription] = []
        self._outages = Outages(options)
        self._closed = False

    async def open(self) -> "Client":
        """Connect. Raises: ConnectFailed, RequestError (the token is not accepted), ProtocolViolation, ClientClosed."""
        if self._closed:
            raise ClientClosed("this client is closed: connect again")
        if self._main is None:
            self._main = self._new_link()
            try:
                await self._main.open()
            except BaseException:
                self._main.abort()
                self._closed = True
                raise
        self._main.check_loop()
        return self

    def __await__(self) -> Generator[object, None, "Client"]:
        return self.open().__await__()

    @property
    def _trouble(self) -> str:
        """Why the client is not connected, as the end of an error's text; "" when it is connected or no attempt has failed
        yet."""
        return self._main.trouble if self._main is not None else ""

    async def __aenter__(self) -> "Client":
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.drain(DRAIN_S)
        await self.close()

    # -- publishing

    async def pub(
        self, topic: str, payload: bytes, *, key: Key | None = None, headers: Mapping[str, str] | None = None,
        delay: Seconds | None = None, ttl: Seconds | None = None, seq: int | None = None, route: Key | None = None,
    ) -> Receipt:  # fmt: skip
        """Publish one message and wait until it is on stable storage. Many may be awaited at once; their order is kept.

        After a lost connection the publish is repeated, and still stored once: the broker recognises it by ``key`` or by the
        client's own number (``idempotent``). Waits while 8 MiB of publishes are unanswered.

        Args:
            key: a message with a key that the topic has seen is not stored again (``Receipt.duplicate``).
            headers: names and values without line breaks.
            delay: time until it is delivered: seconds, or a text with a unit (``"500ms"``, ``"5s"``, ``"2m"``).
            ttl: time from now after which it is dropped when it was not delivered; longer than ``delay``.
            seq: an ascending number; ``key`` then names its producer. A number not above the producer's highest is a duplicate,
                and the receipt has the id of the highest.
            route: for a partitioned topic: messages with the same route go to the same partition. Default: the header
                ``toymq-group``, else the key, else partitions take turns. The receipt has the id in that partition.

        Raises:
            RequestError: the broker refused it (QueueFull, DiskLow, …); see ``retryable``.
            RequestTimeout, ClientClosed: the outcome is unknown, as after a cancellation.
            ConnectionLost: the outcome is unknown, too: with ``idempotent=False`` and no key, or when the worker or group that
                has the topic is away at the repeat.
        """
        link = self._home(topic)
        link.conversation.check_topic(topic)
        tracing, ended = self._options.tracing, None
        if tracing is not None:
            if headers is not None:
                arguments.headers(headers)
            headers, ended = tracing.publishing(topic, headers)
        item = outgoing(self._options.header_block, payload, key, headers, delay, ttl, seq, self._body_bytes_max, route)
        batch, done = link.batch(1, await link.room(topic) if link.crowded else None)
        if ended is not None:
            done.add_done_callback(lambda _, ended=ended: ended(batch.outcomes[0]))  # type: ignore[misc]
        link.conversation.publish(topic, (item,), batch)
        try:
            await done
        except asyncio.CancelledError:
            batch.abandoned = True
            raise
        return receipt_of(batch, 0)

    async def pub_value(
        self, topic: str, value: object, *, codec: AnyCodec = "json", key: Key | None = None,
        headers: Mapping[str, str] | None = None, delay: Seconds | None = None, ttl: Seconds | None = None,
        route: Key | None = None,
    ) -> Receipt:  # fmt: skip
        """Publish a value, encoded by a codec, with the codec's content type as a header, by which ``Message.value`` decodes
        it.

        Args:
            value: numbers, texts, lists, dicts, None. Other types are converted, and ``value`` does not convert them back:
                tuples and sets become lists; dates, times, UUIDs, Decimals and paths become texts, timedeltas seconds, enums
                their value, dataclasses and pydantic models objects; bytes are a text in JSON, their base64, and bytes in
                MessagePack.
            codec: ``"json"``, ``"msgpack"``, a ``toymq.Codec``, or a function that makes bytes of the value.
            key, headers, delay, ttl, route: as of ``pub``.

        Raises: TypeError, BadArgument for a value that the codec cannot encode; ConfigError when the codec's package is not
            installed; and as ``pub``.
        """
        payload, headers = encoded(codec, value, headers)
        return await self.pub(topic, payload, key=key, headers=headers, delay=delay, ttl=ttl, route=route)

    async def pub_json(
        self, topic: str, value: object, *, key: Key | None = None, headers: Mapping[str, str] | None = None,
        delay: Seconds | None = None, ttl: Seconds | None = None, route: Key | None = None,
    ) -> Receipt:  # fmt: skip
        """``pub_value`` as JSON; ``Message.json`` reads it."""
        return await self.pub_value(topic, value, key=key, headers=headers, delay=delay, ttl=ttl, route=route)

    def pub_many(
        self, topic: str, items: Iterable[Item], *, delay: Seconds | None = None, ttl: Seconds | None = None, window: int = 1024
    ) -> "Publishing":
        """Publish many messages, with up to ``window`` unanswered. Await the result for all receipts, or iterate it (``async
        for``) for one after the other, in the order of the items; until then nothing is published. After a reconnect several
        receipts may have the same ``msg_id`` (see ``Receipt``), except those of messages with a key.

        Args:
            items: payloads, (key, payload), (key, payload, headers), or ``Sequenced``; after a refused ``Sequenced`` no later
                one is stored.
            delay, ttl: as in ``pub``, for items that are not ``Sequenced``; those have their own.
            window: messages.

        Raises: as ``pub``, in place of the receipt of the item that failed. Items sent after it are still published. A wrong
            item and an exception of ``items`` end it: what came before is published and has its receipts first.
        """
        return Publishing(self, topic, items, delay, ttl, window)

    # -- consuming

    @hinted
    def sub(
        self, topic: str, consumer: str, *, auto_ack: bool = False, auto_extend: bool = False, window: int = 1024,
        visibility: Seconds | None = None, mode: Mode | None = None, start: str | None = None,
    ) -> Subscription:  # fmt: skip
        """Subscribe a consumer: ``async with mq.sub(...) as messages: async for message in messages``. It survives reconnects.

        A subscription that overlaps another one of this client gets its own connection.

        Args:
            topic: a name, or a pattern (``orders.*``, ``events.>``).
            auto_ack: ack a message, or a batch, when the loop asks for the next one, and the last one when the subscription's
                block ends without an exception (also after ``break``). For one task: while another task still has a message,
                ``next`` and iteration raise ConfigError.
            auto_extend: renew the leases of all delivered, unsettled messages, also of those that wait for the next iteration.
            window: most delivered and unacked messages.
            visibility: seconds after which an unsettled message is delivered again; None takes the topic's.
            mode: ``exclusive`` (a newer subscriber takes over), ``shared`` (subscribers share the work), ``keyed`` (as shared,
                but only one message of each group key is out at a time, in order) or ``single`` (one subscriber per topic is
                active; when it goes, another takes over); None takes the broker's default, exclusive.
            start: ``earliest``, ``latest``, an id or ``@<unix-ms>``; matters only when the consumer is new.

        Raises: BadName, BadArgument, AlreadySubscribed (this client has the same subscription); when it is entered
            RequestError, RequestTimeout, ClientClosed; while it is iterated TakenOver, ConsumerDeleted, ClientClosed.
        """
        command = requests.subscription(topic, consumer, window, visibility, mode, start, auto_ack, auto_extend)
        topic, consumer = command.topic, command.consumer
        living = self._living
        if any((one.topic, one.consumer) == (topic, consumer) for one in living):
            raise AlreadySubscribed(f"this client is subscribed to {topic} as {consumer} already")
        self._link  # noqa: B018 (raises when closed)
        subscription = Subscription(
            self._link_for(topic, living), command, auto_ack=auto_ack,
            auto_extend_s=(command.visibility_ms or 0) / 1000 if auto_extend else None, timeout_s=self._options.timeout_s,
        )  # fmt: skip
        subscription._feed.place = self._homes.place(topic)
        self._subscriptions = [*living, subscription]
        return subscription

    def _link_for(self, topic: str, living: Sequence[Subscription]) -> Link:
        """Return a connection, to the worker that has the topic, on which no subscription in ``living`` overlaps the topic."""
        home = self._homes.address(topic)
        taken = {one._link for one in living if one._feed.overlaps(topic)} | self._waiting
        free = next((link for link in self._links if link.home == home and link not in taken), None)
        return free if free is not None else self._started_link(home)

    def _free_link(self, topic: str) -> Link:
        return self._link_for(topic, self._living)

    @property
    def _living(self) -> list[Subscription]:
        return [one for one in self._subscriptions if one._feed.state in (FeedState.ASKED, FeedState.LIVE)]

    @hinted
    async def pull(
        self, topic: str, consumer: str, max: int = 1, *, wait: Seconds = 0.0, visibility: Seconds | None = None,
        mode: Mode | None = None,
    ) -> list[Message]:  # fmt: skip
        """Lease up to ``max`` messages without a subscription, as one of several workers. Leases end by time, not with the
        connection. A consumer that this call creates is shared.

        Any number of pulls may wait at once, each on its own connection, so that no other request waits behind one; the
        connection is kept for the next pull, and closed if none comes. A cancelled pull gives its messages back. A wait
        continues after a lost connection.

        Args:
            topic: a name, or a pattern (``orders.*``, ``events.>``).
            max: most messages; fewer come when fewer are ready, or they exceed 1 MiB together.
            wait: seconds to wait for the first one; 0 does not wait.
            visibility: seconds of the lease; None takes the topic's.
            mode: ``shared`` or ``keyed``, as of ``sub``; None takes that of the consumer's subscribers, or the mode used last.

        Raises: RequestError, ConnectionLost (no time was left to ask again; leased messages come again when their leases end),
            RequestTimeout, BadName, BadArgument.
        """
        command = requests.pull_command(topic, consumer, max, wait, visibility, mode)
        loop = asyncio.get_running_loop()
        wait = command.wait_ms / 1000
        deadline = loop.time() + wait
        feed = Feed(Subscribe(command.topic, command.consumer, visibility_ms=command.visibility_ms), lambda: None)
        feed.pulled = True
        while True:
            home = self._home(topic)
            request = requests.pull(command, wait, home.conversation, feed)
            try:
                pushes = await self._ask_waiting(request)
            except ConnectionLost as error:
                wait = deadline - loop.time()
                if wait <= 0 or isinstance(error, ClientClosed):
                    raise
            else:
                wait = deadline - loop.time()
                if pushes or wait <= 0:  # otherwise a broker that shuts down ended the wait early
                    home = self._home(topic)
                    return [Message(push, feed, home) for push in pushes]

    # -- methods whose signature and docstring are in ``requests``

    ack = _counting(requests.ack)
    nack = _counting(requests.nack)
    redrive = _counting(requests.redrive)
    fetch = _asking(requests.fetch)
    offsets = _asking(requests.offsets)
    topic_range = _asking(requests.topic_range)
    topics = _asking(requests.topics)
    describe = _asking(requests.describe)
    stats = _asking(requests.stats)
    create = _asking(requests.create)
    config = _asking(requests.config)
    delete = _asking(requests.delete)
    purge = _asking(requests.purge)
    seek = _asking(requests.seek)
    forget = _asking(requests.forget)

    async def ping(self) -> float:
        """Round trip in seconds. Raises: RequestTimeout."""
        began = time.perf_counter()  # the clock of a loop may count in milliseconds
        await self._ask(requests.ping())
        return time.perf_counter() - began

    # -- leaving

    async def drain(self, timeout: Seconds) -> bool:  # noqa: ASYNC109 (clients.md names it)
        """Stop deliveries, wait for handlers and for the answers of publishes, send acks, give unstarted messages back.

        Subscriptions end; the client stays usable.

        Args:
            timeout: seconds for all of it.

        Returns: False when something was left at the deadline.
        """
        timeout = arguments.timeout("timeout", timeout)
        if self._main is None or self._closed:
            return True
        self._main.check_loop()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        living = [one for one in self._subscriptions if one._feed.state is FeedState.LIVE]
        for link in {one._link for one in living}:
            link.conversation.send_now(CallSlot(Pause(), OkReply))
        drained = await asyncio.gather(*(one.drain(timeout) for one in living))
        for link in {one._link for one in living}:
            link.conversation.send_now(CallSlot(Resume(), OkReply))
        drained += [await link.quiet(deadline) for link in self._links if link not in self._waiting]
        return all(drained)

    async def close(self) -> None:
        """Send acks and pending requests, then close, within a second. Idempotent.

        Waiting calls raise ClientClosed; the outcome of an unanswered publish is unknown.
        """
        if self._closed:
            return
        if self._main is not None:
            self._main.check_loop()
        self._closed = True
        self._spare.stop()
        for subscription in self._subscriptions:
            subscription._stop()
        leaving = list(self._leaving)
        await close_all(self._links)
        if leaving:
            await asyncio.wait(leaving)

    # -- connections and requests

    @property
    def _link(self) -> Link:
        if self._main is None or self._closed:
            raise ClientClosed("this client is closed: connect again" if self._closed else NOT_OPEN)
        self._main.check_loop()
        return self._main

    def _home(self, topic: str) -> Link:
        """The connection to the worker that has a topic, if that worker is known; else the main connection."""
        main = self._link
        return main if not self._homes else self._homes.find(topic, self._home_link) or main

    def _new_link(self, home: Address | None = None) -> Link:
        link = Link(self._options, self._outages, home, () if home is None else self._homes.nodes(home))
        link.conversation.elsewhere = Following(self, link, Link.deadline)
        if home is not None and self._main is not None:  # another worker of the same broker
            link.conversation.server = self._main.conversation.server
        self._links.append(link)
        return link

    def _started_link(self, home: Address | None) -> Link:
        link = self._new_link(home)
        link.start()
        return link

    def _home_link(self, home: Address) -> Link:
        links = (link for link in self._links if link.home == home and link not in self._waiting)
        return next(links, None) or self._started_link(home)

    @property
    def _main_conversation(self) -> Conversation | None:
        return self._main.conversation if self._main is not None else None

    def _conversations(self) -> Iterator[Conversation]:
        return (link.conversation for link in self._links)

    async def _ask(self, request: requests.Request[T]) -> T:
        if request.wait_s:
            return await self._ask_waiting(request)
        link = self._home(request.topic)
        await link.ask(request.slot)
        while not self._closed and self._homes.goes_on(request, link):
            link = self._home(request.topic)
            await link.ask(request.slot)
        return request.result()

    async def _ask_waiting(self, request: requests.Request[T]) -> T:
        """Make a request that may wait at the broker (PULL, for example), on a connection without other requests."""
        while True:
            self._link  # noqa: B018 (raises when closed)
            home = self._homes.address(request.topic)
            link = self._spare.take(home)
            if link is None:
                link = self._started_link(home)
                self._waiting.add(link)
            try:
                await link.ask(request.slot, extra_s=request.wait_s)
            finally:
                if link.conversation.idle and not link.conversation.is_closed:
                    self._spare.add(link)
                elif not self._closed:
                    self._retire(link)
            if self._closed or not self._homes.goes_on(request, link):
                return request.result()

    def _retire(self, link: Link) -> None:
        """Close a connection: one whose request was abandoned, which ends the broker's wait for it, or a spare one that is not
        needed."""
        self._links.remove(link)
        self._waiting.remove(link)
        self._outages.left(link)
        task = asyncio.get_running_loop().create_task(link.close(), name="toymq closes a connection")
        self._leaving.add(task)  # awaited by close
        task.add_done_callback(self._leaving.discard)
