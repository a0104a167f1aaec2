"""One seed, one world of a cluster: two or three nodes of the real code, an etcd in memory, clients, and what goes wrong.

    world = run(seed)                  # raises Broken when a promise is broken

What is real: the node, its terms and links, the broker and its server. What is simulated: time, threads, disks, the network,
etcd. ``SimOffice`` stands for ``cluster.office``, and ``SimProcess`` for ``cluster.process`` and the supervisor.
"""

import asyncio
import errno
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial

from tests.simulation.cluster_clients import TOPICS, Consumer, Ledger, Publisher
from tests.simulation.world import Killed, MortalDisk, VirtualClock
from tests.support.fake_clock import FakeClock
from tests.support.replica_rig import shared_files
from tests.support.sim_disk import SimDisk
from tests.support.sim_loop import SimLoop
from tests.support.sim_machines import HostListener, HostTransport, Machines, Network
from tests.support.simulated_etcd import Loss, SimulatedEtcd
from toymq_chaos.workload import Client
from toymq_py.broker import Broker
from toymq_py.config.options import BrokerOptions
from toymq_py.data_directory import made_and_locked
from toymq_py.errors import DataDirectoryError, EtcdError, TermEnded
from toymq_py.replication.agreement import ClusterSettings, GroupState, Member, Request, RequestKind
from toymq_py.replication.follower_link import FollowerLink
from toymq_py.replication.link_options import Identity, LinkOptions
from toymq_py.replication.node import Node
from toymq_py.replication.replica_file import ReplicaFile, ReplicaRecord
from toymq_py.replication.shipping_fs import ShippingFileSystem
from toymq_py.replication.stream import Stream
from toymq_py.replication.term import Surroundings, TermOptions
from toymq_py.replication.tickets import Tickets
from toymq_py.server import Server
from toymq_py.storage.commit.sync_threads import RunJob, run_guarded

ROOT = "/data/d"
CLUSTER, GROUP = "orders", "g0"
UUID = "0e2f1c6a-0000-4000-8000-000000000001"
IN_OFFICE_S = 0.5
DRAIN_S = 90.0
"""In a world without faults everything is as it should be after so long."""


class Broken(AssertionError):
    """A promise was broken."""


class JobThreads:
    """Implements ``Scheduler`` for one process."""

    def __init__(self, process: "SimProcess", run_job: RunJob = run_guarded) -> None:
        self._process = process
        self._loop = process.loop
        self._run_job = run_job
        self._began: dict[int, float] = {}

    def longest_s(self) -> float:
        """How long the job takes that began first."""
        return self._loop.now - min(self._began.values(), default=self._loop.now)

    def soon(self, call: Callable[[], None]) -> None:
        self._loop.call_soon(call)

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        self._loop.call_later(delay_s, call)

    def offload(self, job: Callable[[], None], done: Callable[[], None]) -> None:
        number = max(self._began, default=0) + 1
        self._began[number] = self._loop.now

        def run() -> None:
            del self._began[number]
            ended = self._run(job, done)
            if ended is not None:
                self._loop.call_later(self._loop.rng.choice((0.0, 0.0002)), ended)

        self._loop.call_later(self._process.host.job_s(self._loop.rng), run)

    def run_here(self, job: Callable[[], None], done: Callable[[], None]) -> None:
        self._loop.busy_until = self._loop.now + self._process.host.job_s(self._loop.rng)
        ended = self._run(job, done)
        if ended is not None:
            ended()

    def _run(self, job: Callable[[], None], done: Callable[[], None]) -> Callable[[], None] | None:
        """Returns: what comes after the job; None when the process died in it."""
        disk = self._process.disk
        disk.mortal = True
        try:
            ticket = self._run_job(job)
        except Killed:
            self._process.host.die("job", power=self._loop.rng.random() < 0.7)
            return None
        finally:
            disk.mortal = False
        return done if ticket is None else partial(ticket.when_settled, done)


class SimOffice:
    """An ``Office``: the real broker and its server, on the simulated disk and network."""

    def __init__(self, process: "SimProcess") -> None:
        self._process = process
        self._broker: Broker | None = None
        self._server: Server | None = None
        self._serving: asyncio.Event = asyncio.Event()
        self._threads: JobThreads | None = None
        self.listener: HostListener | None = None

    async def open(self, stream: Stream, tickets: Tickets, lease: int) -> None:
        process = self._process
        loop = process.loop
        self._threads = threads = JobThreads(process, tickets.run)
        broker = Broker(
            process.host.world.broker_options, fs=ShippingFileSystem(process.disk, ROOT, stream), scheduler=threads,
            clock=process.clock,
        )  # fmt: skip
        broker.commit_place.is_loop = lambda records, size: loop.rng.random() < 0.3  # type: ignore[method-assign]
        broker.open(1, None, process.lock)
        loop.busy_until = loop.now + loop.rng.choice((0.001, 0.05, 0.3))
        self._broker = broker
        self._server = Server(broker, process.clock, loop)

    async def serve(self) -> None:
        assert self._server is not None
        process = self._process
        self.listener = HostListener(process.host.world.network, process.loop, process.host.name)
        try:
            await self._server.run([self.listener])  # type: ignore[list-item]
        finally:
            self._serving.set()

    def refuse_publishes(self, reason: str | None) -> None:
        if self._broker is not None:
            self._broker.too_few_replicas = reason

    def disk_trouble(self, stall_s: float) -> str | None:
        if self._threads is not None and self._threads.longest_s() > stall_s:
            return "the disk has not answered"
        if self._broker is not None and any(topic.state == "failed" for topic in self._broker.topics.values()):
            return "the disk failed"
        return None

    async def retire(self, *, in_haste: bool) -> None:
        if self._server is not None and self.listener is not None:
            self._server.stop(within_s=0.25 if in_haste else None)
            await self._serving.wait()
        if self._broker is not None:
            self._broker.close()

    def abandon(self) -> None:
        if self._server is not None:
            self._server.cut()
            self._server.stop(at_once=True)


class SimProcess:
    """One life of a node's process, from its start to its end by itself or by ``SimHost.die``."""

    def __init__(self, host: "SimHost") -> None:
        self.host = host
        world = host.world
        self.disk = host.disk
        self.loop = world.machines.new_loop()
        self.clock = VirtualClock(self.loop)
        self.transports: list[HostTransport] = []
        self.node: Node | None = None
        self.office: SimOffice | None = None
        self._replicas: set[asyncio.Task[None]] = set()
        self.task = self.loop.create_task(self._run())
        self.task.add_done_callback(self._ended)

    async def _run(self) -> None:
        """Raises: what ends a process, see ``_ended``."""
        host, world, loop = self.host, self.host.world, self.loop
        self.lock = made_and_locked(self.disk, ROOT, 1, None)
        file = ReplicaFile.load(self.disk, ROOT)
        if file is None:
            file = ReplicaFile.create(self.disk, ROOT, ReplicaRecord(UUID, GROUP, f"{world.rng.getrandbits(128):032x}"))
        replica = file.record.replica
        identity = Identity(UUID, GROUP, replica, host.name)
        threads = JobThreads(self)
        self.office = SimOffice(self)
        around = Surroundings(
            world.etcd.agreement(host.name, CLUSTER, GROUP), world.settings,
            Member(replica, host.name, f"{host.name}:1", f"{host.name}:2"), identity, self.office, self.disk, ROOT, self.clock,
            loop, threads, world.link_options, TermOptions(0.5, 2.0),
        )  # fmt: skip
        link = FollowerLink(
            me=identity, file=file, fs=self.disk, root=ROOT, clock=self.clock, options=world.link_options, offload=threads,
            connect=self._connect,
        )  # fmt: skip
        self.node = Node(around, file, link)
        await self.node.run()

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """The process ends; the supervisor starts another."""
        world, error = self.host.world, None if task.cancelled() else task.exception()
        expected = isinstance(error, TermEnded) or (self.host.had_faults and isinstance(error, OSError | DataDirectoryError))
        if error is not None and not expected:
            world.bugs.append(f"{self.host.name} was ended by {error!r}")
        world.happened["term ended" if error is not None else "left"] += 1
        self.host.die("exit", power=False, restart_s=0.1)

    # -- links

    async def _connect(self, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """As ``Connect``."""
        world, there = self.host.world, self.host.world.hosts[address.partition(":")[0]]
        passes, here = world.network.passes, self.host.name
        while not (passes(here, there.name) and passes(there.name, here)):  # noqa: ASYNC110 (a SYN, again and again)
            await asyncio.sleep(0.2)
        await asyncio.sleep(world.network.rng.choice((0.0, 0.001)))
        if there.has_no_power:
            await asyncio.sleep(3600)
        if there.process is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "refused")
        reader = asyncio.StreamReader(loop=self.loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=self.loop)
        far_protocol = there.process.new_protocol()
        near = world.network.connect(self.loop, self.host.name, protocol, there.process.loop, there.name, far_protocol)
        self.transports.append(near)
        far = near._wire.ends[1]
        assert isinstance(far, HostTransport)
        there.process.transports.append(far)
        return reader, asyncio.StreamWriter(near, protocol, reader, self.loop)

    def new_protocol(self) -> asyncio.StreamReaderProtocol:
        reader = asyncio.StreamReader(loop=self.loop)
        return asyncio.StreamReaderProtocol(reader, self._accept_replica, loop=self.loop)

    def _accept_replica(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self.loop.create_task(self._replica(reader, writer))
        self._replicas.add(task)
        task.add_done_callback(self._replica_left)

    def _replica_left(self, task: "asyncio.Task[None]") -> None:
        self._replicas.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.host.world.bugs.append(f"a link of {self.host.name} was ended by {error!r}")

    async def _replica(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """As ``cluster.process``."""
        node = self.node
        try:
            if node is not None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(IN_OFFICE_S):
                        await node.in_office.wait()
            if node is not None and node.term is not None:
                await node.term.links.serve(reader, writer)
            else:
                writer.write(b"ERR NOT_LEADER -\n")
                with suppress(OSError):
                    await writer.drain()
        finally:
            writer.close()

    @property
    def listener(self) -> HostListener | None:
        """Where clients are taken; None while there are none."""
        listener = self.office.listener if self.office is not None else None
        return None if listener is None or listener.closed else listener

    @property
    def epoch(self) -> int:
        return self.node.term.epoch if self.node is not None and self.node.term is not None else 0


class SimHost:
    """A machine: its disk, and a process on it now and then."""

    def __init__(self, world: "ClusterWorld", name: str) -> None:
        self.world = world
        self.name = name
        rng = random.Random(world.rng.random())
        self.disk = MortalDisk(rng, tracing=False, torn_sectors=rng.random() < 0.5)
        self.process: SimProcess | None = None
        self.has_no_power = False
        self.had_faults = False
        self.slow_s = 0.0
        self.stays_down = False

    def job_s(self, rng: random.Random) -> float:
        return self.slow_s * rng.random() + rng.choice((0.0001, 0.0005, 0.002, 0.01))

    def start(self) -> None:
        """No error when it runs."""
        if self.process is None and not self.stays_down:
            self.has_no_power = False
            self.process = SimProcess(self)

    def die(self, how: str, *, power: bool, restart_s: float | None = None) -> None:
        """SIGKILL, a power cut, or the end of the process by itself. No error when there is no process."""
        process, self.process = self.process, None
        if process is None:
            return
        self.world.happened[f"{how}{', power' if power else ''}"] += 1
        self.world.machines.kill(process.loop)
        self.disk.dies_after = None
        self.disk = self.disk.crash() if power else self.disk.kill()  # type: ignore[assignment]
        self.has_no_power = power
        listener = process.office.listener if process.office is not None else None
        for transport in [*process.transports, *(listener.accepted if listener is not None else ())]:
            if power:
                transport.machine_died()
            elif not transport._ended:
                transport.process_died()
        if restart_s is None:
            restart_s = self.world.rng.choice((0.1, 0.5, 2.0, 6.0))
        self.world.loop.call_later(restart_s, self.start)


@dataclass(frozen=True, slots=True)
class Plan:
    """How much happens in one world."""

    hosts: int | None = None
    faults: int = 5
    publishers: int = 2
    only: tuple[str, ...] = ()
    """The kinds of faults; all without."""


class ClusterWorld:
    """Everything of one seed."""

    def __init__(self, seed: int, plan: Plan) -> None:
        self.seed = seed
        self.plan = plan
        self.rng = rng = random.Random(seed)
        random.seed(seed)  # of the node's own pauses
        self.bugs: list[str] = []
        self.happened: Counter[str] = Counter()
        self.machines = Machines(random.Random(rng.random()), self.bugs.append)
        self.loop = self.machines.new_loop()
        self.network = Network(random.Random(rng.random()))
        self.etcd = SimulatedEtcd(random.Random(rng.random()), self.loop)
        count = plan.hosts or rng.choice((2, 3))
        self.settings = ClusterSettings(UUID, count, rng.choice((1, count - 1)), 3.0)
        self.link_options = LinkOptions(timeout_s=rng.choice((1.5, 3.0)), buffer_bytes=rng.choice((64 << 10, 64 << 20)))
        self.broker_options = BrokerOptions(
            data_dir=ROOT, segment_bytes=rng.choice((4096, 16_384)), min_free_bytes=0, visibility_ms=2000,
            retain_acked_for_ms=10_000_000, shutdown_timeout_ms=500,
        )  # fmt: skip
        self.hosts = {name: SimHost(self, name) for name in ("n1", "n2", "n3")[:count]}
        self.tool = self.etcd.agreement("tool", CLUSTER, GROUP)
        self.ledger = Ledger()
        self.calm = False
        """The faults are over."""
        self.over = False

    # -- clients

    async def connect(self, client: Client) -> int:
        """Connect a client to a node that serves. Returns: its epoch."""
        while True:
            serving = [each.process for each in self.hosts.values() if each.process is not None and each.process.listener]
            if serving:
                process = self.rng.choice(serving)
                listener = process.listener
                assert listener is not None
                with suppress(ConnectionRefusedError):
                    listener.connect_from(self.loop, client)
                    return process.epoch
            await asyncio.sleep(0.02 + 0.05 * self.rng.random())

    # -- the course

    async def run(self) -> None:
        rng = self.rng
        await self.tool.create_settings(self.settings)
        for host in self.hosts.values():
            self.loop.call_later(rng.choice((0.0, 0.0, 1.0)) * rng.random(), host.start)
        async with asyncio.TaskGroup() as tasks:
            publishers = [
                tasks.create_task(Publisher(self, f"p{n}", random.Random(rng.random())).run())
                for n in range(self.plan.publishers)
            ]
            consumers = [
                tasks.create_task(Consumer(self, f"c-{topic}", random.Random(rng.random()), topic).run()) for topic in TOPICS
            ]
            await asyncio.sleep(rng.choice((0.1, 1.0, 2.0)))
            for _ in range(self.plan.faults):
                await self._fault()
            self.check_copies(self.in_sync_hosts())
            self.heal()
            await self._until(lambda: all(each.done() for each in publishers), "every message is published")
            await self._until(lambda: not self.ledger.undelivered(), "every message is delivered")
            await self._until(self._all_in_sync, "all copies are in sync")
            for consumer in consumers:
                consumer.cancel()
        await asyncio.sleep(1.5)  # offsets are flushed
        await self._until(lambda: self._all_in_sync() and not self._differing(), "all copies are equal")
        self.over = True
        self.check_copies(list(self.hosts.values()))

    async def _until(self, holds: Callable[[], bool], what: str) -> None:
        until = self.loop.now + DRAIN_S
        while not holds():
            if self.loop.now > until:
                raise Broken(f"not within {DRAIN_S:g} s of calm: {what}; {self.shown()}")
            await asyncio.sleep(0.1)

    def shown(self) -> str:
        """For people."""
        nodes = []
        for host in self.hosts.values():
            node = host.process.node if host.process is not None else None
            if node is not None:
                lags = [f"{lag.name} {lag.state}" for lag in node.term.links.lags()] if node.term is not None else []
                nodes.append(f"{host.name} {node.state} {node.waits_for} {lags or ''}")
            else:
                nodes.append(f"{host.name} is down")
        return f"{'; '.join(nodes)}; differing: {self._differing()[:3]}; at {self.loop.now:.1f}"

    def state(self) -> GroupState:
        """Of the group, as etcd has it at this moment."""
        keys = self.tool._keys
        return keys.decode_state(self.etcd.get(keys.state))

    def in_sync_hosts(self) -> list[SimHost]:
        """The copies that may be elected."""
        in_sync = self.state().in_sync
        members = in_sync.members if in_sync is not None else ()
        found = []
        for host in self.hosts.values():
            with suppress(FileNotFoundError):
                file = ReplicaFile.load(host.disk, ROOT) if host.disk._alive else None
                if file is not None and file.record.replica in members:
                    found.append(host)
        return found

    def _all_in_sync(self) -> bool:
        for host in self.hosts.values():
            node = host.process.node if host.process is not None else None
            if node is not None and node.state == "LEADING" and node.term is not None:
                joined = [lag for lag in node.term.links.lags() if lag.state == "in sync"]
                return len(joined) == len(self.hosts) - 1 == len(node.term.in_sync.members) - 1
        return False

    def _differing(self) -> list[str]:
        copies = [_content(host.disk) for host in self.hosts.values()]
        paths = sorted({path for copy in copies for path in copy})
        return [path for path in paths if len({copy.get(path) for copy in copies}) > 1]

    def check_copies(self, hosts: list[SimHost]) -> None:
        """Open each copy as after a power cut of all at this moment. Raises: Broken."""
        for host in hosts:
            rng = random.Random(self.rng.random())
            disk = host.disk.peek_crash(rng)
            loop = SimLoop(FakeClock(VirtualClock(self.loop).wall_ns()), rng)
            broker = Broker(self.broker_options, fs=disk, scheduler=loop, clock=loop.clock)
            broker.open(1)
            try:
                self.ledger.check(broker, host.name)
            except AssertionError as error:
                raise Broken(str(error)) from None
            broker.close()

    # -- what goes wrong

    def heal(self) -> None:
        """No fault from here on."""
        self.calm = True
        self.network.cut.clear()
        self.network.heal()
        self.etcd.away, self.etcd.loss_chance = False, 0.0
        self.etcd._losses.clear()
        for host in self.hosts.values():
            self.etcd.reconnect(host.name)
            host.slow_s = 0.0
            host.disk.dies_after = None
            self._repair(host)
            if host.process is not None:
                host.process.loop.paused = False
            self.loop.call_later(0.2, host.start)

    def _repair(self, host: SimHost) -> None:
        """Another disk, or an operator who restarts what failed."""
        host.disk.heal()
        host.disk.capacity_bytes = None
        if host.had_faults:
            host.die("restart after faults", power=False, restart_s=0.1)
            host.had_faults = False

    async def _fault(self) -> None:
        """One thing goes wrong; what of it ends by itself may end after the next has begun."""
        rng, loop = self.rng, self.loop
        kinds = {name.removeprefix("_on_"): getattr(self, name) for name in dir(self) if name.startswith("_on_")}
        kind = rng.choice(self.plan.only or sorted(kinds))
        leaders = [each for each in self.hosts.values() if each.process is not None and each.process.listener]
        host = rng.choice(leaders) if leaders and rng.random() < 0.5 else rng.choice(list(self.hosts.values()))
        self.happened[kind] += 1
        end = kinds[kind](host)
        if end is not None:
            loop.call_later(rng.choice((0.2, 1.0, 4.0, 8.0)) * rng.random(), lambda: None if self.calm else end())
        await asyncio.sleep(rng.choice((0.01, 0.3, 1.0, 3.0, 6.0)) * rng.random())

    def _on_kill(self, host: SimHost) -> None:
        host.die("kill", power=False)

    def _on_power(self, host: SimHost) -> None:
        host.die("cut", power=True)

    def _on_power_of_all(self, host: SimHost) -> None:
        for each in self.hosts.values():
            each.die("cut of all", power=True)

    def _on_job(self, host: SimHost) -> None:
        host.disk.dies_after = self.rng.randrange(12)
        host.disk.dies_on = self.rng.choice((("", ""), ("sync", ""), ("pwrite", ""), ("rename", "")))

    def _on_pause(self, host: SimHost) -> Callable[[], None] | None:
        process = host.process
        if process is None:
            return None
        process.loop.paused = True

        def resume() -> None:
            if host.process is process:
                process.loop.paused = False

        return resume

    def _on_partition(self, host: SimHost) -> Callable[[], None]:
        others = [each for each in self.hosts if each != host.name]
        if self.rng.random() < 0.5:
            others = [self.rng.choice(others)]
        cut = {(host.name, each) for each in others} if self.rng.random() < 0.7 else set()
        if not cut or self.rng.random() < 0.6:
            cut |= {(each, host.name) for each in others}
        self.network.cut |= cut

        def heal() -> None:
            self.network.cut -= cut
            self.network.heal()

        return heal

    def _on_isolation(self, host: SimHost) -> Callable[[], None]:
        """From everything but clients."""
        self.etcd.cut_off(host.name)
        heal = self._on_partition(host)

        def end() -> None:
            heal()
            self.etcd.reconnect(host.name)

        return end

    def _on_etcd_cut(self, host: SimHost) -> Callable[[], None]:
        self.etcd.cut_off(host.name)
        return lambda: self.etcd.reconnect(host.name)

    def _on_etcd_away(self, host: SimHost) -> Callable[[], None]:
        self.etcd.away = True

        def back() -> None:
            self.etcd.away = False

        return back

    def _on_lost_answers(self, host: SimHost) -> None:
        self.etcd.lose(host.name, *self.rng.choices(list(Loss), k=self.rng.randrange(1, 4)))

    def _on_lossy_etcd(self, host: SimHost) -> Callable[[], None]:
        self.etcd.loss_chance = self.rng.choice((0.1, 0.4))

        def end() -> None:
            self.etcd.loss_chance = 0.0

        return end

    def _on_lease(self, host: SimHost) -> None:
        leader = self.state().leader
        if leader is not None:
            self.etcd.end_lease(leader.lease)

    def _on_bad_disk(self, host: SimHost) -> Callable[[], None]:
        host.had_faults = True
        op = self.rng.choice(("sync", "sync", "pwrite", "rename", "sync_dir", "open", "truncate"))
        host.disk.fail(op, self.rng.randrange(1, 6), self.rng.choice((errno.EIO, errno.ENOSPC)), sticky=self.rng.random() < 0.3)
        return lambda: self._repair(host)

    def _on_full_disk(self, host: SimHost) -> Callable[[], None]:
        host.had_faults = True
        host.disk.capacity_bytes = host.disk.used_bytes + self.rng.choice((0, 8192))
        return lambda: self._repair(host)

    def _on_slow_disk(self, host: SimHost) -> Callable[[], None]:
        host.slow_s = self.rng.choice((0.1, 1.0, 6.0))

        def end() -> None:
            host.slow_s = 0.0

        return end

    def _on_reset(self, host: SimHost) -> None:
        if host.process is not None:
            for transport in host.process.transports:
                if self.rng.random() < 0.7:
                    transport.loop.call_soon(transport.abort)

    def _on_stop(self, host: SimHost) -> None:
        if host.process is not None and host.process.node is not None:
            host.process.loop.call_soon(host.process.node.stop)

    def _on_hand_over(self, host: SimHost) -> None:
        self.loop.create_task(self._ask_for_hand_over())

    async def _ask_for_hand_over(self) -> None:
        with suppress(EtcdError):
            await self.tool.ask(Request(RequestKind.HAND_OVER, None, 0), await self.tool.grant(30.0))


def _content(disk: SimDisk) -> dict[str, bytes]:
    return {path: content for path, content in shared_files(disk).items() if disk._alive}


class _Errors(logging.Handler):
    """Collects what is logged with a traceback: bugs."""

    def __init__(self, bugs: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._bugs = bugs

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self._bugs.append(f"{record.getMessage()}: {record.exc_info[1]!r}")


@contextmanager
def _log_for(bugs: list[str], verbose: bool) -> Iterator[None]:
    logger = logging.getLogger("toymq_py")
    before = logger.level, logger.propagate
    handler = _Errors(bugs)
    if not verbose:
        logger.setLevel(logging.ERROR)
        logger.propagate = False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.level, logger.propagate = before
        logger.setLevel(before[0])


def run(seed: int, plan: Plan = Plan(), *, verbose: bool = False) -> ClusterWorld:
    """The world of a seed, to its end. Raises: Broken."""
    world = ClusterWorld(seed, plan)
    with _log_for(world.bugs, verbose):
        task = world.loop.create_task(world.run())
        try:
            world.machines.run_until(lambda: task.done() or bool(world.bugs))
        except RuntimeError as error:
            raise Broken(f"seed {seed}: {error}; {world.shown()}") from error
        finally:
            error = task.exception() if task.done() and not task.cancelled() else None
            bugs = list(world.bugs)
            world.machines.end()
    if bugs:
        raise Broken(f"seed {seed}: {bugs[0]}")
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, AssertionError):
        raise Broken(f"seed {seed}: {error}") from error
    if error is not None:
        raise error
    return world
