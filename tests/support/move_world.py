"""Moves of topics between two groups of a cluster: each group is a broker on a simulated disk, both share a simulated etcd, and
clients follow MOVED.

A life of a group's leader may end at any call of its disk, by SIGKILL or with its machine. The world remembers what was
acknowledged to clients, and ``check`` compares. It runs under ``SimEventLoop``: the same seed gives the same run.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from tests.support.elections import CLUSTER, SETTINGS, elect, until_answered
from tests.support.sim_disk import SimDisk
from tests.support.sim_event_loop import SimEventLoop
from tests.support.sim_pipe import Pipe
from tests.support.simulated_etcd import SimulatedEtcd
from toymq_py.broker import Broker
from toymq_py.broker_waits import settled
from toymq_py.cluster.arrivals import Arrivals
from toymq_py.cluster.departures import Departures, Home
from toymq_py.cluster.group_placement import GroupPlacement
from toymq_py.config.options import BrokerOptions
from toymq_py.consumer_options import EARLIEST
from toymq_py.errors import (
    DataDirectoryError,
    EtcdError,
    Moved,
    NameBusy,
    NoSuchConsumer,
    NoSuchTopic,
    PlacementUnknown,
    RequestError,
    StorageFailed,
    TermEnded,
)
from toymq_py.names import DEAD_LETTERS
from toymq_py.replication.bulk_copy import Pace
from toymq_py.replication.kept_places import KeptPlaces
from toymq_py.topic import Topic

DIRECTORY = "/data/d"
TOPIC = "t"
GROUPS = ("a", "b")
GONE_S = 3.0
"""A client that hears nothing for so long asks again: its broker has died."""


class Killed(BaseException):
    """Raised where the process dies, in the middle of its work on the disk."""


class MortalDisk(SimDisk):
    """A disk that calls ``on_call`` before each of its calls; ``on_call`` may raise ``Killed``."""

    on_call: Callable[[], None] = staticmethod(lambda: None)

    def _record(self, op: str, path: str, args: tuple[object, ...]) -> int | None:
        self.on_call()
        return super()._record(op, path, args)

    def _successor(self, rng: random.Random) -> "MortalDisk":
        return MortalDisk(rng, root="", tracing=False)


class LoopClock:
    """A clock that shows the loop's time."""

    def __init__(self, loop: SimEventLoop) -> None:
        self._loop = loop

    def monotonic(self) -> float:
        return self._loop.now

    def wall_ns(self) -> int:
        return 1_700_000_000_000_000_000 + round(self._loop.now * 1e9)


class Life:
    """One life of a process that leads a group. It is also the ``Scheduler`` of its broker."""

    def __init__(self, group: "Group", number: int) -> None:
        self.group = group
        self.number = number
        self.alive = True
        self.serving = False
        self.broker: Broker
        self.departures: Departures
        self.placement: GroupPlacement
        self.pipes: list[Pipe] = []
        self._loop = group.world.loop
        self._tasks: list[asyncio.Task[Any]] = []
        self.disk = group.disk
        self.disk.on_call = self._called
        self.kills_in: int | None = None
        self.calls = 0

    def _called(self) -> None:
        self.calls += 1
        if self.kills_in is not None:
            self.kills_in -= 1
            if self.kills_in < 0 and self.alive:
                self.die()
                raise Killed

    def die(self) -> None:
        """Die by SIGKILL, or with the machine."""
        if not self.alive:
            return
        self.alive = self.serving = False
        rng = self._loop.rng
        self.group.disk = self.disk.crash() if rng.random() < 0.5 else self.disk.kill()
        for pipe in self.pipes:
            self._loop.call_later(rng.choice((0.0, 0.0, 1.0)), pipe.abort)
        for task in self._tasks:
            self._loop.call_soon(task.cancel)
        self.group.died.set()

    def task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self._loop.create_task(work)
        self._tasks.append(task)
        return task

    async def begin(self) -> None:
        """Begin to lead. Raises: TermEnded, Killed."""
        world, group = self.group.world, self.group
        member, lease = await elect(world.etcd, group.name, self.number)
        kept = KeptPlaces(world.etcd.client(member.name), CLUSTER, group.name)
        placement = self.placement = GroupPlacement(kept, group.name, member.replica, self._loop, _no_link)
        placement.cluster = SETTINGS.cluster
        await placement.open()
        options = BrokerOptions(data_dir=DIRECTORY, min_free_bytes=0, segment_bytes=4096, dedupe_keys=1000)
        broker = self.broker = Broker(
            options, fs=self.disk, scheduler=self, clock=LoopClock(self._loop), placement=placement  # type: ignore[arg-type]
        )
        broker.open(1)
        placement.is_here = lambda topic: topic in broker.topics or topic in broker.unopened
        await placement.settle([*broker.topics, *broker.unopened])
        home = Home(placement, broker, CLUSTER, None)
        self.departures = Departures(home, Pace(1 << 30))
        self.task(placement.run(lease))
        self.task(Arrivals(home, kept, self._connect).run())  # type: ignore[arg-type]
        self.serving = self.alive

    async def _connect(self, address: str) -> tuple[asyncio.StreamReader, Pipe]:
        life = self.group.world.groups[address[0]].life
        if life is None or not life.serving or address != f"{life.group.name}{life.number}:2":
            raise ConnectionRefusedError(f"no one at {address}")
        ours, theirs = asyncio.StreamReader(loop=self._loop), asyncio.StreamReader(loop=self._loop)
        there, back = Pipe(self._loop, theirs), Pipe(self._loop, ours)
        there.other, back.other = back, there
        self.pipes.append(there)
        life.pipes.append(back)

        async def serve() -> None:
            if await theirs.read(5) == b"MOVE ":
                await life.departures.serve(theirs, back)  # type: ignore[arg-type]
            back.abort()

        life.task(serve())
        return ours, there

    # -- as a ``Scheduler``

    def soon(self, call: Callable[[], None]) -> None:
        self._loop.call_soon(self._if_alive, call)

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        self._loop.call_later(delay_s, self._if_alive, call)

    def offload(self, job: Callable[[], None], done: Callable[[], None]) -> None:
        def run() -> None:
            with suppress(Killed):
                job()
                self._loop.call_later(self._loop.rng.choice((0.0, 0.0002)), self._if_alive, done)

        self._loop.call_later(self._loop.rng.choice((0.0001, 0.0005, 0.002)), self._if_alive, run)

    def run_here(self, job: Callable[[], None], done: Callable[[], None]) -> None:
        job()
        done()

    def _if_alive(self, call: Callable[[], None]) -> None:
        if self.alive:
            with suppress(Killed):
                call()


def _no_link(*_: object) -> None:
    raise AssertionError("no session lists here")


class Group:
    """A group: starts a new life of its leader a moment after the last one ended."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.disk = MortalDisk(random.Random(world.loop.rng.random()), tracing=False)
        self.life: Life | None = None
        self.died = asyncio.Event()
        self._lives = 0

    async def run(self) -> None:
        while True:
            self.died.clear()
            self._lives += 1
            life = self.life = Life(self, self._lives)
            try:
                await life.begin()
            except (Killed, TermEnded):
                life.die()
            except (OSError, DataDirectoryError):  # it died while it began
                if life.alive:
                    raise
            await self.died.wait()
            await asyncio.sleep(self.world.loop.rng.choice((0.05, 0.5)))

    @property
    def serving(self) -> Life | None:
        return self.life if self.life is not None and self.life.serving else None


class World:
    """Groups and clients. ``stored``: the id of each body, as clients were told. ``acked``: ids of consumer ``c`` whose acks
    are on the disk."""

    def __init__(self, loop: SimEventLoop, etcd: SimulatedEtcd) -> None:
        self.loop = loop
        self.etcd = etcd
        self.groups = {name: Group(self, name) for name in GROUPS}
        self.stored: dict[bytes, int] = {}
        self.acked: set[int] = set()
        self.dead: set[int] = set()
        self.publishing = True

    def kept(self, client: str) -> KeptPlaces:
        return KeptPlaces(self.etcd.client(client), CLUSTER, "a")

    # -- clients

    async def topic(self, name: str, at: str = "a", *, makes: bool = False) -> tuple[Life, Topic]:
        """Return the topic and the life that has it, wherever that is; like a client, ask until there is an answer."""
        bounced = 0
        while True:
            life = self.groups[at].serving
            if life is None:
                await asyncio.sleep(0.05)
                continue
            try:
                return life, life.broker.topic_or_new(name) if makes else life.broker.topic(name)
            except NameBusy as busy:
                over = asyncio.Event()
                busy.when_done(over.set)
                with suppress(TimeoutError):
                    async with asyncio.timeout(GONE_S):
                        await over.wait()
            except Moved as moved:
                at = str(moved).partition("(group ")[2].partition(")")[0]
                bounced += 1
                await asyncio.sleep(0.05 if bounced > 4 else 0.0)
            except PlacementUnknown:
                await asyncio.sleep(0.05)

    async def publish(self, producer: bytes, sequence: int, body: bytes, at: str) -> None:
        """Publish under one sequence number, until it is answered."""
        while True:
            life, topic = await self.topic(TOPIC, at, makes=True)
            (outcome,) = topic.publish_sequenced([producer], [body], None, [sequence])
            error: RequestError | None = outcome.error
            if error is None:
                try:
                    async with asyncio.timeout(GONE_S):
                        error = await settled(outcome.commit)
                except TimeoutError:
                    continue
            if not life.alive:
                continue  # the answer is lost with it
            if error is None:
                if not outcome.duplicate:
                    self.stored[body] = outcome.first_id
                else:
                    self.stored.setdefault(body, -1)
                return
            assert error.retryable or isinstance(error, NoSuchTopic | StorageFailed), error
            await asyncio.sleep(0.01)

    async def begin(self) -> tuple[list[asyncio.Task[None]], asyncio.Task[None]]:
        """Start publishers and a consumer. Returns: the publishers, which end when ``publishing`` does, and the consumer."""
        publishers = [self.loop.create_task(self.publisher(name, 10_000)) for name in ("p", "q")]
        while not self.stored:  # noqa: ASYNC110 (another task)
            await asyncio.sleep(0.01)
        return publishers, self.loop.create_task(self.consumer())

    async def publisher(self, name: str, count: int) -> None:
        rng = self.loop.rng
        for number in range(count):
            if not self.publishing:
                return
            await self.publish(name.encode(), number, b"%s-%d" % (name.encode(), number), rng.choice(GROUPS))
            await asyncio.sleep(rng.choice((0.0, 0.002, 0.02)))

    async def consumer(self) -> None:
        """Consume: ack one message after the other, and make every 5th a dead letter."""
        at = 0
        while True:
            await asyncio.sleep(0.01)
            life, topic = await self.topic(TOPIC)
            if at >= topic.next_id:
                continue
            done: asyncio.Future[Any] = self.loop.create_future()
            try:
                if at % 5 == 4:
                    is_dead = await self._bury(life, topic, at)
                else:
                    is_dead = True
                    topic.ack("c", [(at, at)], unseen=True)
                topic.flush_offsets(lambda error, done=done: done.done() or done.set_result(error))  # type: ignore[misc]
                async with asyncio.timeout(GONE_S):
                    error = await done
            except (TimeoutError, NoSuchConsumer):
                continue
            if error is None and life.alive and is_dead:
                self.acked.add(at)
                at += 1

    async def _bury(self, life: Life, topic: Topic, msg_id: int) -> bool:
        """Make a message a dead letter. Returns: whether it is one, as the broker says."""
        topic.ack("c", [(msg_id, msg_id)], unseen=True)
        if "w" not in topic.channels:
            topic.seek("w", EARLIEST)
            return False  # it is on the disk first: one that is made anew is another consumer
        channel = topic.channels["w"]
        if channel.consumer.has_acked_all(msg_id, msg_id):
            return True
        part, _ = topic.subscribe("w", mode="shared", window=10_000, visibility_s=600, wake=lambda part: True, ended=_ended)
        while (delivery := part.take(1 << 20)) is not None:
            for first, last in delivery.ranges():
                for each in range(first, last + 1):
                    topic.nack("w", [(each, each)], 0.0, dead=each % 5 == 4)
                    if each % 5 != 4:
                        topic.ack("w", [(each, each)])
        part.close()
        await asyncio.sleep(0.02)
        if life.alive and channel.consumer.has_acked_all(msg_id, msg_id):
            self.dead.add(msg_id)
            return True
        return False

    # -- what must hold

    async def check(self, where: str | None = None) -> None:
        """Check that all that clients were told still holds. ``where``: the group that must have the topic."""
        self.etcd.be_well()
        self.publishing = False
        for _ in range(600):
            await asyncio.sleep(0.1)
            lives = [group.serving for group in self.groups.values()]
            if all(life is not None and not life.placement._busy and not life.broker.moves.marks for life in lives):
                break
        else:
            raise AssertionError(f"it is not settled: {self.etcd.keys()}")
        await asyncio.sleep(5.0)  # dead letters
        found = {name for name, group in self.groups.items() if TOPIC in group.life.broker.topics}  # type: ignore[union-attr]
        files = {
            name for name, group in self.groups.items() for topic in (TOPIC, TOPIC + DEAD_LETTERS)
            if group.disk.is_dir(f"{DIRECTORY}/topics/{topic}")
        }  # fmt: skip
        assert len(found) == 1, found
        assert files == found, (files, found)
        assert where is None or found == {where}, (found, where)
        for group in self.groups.values():
            assert not group.life.broker.unopened, group.life.broker.unopened  # type: ignore[union-attr]
        life, topic = await self.topic(TOPIC)
        assert topic.state == "ok"
        at: dict[bytes, list[int]] = {}
        next_id = topic.first_id
        while next_id < topic.next_id:
            run, _, next_id = topic.read(next_id, 1000)
            if run is not None:
                for msg_id, body in zip(run.ids, run.payloads, strict=True):
                    at.setdefault(bytes(body), []).append(msg_id)
        for body, msg_id in self.stored.items():
            ids = at.get(body, [])
            assert len(ids) == 1, (body, msg_id, ids)
            assert msg_id in (-1, ids[0]), (body, msg_id, ids)
        if self.acked:
            consumer = topic.consumers["c"]
            assert not {msg_id for msg_id in self.acked if not consumer.has_acked_all(msg_id, msg_id)}
        letters = self._letters(life)
        assert len(letters) == len(set(letters)), letters
        assert {body for body, ids in at.items() if ids[0] in self.dead} <= set(letters), "each is buried"

    def _letters(self, life: Life) -> list[bytes]:
        topic = life.broker.topics.get(TOPIC + DEAD_LETTERS)
        letters: list[bytes] = []
        next_id = 0 if topic is None else topic.first_id
        while topic is not None and next_id < topic.next_id:
            run, _, next_id = topic.read(next_id, 1000)
            letters += [] if run is None else [bytes(body) for body in run.payloads]
        return letters


async def asked(world: World, kept: KeptPlaces, to: str) -> None:
    """Ask for a move of the topic, as ``toymqctl`` does."""
    record = await until_answered(partial(kept.record, TOPIC))
    if record is not None and record.group != to:
        before = await until_answered(partial(kept.move, TOPIC))
        with suppress(EtcdError):
            await kept.ask(TOPIC, record, to, before)


async def moved(world: World, kept: KeptPlaces, to: str) -> None:
    """Wait until the topic is in a group."""
    async with asyncio.timeout(200):
        while True:
            record = await until_answered(partial(kept.record, TOPIC))
            if record is not None and record.group == to:
                return
            await asyncio.sleep(0.1)


async def killed_while_it_moves(world: World, end: str, nth: int) -> int:
    """Move a topic under load, while the leader at one end, ``source`` or ``target``, dies at the nth call of its disk.
    Returns: how many calls there were."""
    kept = world.kept("tool")
    clients, consuming = await world.begin()
    await asyncio.sleep(1.0)
    record = await kept.record(TOPIC)
    assert record is not None
    home = record.group
    to = "b" if home == "a" else "a"
    life = world.groups[home if end == "source" else to].life
    assert life is not None
    before = life.calls
    life.kills_in = nth
    await asked(world, kept, to)
    await moved(world, kept, to)
    calls = life.calls - before
    life.kills_in = None
    await asyncio.sleep(0.5)
    consuming.cancel()
    world.publishing = False
    await asyncio.gather(*clients)
    await world.check(to)
    assert len(world.stored) > 20
    return calls


def _ended(*_: object) -> None:
    pass


def simulate(scenario: Callable[[World], Coroutine[Any, Any, None]], seed: int = 1) -> None:
    rng = random.Random(seed)
    loop = SimEventLoop(rng)

    async def begin() -> None:
        world = World(loop, SimulatedEtcd(random.Random(seed)))
        running = [loop.create_task(group.run()) for group in world.groups.values()]
        while any(group.serving is None for group in world.groups.values()):  # noqa: ASYNC110 (of other tasks)
            await asyncio.sleep(0.1)
        await asyncio.sleep(1.0)  # they know each other
        await scenario(world)
        running.clear()

    loop.set_exception_handler(_report)
    try:
        loop.run_until_complete(begin())
    finally:
        for task in asyncio.all_tasks(loop):  # also where the simulation waits for something that never happens
            task.cancel()
        loop.call_soon(loop.stop)
        with suppress(RuntimeError):
            loop.run_forever()  # a turn: those of a life that died wait for its disk for ever
        loop.close()


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if not isinstance(context.get("exception"), Killed) and "was destroyed" not in context["message"]:
        loop.default_exception_handler(context)
