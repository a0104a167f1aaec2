"""Clients that publish and consume, misbehave, and record what they saw. Contract: reliability.md.

A ``World`` gives the clients connections; they know nothing else of the harness. The same clients run in the chaos harness
(``experiment``) and in the deterministic simulation.
"""

import asyncio
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from toymq_chaos.history import Recorder, Result, digest_of
from toymq_py.consumer_options import Mode
from toymq_py.errors import ConnectionLost
from toymq_py.protocol import (
    Ack,
    ClientConnection,
    ClosedPush,
    Command,
    DupReply,
    ErrReply,
    MessagePush,
    Nack,
    OkReply,
    Publish,
    Reply,
    Subscribe,
    encode_command,
)


class Message(NamedTuple):
    """A message to publish. With ``seq``, a producer's number, ``key`` is the producer's name, and the payload begins with the
    number and a space."""

    topic: str
    key: str
    payload: bytes
    delay_ms: int | None = None
    ttl_ms: int | None = None
    seq: int | None = None
    group: str | None = None

    @property
    def told_key(self) -> str:
        """The key that the history records for the message."""
        return self.key if self.seq is None else f"{self.key}#{self.seq}"

    def encode(self) -> bytes:
        """Encode the message as a PUB."""
        options: dict[str, Any] = {}
        body = self.payload
        if self.group is not None:
            block = f"toymq-group: {self.group}\n".encode()
            options["hdr"] = len(block)
            body = block + body
        if self.delay_ms is not None:
            options["delays_ms"] = [self.delay_ms]
        if self.ttl_ms is not None:
            options["ttls_ms"] = [self.ttl_ms]
        if self.seq is not None:
            options["seqs"] = [self.seq]
        return encode_command(Publish(self.topic, [self.key.encode()], [body], **options))


SEQUENCED = "seq-"
"""Prefix of keys that name a producer."""


class World(Protocol):
    """What the harness or the simulation provides to the clients."""

    recorder: Recorder
    calm: bool
    """Whether the faults are over: clients behave well from here on."""

    async def connect(self, client: "Client") -> None:
        """Connect a client; wait while no broker accepts connections."""

    def subscribed(self, topic: str, consumer: str) -> None:
        """Note that a consumer exists from now on."""

    async def ready(self) -> None:
        """Wait until every consumer exists: one that subscribed later would miss messages that retention had removed."""


@dataclass(frozen=True, slots=True)
class Habits:
    """How clients misbehave: probabilities per delivery, and per read."""

    forget: float = 0.1
    """Never ack a delivery."""
    nack: float = 0.1
    sync: float = 0.1
    """Ack with ``sync=1``."""
    leave: float = 0.02
    """Cut the connection."""
    stop_reading: float = 0.05
    stop_reading_s: float = 1.0
    """The longest pause of a client that stops reading."""
    cut_frame: float = 0.0
    """Send part of a PUB and cut the connection."""
    rate: float = 0.0
    """Messages per second and publisher; 0: limited by the windows alone."""
    dead: float = 0.0
    """Send a delivery to the dead letters."""
    give_up: float = 0.0
    """Do not repeat a publish that a full backlog refused; never with a sequence."""


class Client(asyncio.Protocol):
    """A raw client: one connection, whose replies come in order. ``name`` is the ``process`` of its events."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lost = False
        self.transport: asyncio.Transport
        self._wire = ClientConnection()
        self._something = asyncio.Event()
        self.heard: deque[Reply] = deque()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._wire.receive_data(data)
        self.heard += self._wire.next_replies()
        self._something.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._something.set()

    def send(self, command: Command) -> None:
        self.write(encode_command(command))

    def write(self, data: bytes) -> None:
        """Send bytes; without effect on a lost connection."""
        if not self.transport.is_closing():
            self.transport.write(data)

    async def something(self) -> None:
        """Wait until a reply or a push has come, or the connection has ended."""
        if not self.heard and not self.lost:
            self._something.clear()
            await self._something.wait()

    async def ask(self, command: Command, timeout_s: float = 60.0) -> Reply:
        """Send a command and wait for its reply. Assumes that no other command is unanswered; after a cancellation or a
        TimeoutError the connection must not be used, since the reply may still come.

        Raises: ConnectionLost, TimeoutError.
        """
        self.send(command)
        async with asyncio.timeout(timeout_s):
            while not self.heard and not self.lost:  # a reply may come in pieces
                await self.something()
        if self.heard:
            return self.heard.popleft()
        raise ConnectionLost(f"{self.name} lost its connection before the reply to {type(command).__name__.upper()}")


class Publisher:
    """Publishes its messages in order, several at a time, each with its own key, and repeats those without an OK."""

    def __init__(self, world: World, name: str, rng: random.Random, messages: Iterator[Message], habits: Habits) -> None:
        """``messages`` are drawn as they are sent; the publisher ends when all are published."""
        self._world = world
        self._name = name
        self._rng = rng
        self._messages = messages
        self._habits = habits
        self._again: deque[Message] = deque()
        self._next_message: Message | None = None

    async def run(self) -> None:
        await self._world.ready()
        connection = 0
        while self._peek() is not None:
            connection += 1
            client = Client(f"{self._name}.{connection}")
            await self._world.connect(client)
            try:
                await self._use(client)
            finally:
                client.transport.abort()
                self._world.recorder(client.name, "disconnect")

    def _peek(self) -> Message | None:
        if self._again:
            return self._again[0]
        if self._next_message is None:
            self._next_message = next(self._messages, None)
        return self._next_message

    def _pop(self) -> Message:
        message = self._peek()
        assert message is not None
        if self._again:
            self._again.popleft()
        else:
            self._next_message = None
        return message

    def _note(
        self, client: Client, message: Message, sent_ns: int, result: Result, msg_id: int | None, note: str | None
    ) -> None:
        self._world.recorder(
            client.name, "pub", result, topic=message.topic, key=message.told_key, digest=digest_of(message.payload), id=msg_id,
            sent_ns=sent_ns, note=note, delay_ms=message.delay_ms, ttl_ms=message.ttl_ms, seq=message.seq,
            group=message.group,
        )  # fmt: skip

    async def _use(self, client: Client) -> None:
        habits, rng = self._habits, self._rng
        window = rng.choice((1, 4, 30))
        flying: deque[tuple[Message, int]] = deque()
        refused: list[Message] = []
        while not client.lost and (flying or self._peek() is not None):
            cut = not self._world.calm and habits.cut_frame > 0 and rng.random() < habits.cut_frame
            while len(flying) < window and self._peek() is not None:
                message = self._pop()
                frame = message.encode()
                flying.append((message, self._world.recorder.now_ns()))
                if cut:
                    client.write(frame[: rng.randrange(1, len(frame))])
                    client.transport.close()
                    client.lost = True
                    break
                client.write(frame)
            if not cut:
                await client.something()
            while client.heard and flying:
                reply = client.heard.popleft()
                message, sent_ns = flying.popleft()
                if isinstance(reply, OkReply):
                    self._note(client, message, sent_ns, "ok", reply.value, None)
                elif isinstance(reply, DupReply):
                    self._note(client, message, sent_ns, "dup", reply.msg_id, None)
                else:
                    assert isinstance(reply, ErrReply)
                    result: Result = "unknown" if reply.code == "STORAGE_FAILED" else "err"
                    self._note(client, message, sent_ns, result, None, reply.code)
                    full = reply.code == "QUEUE_FULL" and message.seq is None and habits.give_up > 0
                    if not (full and rng.random() < habits.give_up):
                        refused.append(message)
            if refused and not flying:
                break
            if habits.rate and not flying and not cut:
                await asyncio.sleep(window / habits.rate)
        for message, sent_ns in flying:
            self._note(client, message, sent_ns, "unknown", None, None)
        self._again.extendleft(reversed([*refused, *(message for message, _ in flying)]))
        if refused:
            await asyncio.sleep(0.05)


class Asked(NamedTuple):
    """A command of a subscriber that has no answer yet."""

    op: Literal["sub", "pull", "ack", "nack"]
    sent_ns: int
    topic: str
    id: int | None = None
    sync: bool | None = None
    dead: bool | None = None


class Subscriber:
    """A consumer that runs until it is cancelled: it acks most deliveries, nacks some, leaves some unsettled, cuts its
    connection, and stops reading at times."""

    def __init__(
        self, world: World, name: str, rng: random.Random, topic: str, consumer: str, habits: Habits,
        mode: Mode | None = None,
    ) -> None:  # fmt: skip
        """``topic`` may be a pattern."""
        self._world = world
        self._name = name
        self._rng = rng
        self._topic = topic
        self._consumer = consumer
        self._habits = habits
        self._mode = mode

    async def run(self) -> None:
        world = self._world
        connection = 0
        while True:
            connection += 1
            client = Client(f"{self._name}.{connection}")
            await world.connect(client)
            asked: deque[Asked] = deque()
            try:
                await self._use(client, asked)
            finally:
                client.transport.abort()
                for each in asked:
                    self._note(client, "unknown", each)
                world.recorder(client.name, "disconnect")

    async def _use(self, client: Client, asked: deque[Asked]) -> None:
        """Consume on one connection until it ends. ``asked``: its unanswered commands."""
        world, habits, rng = self._world, self._habits, self._rng
        asked.append(Asked("sub", world.recorder.now_ns(), self._topic))
        client.send(Subscribe(self._topic, self._consumer, window=rng.choice((1, 5, 100)), mode=self._mode))
        while not client.lost:
            await client.something()
            while client.heard:
                reply = client.heard.popleft()
                if isinstance(reply, ClosedPush):
                    if reply.topic == self._topic:
                        return
                    continue  # one topic of a pattern
                if not isinstance(reply, MessagePush):
                    command = asked.popleft()
                    if not self._answered(client, reply, command) and command.op == "sub":
                        await asyncio.sleep(0.05)
                        return
                    continue
                self._delivered(client, reply)
                asked += self._handle(client, reply)
            if not world.calm and rng.random() < habits.leave:
                return
            if not world.calm and rng.random() < habits.stop_reading:
                client.transport.pause_reading()
                await asyncio.sleep(habits.stop_reading_s * rng.random())
                client.transport.resume_reading()

    def _delivered(self, client: Client, push: MessagePush) -> None:
        key = push.key.decode()
        if key.startswith(SEQUENCED):
            key += "#" + push.payload.split(b" ")[0].decode()
        told = told_by_headers(push.headers) if push.headers else {}
        self._world.recorder(
            client.name, "deliver", topic=push.topic, consumer=self._consumer, key=key, digest=digest_of(push.payload),
            id=push.msg_id, attempt=push.attempt, **told,
        )  # fmt: skip

    def _handle(self, client: Client, push: MessagePush) -> list[Asked]:
        """Handle a delivery according to the client's habits. Returns: the commands that were sent."""
        habits = self._habits
        chance = 1.0 if self._world.calm else self._rng.random()
        topic, msg_id = push.topic, push.msg_id
        ids = ((msg_id, msg_id),)
        now_ns = self._world.recorder.now_ns()
        if chance < habits.forget:
            return []
        if chance < habits.forget + habits.nack:
            client.send(Nack(topic, self._consumer, ids, delay_ms=self._rng.choice((0, 50))))
            return [Asked("nack", now_ns, topic, msg_id)]
        if chance > 1.0 - habits.dead and not self._world.calm:
            client.send(Nack(topic, self._consumer, ids, dead=True))
            return [Asked("nack", now_ns, topic, msg_id, dead=True)]
        sync = chance < habits.forget + habits.nack + habits.sync
        client.send(Ack(topic, self._consumer, ids, sync))
        return [Asked("ack", now_ns, topic, msg_id, sync or None)]

    def _answered(self, client: Client, reply: Reply, asked: Asked) -> bool:
        """Record the reply to a command. Returns: whether the command had an effect."""
        taken = isinstance(reply, OkReply) and (asked.op in ("sub", "pull") or reply.value == 1)
        self._note(client, "ok" if taken else "err", asked)
        if taken and asked.op in ("sub", "pull"):
            self._world.subscribed(self._topic, self._consumer)
        return taken

    def _note(self, client: Client, result: Result, asked: Asked) -> None:
        self._world.recorder(
            client.name, asked.op, result, topic=asked.topic, consumer=self._consumer, id=asked.id, sync=asked.sync,
            sent_ns=asked.sent_ns, dead=asked.dead,
        )  # fmt: skip


def told_by_headers(block: bytes) -> dict[str, Any]:
    """Read the origin or group of a message from its header block, as fields of an ``Event``."""
    lines = (line.partition(b": ") for line in block.split(b"\n"))
    found = {name.decode(): value.decode() for name, _, value in lines}
    told: dict[str, Any] = {}
    if "toymq-origin-id" in found:
        told = {
            "origin_id": int(found["toymq-origin-id"]), "origin_consumer": found["toymq-consumer"],
            "count": int(found["toymq-attempts"]), "note": found.get("toymq-origin-key"),
        }  # fmt: skip
    elif "toymq-redrive-consumer" in found:
        told = {"origin_consumer": found["toymq-redrive-consumer"]}
    elif "toymq-group" in found:
        told = {"group": found["toymq-group"]}
    return told
