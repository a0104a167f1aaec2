"""The blocking client: the names of the asyncio one without ``async``, over a socket and the same sans-IO conversation.

It runs in its caller's thread: it reads, and reconnects, while a call waits. Sending also reads, so that a pipeline in both
directions cannot block itself. Only ``auto_extend`` has a thread, with a connection of its own.
"""

import ssl as ssl_module
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar, get_args

from toymq import arguments, requests
from toymq.arguments import Seconds
from toymq.client_base import ClientBase, as_method
from toymq.codecs import AnyCodec, encoded
from toymq.conversation import Conversation
from toymq.delivery_window import Feed, FeedState
from toymq.errors import ClientClosed
from toymq.homes import Following, Homes
from toymq.keyword_hints import hinted
from toymq.message import Item, Key, Receipt, outgoing
from toymq.mixups import PlainWith
from toymq.options import DRAIN_S, GOODBYE_S, InjectHeaders, MessageTracing, OnEvent, Options, times
from toymq.outages import Outages
from toymq.pending_publishes import Outcome
from toymq.sync.call_guard import CallGuard, one_thread
from toymq.sync.link import CLOSED, FORKED, BlockingLink, now
from toymq.sync.publishing import Publishing, PublishingClient, receipt_of
from toymq.sync.subscription import Message, Subscription
from toymq.url import DEFAULT_URL, Address, parse_urls
from toymq_py.consumer_options import Mode
from toymq_py.errors import AlreadySubscribed, ConnectionLost
from toymq_py.protocol import Subscribe

if TYPE_CHECKING:
    from toymq.sync.lease_keeper import LeaseKeeper

P = ParamSpec("P")
T = TypeVar("T")


def _asking(request: Callable[P, requests.Request[T]]) -> Callable[Concatenate["Client", P], T]:
    """Return a method of ``Client`` that sends the request which the function ``request`` makes, and waits for its result."""
    asked = hinted(request)

    @one_thread
    def method(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._ask(asked(*args, **kwargs))

    return as_method(method, request, get_args(request.__annotations__["return"])[0])


def _counting(
    several: Callable[Concatenate[ClientBase, P], Iterator[requests.Request[int]]],
) -> Callable[Concatenate["Client", P], int]:
    """Return a method of ``Client`` that sends the requests which ``several`` makes, one after the other, and returns the sum
    of their results."""

    @one_thread
    def method(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> int:
        return sum([self._ask(request) for request in several(self, *args, **kwargs)])

    return as_method(method, several, int)


class Client(PublishingClient, PlainWith):
    """A connection to a broker that reconnects by itself; made by ``connect``. A context manager, for one thread.

    A request that is under way when the connection is lost is repeated when that is safe, otherwise it raises ConnectionLost.
    """

    _called = "this client"

    def __init__(self, options: Options) -> None:
        """Make a client that is not connected yet; see ``connect``."""
        self._options = options
        self._outages = Outages(options)
        self._guard = CallGuard()
        self._homes: Homes[BlockingLink] = Homes()
        self._links: list[BlockingLink] = []
        self._link = self._new_link()
        self._conversation = self._link.conversation
        self._waiting_link: BlockingLink | None = None
        """The connection for requests that wait: the broker holds all replies behind such a request."""
        self._keeper: LeaseKeeper | None = None
        """The thread that renews leases, created for the first subscription with ``auto_extend``."""

    @one_thread
    def open(self) -> "Client":
        """Connect and say HELLO, as ``connect`` describes."""
        self._link.open()
        return self

    @property
    def _closed(self) -> bool:
        return self._link.closed

    def __enter__(self) -> "Client":
        return self

    @one_thread
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None:
                self.drain(DRAIN_S)
        finally:
            self.close()

    # -- publishing

    @one_thread
    def pub(
        self, topic: str, payload: bytes, *, key: Key | None = None, headers: Mapping[str, str] | None = None,
        delay: Seconds | None = None, ttl: Seconds | None = None, seq: int | None = None, route: Key | None = None,
    ) -> Receipt:  # fmt: skip
        """Publish one message and wait until it is on stable storage. Arguments and errors are those of the asyncio client's
        ``pub``.
        """
        self._home(topic).conversation.check_topic(topic)
        deadline = self._room(topic)
        tracing, ended = self._options.tracing, None
        if tracing is not None:
            if headers is not None:
                arguments.headers(headers)
            headers, ended = tracing.publishing(topic, headers)
        item = outgoing(self._options.header_block, payload, key, headers, delay, ttl, seq, self._body_bytes_max, route)
        batch = self._publish(topic, [item], deadline)
        outcome: Outcome | None = None
        try:
            self._wait_for(topic, batch, deadline)
            outcome = batch.outcomes[0]
            return receipt_of(outcome)
        except BaseException:
            batch.abandoned = True
            raise
        finally:
            if ended is not None:
                ended(outcome)

    def pub_value(
        self, topic: str, value: object, *, codec: AnyCodec = "json", key: Key | None = None,
        headers: Mapping[str, str] | None = None, delay: Seconds | None = None, ttl: Seconds | None = None,
        route: Key | None = None,
    ) -> Receipt:  # fmt: skip
        """Publish a value by a codec. Arguments and errors are those of the asyncio client's ``pub_value``."""
        payload, headers = encoded(codec, value, headers)
        return self.pub(topic, payload, key=key, headers=headers, delay=delay, ttl=ttl, route=route)

    def pub_json(
        self, topic: str, value: object, *, key: Key | None = None, headers: Mapping[str, str] | None = None,
        delay: Seconds | None = None, ttl: Seconds | None = None, route: Key | None = None,
    ) -> Receipt:  # fmt: skip
        """``pub_value`` as JSON; ``Message.json`` reads it."""
        return self.pub_value(topic, value, key=key, headers=headers, delay=delay, ttl=ttl, route=route)

    def pub_many(
        self, topic: str, items: Iterable[Item], *, delay: Seconds | None = None, ttl: Seconds | None = None, window: int = 1024
    ) -> Publishing:
        """Return an iterator that publishes many messages while it is iterated, with up to ``window`` unanswered:
        ``list(mq.pub_many(...))`` publishes all. Receipts come in the order of the items. Arguments are those of the asyncio
        client's ``pub_many``.

        Raises: as ``pub``, in place of the receipt of the item that failed. Items sent after it are still published. A wrong
            item and an exception of ``items`` end it: what came before is published and has its receipts first.
        """
        return Publishing(self._guard, self._publish_many, topic, items, delay, ttl, window)

    # -- consuming

    @hinted
    @one_thread
    def sub(
        self, topic: str, consumer: str, *, auto_ack: bool = False, auto_extend: bool = False, window: int = 1024,
        visibility: Seconds | None = None, mode: Mode | None = None, start: str | None = None,
    ) -> Subscription:  # fmt: skip
        """Subscribe a consumer, and wait for the broker's OK. Arguments are those of the asyncio client's ``sub``. A
        subscription that overlaps another one gets its own connection.

        ``auto_extend`` renews leases from a thread with its own connection, also while a handler sleeps or computes, but not
        while C code holds Python's global lock.

        Raises: BadName, BadArgument, AlreadySubscribed (this client has the same subscription), RequestError, RequestTimeout,
            ClientClosed; ConfigError, ConnectFailed: leases cannot be renewed, and nothing is subscribed.
        """
        command = requests.subscription(topic, consumer, window, visibility, mode, start, auto_ack, auto_extend)
        topic, consumer = command.topic, command.consumer
        self._open_or_raise()
        feeds = [feed for link in self._links for feed in link.conversation.feeds]
        if any((feed.command.topic, feed.command.consumer) == (topic, consumer) for feed in feeds):
            raise AlreadySubscribed(f"this client is subscribed to {topic} as {consumer} already")
        keeper = self._keeper_or_raise() if auto_extend else None
        link = self._free_link(topic)
        feed = Feed(command, lambda: None)
        feed.place = self._homes.place(topic)
        try:
            link = self._subscribe(link, feed)
            if keeper is not None:
                feed.kept_s = (command.visibility_ms or 0) / 1000
                keeper.keep(feed, feed.kept_s)
            subscription = Subscription(link, feed, auto_ack=auto_ack, on_end=keeper.leave if keeper is not None else None)
        except BaseException:
            if keeper is not None:
                keeper.leave(feed)
            feed.link(link).conversation.unsubscribe(feed, lambda: None)
            raise
        return subscription

    def _subscribe(self, link: BlockingLink, feed: Feed) -> BlockingLink:
        """Subscribe a feed on a connection, following MOVED.

        Returns: the connection that the feed is on in the end. Raises: RequestError, RequestTimeout, ClientClosed.
        """
        deadline = now() + self._options.timeout_s
        link.conversation.subscribe(feed)
        while feed.state is FeedState.ASKED:
            link = feed.link(link)

            def news(link: BlockingLink = link) -> bool:
                return feed.state is not FeedState.ASKED or feed.link(link) is not link

            if not link.until(news, deadline):
                raise link.overdue(feed.awaited)
        if feed.error is not None:
            raise feed.error
        return feed.link(link)

    def _keeper_or_raise(self) -> "LeaseKeeper":
        """Return the thread that renews leases, started if need be.

        Raises: ConfigError, ConnectFailed, RequestError, ProtocolViolation.
        """
        if self._keeper is None or self._keeper.ended:
            from toymq.sync.lease_keeper import LeaseKeeper  # imports asyncio, which few command lines need

            if self._keeper is not None:
                self._keeper.close()
            self._keeper = LeaseKeeper(self._options)
            weakref.finalize(self, self._keeper.close)  # also when the program ends
            self._keeper.open()
        return self._keeper

    def _free_link(self, topic: str) -> BlockingLink:
        """Return a connection, to the worker that has the topic, without a subscription that overlaps the topic."""
        home = self._homes.address(topic)
        for link in self._links:
            overlaps = any(feed.overlaps(topic) for feed in link.conversation.feeds)
            if link.home == home and link is not self._waiting_link and not overlaps:
                return link
        return self._new_link(home)

    def _home(self, topic: str) -> BlockingLink:
        """The connection to the worker that has a topic, if that worker is known; else the main connection."""
        return self._link if not self._homes else self._homes.find(topic, self._home_link) or self._link

    def _new_link(self, home: Address | None = None) -> BlockingLink:
        nodes = () if home is None else self._homes.nodes(home)
        link = BlockingLink(self._options, self._outages, self._links, self._guard, home, nodes)
        link.conversation.elsewhere = Following(self, link)
        if home is not None:  # another worker of the same broker
            link.conversation.server = self._conversation.server
        self._links.append(link)
        return link

    def _home_link(self, home: Address) -> BlockingLink:
        links = (link for link in self._links if link.home == home and link is not self._waiting_link)
        return next(links, None) or self._new_link(home)

    @hinted
    @one_thread
    def pull(
        self, topic: str, consumer: str, max: int = 1, *, wait: Seconds = 0.0, visibility: Seconds | None = None,
        mode: Mode | None = None,
    ) -> list[Message]:  # fmt: skip
        """Lease up to ``max`` messages without a subscription; see the asyncio client's ``pull``. A pull that a signal
        handler's exception interrupts gives its messages back; one that was only half read is redelivered when its lease
        ends."""
        command = requests.pull_command(topic, consumer, max, wait, visibility, mode)
        wait = command.wait_ms / 1000
        deadline = now() + wait
        feed = Feed(Subscribe(command.topic, command.consumer, visibility_ms=command.visibility_ms), lambda: None)
        feed.pulled = True
        while True:
            request = requests.pull(command, wait, self._home(topic).conversation, feed)
            try:
                pushes = self._ask_waiting(request)
                wait = deadline - now()
                if pushes or wait <= 0:  # otherwise a broker that shuts down ended the wait early
                    home = self._home(topic)
                    if pushes:
                        home.send_off(request.slot.deadline or 0.0)
                    return [Message(push, feed, home) for push in pushes]
            except ConnectionLost as error:
                wait = deadline - now()
                if wait <= 0 or isinstance(error, ClientClosed):
                    raise
            except BaseException:
                request.slot.abandon()  # gives back what was leased to it
                self._home(topic).exchange(0.0)
                raise

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

    @one_thread
    def ping(self) -> float:
        """Round trip in seconds."""
        began = now()
        self._ask(requests.ping())
        return now() - began

    # -- leaving

    @one_thread
    def drain(self, timeout: Seconds) -> bool:
        """End the subscriptions, which gives back unacked messages, and wait for pending answers.

        Returns: False when something was left after ``timeout`` seconds.
        """
        deadline = now() + arguments.timeout("timeout", timeout)
        for link in self._links:
            for feed in list(link.conversation.feeds):
                if self._keeper is not None:
                    self._keeper.leave(feed)
                link.conversation.unsubscribe(feed, lambda: None)
        if self._closed:
            return True
        return min([link.until(link.is_idle, deadline) for link in self._links])

    @one_thread
    def close(self) -> None:
        """Send acks and pending requests, then close, within a second. Never raises. Idempotent."""
        deadline = now() + GOODBYE_S
        if self._keeper is not None:
            self._keeper.stop()
        for link in [link for link in reversed(self._links) if not (link.closed and link.conversation.is_closed)]:
            link.close(deadline)
        if self._keeper is not None:
            self._keeper.join(deadline - now())

    # -- connections and requests

    @property
    def _main_conversation(self) -> Conversation:
        return self._conversation

    def _conversations(self) -> Iterator[Conversation]:
        return (link.conversation for link in self._links)

    def _ask(self, request: requests.Request[T]) -> T:
        """Make a request. Raises: RequestError, ConnectionLost, RequestTimeout, ProtocolViolation."""
        if request.wait_s:
            return self._ask_waiting(request)
        self._open_or_raise()
        link = self._home(request.topic)
        link.ask(request.slot)
        while not self._closed and self._homes.goes_on(request, link):
            link = self._home(request.topic)
            link.ask(request.slot)
        return request.result()

    def _ask_waiting(self, request: requests.Request[T]) -> T:
        """Make a request that may wait at the broker, on a connection of its own. Before that the other connections send what
        they have to send, in at most half of the request's time without its wait."""
        self._open_or_raise()
        half_s = self._options.timeout_s / 2
        rest = now() + half_s
        deadline = request.slot.deadline = rest + half_s + request.wait_s
        for link in list(self._links):
            link.send_off(rest)
        while True:
            home = self._homes.address(request.topic)
            self._leave_waiting_link(home, deadline)  # an exception may have come while the last call did
            if self._waiting_link is None:
                self._waiting_link = self._new_link(home)
            waiting = self._waiting_link
            try:
                waiting.ask(request.slot, request.wait_s)
                if self._closed or not self._homes.goes_on(request, waiting):
                    return request.result()
            finally:
                self._leave_waiting_link(home, deadline)

    def _leave_waiting_link(self, home: Address | None, deadline: float) -> None:
        """Close the connection of ``_ask_waiting`` if its last request was given up, or if the next one goes to another
        worker."""
        waiting = self._waiting_link
        if waiting is not None and (
            not waiting.conversation.idle or waiting.conversation.is_closed or waiting.home != home
        ):
            if waiting in self._links:
                self._links.remove(waiting)
            self._outages.left(waiting)
            waiting.close(min(now() + GOODBYE_S, deadline))
            self._waiting_link = None
            self._link.exchange(0.0)  # sends what it gave back

    def _open_or_raise(self) -> None:
        if self._closed:
            raise ClientClosed(FORKED if self._link.forked else CLOSED)


@hinted
def connect(
    urls: str | Sequence[str] = DEFAULT_URL, *, token: str | None = None, name: str | None = None,
    ssl: ssl_module.SSLContext | None = None, timeout_s: Seconds = 30.0, connect_timeout_s: Seconds = 5.0,
    wait_s: Seconds | None = None, backoff_min_s: Seconds = 0.05, backoff_max_s: Seconds = 5.0, idempotent: bool = True,
    on_event: OnEvent | None = None, inject_headers: InjectHeaders | None = None, tracing: MessageTracing | None = None,
    describe_errors: bool = True, random: Random | None = None,
) -> Client:  # fmt: skip
    """Connect to a broker. Arguments are those of ``toymq.connect``.

    Raises: ConfigError, BadArgument, ConnectFailed, RequestError (the token is not accepted), ProtocolViolation.
    """
    return Client(
        Options(
            parse_urls(urls, token), name, ssl, *times(timeout_s, connect_timeout_s, wait_s, backoff_min_s, backoff_max_s),
            idempotent, on_event, inject_headers, tracing, random or Random(), describe_errors,
        )
    ).open()  # fmt: skip
