"""A leader and its follower on two simulated disks, with a network that delays, all in one thread and from one seed.

The steps of the network and the follower come between the steps of the leader's loop, and between and within the calls of the
leader's disk, like those of other threads.
"""

import random
from collections import deque
from collections.abc import Callable, Iterator

from tests.support.fake_clock import FakeClock
from tests.support.sim_disk import SimDisk
from tests.support.sim_loop import SimLoop
from toymq_py.replication.acks import Failed, Report, Synced
from toymq_py.replication.applier import Applier
from toymq_py.replication.bulk_copy import pieces_of
from toymq_py.replication.content_digests import ContentDigests
from toymq_py.replication.disk_calls import StopFlag
from toymq_py.replication.manifest import JoinPlan, decode_plan, encode_plan, make_plan, take_manifest
from toymq_py.replication.operations import Copied, Copy, Operation, OperationReader, Plan, encode
from toymq_py.replication.paths import is_directory, is_file
from toymq_py.replication.put_aside import carry_out, check_plan
from toymq_py.replication.replica_files import ReplicaFiles
from toymq_py.replication.shipping_fs import ShippingFileSystem
from toymq_py.replication.stream import Frame, Stream
from toymq_py.replication.tickets import JobTicket, Tickets

ROOT = "/data/d"
FOLLOWER = "f"


class MeanwhileDisk(SimDisk):
    """A disk that lets others act before each call takes effect."""

    meanwhile: Callable[[], None] | None = None

    def _record(self, op: str, path: str, args: tuple[object, ...]) -> int | None:
        if self.meanwhile is not None:
            act, self.meanwhile = self.meanwhile, None
            try:
                act()
            finally:
                self.meanwhile = act
        return super()._record(op, path, args)

    def _successor(self, rng: random.Random) -> "MeanwhileDisk":
        return MeanwhileDisk(
            rng, capacity_bytes=self.capacity_bytes, ordered_metadata=self.ordered_metadata,
            torn_sectors=self.torn_sectors, root="", tracing=False,
        )  # fmt: skip


def new_disk(rng: random.Random) -> MeanwhileDisk:
    """Return a disk with an empty data directory."""
    disk = MeanwhileDisk(rng, tracing=False, torn_sectors=rng.random() < 0.5)
    disk.mkdir(ROOT)
    disk.sync_dir("/data")
    return disk


def shared_files(disk: SimDisk) -> dict[str, bytes]:
    """Return the files that replicas have in common, without space that is only reserved and topics that are being removed."""
    files = {path.removeprefix(f"{ROOT}/"): content for path, content in disk.snapshot().items()}
    return {
        path: content.rstrip(b"\0")
        for path, content in files.items()
        if is_file(path) or (path.endswith("/") and is_directory(path[:-1]))
        if "/.deleted-" not in path
    }


class Follower:
    """A replica that joins by a bulk copy of the leader's files, and then follows."""

    def __init__(self, disk: MeanwhileDisk, loop: SimLoop) -> None:
        self.disk = disk
        self.manifest = take_manifest(ContentDigests(disk, ROOT, FakeClock()), StopFlag())
        self.reports: deque[Report] = deque()
        self._loop = loop
        self._files = ReplicaFiles(disk, ROOT, open_max=3)
        self._reader = OperationReader()
        self._spool: list[Operation] = []
        self._plan: JoinPlan | None = None
        self._applier: Applier | None = None

    def receive(self, data: bytes) -> None:
        self._reader.receive(data)
        while (operation := self._reader.next_operation()) is not None:
            self._take(operation)

    def _take(self, operation: Operation) -> None:
        if self._applier is not None:
            self._applier.apply(operation)
        elif isinstance(operation, Plan):
            plan = decode_plan(bytes(operation.data))
            check_plan(plan, self.manifest)
            carry_out(self.disk, ROOT, plan, self.manifest, "1-0", 0, StopFlag())
            self._plan = plan
        elif isinstance(operation, Copy):
            assert self._plan is not None, "the plan comes first"
            self._files.apply(operation)
        elif isinstance(operation, Copied):
            self._files.redo(self._spool)
            self._files.sync_all()
            self._applier = Applier(self._files, self._loop, after=operation.seq, report=self.reports.append)
            self.reports.append(Synced(operation.seq))
        else:
            self._spool.append(operation)


class ReplicaLoop(SimLoop):
    """The leader's loop, which also runs the follower's syncs."""

    def __init__(self, clock: FakeClock, rng: random.Random, pair: "Pair") -> None:
        super().__init__(clock, rng, self._run_raising)
        self._pair = pair

    def _run_raising(self, job: Callable[[], None]) -> JobTicket | None:
        """Run a job as ``Tickets.run`` does, but let an unexpected error fail the test."""
        failures: list[Exception] = []

        def kept() -> None:
            try:
                job()
            except Exception as error:  # noqa: BLE001 (raised below)
                failures.append(error)

        ticket = self._pair.tickets.run(kept)
        if failures:
            raise failures[0]
        return ticket

    def step(self) -> bool:
        if self._rng.random() < 0.5 and self._pair.step():
            return True
        return super().step() or self._pair.step()


class Pair:
    """A leader on ``disk``, and after ``join`` a follower on another disk.

    ``in_sync``: whether the follower may be elected. First its syncs were required for OK, and then it acknowledged a BEAT that
    was sent after that. So what the leader alone had synced before, and had acknowledged to clients, is synced at the follower,
    too.
    """

    def __init__(self, disk: MeanwhileDisk, clock: FakeClock, rng: random.Random) -> None:
        self.disk = disk
        self.tickets = Tickets()
        self.stream = Stream(self.tickets)
        self.fs = ShippingFileSystem(disk, ROOT, self.stream)
        self.loop = ReplicaLoop(clock, rng, self)
        self.in_sync = False
        self.follower: Follower | None = None
        self.copying = True
        """Of a ``Sink``."""
        self.cut = False
        """The network takes nothing and brings nothing."""
        self._rng = rng
        self._wire: deque[bytes] = deque()
        self._joins = self._begins_within_call = False
        self._former: MeanwhileDisk | None = None
        self._copier: Iterator[bytes] | None = None
        self._copied_seq: int | None = None
        self._beat_seq: int | None = None  # sent when the follower became required

    def join(self, *, within_call: bool = False, former: MeanwhileDisk | None = None) -> None:
        """Let a follower join: at the next step, or with ``within_call`` within a call of the leader's disk, before the call
        takes effect.

        ``former``: the follower's disk from before; None for a new disk.
        """
        self._joins = True
        self._former = former
        self._begins_within_call = within_call
        self.disk.meanwhile = self._meanwhile

    def drain(self) -> None:
        """Run everything that is due; a follower that is to join has joined then."""
        self.loop.advance(1)
        self._begins_within_call = False
        self.loop.drain()

    def put(self, operation: Operation, frame: Frame) -> None:
        """Pass an operation on to the follower; see ``Sink.put``."""
        self._wire.append(b"".join(frame))

    def step(self) -> bool:
        """Run one thing that is due on the network, at the follower or on the leader's loop. Returns: whether there was one."""
        if self.cut:
            return False
        if self.follower is not None and self.follower.reports and self._rng.random() < 0.5:
            self._hear(self.follower.reports.popleft())
            return True
        if self._act():
            return True
        if self.follower is not None and self.follower.reports:
            self._hear(self.follower.reports.popleft())
            return True
        return False

    def _meanwhile(self) -> None:
        if self.cut:
            return
        if self.follower is None and self._begins_within_call and self._rng.random() < 0.2:
            self._begin()
            for _ in range(self._rng.randrange(40)):
                self._act()
        while self._rng.random() < 0.2 and self._act():
            pass

    def _begin(self) -> None:
        self.follower = Follower(self._former or new_disk(self._rng), self.loop)
        self._copier = self._copy(self.stream.attach(self))

    def _act(self) -> bool:
        """Run one thing that does not need the leader's loop."""
        if not self._joins:
            return False
        if self.follower is None:
            if self._begins_within_call:
                return False
            self._begin()
            return True
        if self._copier is not None and (not self._wire or self._rng.random() < 0.5):
            self._copy_more(self._copier)
            return True
        if self._wire:
            self._deliver()
            return True
        return False

    def _deliver(self) -> None:
        data = b"".join(self._wire.popleft() for _ in range(self._rng.randint(1, len(self._wire))))
        cut = self._rng.randint(0, len(data))
        assert self.follower is not None
        try:
            for piece in (data[:cut], data[cut:]):
                self.follower.receive(piece)
        except OSError:  # of the follower's disk, during the copy
            self.lose()

    def _copy_more(self, copier: Iterator[bytes]) -> None:
        act, self.disk.meanwhile = self.disk.meanwhile, None
        try:
            piece = next(copier, None)
        except OSError:  # a fault of the leader's disk: this copy is worth nothing
            self.lose()
            return
        finally:
            self.disk.meanwhile = act
        if piece is None:
            self._copier = None
            self._copied_seq = self.stream.end_copy(self)
        elif piece:
            self._wire.append(piece)

    def _copy(self, before: int) -> Iterator[bytes]:
        """Yield the bulk copy, piece by piece; files are read at different moments."""
        while not self.stream.is_done(before):
            yield b""  # the write in whose midst the follower was attached
        assert self.follower is not None
        plan = make_plan(self.follower.manifest, ContentDigests(self.disk, ROOT, FakeClock()), StopFlag())
        yield b"".join(map(bytes, encode(Plan(0, encode_plan(plan)))))
        files = plan.copied()
        self._rng.shuffle(files)
        for piece in pieces_of(self.disk, ROOT, files, StopFlag()):
            yield b"".join(map(bytes, encode(piece)))

    def _hear(self, report: Report) -> None:
        if not self._joins:
            return  # it was given up
        if isinstance(report, Failed):
            self.lose()
        elif isinstance(report, Synced) and self._beat_seq is None:
            assert report.seq == self._copied_seq, "a follower reports nothing before its copy is whole"
            self.tickets.acknowledge_through(FOLLOWER, report.seq)
            self.tickets.require([FOLLOWER])
            self._beat_seq = self.stream.beat(self.loop.clock.wall_ns(), 0)
        elif isinstance(report, Synced):
            self.tickets.acknowledge(FOLLOWER, report.seq)
            self.in_sync = self.in_sync or report.seq == self._beat_seq

    def lose(self) -> None:
        """Lose the follower for good: the leader goes on alone."""
        self.stream.detach(self)
        self._joins = self.in_sync = False
        self._copier = None
        self._wire.clear()
        self.tickets.require([])
