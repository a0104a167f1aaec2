"""The load of a soak: clients that come and go, topics and consumers that are created and deleted. Contract: reliability.md.

A ``Shift`` runs the clients of one round. ``soak`` removes the topics and consumers that they leave behind, such as a consumer
whose SUB the broker read after its FORGET.
"""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count

from toymq_chaos.history import Event, Recorder
from toymq_chaos.supervisor import BrokerFailed
from toymq_chaos.workload import Client, Habits, Message, Publisher, Subscriber
from toymq_py.protocol import (
    Command,
    Create,
    Delete,
    Describe,
    ErrReply,
    Forget,
    Hello,
    JsonReply,
    OkReply,
    Publish,
    Subscribe,
    encode_command,
)

STANDING_TOPICS = ("alpha", "beta", "gamma")
STANDING_CONSUMER = "standing"
"""Consumer of each standing topic: these stay, all others are created and deleted."""
PAYLOAD_BYTES = (0, 10, 100, 100, 1000, 1000, 8000)
BIG_PAYLOAD_BYTES = 64 << 10
BURST_TOPICS = 48
"""Three times the sync threads of a broker: when these topics commit at once, all threads are started."""
HABITS = Habits(
    forget=0.01, nack=0.02, sync=0.05, leave=0.002, stop_reading=0.01, stop_reading_s=1.0, cut_frame=0.002, rate=100
)
SLOW = Habits(forget=0.01, nack=0.02, sync=0.05, leave=0.002, stop_reading=0.5, stop_reading_s=2.0)
DRAIN_S = 60.0
"""A topic that is not drained after this time has failed."""
GONE_ALREADY = ("NO_SUCH_TOPIC", "NO_SUCH_CONSUMER")


class Shift:
    """Runs the clients of one round. Implements ``workload.World``."""

    def __init__(self, port: int, number: int, seed: int, now_ns: Callable[[], int]) -> None:
        self.calm = False
        self.recorder = Recorder(now_ns, self._take)
        self._calm = asyncio.Event()
        self._port = port
        self._number = number
        self._seed = seed
        self._names = count()

    def _take(self, event: Event) -> None:
        """Drop a recorded event: a soak checks resources, only ``experiment`` checks guarantees."""

    # -- workload.World

    async def ready(self) -> None:
        """Return at once: a soak does not check which messages retention removed."""

    def subscribed(self, topic: str, consumer: str) -> None:
        pass

    async def connect(self, client: Client) -> None:
        """Connect a client, retrying until the broker listens. If the broker has ended, the caller notices."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                await loop.create_connection(lambda: client, "127.0.0.1", self._port)
            except OSError:
                await asyncio.sleep(0.05)
            else:
                return

    # -- the shift

    async def run(self, work_s: float, drained: Callable[[], Awaitable[None]]) -> None:
        """Run all clients for ``work_s`` seconds, then end those that come and go; the others consume until ``drained``
        returns.

        Raises: BrokerFailed when the broker refuses a command.
        """
        rng = random.Random(f"shift {self._number} {self._seed}")
        async with asyncio.TaskGroup() as standing:
            subscribers = []
            for topic in STANDING_TOPICS:
                subscriber = Subscriber(self, f"standing-{topic}", _fork(rng), topic, STANDING_CONSUMER, HABITS)
                subscribers.append(standing.create_task(subscriber.run()))
            await self._burst(rng)
            async with asyncio.TaskGroup() as passing:
                for role, clients in (
                    (self._publish, 4), (self._consume, 3), (self._dawdle, 2), (self._use_topic, 3),
                    (self._use_big_topic, 1), (self._idle, 2), (self._burst_again, 1),
                ):  # fmt: skip
                    for _ in range(clients):
                        passing.create_task(self._again_and_again(role, _fork(rng)))
                await asyncio.sleep(work_s)
                self.calm = True
                self._calm.set()
            await drained()
            for task in subscribers:
                task.cancel()

    async def _again_and_again(self, role: Callable[[random.Random], Awaitable[None]], rng: random.Random) -> None:
        while not self.calm:
            await role(rng)

    async def _while_at_work(self, seconds: float) -> None:
        """Sleep for ``seconds``, at most until the round's work ends."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._calm.wait()

    def _name(self, what: str) -> str:
        return f"{what}-{self._number}-{next(self._names)}"

    def _messages(
        self, name: str, rng: random.Random, topics: Sequence[str], sizes: Sequence[int], most: int
    ) -> Iterator[Message]:
        for n in range(most):
            if self.calm:
                return
            yield Message(rng.choice(topics), f"{name}-{n}", bytes(rng.choice(sizes)))

    @asynccontextmanager
    async def _connected(self, what: str) -> AsyncIterator[Client]:
        client = Client(self._name(what))
        await self.connect(client)
        try:
            yield client
        finally:
            client.transport.abort()

    # -- what they do

    async def _publish(self, rng: random.Random) -> None:
        """Run a publisher for some seconds."""
        name = self._name("publisher")
        most = rng.randrange(20, round(4 * HABITS.rate))
        await Publisher(self, name, rng, self._messages(name, rng, STANDING_TOPICS, PAYLOAD_BYTES, most), HABITS).run()

    async def _consume(self, rng: random.Random) -> None:
        """Run a consumer that reads for some seconds (one in three reads slowly) and is then deleted by FORGET."""
        topic, consumer = rng.choice(STANDING_TOPICS), self._name("passing")
        async with self._connected("forgetter") as forgetter:
            async with asyncio.TaskGroup() as tasks:
                habits = SLOW if rng.random() < 0.3 else HABITS
                reading = tasks.create_task(Subscriber(self, consumer, rng, topic, consumer, habits).run())
                await self._while_at_work(rng.uniform(0.3, 3.0))
                reading.cancel()
            await do(forgetter, Forget(topic, consumer))

    async def _dawdle(self, rng: random.Random) -> None:
        """Run a consumer that stops reading; it is deleted by FORGET while it is connected, or after that."""
        topic, consumer = rng.choice(STANDING_TOPICS), self._name("dawdler")
        async with self._connected("forgetter") as forgetter:
            async with self._connected(consumer) as client:
                await client.ask(Subscribe(topic, consumer, window=1000))
                client.transport.pause_reading()
                await self._while_at_work(rng.uniform(0.5, 4.0))
                if rng.random() < 0.5:
                    await do(forgetter, Forget(topic, consumer))
                    return
            await do(forgetter, Forget(topic, consumer))

    async def _use_topic(self, rng: random.Random) -> None:
        """Create a topic, publish to it, and delete it: with none to two consumers, drained or not, sometimes while one is
        subscribed."""
        await self._create_use_delete(rng, PAYLOAD_BYTES, rng.randrange(5, 200))

    async def _use_big_topic(self, rng: random.Random) -> None:
        """Use a topic like ``_use_topic``, with messages that nearly fill its segment, or exceed it."""
        await self._create_use_delete(rng, (BIG_PAYLOAD_BYTES,), rng.randrange(20, 80))

    async def _create_use_delete(self, rng: random.Random, sizes: Sequence[int], most: int) -> None:
        topic = self._name("topic")
        async with self._connected("owner") as owner:
            if rng.random() < 0.5:
                await do(owner, Create(topic, {"dedupe_keys": "1000"}))
            async with asyncio.TaskGroup() as tasks:
                readers = [
                    tasks.create_task(Subscriber(self, f"{topic}-{consumer}", _fork(rng), topic, consumer, HABITS).run())
                    for consumer in ("a", "b")[: rng.randrange(3)]
                ]
                await Publisher(self, topic, rng, self._messages(topic, rng, (topic,), sizes, most), Habits()).run()
                if readers and rng.random() < 0.7:
                    await self._drained(owner, topic)
                for reader in readers:
                    reader.cancel()
            if rng.random() < 0.3:
                async with self._connected("late") as late:
                    await late.ask(Subscribe(topic, "late", window=5))
                    await do(owner, Delete(topic))
            else:
                await do(owner, Delete(topic))

    async def _drained(self, client: Client, topic: str) -> None:
        try:
            async with asyncio.timeout(DRAIN_S):
                while True:
                    reply = await client.ask(Describe(topic))
                    if isinstance(reply, ErrReply) and reply.code in GONE_ALREADY:
                        return  # the work ended before a client created the topic
                    if not isinstance(reply, JsonReply):
                        raise BrokerFailed(f"DESCRIBE of {topic} got {reply}")
                    if not any(consumer["backlog"] + consumer["scheduled"] for consumer in json.loads(reply.body)["consumers"]):
                        return
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise BrokerFailed(f"{topic} was not drained after {DRAIN_S:.0f} s") from None

    async def _idle(self, rng: random.Random) -> None:
        """Open connections that send nothing, HELLO, or part of a frame; then close or cut them."""
        clients = [Client(self._name("idle")) for _ in range(rng.randrange(5, 40))]
        for client in clients:
            await self.connect(client)
            if (chance := rng.random()) < 0.3:
                client.send(Hello(1))
            elif chance < 0.4:
                client.write(encode_command(Publish(STANDING_TOPICS[0], [b"torn"], [b"never whole"]))[:20])
        await self._while_at_work(rng.uniform(0.2, 3.0))
        for client in clients:
            if rng.random() < 0.5:
                client.transport.abort()
            else:
                client.transport.close()

    async def _burst(self, rng: random.Random) -> None:
        """Create many topics that commit at the same moment, and delete them."""
        topics = [self._name("burst") for _ in range(BURST_TOPICS)]
        async with self._connected("burst") as client:
            payload = bytes(rng.choice(PAYLOAD_BYTES))
            client.write(b"".join(encode_command(Publish(topic, [b"k"], [payload])) for topic in topics))
            client.write(b"".join(encode_command(Delete(topic)) for topic in topics))
            for _ in range(2 * BURST_TOPICS):
                await client.something()
                reply = client.heard.popleft() if client.heard else None
                if not isinstance(reply, OkReply):
                    raise BrokerFailed(f"a publish or DELETE of a burst got {reply}")

    async def _burst_again(self, rng: random.Random) -> None:
        await self._while_at_work(rng.uniform(2.0, 8.0))
        if not self.calm:
            await self._burst(rng)


async def do(client: Client, command: Command) -> None:
    """Send a command; it may fail because its topic or consumer is gone. Raises: BrokerFailed, ConnectionLost, TimeoutError."""
    reply = await client.ask(command)
    if isinstance(reply, ErrReply) and reply.code not in GONE_ALREADY:
        raise BrokerFailed(f"{command} got {reply.code} {reply.text}")


def _fork(rng: random.Random) -> random.Random:
    """Derive a random generator for one task, so that its draws do not depend on how tasks interleave."""
    return random.Random(rng.random())
