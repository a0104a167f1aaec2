"""Which operation each change of the leader's disk becomes, and its order relative to the change itself."""

import errno
import random
import subprocess
import sys

import pytest

from tests.support.broker_process import environment
from tests.support.sim_disk import SimDisk
from toymq_py.replication.operations import Operation
from toymq_py.replication.shipping_fs import ShippingFileSystem
from toymq_py.replication.stream import Frame, Stream
from toymq_py.replication.tickets import Tickets
from toymq_py.storage import offsets
from toymq_py.storage.dirlock import DirectoryLock
from toymq_py.storage.fs import remove_tree, replace_file, write_all

ROOT = "/data/d"
TOPIC = f"{ROOT}/topics/t"
SHARED = "topics/t/00000000000000000000.log"
LOG = f"{ROOT}/{SHARED}"


class Rig:
    """A leader's file system, and a follower's operations; ``saw`` is what was on the leader's disk at each operation."""

    def __init__(self, *, copying: bool = False) -> None:
        self.copying = copying
        self.disk = SimDisk(random.Random(1))
        self.tickets = Tickets()
        self.stream = Stream(self.tickets)
        self.fs = ShippingFileSystem(self.disk, ROOT, self.stream)
        self.operations: list[Operation] = []
        self.saw: list[dict[str, bytes]] = []
        self.disk.mkdir(ROOT)
        for path in (f"{ROOT}/topics", TOPIC):
            self.fs.mkdir(path)
        self.stream.attach(self)

    def put(self, operation: Operation, frame: Frame) -> None:
        self.operations.append(operation)
        self.saw.append(self.disk.snapshot())

    def named(self) -> list[str]:
        """Return the operations since the last call: name, path below the topic's directory, and further fields."""
        found = []
        for operation in self.operations:
            fields = [getattr(operation, name) for name in operation.__slots__ if name != "seq"]
            shown = [str(field).removeprefix("topics/t/") for field in fields]
            found.append(" ".join([type(operation).__name__, *shown]))
        self.operations.clear()
        return found


def test_a_write_a_cut_and_a_sync_are_sent_when_they_begin() -> None:
    rig = Rig()
    file = rig.fs.open(LOG, create=True)
    write_all(file, b"abcdef", 0)
    file.truncate(3)
    file.sync()
    file.allocate(3, 1000)
    assert [saw.get(LOG) for saw in rig.saw] == [b"", b"", b"abcdef", b"abc"]
    log = "00000000000000000000.log"
    assert rig.named() == [f"Create {log}", f"Write {log} 0 b'abcdef'", f"Truncate {log} 3", f"Sync {log}"]
    assert rig.stream.is_done(rig.stream.last)


def test_a_change_of_a_name_is_sent_when_it_has_succeeded() -> None:
    rig = Rig()
    rig.fs.open(f"{TOPIC}/offsets.json", create=True)
    rig.fs.rename(f"{TOPIC}/offsets.json", f"{TOPIC}/offsets.json.prev")
    rig.fs.unlink(f"{TOPIC}/offsets.json.prev")
    rig.fs.mkdir(f"{ROOT}/topics/u")
    rig.fs.rename(f"{ROOT}/topics/u", f"{ROOT}/topics/.deleted-0")
    rig.fs.rmdir(f"{ROOT}/topics/.deleted-0")
    rig.fs.sync_dir(TOPIC)
    always = {"/", "/data/", f"{ROOT}/", f"{ROOT}/topics/", f"{TOPIC}/", ""}
    names = [[path.removeprefix(f"{ROOT}/topics/") for path in saw if path not in always] for saw in rig.saw]
    assert names == [["t/offsets.json"], ["t/offsets.json.prev"], [], ["u/"], [".deleted-0/"], [], []]
    assert rig.named() == [
        "Create offsets.json", "Rename offsets.json offsets.json.prev", "Unlink offsets.json.prev", "Mkdir topics/u",
        "Rename topics/u topics/.deleted-0", "Rmdir topics/.deleted-0", "SyncDir topics/t",
    ]  # fmt: skip


@pytest.mark.parametrize("op", ["open", "mkdir", "rename", "unlink", "rmdir"])
def test_a_change_of_a_name_that_fails_here_never_happened_elsewhere(op: str) -> None:
    rig = Rig()
    fs = rig.fs
    fs.open(f"{TOPIC}/offsets.json", create=True).close()
    fs.mkdir(f"{ROOT}/topics/.deleted-0")
    rig.named()
    rig.disk.fail(op, 1, errno.EIO)
    calls = {
        "open": lambda: fs.open(LOG, create=True),
        "mkdir": lambda: fs.mkdir(f"{ROOT}/topics/u"),
        "rename": lambda: fs.rename(f"{TOPIC}/offsets.json", f"{TOPIC}/offsets.json.prev"),
        "unlink": lambda: fs.unlink(f"{TOPIC}/offsets.json"),
        "rmdir": lambda: fs.rmdir(f"{ROOT}/topics/.deleted-0"),
    }
    with pytest.raises(OSError, match="Input/output"):
        calls[op]()
    assert rig.named() == []


@pytest.mark.parametrize("op", ["pwrite", "truncate", "sync", "sync_dir"])
def test_what_fails_after_it_was_sent_is_raised_and_holds_up_no_copy(op: str) -> None:
    rig = Rig()
    file = rig.fs.open(LOG, create=True)
    rig.named()
    rig.disk.fail(op, 1, errno.EIO)
    calls = {
        "pwrite": lambda: file.pwrite(b"x", 0), "truncate": lambda: file.truncate(0), "sync": file.sync,
        "sync_dir": lambda: rig.fs.sync_dir(TOPIC),
    }  # fmt: skip
    with pytest.raises(OSError, match="Input/output"):
        calls[op]()
    assert len(rig.named()) == 1
    assert rig.stream.is_done(rig.stream.last)


def test_a_replaced_file_is_one_operation_and_its_temporary_file_none() -> None:
    rig = Rig()
    for content in (b"one", b"two"):
        replace_file(rig.fs, f"{TOPIC}/topic.json", content)
        replace_file(rig.fs, f"{ROOT}/webhooks.json", content, private=True)
    once = ["Replace topic.json b'%s'", "SyncDir topics/t", "Replace webhooks.json b'%s'", "SyncDir "]
    assert rig.named() == [line.replace("%s", content) for content in ("one", "two") for line in once]
    assert rig.fs.read_file(f"{TOPIC}/topic.json") == b"two"


def test_a_failed_replacement_is_not_sent() -> None:
    rig = Rig()
    rig.disk.fail("sync", 1, errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        replace_file(rig.fs, f"{TOPIC}/topic.json", b"one")
    assert rig.named() == []
    replace_file(rig.fs, f"{TOPIC}/topic.json", b"two")
    assert rig.named() == ["Replace topic.json b'two'", "SyncDir topics/t"]


def test_a_temporary_file_of_before_is_sent_as_it_is_on_the_disk() -> None:
    rig = Rig()
    write_all(rig.disk.open(f"{TOPIC}/topic.json.tmp", create=True), b"old", 0)
    rig.fs.rename(f"{TOPIC}/topic.json.tmp", f"{TOPIC}/topic.json")
    assert rig.named() == ["Replace topic.json b'old'"]


def test_a_temporary_file_that_is_cut_and_written_in_parts_is_sent_as_it_is() -> None:
    rig = Rig()
    file = rig.fs.open(f"{TOPIC}/topic.json.tmp", create=True)
    write_all(file, b"abcdef", 0)
    file.truncate(2)
    write_all(file, b"z", 4)
    file.truncate(6)
    rig.fs.rename(f"{TOPIC}/topic.json.tmp", f"{TOPIC}/topic.json")
    assert rig.named() == [f"Replace topic.json {rig.disk.read_file(f'{TOPIC}/topic.json')!r}"]


def test_a_segment_made_ahead_is_created_with_its_name() -> None:
    rig = Rig()
    file = rig.fs.open(f"{TOPIC}/next-1.tmp", create=True, exclusive=True)
    file.allocate(0, 100_000)
    file.sync()
    assert rig.named() == []
    rig.fs.rename(file.path, LOG)
    file.path = LOG
    write_all(file, b"x", 0)
    log = "00000000000000000000.log"
    assert rig.named() == [f"Create {log}", f"Truncate {log} 0", f"Write {log} 0 b'x'"]
    assert file.path == LOG
    assert file.size() == 100_000


def test_offsets_keep_their_two_generations() -> None:
    rig = Rig()
    for data in (b"one", b"two"):
        offsets.write(rig.fs, TOPIC, data)
    assert rig.named() == [
        "Mkdir topics/t", "SyncDir topics", "Replace offsets.json b'one'", "SyncDir topics/t", "Create has-offsets",
        "Rename offsets.json offsets.json.prev", "Replace offsets.json b'two'", "SyncDir topics/t",
    ]  # fmt: skip


def test_a_directory_in_the_place_of_a_file_is_moved_away_here_alone() -> None:
    """Found: a single broker moved it away, but in a cluster neither generation of the offsets was written: ADR 0240."""
    rig = Rig()
    rig.disk.mkdir(f"{TOPIC}/offsets.json.prev")
    for data in (b"one", b"two"):
        offsets.write(rig.fs, TOPIC, data)
    assert rig.disk.is_dir(f"{TOPIC}/offsets.json.prev.damaged")
    assert rig.disk.read_file(f"{TOPIC}/offsets.json.prev") == b"one"
    assert [each for each in rig.named() if "damaged" in each or "prev" in each] == ["Rename offsets.json offsets.json.prev"]


def test_while_a_follower_copies_a_renamed_file_goes_whole() -> None:
    """The copy may already have ``offsets.json`` from after the rename: a plain rename would lose the older generation
    there."""
    rig = Rig(copying=True)
    for data in (b"one", b"two"):
        offsets.write(rig.fs, TOPIC, data)
    assert rig.named()[-4:] == [
        "Replace offsets.json.prev b'one'", "Unlink offsets.json", "Replace offsets.json b'two'", "SyncDir topics/t",
    ]  # fmt: skip
    write_all(rig.fs.open(LOG, create=True), b"x", 0)
    rig.named()
    rig.fs.rename(LOG, f"{TOPIC}/{0:020d}-{3:020d}.removed")
    assert rig.named() == [f"Rename {0:020d}.log {0:020d}-{3:020d}.removed"], "its content does not count"


def test_what_is_a_replicas_own_is_not_sent() -> None:
    rig = Rig()
    fs = rig.fs
    lock = DirectoryLock.take(fs, ROOT, 7)
    fs.mkdir(f"{ROOT}/spool")
    fs.open(f"{ROOT}/spool/1", create=True)
    replace_file(fs, f"{ROOT}/replica.json", b"{}")
    fs.open(f"{TOPIC}/notes.txt", create=True)
    fs.rename(f"{TOPIC}/notes.txt", f"{TOPIC}/notes2.txt")
    fs.unlink(f"{TOPIC}/notes2.txt")
    fs.sync_dir("/data")
    fs.sync_dir(f"{ROOT}/spool")
    fs.rename(f"{ROOT}/spool", f"{ROOT}/replaced")
    lock.release()
    assert rig.named() == ["SyncDir "], "the directory of replica.json is shared"


def test_a_deleted_topic_goes_file_by_file_and_what_is_not_shared_with_it() -> None:
    rig = Rig()
    rig.fs.open(LOG, create=True)
    rig.fs.open(f"{TOPIC}/next-1.tmp", create=True)
    rig.fs.mkdir(f"{TOPIC}/notes")
    grave = f"{ROOT}/topics/.deleted-7"
    rig.fs.rename(TOPIC, grave)
    remove_tree(rig.fs, grave)
    assert rig.named()[1:] == [
        "Rename topics/t topics/.deleted-7", "Unlink topics/.deleted-7/00000000000000000000.log", "Rmdir topics/.deleted-7",
    ]  # fmt: skip


def test_a_change_that_the_stream_cannot_say_is_refused_before_it_happens() -> None:
    rig = Rig()
    rig.fs.open(LOG, create=True)
    rig.fs.mkdir(f"{ROOT}/topics/u")
    rig.named()
    for call in (
        lambda: rig.fs.rename(LOG, f"{ROOT}/topics/u/00000000000000000000.log"),
        lambda: rig.fs.rename(LOG, f"{TOPIC}/notes.txt"),
        lambda: rig.fs.rename(f"{ROOT}/topics/u", f"{ROOT}/topics/v"),
        lambda: rig.fs.rmdir(f"{ROOT}/topics/u"),
    ):
        with pytest.raises(PermissionError, match="replicas have no operation"):
            call()
    assert rig.named() == []
    assert rig.fs.listdir(f"{ROOT}/topics") == ["t", "u"]
    assert rig.fs.exists(LOG)


def test_a_content_that_is_too_long_for_one_operation_is_refused_before_it_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    monkeypatch.setattr("toymq_py.replication.shipping_fs.REPLACE_BYTES_MAX", 10)
    with pytest.raises(OSError, match="11 bytes exceed the 10 that replicas replace at once") as raised:
        replace_file(rig.fs, f"{TOPIC}/topic.json", bytes(11))
    assert raised.value.errno == errno.EFBIG
    assert rig.named() == []
    assert rig.fs.listdir(TOPIC) == []


def test_a_job_waits_for_what_it_synced_and_shared() -> None:
    rig = Rig()
    rig.tickets.require(["f"])

    def own() -> None:
        replace = rig.fs.open(f"{TOPIC}/topic.json.tmp", create=True)
        replace.sync()

    assert rig.tickets.run(own) is None
    ticket = rig.tickets.run(lambda: replace_file(rig.fs, f"{TOPIC}/topic.json", b"x"))
    assert ticket is not None
    assert list(ticket.acked) == [rig.stream.last]


def test_files_that_are_only_read_are_those_of_the_disk_below() -> None:
    rig = Rig()
    rig.fs.open(LOG, create=True).close()
    assert type(rig.fs.open(LOG, write=False)) is type(rig.disk.open(LOG, write=False))


def test_a_single_node_loads_nothing_of_replication() -> None:
    """``toymq serve`` without ``--cluster`` imports no replication module either, up to where the broker opens its
    directory."""
    loaded = "import sys, toymq_py.cli.serve, toymq_py.daemon, toymq_py.embedded; print(*sorted(sys.modules))"
    served = (
        "import sys; from toymq_py import daemon; daemon.serve = lambda *_: print(*sorted(sys.modules));"
        " from toymq_py.cli import main; main(['serve', '--config', '/dev/null'])"
    )
    for program in (loaded, served):
        command = [sys.executable, "-c", program]
        said = subprocess.run(command, capture_output=True, text=True, check=True, env=environment()).stdout
        assert "toymq_py.storage.fs" in said.split()
        assert [name for name in said.split() if name.startswith(("toymq_py.replication", "toymq_py.cluster"))] == []
