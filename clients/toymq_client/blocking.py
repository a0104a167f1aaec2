"""A thin blocking client on the sans-IO core.

One socket, one thread: not to be shared between threads. Sending never waits without reading, so that a pipeline in both
directions cannot stand still. Deliveries that arrive while a reply is awaited are kept for their subscription.
"""

import json
import select
import socket
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypeVar

from toymq_client.url import DEFAULT_URL, parse_url
from toymq_py.errors import AlreadySubscribed, ConnectionLost, ProtocolViolation, ToymqError
from toymq_py.model import IdRange, Start
from toymq_py.protocol import (
    Ack,
    BatchReply,
    ClientConnection,
    ClosedPush,
    Command,
    Config,
    Create,
    Delete,
    Describe,
    DupReply,
    ErrReply,
    Fetch,
    Forget,
    Hello,
    HelloReply,
    JsonReply,
    MessagePush,
    Nack,
    Offsets,
    OffsetsReply,
    OkReply,
    Ping,
    PongReply,
    Publish,
    Reply,
    Seek,
    Stats,
    Subscribe,
    Topics,
    Touch,
    Unsubscribe,
    encode_command,
)

RECEIVE_BYTES = 256 * 1024
ACKS_COALESCED = 1000
RANGES_PER_LINE = 80
"""Of ids with 20 digits in a line of 4096 bytes, beside the names."""
R = TypeVar("R", bound=Reply)
Key = str | bytes
Item = bytes | tuple[Key | None, bytes]
"""What ``pub_many`` takes: a payload, or (key, payload)."""


class SubscriptionEnded(ToymqError):
    """The broker ended a subscription; ``code`` says why: TAKEN_OVER, SEEK, DELETED, SHUTTING_DOWN."""

    def __init__(self, push: ClosedPush) -> None:
        super().__init__(f"the subscription of {push.consumer} to {push.topic} was ended: {push.code}")
        self.code = push.code


@dataclass(frozen=True, slots=True)
class Receipt:
    """A publish is on stable storage. ``duplicate``: it was there before, under this id."""

    msg_id: int
    duplicate: bool


@dataclass(frozen=True, slots=True)
class Message:
    """One delivery. ``attempt`` counts deliveries of it to this consumer, from 1; ``ts_ns`` is when it was published."""

    topic: str
    id: int
    attempt: int
    ts_ns: int
    key: bytes
    headers: dict[str, str]
    payload: bytes
    _subscription: "Subscription" = field(repr=False, compare=False)

    def ack(self) -> None:
        """Done with it. Sent with the next batch of acks: when the iterator would wait, or after a thousand."""
        self._subscription.ack(self.id)

    def nack(self, delay_s: float | None = None) -> None:
        """Give it back, to be delivered again after a delay; None takes the topic's backoff."""
        self._subscription.nack(self.id, delay_s)

    def touch(self, visibility_s: float | None = None) -> None:
        """Restart its visibility clock."""
        self._subscription.touch(self.id, visibility_s)


class Subscription:
    """Deliveries of one consumer; an iterator that ends with ``close``."""

    def __init__(self, client: "Client", topic: str, consumer: str) -> None:
        self.topic = topic
        self.consumer = consumer
        self._client = client
        self._arrived: deque[MessagePush] = deque()
        self._acks: list[int] = []
        self._ended: ClosedPush | None = None
        self._closed = False

    def __iter__(self) -> Iterator[Message]:
        while not self._closed:
            message = self.next_message(None)
            if message is not None:
                yield message

    def next_message(self, timeout_s: float | None) -> Message | None:
        """The next delivery; None when none came in time. ``timeout_s`` None waits for ever.

        Raises: SubscriptionEnded, ConnectionLost.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s  # noqa: TID251 (a client has no Clock)
        while not self._arrived:
            if self._ended is not None:
                raise SubscriptionEnded(self._ended)
            if self._closed:
                return None
            self.flush_acks()
            if not self._client.wait_for_push(self, deadline):
                return None
        push = self._arrived.popleft()
        return Message(
            push.topic, push.msg_id, push.attempt, push.ts_ns, push.key, parse_headers(push.headers), push.payload, self
        )

    def ack(self, msg_id: int) -> None:
        self._acks.append(msg_id)
        if len(self._acks) >= ACKS_COALESCED:
            self.flush_acks()

    def nack(self, msg_id: int, delay_s: float | None = None) -> None:
        self._client.nack(self.topic, self.consumer, [(msg_id, msg_id)], delay_s=delay_s)

    def touch(self, msg_id: int, visibility_s: float | None = None) -> None:
        self._client.touch(self.topic, self.consumer, [(msg_id, msg_id)], visibility_s=visibility_s)

    def flush_acks(self) -> None:
        """Send the acks that are collected, as ranges. Raises: ConnectionLost."""
        if self._acks:
            ids, self._acks = self._acks, []
            self._client.ack(self.topic, self.consumer, to_ranges(ids))

    def close(self) -> None:
        """Flush acks and unsubscribe; what was delivered and not acked goes back at once. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self.flush_acks()
        self._client.forget_subscription(self)
        if self._ended is None:
            self._client.call(Unsubscribe(self.topic, self.consumer), OkReply)

    def __enter__(self) -> "Subscription":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or not issubclass(kind, ConnectionLost):
            self.close()


class Client:
    """A connection. Made by ``connect``; a context manager."""

    def __init__(self, connection: socket.socket, timeout_s: float) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self._timeout_s = timeout_s
        self._wire = ClientConnection()
        self._out = bytearray()
        self._replies: deque[Reply] = deque()
        self._abandoned = 0  # replies of calls that timed out: they must never be taken for another call's
        self._subscriptions: dict[str, Subscription] = {}
        self._lost: ConnectionLost | None = None

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # -- publishing

    def pub(
        self,
        topic: str,
        payload: bytes,
        *,
        key: Key | None = None,
        headers: Mapping[str, str] | None = None,
        seq: int | None = None,
    ) -> Receipt:
        """Publish one message and wait until it is on stable storage.

        With ``seq`` the key names a producer that numbers its messages, ascending: what is not above its highest number is a
        duplicate, and the receipt has the id of the highest.

        Raises: RequestError (the broker refused), ConnectionLost (the outcome is unknown: retry with the same key),
            TimeoutError.
        """
        block = b"".join(f"{name}: {value}\n".encode() for name, value in (headers or {}).items())
        seqs = None if seq is None else [seq]
        self._send(Publish(topic, [_key(key)], [block + payload], hdr=len(block), seqs=seqs))
        return _receipt(self._reply(f"the OK of a publish to {topic}"))

    def pub_many(self, topic: str, items: Iterable[Item], *, window: int = 1024) -> Iterator[Receipt]:
        """Publish many, up to ``window`` of them in flight; receipts come in the order of the items.

        Raises: as ``pub``; what was sent behind a refused one is still published.
        """
        awaited = f"the OK of a publish to {topic}"
        outstanding = 0
        try:
            for keys, bodies in _chunks(items, max(window // 2, 1)):
                self._send(Publish(topic, keys, bodies))
                outstanding += len(keys)
                while outstanding > window // 2:
                    outstanding -= 1
                    yield _receipt(self._reply(awaited))
            while outstanding:
                outstanding -= 1
                yield _receipt(self._reply(awaited))
        finally:  # left early: the answers that are still due belong to nobody
            self._abandoned += outstanding

    # -- consuming

    def sub(
        self,
        topic: str,
        consumer: str,
        *,
        window: int = 1024,
        visibility_s: float | None = None,
        start: str | None = None,
    ) -> Subscription:
        """Subscribe a consumer. ``start`` (earliest, latest, an id, @unix-ms) matters only when it is new.

        Raises: RequestError, ConnectionLost, TimeoutError.
        """
        if topic in self._subscriptions:
            raise AlreadySubscribed(f"this client is subscribed to {topic} already")
        subscription = Subscription(self, topic, consumer)
        self._subscriptions[topic] = subscription
        begin = Start.parse(start) if start is not None else None
        try:
            self.call(Subscribe(topic, consumer, window, _ms(visibility_s), begin), OkReply)
        except BaseException:
            self._subscriptions.pop(topic, None)
            raise
        return subscription

    def ack(self, topic: str, consumer: str, ids: Sequence[IdRange], *, sync: bool = False) -> int:
        """How many of the ids were delivered and are now acked. With ``sync`` that is on stable storage."""
        return sum(self.call(Ack(topic, consumer, part, sync), OkReply).value for part in _lines_of(ids))

    def nack(self, topic: str, consumer: str, ids: Sequence[IdRange], *, delay_s: float | None = None) -> int:
        return self.call(Nack(topic, consumer, tuple(ids), _ms(delay_s)), OkReply).value

    def touch(self, topic: str, consumer: str, ids: Sequence[IdRange], *, visibility_s: float | None = None) -> int:
        return self.call(Touch(topic, consumer, tuple(ids), _ms(visibility_s)), OkReply).value

    # -- looking

    def fetch(self, topic: str, from_id: int, max_count: int, *, wait_s: float = 0) -> BatchReply:
        """Committed records without a consumer: WAL frames, byte for byte."""
        wait_ms = _ms(wait_s) or 0
        return self.call(Fetch(topic, from_id, max_count, wait_ms=wait_ms), BatchReply, extra_s=wait_s)

    def offsets(self, topic: str, *, at_ms: int | None = None) -> tuple[int, int]:
        """(first retained id, next id)."""
        reply = self.call(Offsets(topic, at_ms), OffsetsReply)
        return reply.first_id, reply.next_id

    def topics(self, pattern: str | None = None) -> list[dict[str, Any]]:
        return list(self._json(Topics(pattern)))

    def describe(self, topic: str) -> dict[str, Any]:
        return dict(self._json(Describe(topic)))

    def stats(self) -> dict[str, Any]:
        return dict(self._json(Stats()))

    def ping(self) -> float:
        """Round trip in seconds."""
        began = time.monotonic()  # noqa: TID251
        self.call(Ping(), PongReply)
        return time.monotonic() - began  # noqa: TID251

    # -- arranging

    def create(self, topic: str, **settings: int | str) -> None:
        self.call(Create(topic, {name: str(value) for name, value in settings.items()}), OkReply)

    def config(self, topic: str, **settings: int | str) -> dict[str, Any]:
        """Change settings, and return all that are set."""
        return dict(self._json(Config(topic, {name: str(value) for name, value in settings.items()})))

    def delete(self, topic: str) -> int:
        return self.call(Delete(topic), OkReply).value

    def seek(self, topic: str, consumer: str, to: str) -> int:
        return self.call(Seek(topic, consumer, Start.parse(to)), OkReply).value

    def forget(self, topic: str, consumer: str) -> None:
        self.call(Forget(topic, consumer), OkReply)

    def close(self) -> None:
        """Send acks that are still collected, and close. Never hangs, never raises. Idempotent."""
        if self._lost is None:
            try:
                for subscription in list(self._subscriptions.values()):
                    subscription.flush_acks()
            except (ToymqError, OSError):
                pass
        self._lost = self._lost or ConnectionLost("this client is closed")
        self._socket.close()

    # -- inside

    def call(self, command: Command, expect: type[R], *, extra_s: float = 0) -> R:
        """Send a command and wait for its reply.

        Raises: RequestError, CommandFailed, ConnectionLost, TimeoutError, ProtocolViolation.
        """
        self._send(command)
        reply = self._reply(f"the reply to {type(command).__name__.upper()}", extra_s)
        if not isinstance(reply, expect):
            raise ProtocolViolation(f"the broker answered {type(command).__name__.upper()} with {type(reply).__name__}")
        return reply

    def _json(self, command: Command) -> Any:
        return json.loads(self.call(command, JsonReply).body)

    def _send(self, command: Command) -> None:
        data = encode_command(command)
        if self._lost is not None:
            raise self._lost
        self._out += data
        self._pump(0.0)

    def _reply(self, awaited: str, extra_s: float = 0) -> Reply:
        deadline = time.monotonic() + self._timeout_s + extra_s  # noqa: TID251
        while True:
            while self._replies:
                reply = self._replies.popleft()
                if self._abandoned:
                    self._abandoned -= 1
                    continue
                if isinstance(reply, ErrReply):
                    raise reply.to_exception()
                return reply
            if self._lost is not None:
                raise self._lost
            left = deadline - time.monotonic()  # noqa: TID251
            if left <= 0:
                self._abandoned += 1
                raise TimeoutError(f"no answer within {self._timeout_s + extra_s:g} s: waited for {awaited}")
            try:
                self._pump(left)
            except KeyboardInterrupt:
                self._abandoned += 1
                raise

    def wait_for_push(self, subscription: Subscription, deadline: float | None) -> bool:
        """Read until something came for the subscription. Returns: False when the time is over. Raises: ConnectionLost."""
        while not subscription._arrived and subscription._ended is None:
            if self._lost is not None:
                raise self._lost
            left = None if deadline is None else deadline - time.monotonic()  # noqa: TID251
            if left is not None and left <= 0:
                return False
            self._pump(left)
        return True

    def forget_subscription(self, subscription: Subscription) -> None:
        if self._subscriptions.get(subscription.topic) is subscription:
            del self._subscriptions[subscription.topic]

    def _pump(self, wait_s: float | None) -> None:
        """Send what can be sent and take in what is there; waits once for either."""
        if self._out:
            self._write()
        readable, writable, _ = select.select([self._socket], [self._socket] if self._out else [], [], wait_s)
        if readable:
            self._read()
        if writable and self._lost is None:
            self._write()

    def _write(self) -> None:
        try:
            sent = self._socket.send(self._out)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._read_last_words()
            self._lose(f"the connection was lost: {error.strerror or error}")
            return
        del self._out[:sent]

    def _read_last_words(self) -> None:
        """The other end is gone, but what it said before may still be here."""
        try:
            while data := self._socket.recv(RECEIVE_BYTES):
                self._take(data)
        except OSError:
            pass

    def _read(self) -> None:
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lose(f"the connection was lost: {error.strerror or error}")
            return
        if data:
            self._take(data)
        else:
            self._lose("the broker closed the connection")

    def _take(self, data: bytes) -> None:
        self._wire.receive_data(data)
        for reply in self._wire.next_replies():
            if isinstance(reply, MessagePush):
                subscription = self._subscriptions.get(reply.topic)
                if subscription is not None:
                    subscription._arrived.append(reply)
            elif isinstance(reply, ClosedPush):
                subscription = self._subscriptions.pop(reply.topic, None)
                if subscription is not None:
                    subscription._ended = reply
            else:
                self._replies.append(reply)

    def _lose(self, reason: str) -> None:
        self._lost = self._lost or ConnectionLost(reason)


def connect(url: str = DEFAULT_URL, *, timeout_s: float = 10.0) -> Client:
    """Connect to a broker.

    Args:
        url: ``toymq://[token@]host[:port]``.
        timeout_s: for connecting, and for every reply.

    Raises: ConfigError, OSError (nobody listens there), TimeoutError, RequestError (the token is not accepted).
    """
    address = parse_url(url)
    try:
        connection = socket.create_connection((address.host, address.port), timeout_s)
    except TimeoutError:
        raise TimeoutError(f"no connection to {address} within {timeout_s:g} s") from None
    client = Client(connection, timeout_s)
    try:
        if address.token is not None:
            client.call(Hello(1, address.token), HelloReply)
    except BaseException:
        client.close()
        raise
    return client


def parse_headers(block: bytes) -> dict[str, str]:
    """``Name: value`` lines as a dict; a line of another form is left out."""
    headers = {}
    for line in block.decode("utf-8", "replace").splitlines():
        name, colon, value = line.partition(":")
        if colon:
            headers[name] = value.removeprefix(" ")
    return headers


def to_ranges(ids: Iterable[int]) -> list[IdRange]:
    """Ids, in any order, as ascending ranges."""
    ranges: list[IdRange] = []
    for msg_id in sorted(set(ids)):
        if ranges and ranges[-1][1] + 1 == msg_id:
            ranges[-1] = (ranges[-1][0], msg_id)
        else:
            ranges.append((msg_id, msg_id))
    return ranges


def _lines_of(ids: Sequence[IdRange]) -> Iterator[tuple[IdRange, ...]]:
    """Ids in pieces that each fit into one header line."""
    for at in range(0, len(ids), RANGES_PER_LINE):
        yield tuple(ids[at : at + RANGES_PER_LINE])


def _chunks(items: Iterable[Item], size: int) -> Iterator[tuple[list[bytes], list[bytes]]]:
    keys: list[bytes] = []
    bodies: list[bytes] = []
    for item in items:
        key, body = item if isinstance(item, tuple) else (None, item)
        keys.append(_key(key))
        bodies.append(body)
        if len(keys) >= size or sum(map(len, bodies[-1:])) > RECEIVE_BYTES:
            yield keys, bodies
            keys, bodies = [], []
    if keys:
        yield keys, bodies


def _key(key: Key | None) -> bytes:
    return b"" if key is None else key.encode() if isinstance(key, str) else key


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


def _receipt(reply: Reply) -> Receipt:
    if isinstance(reply, OkReply):
        return Receipt(reply.value, duplicate=False)
    if isinstance(reply, DupReply):
        return Receipt(reply.msg_id, duplicate=True)
    raise ProtocolViolation(f"the broker answered PUB with {type(reply).__name__}")
