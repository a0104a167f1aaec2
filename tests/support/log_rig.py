"""One log with its committer on the simulated disk and loop, without a topic around it."""

import random
from typing import Any

from tests.support.fake_clock import FakeClock
from tests.support.logs import PATH
from tests.support.sim_disk import SimDisk
from tests.support.sim_loop import SimLoop
from toymq_py.storage.commit.commit_place import CommitPlace
from toymq_py.storage.commit.committer import Appended, Committer
from toymq_py.storage.commit.listener import CommitListener
from toymq_py.storage.commit.space_guard import SpaceGuard
from toymq_py.storage.log import Log
from toymq_py.storage.recovery import RecoveredLog, recover_log
from toymq_py.storage.segment import Producers


class _Told(CommitListener):
    """Records what the committer reports."""

    def __init__(self, rig: "LogRig") -> None:
        self._rig = rig

    def committed(self, first_id: int, next_id: int, keys: list[bytes], producers: Producers) -> None:
        self._rig.committed.append((first_id, next_id, keys))

    def failed(self, keys: list[bytes]) -> None:
        self._rig.failed_keys += keys

    def sealed(self) -> None:
        self._rig.sealed += 1


class LogRig:
    """A log for tests. ``publish`` appends and runs the loop until nothing is left to do; ``reopen`` kills the process or cuts
    the power."""

    def __init__(self, *, disk: SimDisk | None = None, **options: Any) -> None:
        self.options = options
        self.clock = FakeClock()
        self.disk = disk or SimDisk(random.Random(1))
        if disk is None:
            self.disk.mkdir("/data/topics")
            self.disk.sync_dir("/data")
        self.loop = SimLoop(self.clock, random.Random(1))
        self.sealed = 0
        self.held: list[float] = []
        self.committed: list[tuple[int, int, list[bytes]]] = []
        self.failed_keys: list[bytes] = []
        self._open()

    def _open(self) -> None:
        options = dict(self.options)
        self.recovered: RecoveredLog = recover_log(self.disk, PATH, dedupe_keys=100)
        self.log = Log(
            self.disk, PATH, "t", self.recovered.segments,
            next_id=self.recovered.next_id, first_id=self.recovered.first_id, lost=self.recovered.lost,
        )  # fmt: skip
        self.space = SpaceGuard(self.disk, "/data", options.pop("min_free_bytes", 0), self.clock)
        self.place = CommitPlace(options.pop("commit", "thread"), self.held.append)
        segment_bytes = options.pop("segment_bytes", 4096)
        self.committer = Committer(
            self.log, self.loop, self.clock,
            space=self.space, place=self.place, segment_bytes=segment_bytes, roll_first=self.recovered.roll_first,
            heads=self.recovered.known, **options,
        )  # fmt: skip
        self.committer.listener = _Told(self)

    def append(self, *payloads: bytes, key: bytes = b"") -> list[Appended]:
        """Append without running the loop."""
        return self.committer.append([key] * len(payloads), payloads)

    def publish(self, *payloads: bytes, key: bytes = b"") -> list[Appended]:
        """Append, and run the loop until all that follows is done."""
        appended = self.append(*payloads, key=key)
        self.loop.drain()
        return appended

    def reopen(self, *, power_cut: bool = False) -> None:
        """Kill the process, or cut the power, and open the log again from the same disk."""
        self.disk = self.disk.crash() if power_cut else self.disk.kill()
        self.loop = SimLoop(self.clock, random.Random(2))
        self._open()

    def syncs(self) -> int:
        """The number of syncs of segment files."""
        return sum(op == "sync" and path.endswith(".log") for op, path, _ in self.disk.trace)

    def payloads(self) -> list[bytes]:
        """Read every committed payload from disk, in order; lost ones are left out."""
        found: list[bytes] = []
        at = self.log.first_id
        self.log.tail.clear()
        while at < self.log.committed_id:
            run, row, after = self.log.read(at, 1000)
            if run is not None:
                found += run.payloads[row : row + after - at]
            at = after
        return found
