"""The order in which a follower applies operations, and what it reports when."""

import errno
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.sim_disk import SimDisk
from toymq_py.errors import BadOperation
from toymq_py.replication import operations as ops
from toymq_py.replication.acks import Failed, Report, Synced
from toymq_py.replication.applier import BACKLOG_BYTES_MAX, Applier
from toymq_py.replication.operations import PIECE_BYTES, Operation
from toymq_py.replication.replica_files import ReplicaFiles

ROOT = "/data/d"


def log(topic: str, n: int = 0) -> str:
    return f"topics/{topic}/{n:020d}.log"


class Rig:
    """A follower whose jobs end when the test says so."""

    def __init__(self) -> None:
        self.disk = SimDisk(random.Random(1))
        self.reports: list[Report] = []
        self.jobs: list[tuple[Callable[[], None], Callable[[], None]]] = []
        self.room = 0
        self.disk.mkdir(ROOT)
        files = ReplicaFiles(self.disk, ROOT)
        for path in ("topics", "topics/a", "topics/b"):
            files.apply(ops.Mkdir(0, path))
        for topic in "ab":
            files.apply(ops.Create(0, log(topic)))
        self.applier = Applier(files, self, after=0, report=self.reports.append, on_room=self._on_room)
        self.disk.trace.clear()

    def _on_room(self) -> None:
        self.room += 1

    def offload(self, job: Callable[[], None], done: Callable[[], None]) -> None:
        self.jobs.append((job, done))

    def apply(self, *kinds: Callable[[int], Operation]) -> None:
        for kind in kinds:
            self.applier.apply(kind(self.applier.received + 1))

    def finish(self, at: int = 0) -> None:
        """End one of the running jobs."""
        job, done = self.jobs.pop(at)
        job()
        done()

    def done(self) -> list[str]:
        """Return the disk calls since the last one, files by their topic."""
        found = [f"{op} {path.removeprefix(f'{ROOT}/topics')}" for op, path, _ in self.disk.trace]
        self.disk.trace.clear()
        return [line.replace(f"/{0:020d}.log", "") for line in found if not line.startswith(("close", "size"))]


def write(topic: str, data: bytes = b"x") -> Callable[[int], Operation]:
    return lambda seq: ops.Write(seq, log(topic), 0, data)


def numbered(operation: Operation) -> Callable[[int], Operation]:
    return lambda seq: replace(operation, seq=seq)


def sync(topic: str) -> Callable[[int], Operation]:
    return lambda seq: ops.Sync(seq, log(topic))


def test_changes_are_done_at_once_and_a_sync_on_a_thread() -> None:
    rig = Rig()
    rig.apply(write("a"), sync("a"))
    assert rig.done() == ["pwrite /a"]
    assert rig.reports == []
    rig.finish()
    assert rig.done() == ["sync /a"]
    assert rig.reports == [Synced(2)]
    assert rig.applier.idle


def test_what_follows_a_sync_waits_for_it_in_its_topic_and_nowhere_else() -> None:
    """Otherwise a power cut could leave the new segment and tear the one before it."""
    rig = Rig()
    rig.apply(sync("a"), lambda seq: ops.Create(seq, log("a", 7)), write("b"), sync("b"), write("b"))
    assert rig.done() == ["pwrite /b"]
    rig.finish(1)
    assert rig.done() == ["sync /b", "pwrite /b"]
    assert rig.reports == [Synced(4)]
    rig.finish()
    assert rig.done() == ["sync /a", f"open /a/{7:020d}.log"]
    assert rig.reports == [Synced(4), Synced(1)]


@pytest.mark.parametrize(
    "blocking", [ops.Replace(0, "topics/a/offsets.json", b"{}"), ops.SyncDir(0, "topics/a")], ids=["REPLACE", "SYNCDIR"]
)
def test_other_operations_that_wait_for_the_disk_hold_their_lane_alone(blocking: Operation) -> None:
    rig = Rig()
    rig.apply(numbered(blocking), write("a"), write("b"))
    assert rig.done() == ["pwrite /b"]
    rig.finish()
    assert rig.done()[-1] == "pwrite /a"


def test_a_lane_goes_from_sync_to_sync() -> None:
    rig = Rig()
    rig.apply(sync("a"), write("a"), sync("a"), write("a"))
    rig.finish()
    assert rig.done() == ["sync /a", "pwrite /a"]
    rig.finish()
    assert rig.done() == ["sync /a", "pwrite /a"]
    assert rig.reports == [Synced(1), Synced(3)]


@pytest.mark.parametrize(
    ("everywhere", "done", "reports"),
    [
        (ops.SyncDir(0, "topics"), "sync_dir ", [Synced(4)]),
        (ops.Rename(0, "topics/a", "topics/.deleted-0"), "rename /a", []),
        (ops.Mkdir(0, "topics"), "mkdir ", []),
    ],
    ids=["SYNCDIR", "RENAME", "MKDIR"],
)
def test_what_concerns_all_topics_waits_for_all_and_all_wait_for_it(
    everywhere: Operation, done: str, reports: list[Report]
) -> None:
    rig = Rig()
    rig.apply(sync("a"), sync("b"), write("a"), numbered(everywhere), write("b"), sync("b"), write("b"))
    rig.finish(1)
    assert rig.done() == ["sync /b"]
    rig.finish()
    assert rig.done() == ["sync /a", "pwrite /a"]
    rig.finish()
    assert rig.done() == [done, "pwrite /b"]
    assert rig.reports == [Synced(2), Synced(1), *reports]
    rig.finish()
    assert rig.done() == ["sync /b", "pwrite /b"]
    assert rig.applier.idle


def test_two_that_concern_all_topics_come_one_after_the_other() -> None:
    rig = Rig()
    rig.apply(*[lambda seq: ops.SyncDir(seq, "topics")] * 2, write("a"))
    assert len(rig.jobs) == 1
    rig.finish()
    assert rig.done() == ["sync_dir "]
    rig.finish()
    assert rig.done() == ["sync_dir ", "pwrite /a"]


def test_a_beat_is_reported_when_all_before_it_is_done_and_holds_up_nothing() -> None:
    rig = Rig()
    rig.apply(lambda seq: ops.Beat(seq, 0, 0))
    assert rig.reports == [Synced(1)]
    rig.apply(sync("a"), sync("b"), sync("a"), lambda seq: ops.Beat(seq, 0, 0), write("a"))
    rig.finish(1)
    rig.finish()
    assert Synced(5) not in rig.reports
    rig.finish()
    assert rig.reports == [Synced(1), Synced(3), Synced(2), Synced(4), Synced(5)]
    assert rig.done()[-1] == "pwrite /a"


def test_a_beat_behind_what_concerns_all_topics_waits_for_that() -> None:
    rig = Rig()
    rig.apply(lambda seq: ops.SyncDir(seq, "topics"), lambda seq: ops.Beat(seq, 0, 0))
    assert rig.reports == []
    rig.finish()
    assert rig.reports == [Synced(1), Synced(2)]


def test_the_first_failure_is_reported_and_the_last_thing_done() -> None:
    rig = Rig()
    rig.disk.fail("pwrite", 1, errno.ENOSPC)
    rig.apply(sync("b"), write("a"), write("a"), sync("a"))
    rig.finish()
    assert rig.reports == [Failed(2, errno.ENOSPC)]
    assert rig.applier.failed == Failed(2, errno.ENOSPC)
    assert rig.done() == ["pwrite /a", "sync /b"]
    assert rig.jobs == []


def test_a_failed_sync_is_reported_and_nothing_behind_it_is_done() -> None:
    rig = Rig()
    rig.disk.fail("sync", 1, errno.EIO)
    rig.apply(sync("a"), write("a"), lambda seq: ops.SyncDir(seq, "topics"), write("b"))
    rig.finish()
    assert rig.reports == [Failed(1, errno.EIO)]
    assert rig.done() == ["sync /a"]


def test_a_failure_within_a_lane_ends_it() -> None:
    rig = Rig()
    rig.apply(sync("a"), lambda seq: ops.Write(seq, log("a", 7), 0, b"x"), write("a"))
    rig.finish()
    assert rig.reports == [Synced(1), Failed(2, errno.ENOENT)]
    assert rig.done() == ["sync /a", f"open /a/{7:020d}.log"]


def test_a_job_that_ends_without_an_outcome_counts_as_failed() -> None:
    rig = Rig()
    rig.apply(sync("a"))
    rig.jobs.pop()[1]()
    assert rig.reports == [Failed(1, errno.EIO)]


@pytest.mark.parametrize("seq", [0, 1, 3])
def test_an_operation_that_is_not_the_next_is_refused(seq: int) -> None:
    rig = Rig()
    rig.apply(write("a"))
    with pytest.raises(BadOperation, match=f"operation {seq} came after 1: one is missing or came twice"):
        rig.applier.apply(ops.Write(seq, log("a"), 0, b""))


@pytest.mark.parametrize("operation", [ops.Copy(0, log("a"), 0, b""), ops.Copied(1), ops.Bye(1)])
def test_what_belongs_to_a_join_is_refused(operation: Operation) -> None:
    with pytest.raises(BadOperation, match="outside of a bulk copy"):
        Rig().applier.apply(operation)


def test_the_backlog_says_when_it_is_full_and_when_there_is_room() -> None:
    rig = Rig()
    piece = bytes(PIECE_BYTES)
    rig.apply(sync("a"), *[write("a", piece)] * (BACKLOG_BYTES_MAX // PIECE_BYTES - 1))
    assert not rig.applier.full
    rig.apply(lambda seq: ops.SyncDir(seq, "topics"), *[write("b", piece)] * 2)
    assert rig.applier.full
    assert rig.room == 0
    rig.finish()
    assert not rig.applier.full
    assert rig.room == 1
    rig.finish()
    assert rig.applier.idle
    assert rig.room == 1


def test_after_stop_nothing_begins_and_what_runs_is_told_when_it_ends() -> None:
    rig = Rig()
    rig.apply(lambda seq: ops.Sync(seq, log("a")), lambda seq: ops.Write(seq, log("a"), 0, b"x"))
    rig.apply(lambda seq: ops.Sync(seq, log("b")))
    assert rig.applier.running == 2
    rig.applier.stop()
    rig.applier.apply(ops.Write(99, log("b"), 0, b"x"))
    rig.done()
    rig.finish()
    rig.finish()
    assert (rig.applier.running, rig.room) == (0, 2)
    assert rig.done() == ["sync /a", "sync /b"]
    assert not rig.reports


def test_a_sync_that_fails_behind_the_end_of_the_link_is_known_and_not_reported() -> None:
    rig = Rig()
    rig.apply(lambda seq: ops.Sync(seq, log("a")))
    rig.applier.stop()
    rig.disk.fail("sync", 1, errno.EIO)
    rig.finish()
    assert rig.applier.failed == Failed(1, errno.EIO)
    assert rig.reports == []
