"""The broker of a node while it leads: implements ``replication.term.Office``.

Contract: replication.md, sections 5 and 8; ADR 0107. The process is warm: everything is imported, the directory is locked and
the listeners are bound before an election, so that a failover costs the recovery and nothing else. Belongs to the event loop.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable

from toymq_py import daemon
from toymq_py.broker import ALONE, Broker
from toymq_py.clock import Clock
from toymq_py.cluster.arrivals import Arrivals
from toymq_py.cluster.departures import Departures
from toymq_py.cluster.group_definitions import GroupDefinitions
from toymq_py.cluster.group_placement import GroupPlacement
from toymq_py.cluster.standby import LEADER_LISTENERS, Standby
from toymq_py.config.definitions import Definitions
from toymq_py.config.options import ServeOptions
from toymq_py.daemon import Listeners, Service
from toymq_py.errors import EtcdError
from toymq_py.metrics import ClusterRows
from toymq_py.names import DEAD_LETTERS
from toymq_py.net.bounded_reads import BoundedProtocol
from toymq_py.option_files import Files
from toymq_py.replication.agreement import Agreement
from toymq_py.replication.lease_keeper import RENEWALS_PER_TTL
from toymq_py.replication.shipping_fs import ShippingFileSystem
from toymq_py.replication.stream import Stream
from toymq_py.replication.tickets import Tickets
from toymq_py.runtime.broker_loop import opened_broker
from toymq_py.storage.commit.sync_threads import RunJob, Ticket
from toymq_py.storage.dirlock import DirectoryLock
from toymq_py.storage.fs import RealFileSystem
from toymq_py.threads import start_thread

logger = logging.getLogger("toymq_py.cluster")

HASTE_S = 0.1
"""How long a hand-over waits for acks, and publishers for it: acks that are under way come within some milliseconds."""
HANGS_S = 1.0
"""The disk may hang when a job takes longer."""
OPENING_S_MAX = 120.0
"""A recovery that takes longer does not keep its lease: maybe the disk hangs."""


class JobWatch:
    """Knows how long disk jobs have been running. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._monotonic = clock.monotonic
        self._began: dict[int, float] = {}  # by thread; one job at a time each

    def watched(self, run_job: RunJob) -> RunJob:
        """Wrap ``run_job`` so that the jobs it runs are timed."""
        began, monotonic, thread = self._began, self._monotonic, threading.get_ident

        def run(job: Callable[[], None]) -> Ticket | None:
            me = thread()
            began[me] = monotonic()
            try:
                return run_job(job)
            finally:
                del began[me]

        return run

    def longest_s(self) -> float:
        """How long the oldest running job has taken so far; 0 when none runs."""
        first = min(self._began.copy().values(), default=None)
        return 0.0 if first is None else self._monotonic() - first


class OpeningLease:
    """Renews a lease on a thread, while recovery blocks the event loop. A context manager."""

    def __init__(self, agreement: Callable[[], Agreement], lease: int, ttl_s: float, clock: Clock) -> None:
        """``agreement``: makes an etcd client for the thread's own event loop."""
        self._monotonic = clock.monotonic
        self._agreement = agreement
        self._lease = lease
        self._pause_s = ttl_s / RENEWALS_PER_TTL
        self._over = threading.Event()

    def __enter__(self) -> None:
        start_thread(self._run, "toymq-lease")

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _run(self) -> None:
        """Renew the lease until closed. Pauses before the first renewal, since most recoveries end sooner and need none."""
        until = self._monotonic() + OPENING_S_MAX
        if self._over.wait(self._pause_s):
            return
        with contextlib.suppress(EtcdError), asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            agreement = self._agreement()
            while not self._over.is_set() and self._monotonic() < until:
                with contextlib.suppress(EtcdError):
                    runner.run(agreement.renew(self._lease))
                self._over.wait(self._pause_s)
            runner.run(agreement.close())


class BrokerOffice:
    """The broker and listeners of a node while it leads (``Office``). Opened once: after a term the process ends."""

    def __init__(
        self, options: ServeOptions, files: Files, listeners: Listeners, lock: DirectoryLock, standby: Standby, clock: Clock,
        loop: asyncio.AbstractEventLoop, *, agreement: Callable[[], Agreement], ttl_s: float, rows: Callable[[], ClusterRows],
        reload_wire: Callable[[Callable[[], None]], None], placement: GroupPlacement | None = None,
        moves: Callable[[Broker], tuple[Departures, Arrivals]] | None = None,
    ) -> None:  # fmt: skip
        """
        Args:
            lock: the lock of the data directory; owned by the broker from ``open`` on.
            standby: answers clients until ``open``.
            agreement: makes an etcd client for a thread's event loop.
            rows: returns the metrics of the cluster.
            reload_wire: sets the function that SIGHUP calls last.
            placement: knows the topics of other groups; only with ``--group``.
            moves: makes the object that moves topics to and from other groups.
        """
        self._options = options
        self._files = files
        self._listeners = {option: some for option, some in listeners.items() if option != "--replicate"}
        self._lock = lock
        self._standby = standby
        self._clock = clock
        self._loop = loop
        self._agreement = agreement
        self._ttl_s = ttl_s
        self._rows = rows
        self._reload_wire = reload_wire
        self._placement = placement
        self._moves = moves
        self.departures: Departures | None = None
        """Serves other groups that ask for topics; None while this node does not lead."""
        self._arrivals: Arrivals | None = None
        self._lease = 0
        self._jobs = JobWatch(clock)
        self._open = contextlib.ExitStack()
        self._broker: Broker | None = None
        self._service: Service | None = None
        self._serving: asyncio.Future[None] | None = None

    async def open(self, stream: Stream, tickets: Tickets, lease: int) -> None:
        """Recover the directory; its changes go into ``stream``. Blocks the event loop. Raises: DataDirectoryError,
        ConfigError."""
        self._standby.stop()
        self._lease = lease
        options, root = self._options, self._options.data_dir
        url = f"toymq://{daemon.shown_address(self._listeners['--listen'][0])}"
        with OpeningLease(self._agreement, lease, self._ttl_s, self._clock):
            if self._placement is not None:
                await self._placement.open()
            tracer = self._open.enter_context(daemon.opened_tracer(options, self._clock))
            self._broker = broker = self._open.enter_context(opened_broker(
                options, self._clock, self._loop, tracer, url,
                fs=ShippingFileSystem(RealFileSystem(), root, stream), run_job=self._jobs.watched(tickets.run), lock=self._lock,
                placement=ALONE if self._placement is None else self._placement,
            ))  # fmt: skip
            if self._placement is not None:
                await self._place(self._placement, broker)
        of_leader = {option: some for option, some in self._listeners.items() if option in LEADER_LISTENERS}
        daemon.claim(of_leader)
        for option, some in of_leader.items():
            logger.info("this node leads: it listens on %s %s", option, ", ".join(map(daemon.shown_address, some)))
        broker.metrics.cluster = self._rows
        self._service = Service(
            options, broker, self._clock, self._loop, self._files.authority, self._files.certificates, self._listeners,
            lambda addresses: None,
        )  # fmt: skip
        self._reload_wire(self._service.debug_wire)

    async def _place(self, placement: GroupPlacement, broker: Broker) -> None:
        metrics, topics, unopened = broker.metrics, broker.topics, broker.unopened
        placement.done = lambda: metrics.publish_total + metrics.deliver_total
        placement.is_here = lambda topic: topic in topics or topic in unopened
        unclear = {f"{topic}{end}" for topic in broker.moves.marks for end in ("", DEAD_LETTERS)}
        unclear |= broker.partitioned.lost.keys()
        clear = [topic for topic in (*topics, *unopened) if topic not in unclear]
        await placement.settle(clear, broker.partitioned.by_name.values())
        if self._moves is not None:
            self.departures, self._arrivals = self._moves(broker)

    async def serve(self) -> None:
        """Serve clients until ``retire`` or ``abandon``. Raises: DirectoryLost."""
        assert self._service is not None
        self._serving = self._loop.create_future()
        beside: list[asyncio.Task[None]] = []
        wanted = self._files.definitions
        try:
            if self._placement is not None:
                assert self._broker is not None
                beside.append(self._loop.create_task(self._placement.run(self._lease)))
                if self._arrivals is not None:
                    beside.append(self._loop.create_task(self._arrivals.run()))
                errands = self._service.errands
                divide = None if errands is None else errands.create  # at all groups
                of_group = GroupDefinitions(wanted, self._options.definitions, self._broker, divide)
                await of_group.apply()
                beside.append(self._loop.create_task(of_group.run()))
                wanted = Definitions()
            await self._service.prepare(wanted)
            await self._service.run()
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            if self.departures is not None:
                await self.departures.close()
            self._serving.set_result(None)

    def passed(self, trusted: bool) -> BoundedProtocol | None:
        """A session for commands that another group passes on (``Server.passed``); None while this node does not serve."""
        return self._service.passed(trusted) if self._service is not None and self._serving is not None else None

    def refuse_publishes(self, reason: str | None) -> None:
        """Refuse publishes with NOT_ENOUGH_REPLICAS for this reason; None: accept them."""
        if self._broker is not None:
            self._broker.too_few_replicas = reason

    def deliver_until(self, at: float) -> None:
        """Deliver nothing after this time of the event loop, when the lease may end, until a later one is set."""
        if self._broker is not None:
            self._broker.permit.extend(at)

    def disk_trouble(self, stall_s: float) -> str | None:
        """A disk error: a sync that takes longer than ``stall_s``, or one that failed; None without trouble."""
        broker, longest_s = self._broker, self._jobs.longest_s()
        if longest_s > stall_s:
            return f"the disk has not answered for {longest_s:.1f} s"
        if broker is not None and broker.metrics.errors.get("STORAGE_FAILED"):
            failed = [topic.name for topic in broker.topics.values() if topic.state == "failed"]
            if failed:
                return f"the disk failed under {failed[0]}"
        return None

    async def retire(self, *, in_haste: bool) -> None:
        """End the service: send due answers, store acks, close the broker. ``in_haste``: a successor waits."""
        if self._service is not None and self._serving is not None:
            self._service.stop(HASTE_S if in_haste else None)
            await self._serving
        self._open.close()

    def step_down(self) -> None:
        """Record in the directory that this process ends in order at the end of its term, so that the next start does not treat
        it as a crash (ADR 0249). Skipped while a disk job hangs."""
        if self._broker is not None and self._jobs.longest_s() < HANGS_S:
            self._broker.directory.uncount_life()

    def abandon(self) -> None:
        """Close all connections without an answer, whatever is under way."""
        if self._service is not None:
            self._service.cut()
