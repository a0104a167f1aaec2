"""One seed, one world: the real broker and server, clients, kills and power cuts, all in virtual time.

    history, verdict = run(seed)

What is real: everything of ``toymq_py`` but ``daemon`` and ``storage.fs``. What is simulated: time, network, disk, sync
threads, and the clients, which are written for this and speak through ``toymq_py.protocol``.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from tests.support.sim_disk import SimDisk
from tests.support.sim_event_loop import SimEventLoop, SimListener, SimTransport
from toymq_chaos.checker import Verdict, check
from toymq_chaos.history import Event, Op, Result, digest_of
from toymq_py.broker import Broker
from toymq_py.config import BrokerOptions
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
from toymq_py.server import Server

EPOCH_NS = 1_781_767_800_000_000_000
VISIBILITY_MS = 400
TOPICS = ("alpha", "beta")
ENDS = ("kill", "power", "stop", "job", "job", "cut")
"""How a life ends: SIGKILL, power cut, SIGTERM, death inside what a sync thread does, SIGKILL after lost connections."""
QUIET_S = 3.0
"""When nothing came for so long, everything has come: well above the visibility timeout and every back-off."""


class Killed(BaseException):
    """The process dies here, in the middle of what it does on the disk."""


class MortalDisk(SimDisk):
    """Dies with ``Killed`` at the n-th call from now on of a sync thread, or of recovery; ``dies_on``: calls of one kind."""

    dies_after: int | None = None
    dies_on: str | None = None
    mortal = False

    def _record(self, op: str, path: str, args: tuple[object, ...]) -> int | None:
        if self.mortal and self.dies_after is not None and self.dies_on in (None, op):
            self.dies_after -= 1
            if self.dies_after < 0:
                self.dies_after = None
                raise Killed
        return super()._record(op, path, args)

    def _successor(self, rng: random.Random) -> "MortalDisk":
        return MortalDisk(
            rng, capacity_bytes=self.capacity_bytes, ordered_metadata=self.ordered_metadata,
            torn_sectors=self.torn_sectors, root="", tracing=False,
        )  # fmt: skip


class VirtualClock:
    """Implements ``toymq_py.clock.Clock``; the wall clock may be set, back too."""

    def __init__(self, loop: SimEventLoop) -> None:
        self._loop = loop
        self.jumped_ns = 0

    def wall_ns(self) -> int:
        return EPOCH_NS + self.jumped_ns + round(self._loop.now * 1e9)

    def monotonic(self) -> float:
        return self._loop.now


class VirtualThreads:
    """Implements ``toymq_py.storage.scheduling.Scheduler`` for one process; a dead one does nothing any more."""

    def __init__(self, loop: SimEventLoop, disk: MortalDisk, killed: Callable[[], None]) -> None:
        self._loop = loop
        self._disk = disk
        self._killed = killed
        self.alive = True

    def soon(self, call: Callable[[], None]) -> None:
        self._loop.call_soon(self._if_alive, call)

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        self._loop.call_later(delay_s, self._if_alive, call)

    def offload(self, job: Callable[[], None], done: Callable[[], None]) -> None:
        """The job runs whole at some moment, and is known to be done at a later one."""

        def run() -> None:
            self._disk.mortal = True
            try:
                job()
            except Killed:
                self._killed()
                return
            finally:
                self._disk.mortal = False
            self._loop.call_later(self._loop.rng.choice((0.0, 0.0002)), self._if_alive, done)

        self._loop.call_later(self._loop.rng.choice((0.0001, 0.0005, 0.002, 0.01)), self._if_alive, run)

    def _if_alive(self, call: Callable[[], None]) -> None:
        if self.alive:
            call()


@dataclass(frozen=True, slots=True)
class Plan:
    """How much happens in one world."""

    messages: int = 24
    """Per publisher."""
    publishers: int = 2
    consumers: int = 2
    """Per topic."""
    lives: int = 3


class World:
    """The supervisor: processes come and go, clients stay."""

    def __init__(self, seed: int, plan: Plan) -> None:
        self.seed = seed
        self.plan = plan
        self.rng = random.Random(seed)
        self.loop = SimEventLoop(random.Random(self.rng.random()))
        self.clock = VirtualClock(self.loop)
        self.disk = MortalDisk(random.Random(self.rng.random()), tracing=False, torn_sectors=self.rng.random() < 0.5)
        self.events: list[Event] = []
        self.listener: SimListener | None = None
        self.all_subscribed = asyncio.Event()
        """Publishers wait for it: what retention took before a consumer was made is none of its business."""
        self._subscribed: set[tuple[str, str]] = set()
        self.calm = False
        """The faults are over: clients behave from here on."""
        self.last_activity = 0.0
        self._died: asyncio.Event | None = None
        self._transports: list[SimTransport] = []
        self.options = BrokerOptions(
            data_dir="/data/d",
            segment_bytes=self.rng.choice((4096, 16_384)),
            min_free_bytes=0,
            visibility_ms=VISIBILITY_MS,
            retain_acked_for_ms=self.rng.choice((0, 100_000)),
            shutdown_timeout_ms=500,
        )

    def record(
        self, process: str, op: Op, result: Result = "ok", *, topic: str | None = None, consumer: str | None = None,
        key: str | None = None, digest: str | None = None, msg_id: int | None = None, attempt: int | None = None,
        sync: bool | None = None, sent_ns: int | None = None, note: str | None = None,
    ) -> None:  # fmt: skip
        self.last_activity = self.loop.now
        self.events.append(
            Event(self.now_ns(), process, op, result, topic, consumer, key, digest, msg_id, attempt, sync, sent_ns, note)
        )

    def now_ns(self) -> int:
        return EPOCH_NS + round(self.loop.now * 1e9)

    def subscribed(self, topic: str, consumer: str) -> None:
        self._subscribed.add((topic, consumer))
        if len(self._subscribed) == len(TOPICS) * self.plan.consumers:
            self.all_subscribed.set()

    def connect(self, protocol: asyncio.Protocol) -> SimTransport:
        """Raises: ConnectionRefusedError while no broker listens."""
        if self.listener is None:
            raise ConnectionRefusedError
        transport = self.listener.connect(protocol)
        self._transports.append(transport)
        return transport

    # -- processes

    async def run(self) -> None:
        """All lives of the broker, then the clients' last wishes."""
        async with asyncio.TaskGroup() as tasks:
            clients = [Publisher(self, f"p{n}") for n in range(self.plan.publishers)]
            workers = [tasks.create_task(client.run()) for client in clients]
            readers = [
                tasks.create_task(Subscriber(self, f"c{n}-{topic}", topic, f"c{n}").run())
                for topic in TOPICS
                for n in range(self.plan.consumers)
            ]
            for _ in range(self.plan.lives - 1):
                await self._live(self.rng.choice((0.02, 0.1, 0.5, 1.5)), self.rng.choice(ENDS))
            self.calm = True
            stop = asyncio.Event()
            last = tasks.create_task(self._live(None, "stop", stop))
            for worker in workers:
                await worker
            while self.loop.now < self.last_activity + QUIET_S:  # noqa: ASYNC110 (virtual time)
                await asyncio.sleep(self.last_activity + QUIET_S - self.loop.now)
            self.record("supervisor", "drained")
            for reader in readers:
                reader.cancel()
            stop.set()
            await last

    async def _live(self, for_s: float | None, end: str, stop: asyncio.Event | None = None) -> None:
        """One process, from start to end."""
        died = self._died = asyncio.Event()
        threads = VirtualThreads(self.loop, self.disk, died.set)
        while True:
            if end == "job" and self.rng.random() < 0.3:
                self.disk.dies_after = self.rng.randrange(30)  # perhaps in the middle of recovery
            broker = Broker(self.options, fs=self.disk, scheduler=threads, clock=self.clock)
            self.disk.mortal = True
            try:
                broker.open(1)
                break
            except Killed:
                self._end_process(threads, power=self.rng.random() < 0.5)
                threads = VirtualThreads(self.loop, self.disk, died.set)
        self.disk.dies_after, self.disk.dies_on, self.disk.mortal = None, None, False
        listener = SimListener(self.loop)
        server = Server(broker, self.clock, self.loop)
        running = self.loop.create_task(server.run([listener]))  # type: ignore[list-item]
        self.listener = listener
        self.record("broker", "start")
        if for_s is None:
            assert stop is not None
            await stop.wait()
        else:
            await asyncio.sleep(for_s * self.rng.random())
        if end == "cut":
            for transport in self._transports:
                if self.rng.random() < 0.5:
                    transport.abort()
            self.record("nemesis", "cut")
            await asyncio.sleep(0.2 * self.rng.random())
        if end == "job":
            self.disk.dies_on = self.rng.choice((None, "sync", "sync", "rename", "sync_dir"))
            self.disk.dies_after = self.rng.randrange(12 if self.disk.dies_on is None else 4)
            with suppress(TimeoutError):
                async with asyncio.timeout(2):
                    await died.wait()
        if self.rng.random() < 0.2:
            self.clock.jumped_ns += self.rng.choice((-3_600_000_000_000, 5_000_000_000))
        if end == "stop":
            server.stop()
            await running
            self.record("broker", "stop")
            broker.close()
            self._end_process(threads, power=False)
        else:
            self.record("broker", "kill", note=end)
            self._end_process(threads, power=end == "power" or (end == "job" and self.rng.random() < 0.8))
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
            await asyncio.sleep(0.05 * self.rng.random())

    def _end_process(self, threads: VirtualThreads, *, power: bool) -> None:
        threads.alive = False
        self.listener = None
        self.disk = self.disk.crash() if power else self.disk.kill()  # type: ignore[assignment]
        for transport in self._transports:
            transport.abort()
        self._transports.clear()


class Client(asyncio.Protocol):
    """One connection; what it hears, in order."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.lost = False
        self.transport: SimTransport
        self._wire = ClientConnection()
        self._something = asyncio.Event()
        self.heard: deque[Reply] = deque()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, SimTransport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._wire.receive_data(data)
        self.heard += self._wire.next_replies()
        self._something.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._something.set()

    def send(self, command: Command) -> None:
        self.transport.write(encode_command(command))

    async def something(self, timeout_s: float = 60.0) -> None:
        """Until a reply, a push or the end of the connection."""
        if not self.heard and not self.lost:
            self._something.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._something.wait()


async def connected(world: World) -> Client:
    """A connection, sooner or later."""
    while True:
        client = Client(world)
        try:
            world.connect(client)
        except ConnectionRefusedError:
            await asyncio.sleep(0.01 + 0.02 * world.loop.rng.random())
        else:
            return client


class Publisher:
    """Publishes its messages in order, several in flight, each under a key of its own; repeats what was not answered."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.rng = random.Random(world.rng.random())
        self.todo: deque[tuple[str, str, bytes]] = deque(
            (self.rng.choice(TOPICS), f"{name}-{n}", self.rng.randbytes(self.rng.choice((0, 3, 40, 900))))
            for n in range(world.plan.messages)
        )

    async def run(self) -> None:
        await self.world.all_subscribed.wait()
        connection = 0
        while self.todo:
            client = await connected(self.world)
            connection += 1
            await self._use(client, f"{self.name}.{connection}")
            client.transport.abort()

    async def _use(self, client: Client, process: str) -> None:
        window = self.rng.choice((1, 4, 30))
        flying: deque[tuple[tuple[str, str, bytes], int]] = deque()
        again: list[tuple[str, str, bytes]] = []

        def note(message: tuple[str, str, bytes], sent_ns: int, result: Result, msg_id: int | None, code: str | None) -> None:
            topic, key, payload = message
            self.world.record(
                process, "pub", result, topic=topic, key=key, digest=digest_of(payload), msg_id=msg_id,
                sent_ns=sent_ns, note=code,
            )  # fmt: skip

        while not client.lost and (self.todo or flying):
            while self.todo and len(flying) < window:
                message = self.todo.popleft()
                topic, key, payload = message
                client.send(Publish(topic, [key.encode()], [payload]))
                flying.append((message, self.world.now_ns()))
            await client.something()
            while client.heard and flying:
                reply = client.heard.popleft()
                message, sent_ns = flying.popleft()
                if isinstance(reply, OkReply):
                    note(message, sent_ns, "ok", reply.value, None)
                elif isinstance(reply, DupReply):
                    note(message, sent_ns, "dup", reply.msg_id, None)
                else:
                    assert isinstance(reply, ErrReply)
                    result: Result = "unknown" if reply.code == "STORAGE_FAILED" else "err"
                    note(message, sent_ns, result, None, reply.code)
                    again.append(message)
            if again and not flying:
                break
        for message, sent_ns in flying:
            note(message, sent_ns, "unknown", None, None)
        self.todo.extendleft(reversed([*again, *(message for message, _ in flying)]))
        if again:
            await asyncio.sleep(0.05)


class Subscriber:
    """Consumes for ever: acks most, gives back some, forgets some, cuts its connection, stops reading."""

    def __init__(self, world: World, name: str, topic: str, consumer: str) -> None:
        self.world = world
        self.name = name
        self.topic = topic
        self.consumer = consumer
        self.rng = random.Random(world.rng.random())

    async def run(self) -> None:
        connection = 0
        while True:
            client = await connected(self.world)
            connection += 1
            try:
                await self._use(client, f"{self.name}.{connection}")
            finally:
                client.transport.abort()

    async def _use(self, client: Client, process: str) -> None:
        world = self.world
        client.send(Subscribe(self.topic, self.consumer, window=self.rng.choice((1, 5, 100))))
        asked: deque[tuple[str, int, bool]] = deque([("sub", 0, False)])
        while not client.lost:
            await client.something()
            while client.heard:
                reply = client.heard.popleft()
                if isinstance(reply, ClosedPush):
                    return
                if not isinstance(reply, MessagePush):
                    self._answered(process, reply, *asked.popleft())
                    continue
                world.record(
                    process, "deliver", topic=self.topic, consumer=self.consumer, key=reply.key.decode(),
                    digest=digest_of(reply.payload), msg_id=reply.msg_id, attempt=reply.attempt,
                )  # fmt: skip
                asked += self._handle(client, reply.msg_id)
            if not world.calm and self.rng.random() < 0.02:
                return
            if not world.calm and self.rng.random() < 0.05:
                client.transport.pause_reading()
                await asyncio.sleep(self.rng.random())
                client.transport.resume_reading()

    def _handle(self, client: Client, msg_id: int) -> list[tuple[str, int, bool]]:
        """What to do with a delivery; returns the answers to expect."""
        chance = 1.0 if self.world.calm else self.rng.random()
        ids = ((msg_id, msg_id),)
        if chance < 0.1:
            return []
        if chance < 0.2:
            client.send(Nack(self.topic, self.consumer, ids, delay_ms=self.rng.choice((0, 50))))
            return [("nack", msg_id, False)]
        sync = chance < 0.3
        client.send(Ack(self.topic, self.consumer, ids, sync))
        return [("ack", msg_id, sync)]

    def _answered(self, process: str, reply: Reply, what: str, msg_id: int, sync: bool) -> None:
        if isinstance(reply, OkReply) and what == "sub":
            self.world.record(process, "sub", topic=self.topic, consumer=self.consumer)
            self.world.subscribed(self.topic, self.consumer)
        elif what == "ack":
            taken = isinstance(reply, OkReply) and reply.value == 1
            self.world.record(
                process, "ack", "ok" if taken else "err", topic=self.topic, consumer=self.consumer, msg_id=msg_id,
                sync=sync or None,
            )  # fmt: skip


def run(seed: int, plan: Plan = Plan()) -> tuple[list[Event], Verdict]:
    """Everything that happens in the world of a seed, and whether the promises were kept."""
    logger = logging.getLogger("toymq_py")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    world = World(seed, plan)
    try:
        world.loop.run_until_complete(world.run())
    finally:
        world.loop.close()
        logger.setLevel(level)
    # A flush begins 100 ms after an ack and takes a few turns of the simulated disk.
    return world.events, check(world.events, ack_window_ns=250_000_000)


def shrink(seed: int) -> tuple[Plan, Verdict]:
    """The smallest plan under which a seed still breaks a promise. Assumes that it does under the usual one."""
    plan = Plan()
    _, verdict = run(seed, plan)
    smaller = True
    while smaller:
        smaller = False
        for field, value in (("publishers", 1), ("consumers", 1), ("lives", plan.lives - 1), ("messages", plan.messages // 2)):
            if not 0 < value < getattr(plan, field):
                continue
            candidate = replace(plan, **{field: value})
            _, found = run(seed, candidate)
            if not found.ok:
                plan, verdict, smaller = candidate, found, True
    return plan, verdict
