"""The machines of a simulated cluster, and their processes, which run the real node, link, broker and server."""

import asyncio
import errno
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol

from tests.simulation.world import Killed, MortalDisk, VirtualClock
from tests.support.sim_machines import HostListener, HostTransport, MachineLoop, Machines, Network
from tests.support.simulated_etcd import SimulatedEtcd
from toymq_py.broker import Broker
from toymq_py.cluster.office import HASTE_S
from toymq_py.config.options import BrokerOptions
from toymq_py.data_directory import made_and_locked
from toymq_py.errors import DataDirectoryError, TermEnded
from toymq_py.replication.agreement import ClusterSettings, Member
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


class World(Protocol):
    """What all hosts share."""

    rng: random.Random
    machines: Machines
    loop: MachineLoop
    network: Network
    etcd: SimulatedEtcd
    settings: ClusterSettings
    link_options: LinkOptions
    broker_options: BrokerOptions
    hosts: "dict[str, SimHost]"
    bugs: list[str]
    happened: Counter[str]


class JobThreads:
    """The sync threads of one process; implements ``Scheduler``."""

    def __init__(self, process: "SimProcess", run_job: RunJob = run_guarded) -> None:
        self._process = process
        self._loop = process.loop
        self._run_job = run_job
        self._began: dict[int, float] = {}

    def longest_s(self) -> float:
        """How many seconds the oldest running job takes so far."""
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
        """Run a job. Returns: what is to be done after it; None when the process died in it."""
        disk = self._process.disk
        disk.mortal = True
        try:
            ticket = self._run_job(job)
        except Killed:
            if self._process.host.process is self._process:
                self._process.host.die("job", power=self._loop.rng.random() < 0.7)
            return None
        finally:
            disk.mortal = False
        return done if ticket is None else partial(ticket.when_settled, done)


class SimOffice:
    """An ``Office``: runs the real broker and its server on the simulated disk and network."""

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

    def deliver_until(self, at: float) -> None:
        if self._broker is not None:
            self._broker.permit.extend(at)

    def disk_trouble(self, stall_s: float) -> str | None:
        if self._threads is not None and self._threads.longest_s() > stall_s:
            return "the disk has not answered"
        if self._broker is not None and any(topic.state == "failed" for topic in self._broker.topics.values()):
            return "the disk failed"
        return None

    async def retire(self, *, in_haste: bool) -> None:
        if self._server is not None and self.listener is not None:
            self._server.stop(within_s=HASTE_S if in_haste else None)
            await self._serving.wait()
        if self._broker is not None:
            self._broker.close()

    def abandon(self) -> None:
        if self._server is not None:
            self._server.cut()
            self._server.stop(at_once=True)


class SimProcess:
    """One life of a node's process, from its start until it ends by itself or by ``SimHost.die``."""

    def __init__(self, host: "SimHost") -> None:
        self.host = host
        world = host.world
        self.disk = host.disk
        self.loop = world.machines.new_loop()
        self.clock = VirtualClock(self.loop)
        self.clock.jumped_ns = host.clock_ns
        self.transports: list[HostTransport] = []
        self.node: Node | None = None
        self.office: SimOffice | None = None
        self._replicas: set[asyncio.Task[None]] = set()
        self.task = self.loop.create_task(self._run())
        self.task.add_done_callback(self._ended)

    async def _run(self) -> None:
        """Run the node. Raises: what ends a process, see ``_ended``."""
        host, world, loop = self.host, self.host.world, self.loop
        self.lock = made_and_locked(self.disk, ROOT, 1, None)
        file = ReplicaFile.load(self.disk, ROOT)
        if file is None:
            file = ReplicaFile.create(self.disk, ROOT, ReplicaRecord(UUID, GROUP, f"{world.rng.getrandbits(128):032x}"))
        host.replica = replica = file.record.replica
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
        """Note that the process ended by itself; the supervisor starts another."""
        world, error = self.host.world, None if task.cancelled() else task.exception()
        expected = isinstance(error, TermEnded) or (self.host.had_faults and isinstance(error, OSError | DataDirectoryError))
        if error is not None and not expected:
            world.bugs.append(f"{self.host.name} was ended by {error!r}")
        world.happened["term ended" if error is not None else "left"] += 1
        self.host.die("exit", power=False, restart_s=0.1)

    # -- links

    async def _connect(self, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to another node; implements ``Connect``."""
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

    def _accept_replica(self, reader: asyncio.StreamReader | None, writer: asyncio.StreamWriter) -> None:
        if reader is None:  # reset before it was accepted: a real loop tells of no such connection
            return
        task = self.loop.create_task(self._replica(reader, writer))
        self._replicas.add(task)
        task.add_done_callback(self._replica_left)

    def _replica_left(self, task: "asyncio.Task[None]") -> None:
        self._replicas.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.host.world.bugs.append(f"a link of {self.host.name} was ended by {error!r}")

    async def _replica(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a replica's connection, as ``cluster.process`` does."""
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
        """The listener for clients; None while the process takes none."""
        listener = self.office.listener if self.office is not None else None
        return None if listener is None or listener.closed else listener

    @property
    def epoch(self) -> int:
        return self.node.term.epoch if self.node is not None and self.node.term is not None else 0


class SimHost:
    """A machine with its disk, on which processes run one after the other."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        rng = random.Random(world.rng.random())
        self.disk = MortalDisk(rng, tracing=False, torn_sectors=rng.random() < 0.5)
        self.process: SimProcess | None = None
        self.has_no_power = False
        self.had_faults = False
        self.slow_s = 0.0
        self.clock_ns = 0
        """By so much its wall clock is wrong."""
        self.replica = ""
        """Its id, once it has run."""

    def job_s(self, rng: random.Random) -> float:
        return self.slow_s * rng.random() + rng.choice((0.0001, 0.0005, 0.002, 0.01))

    def start(self) -> None:
        """Start a process. No error when one runs."""
        if self.process is None:
            self.has_no_power = False
            self.process = SimProcess(self)

    def reset_links(self) -> None:
        """Reset all connections between this node and other nodes."""
        for transport in self.process.transports if self.process is not None else ():
            transport.loop.call_soon(transport.abort)

    def die(self, how: str, *, power: bool, restart_s: float | None = None) -> None:
        """End the process: by SIGKILL, by a power cut, or by itself. No error when there is none."""
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
