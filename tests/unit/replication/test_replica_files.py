"""The effect of each operation on a follower's disk, also when it is done twice, and that of a copy and its repetition."""

import contextlib
import errno
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.shares import examples
from tests.support.sim_disk import SimDisk
from toymq_py.replication import operations as ops
from toymq_py.replication.operations import Change, Copy
from toymq_py.replication.replica_files import ReplicaFiles
from toymq_py.storage import topic_settings

ROOT = "/data/d"
TOPIC = "topics/t"
LOG = f"{TOPIC}/00000000000000000000.log"
NEXT = f"{TOPIC}/00000000000000000009.log"
MARK = f"{TOPIC}/{0:020d}-{8:020d}.removed"
CURRENT, PREVIOUS = f"{TOPIC}/offsets.json", f"{TOPIC}/offsets.json.prev"
GRAVE = "topics/.deleted-0"


def follower(*done: Change | Copy) -> tuple[SimDisk, ReplicaFiles]:
    disk = SimDisk(random.Random(1))
    disk.mkdir(ROOT)
    disk.sync_dir("/data")
    files = ReplicaFiles(disk, ROOT)
    for change in (ops.Mkdir(0, "topics"), ops.Mkdir(0, TOPIC), *done):
        files.apply(change)
    return disk, files


def shown(disk: SimDisk) -> dict[str, bytes]:
    """Return files and empty directories below the data directory."""
    paths = disk.snapshot()
    return {
        path.removeprefix(f"{ROOT}/"): content
        for path, content in paths.items()
        if path.startswith(f"{ROOT}/t") or path == f"{ROOT}/webhooks.json"
        if not (path.endswith("/") and any(other != path and other.startswith(path) for other in paths))
    }


@pytest.mark.parametrize(
    ("before", "change", "after"),
    [
        ([], ops.Create(1, LOG), {LOG: b""}),
        ([Copy(0, LOG, 0, b"abc")], ops.Create(1, LOG), {LOG: b"abc"}),
        ([Copy(0, LOG, 0, b"abc")], ops.Write(1, LOG, 2, b"xy"), {LOG: b"abxy"}),
        ([Copy(0, LOG, 0, b"abc")], ops.Truncate(1, LOG, 1), {LOG: b"a"}),
        ([Copy(0, LOG, 0, b"abc")], ops.Unlink(1, LOG), {f"{TOPIC}/": b""}),
        ([], ops.Replace(1, CURRENT, b"new"), {CURRENT: b"new"}),
        ([Copy(0, CURRENT, 0, b"longer")], ops.Replace(1, CURRENT, b"new"), {CURRENT: b"new"}),
        ([], ops.Mkdir(1, "topics/u"), {f"{TOPIC}/": b"", "topics/u/": b""}),
        ([Copy(0, CURRENT, 0, b"x"), Copy(0, PREVIOUS, 0, b"y")], ops.Rename(1, CURRENT, PREVIOUS), {PREVIOUS: b"x"}),
        ([Copy(0, LOG, 0, b"x")], ops.Rename(1, TOPIC, GRAVE), {f"{GRAVE}/{LOG.rpartition('/')[2]}": b"x"}),
        ([ops.Mkdir(0, GRAVE), Copy(0, f"{GRAVE}/topic.json", 0, b"x")], ops.Rmdir(1, GRAVE), {f"{TOPIC}/": b""}),
        ([], Copy(0, LOG, 4, b"x"), {LOG: b"\0\0\0\0x"}),
    ],
)
def test_an_operation_done_twice_leaves_what_it_left_the_first_time(
    before: list[Change | Copy], change: Change | Copy, after: dict[str, bytes]
) -> None:
    disk, files = follower(*before)
    for _ in range(2):
        files.apply(change)
        assert shown(disk) == after


@pytest.mark.parametrize("change", [ops.Write(1, LOG, 0, b"x"), ops.Truncate(1, LOG, 0), ops.Rename(1, CURRENT, PREVIOUS)])
def test_an_operation_on_a_file_that_should_be_there_fails(change: Change) -> None:
    _, files = follower()
    with pytest.raises(FileNotFoundError):
        files.apply(change)


def test_settings_that_the_leader_removes_are_not_missing() -> None:
    disk, files = follower(ops.Create(0, f"{TOPIC}/{topic_settings.FILE_NAME}"))
    topic_settings.mark(disk, f"{ROOT}/{TOPIC}")
    files.apply(ops.Unlink(1, f"{TOPIC}/{topic_settings.FILE_NAME}"))
    assert topic_settings.load(disk, f"{ROOT}/{TOPIC}").problem is None


def test_a_replaced_file_is_the_old_one_or_the_new_one_after_any_power_cut() -> None:
    disk, files = follower(Copy(0, CURRENT, 0, b"old" * 3000))
    files.sync(CURRENT)
    for path in ("", "topics", TOPIC):
        files.sync_dir(path)
    files.apply(ops.Replace(1, CURRENT, b"new" * 3000))
    found = {disk.peek_crash(random.Random(seed)).read_file(f"{ROOT}/{CURRENT}") for seed in range(50)}
    assert found == {b"old" * 3000, b"new" * 3000}


def test_a_replacement_that_fails_leaves_the_old_file_and_no_other() -> None:
    disk, files = follower(ops.Replace(0, CURRENT, b"old"))
    disk.fail("sync", 1, errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        files.apply(ops.Replace(1, CURRENT, b"new"))
    assert shown(disk) == {CURRENT: b"old"}


def test_a_file_that_got_another_name_is_written_under_its_own() -> None:
    """Files stay open over renames: a write under a name goes to the file that has it now."""
    disk, files = follower(ops.Create(0, CURRENT), ops.Write(0, CURRENT, 0, b"one"))
    files.apply(ops.Rename(1, CURRENT, PREVIOUS))
    files.apply(ops.Create(2, CURRENT))
    files.apply(ops.Write(3, CURRENT, 0, b"two"))
    files.apply(ops.Write(4, PREVIOUS, 0, b"ONE"))
    files.apply(ops.Replace(5, CURRENT, b""))
    files.apply(ops.Write(6, CURRENT, 0, b"3"))
    assert shown(disk) == {CURRENT: b"3", PREVIOUS: b"ONE"}
    files.apply(ops.Rename(7, TOPIC, GRAVE))
    files.apply(ops.Mkdir(8, TOPIC))
    files.apply(ops.Create(9, CURRENT))
    files.apply(ops.Write(10, CURRENT, 0, b"anew"))
    assert shown(disk) == {CURRENT: b"anew", f"{GRAVE}/offsets.json": b"3", f"{GRAVE}/offsets.json.prev": b"ONE"}


def test_files_beyond_the_limit_are_closed_but_for_those_in_use() -> None:
    disk, _ = follower()
    files = ReplicaFiles(disk, ROOT, open_max=2)
    for n in range(4):
        files.apply(ops.Mkdir(0, f"topics/{n}"))
        files.apply(ops.Create(0, f"topics/{n}/topic.json"))
    disk.trace.clear()
    files.make_room(busy=["topics/0", "topics/2"])
    closed = [path for op, path, _ in disk.trace if op == "close"]
    assert closed == [f"{ROOT}/topics/1/topic.json", f"{ROOT}/topics/3/topic.json"]
    files.apply(ops.Write(1, "topics/1/topic.json", 0, b"x"))
    assert shown(disk)["topics/1/topic.json"] == b"x"


def test_redo_upon_a_copy_skips_what_neither_has_in_the_end() -> None:
    disk, files = follower(Copy(0, NEXT, 0, b"of later"))
    files.redo([
        ops.Write(1, LOG, 0, b"x"),  # it was gone when the copy came there
        ops.Sync(2, LOG),
        ops.Unlink(3, LOG),
        ops.Mkdir(4, "topics/u"),
        ops.Rename(5, "topics/v", GRAVE),
        ops.Create(6, "topics/v/topic.json"),
        ops.Write(7, NEXT, 0, b"the same"),
    ])  # fmt: skip
    assert shown(disk) == {NEXT: b"the same", "topics/u/": b""}


def test_redo_makes_a_mark_whose_segment_the_copy_has_under_no_name() -> None:
    disk, files = follower()
    files.redo([ops.Rename(1, LOG, MARK), ops.Truncate(2, MARK, 0)])
    assert shown(disk) == {MARK: b""}


def test_redo_stops_at_an_error_of_the_disk() -> None:
    disk, files = follower(Copy(0, LOG, 0, b"x"))
    disk.fail("pwrite", 1, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        files.redo([ops.Write(1, LOG, 0, b"y")])


def test_after_a_copy_all_that_is_shared_is_on_stable_storage() -> None:
    disk, files = follower(Copy(0, LOG, 0, b"x" * 9000), Copy(0, "webhooks.json", 0, b"{}"))
    files.sync_all()
    for seed in range(30):
        assert shown(disk.peek_crash(random.Random(seed))) == {LOG: b"x" * 9000, "webhooks.json": b"{}"}


def test_what_a_failed_sync_left_in_the_cache_alone_is_written_again() -> None:
    """Found by a simulated cluster (seed 91): a copy whose sync had failed joined again; its file looked equal, but was not on
    its disk."""
    disk, files = follower(Copy(0, LOG, 0, b"x" * 9000))
    disk.sync_dir(f"{ROOT}/{TOPIC}")
    disk.fail("sync", 1, errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        files.sync_all()
    files.sync_all(again={LOG: 9000})
    for seed in range(30):
        assert shown(disk.peek_crash(random.Random(seed))) == {LOG: b"x" * 9000}


# -- what is left to be synced

TOPICS = ("topics/t", "topics/u")
NAMES = (f"{0:020d}.log", f"{9:020d}.log", "offsets.json", "offsets.json.prev")
PATHS = [f"{topic}/{name}" for topic in TOPICS for name in NAMES]
paths, topics = st.sampled_from(PATHS), st.sampled_from(TOPICS)
changes = st.one_of(
    st.builds(ops.Create, st.just(0), paths),
    st.builds(ops.Write, st.just(0), paths, st.integers(0, 9000), st.binary(min_size=1, max_size=5)),
    st.builds(ops.Truncate, st.just(0), paths, st.integers(0, 5000)),
    st.builds(ops.Replace, st.just(0), paths, st.binary(max_size=5)),
    st.builds(ops.Unlink, st.just(0), paths),
    st.builds(ops.Mkdir, st.just(0), topics),
    st.builds(ops.Rmdir, st.just(0), st.sampled_from([*TOPICS, GRAVE])),
    st.builds(lambda topic, names: ops.Rename(0, f"{topic}/{names[0]}", f"{topic}/{names[1]}"), topics,
              st.permutations(NAMES)),
    st.builds(ops.Rename, st.just(0), topics, st.just(GRAVE)),
    st.builds(Copy, st.just(0), paths, st.integers(0, 9000), st.binary(max_size=5)),
    st.sampled_from([*PATHS, *TOPICS, "topics"]),  # a sync
)  # fmt: skip


@settings(max_examples=examples(300))
@given(st.lists(changes, max_size=25), st.booleans(), st.randoms(use_true_random=False))
def test_a_sync_of_what_is_unsynced_leaves_nothing_for_a_power_cut(
    done: "list[Change | Copy | str]", another: bool, rng: random.Random
) -> None:
    """Found: each join of a follower that went on synced all its files, each of them a flush of the disk."""
    disk, files = follower()
    files.sync_all()
    for change in done:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if not isinstance(change, str):
                files.redo([change]) if isinstance(change, Change) else files.apply(change)
            elif change in PATHS:
                files.sync(change)
            else:
                files.sync_dir(change)
    if another:  # the next link goes on where this one ended
        files.close()
        files = ReplicaFiles(disk, ROOT, files.unsynced)
    files.sync_unsynced()
    assert not files.unsynced
    assert shown(disk.crash(rng)) == shown(disk)


def test_a_sync_that_fails_is_not_taken_for_done() -> None:
    """After a failed sync the copy is not trusted any more: it is not known what was not synced."""
    disk, files = follower(Copy(0, LOG, 0, b"abc"))
    files.sync_all()
    files.apply(ops.Write(1, LOG, 0, b"x"))
    assert files.unsynced == {LOG}
    disk.fail("sync", 1, errno.EIO)
    with pytest.raises(OSError, match=str(errno.EIO)):
        files.sync_unsynced()
    assert files.unsynced == {LOG}


def test_only_what_is_unsynced_is_opened() -> None:
    files = follower(Copy(0, LOG, 0, b"abc"), Copy(0, NEXT, 0, b"def"))[1]
    files.sync_all()
    files.apply(ops.Write(1, NEXT, 0, b"x"))
    seen: list[str] = []
    files.sync_unsynced(lambda: seen.append("step"))
    assert len(seen) == 1
