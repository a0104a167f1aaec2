"""AMQP users: a publisher with confirms, and a consumer of the queue that stands for the users' topic.

    c-pub       publishes a few messages at a time and waits for their confirms, which have no ids
    c-queue     consumes as the queue, acks and requeues; the harness asks it which confirmed messages it has not seen

The users of other protocols see these messages, too: the queue is a topic. The AMQP client is made of the broker's own codec;
``tests/e2e/amqp`` tests the libraries of others.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import Any, cast

from toymq_chaos.history import digest_of
from toymq_chaos.users import AMQP, BACKOFF_MAX_S, RATE, TIMEOUT_S, TOPIC, Diary, Item, Surroundings, User, items
from toymq_py.amqp import frames, methods, properties
from toymq_py.amqp.connection import AmqpConnection, Content
from toymq_py.amqp.frames import HEADER, PROTOCOL_HEADER
from toymq_py.amqp.methods import Method
from toymq_py.errors import ConnectionLost

AT_ONCE = 8
"""Most publishes before their confirms are waited for."""
PREFETCH = 32
FRAME_MAX = 131_072
BODY_BYTES_MAX = 1 << 20


class AmqpLink(asyncio.Protocol):
    """An AMQP client connection with one channel."""

    def __init__(self) -> None:
        self._connection = AmqpConnection(
            frame_max=FRAME_MAX, body_bytes_max=BODY_BYTES_MAX, channel_max=1, expects_header=False
        )
        self._arrived: asyncio.Queue[Method | Content | None] = asyncio.Queue()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is not a subclass

    def data_received(self, data: bytes) -> None:
        self._connection.received(data)
        with closing(self._connection.events()) as events:  # type: ignore[type-var]
            for _, what in events:
                if isinstance(what, Method | Content):
                    self._arrived.put_nowait(what)

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrived.put_nowait(None)

    async def next(self) -> Method | Content:
        """Return the next method, with its content. Raises: ConnectionLost, also when the broker closes the connection."""
        what = await self._arrived.get()
        if what is None or (isinstance(what, Method) and what.name in ("connection.close", "channel.close")):
            self._arrived.put_nowait(None)
            raise ConnectionLost("the AMQP connection is gone" if what is None else str(what))
        return what

    def send(self, name: str, channel: int = 1, **values: Any) -> None:
        """Send a method. Raises: ConnectionLost."""
        self._write(methods.encode(channel, name, **values))

    def _write(self, data: bytes) -> None:
        if self.transport.is_closing():
            raise ConnectionLost("the AMQP connection is gone")
        self.transport.write(data)

    async def ask(self, name: str, channel: int = 1, **values: Any) -> None:
        """Send a method and wait for the method that answers it. Raises: ConnectionLost."""
        self.send(name, channel, **values)
        while True:
            what = await self.next()
            if isinstance(what, Method) and what.name == f"{name}-ok":
                return

    async def open(self, token: str) -> None:
        """Log in, open the channel, and declare the queue. Raises: ConnectionLost."""
        self._write(PROTOCOL_HEADER)
        await self.next()
        self.send("connection.start-ok", 0, mechanism="PLAIN", response=f"\0chaos\0{token}".encode(), locale="en_US")
        await self.next()
        self.send("connection.tune-ok", 0, channel_max=1, frame_max=FRAME_MAX, heartbeat=0)
        await self.ask("connection.open", 0, virtual_host="/")
        await self.ask("channel.open")
        await self.ask("queue.declare", queue=TOPIC, durable=True)

    def publish(self, body: bytes) -> None:
        """Publish a message to the queue. Raises: ConnectionLost."""
        head = methods.encode(1, "basic.publish", exchange="", routing_key=TOPIC)
        size = frames.frame(HEADER, 1, b"\0\x3c\0\0" + len(body).to_bytes(8) + properties.NOTHING)
        self._write(head + size + b"".join(frames.body_frames(1, body, FRAME_MAX)))


class _AmqpUser(User):
    """A user over AMQP, which reconnects after each lost connection until it ends."""

    link: AmqpLink | None = None

    def cut(self) -> None:
        if self.link is not None:
            self.link.transport.abort()

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[AmqpLink]:
        """Yield a connection, which is closed at the end of the block. Raises: OSError, ConnectionLost, TimeoutError."""
        host, _, port = self._where.amqp().rpartition("/")[2].rpartition(":")
        if not host:
            raise ConnectionLost("the broker does not run")
        _, link = await asyncio.get_running_loop().create_connection(AmqpLink, host, int(port))
        self.link = link
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await link.open(self._where.token)
            self.diary.connected()
            yield link
        finally:
            link.transport.abort()
            self.diary.close()

    async def _pause(self) -> None:
        await asyncio.sleep(self._rng.random() * BACKOFF_MAX_S)


class AmqpPublisher(_AmqpUser):
    def __init__(self, where: Surroundings, diary: Diary, rng: random.Random, confirmed: set[str], seed: int) -> None:
        """``confirmed``: a set to which the names of confirmed messages are added."""
        super().__init__(where, diary, rng)
        self._confirmed = confirmed
        self._source = items(diary.name, random.Random(f"items of {diary.name} {seed}"), numbered=True)

    @property
    def publishes(self) -> bool:
        return True

    async def run(self) -> None:
        await self._where.ready()
        while not self._where.calm():
            try:
                async with self._connected() as link:
                    await link.ask("confirm.select")
                    last_tag = 0
                    while not self._where.calm():
                        last_tag = await self._publish(link, last_tag)
                        await asyncio.sleep(self._rng.random() * AT_ONCE / RATE)
            except (OSError, ConnectionLost, TimeoutError):
                await self._pause()

    async def _publish(self, link: AmqpLink, last_tag: int) -> int:
        """Publish some messages and wait for their confirms. Returns: the last delivery tag. Raises: ConnectionLost,
        TimeoutError."""
        sent_ns = self.diary.now_ns
        some = (next(self._source) for _ in range(self._rng.randint(2, 2 * AT_ONCE)))
        chosen = (item for item in some if item.number is not None)  # those whose payload has their name
        waiting: dict[int, Item] = dict(enumerate(chosen, last_tag + 1))
        tag = last_tag + len(waiting)
        try:
            for item in waiting.values():
                link.publish(item.payload)
            async with asyncio.timeout(TIMEOUT_S):
                while waiting:
                    told = await link.next()
                    assert isinstance(told, Method)
                    to = told["delivery_tag"]
                    for each in [each for each in waiting if each == to or (told["multiple"] and each < to)]:
                        # a nack says that it is not stored for sure
                        self._told(waiting.pop(each), "ok" if told.name == "basic.ack" else "unknown", sent_ns)
                        self.diary.moved = True
        finally:
            for item in waiting.values():
                self._told(item, "unknown", sent_ns)
        return tag

    def _told(self, item: Item, result: Any, sent_ns: int) -> None:
        self.diary.confirmed(item.name, digest_of(item.payload), result, sent_ns)
        if result == "ok":
            self._confirmed.add(item.name)


class AmqpConsumer(_AmqpUser):
    def __init__(self, where: Surroundings, diary: Diary, rng: random.Random, confirmed: set[str]) -> None:
        """``confirmed``: the names of the messages that this consumer must see in the end."""
        super().__init__(where, diary, rng)
        self._confirmed = confirmed
        self._seen: set[str] = set()

    def owes(self) -> int:
        return len(self._confirmed - self._seen)

    async def run(self) -> None:
        while True:
            try:
                async with self._connected() as link:
                    await link.ask("basic.qos", prefetch_count=PREFETCH)
                    await link.ask("basic.consume", queue=TOPIC, consumer_tag="c")
                    self._where.subscribed(TOPIC, self.diary.name)
                    while True:
                        self._handle(link, await link.next())
            except (OSError, ConnectionLost, TimeoutError):
                await self._pause()

    def _handle(self, link: AmqpLink, what: Method | Content) -> None:
        if not isinstance(what, Content):
            return
        self.diary.moved = True
        self._seen.add(what.body.partition(b" ")[0].decode("ascii", "replace"))
        tag, habits = what.method["delivery_tag"], self._where.habits
        if not self._where.calm() and self._rng.random() < habits.nack + habits.forget:
            link.send("basic.nack", delivery_tag=tag, requeue=True)
        else:
            link.send("basic.ack", delivery_tag=tag)


def amqp_users(where: Surroundings, seed: int) -> list[User]:
    """Make the two AMQP users of a run."""
    confirmed: set[str] = set()

    def of(name: str) -> tuple[Surroundings, Diary, random.Random]:
        return where, Diary(where.recorder, name), random.Random(f"user {name} {seed}")

    return [AmqpPublisher(*of(f"{AMQP}-pub"), confirmed, seed), AmqpConsumer(*of(f"{AMQP}-queue"), confirmed)]
