"""DELETE, and files that are left of a topic. Contract: storage.md, "Retention" (its last paragraph)."""

import errno
import gc
import os
import random
import shutil
import stat
import weakref
from pathlib import Path

import pytest

from tests.support.broker_rig import BrokerRig
from tests.support.fake_clock import FakeClock
from tests.support.sim_loop import SimLoop
from toymq_py.broker import Broker
from toymq_py.config.options import BrokerOptions
from toymq_py.errors import (
    DataDirectoryError,
    NoSuchTopic,
    StorageFailed,
)
from toymq_py.storage.commit.batch import CommitState
from toymq_py.storage.fs import RealFileSystem
from toymq_py.storage.offline.backup import back_up
from toymq_py.storage.offline.repair import repair
from toymq_py.storage.offline.restore import restore
from toymq_py.storage.offline.verify import verify
from toymq_py.storage.segment import segment_name

FIRST = segment_name(0)


def test_delete_counts_and_a_new_topic_begins_anew() -> None:
    rig = BrokerRig()
    rig.publish("t", b"a", b"b", key=b"k")
    rig.subscribe("t")
    rig.flush("t")
    assert rig.delete("t") == 1
    assert rig.ended == ["DELETED"]
    with pytest.raises(NoSuchTopic):
        rig.broker.topic("t")
    outcome = rig.publish("t", b"c", key=b"k")[0]
    assert (outcome.first_id, outcome.duplicate) == (0, False)
    rig.reopen(power_cut=True)
    assert rig.broker.topic("t").log.committed_id == 1
    assert not rig.broker.topic("t").consumers
    assert not [path for path in rig.disk.snapshot() if ".deleted" in path]


def test_delete_of_a_topic_that_never_was_on_disk() -> None:
    rig = BrokerRig()
    rig.broker.topic_or_new("t")
    assert rig.delete("t") == 0


def test_delete_gives_back_the_segment_that_was_made_ahead() -> None:
    """Found by the soak: the file was held open for ever, with its space and a descriptor."""
    rig = BrokerRig(segment_bytes=2 << 20)
    before = rig.disk.used_bytes
    rig.publish("t", bytes(1_700_000))
    rig.loop.advance(0)
    assert any(name.startswith("next-") for name in rig.files("t")), "the next segment was to be made ahead"
    assert rig.delete("t") == 1
    assert rig.disk.used_bytes == before


def test_a_deleted_topic_is_let_go_of() -> None:
    """No timer keeps the topic in memory until its retention time ends."""
    rig = BrokerRig(retain_acked_for_ms=24 * 3_600_000)
    rig.publish("t", b"a")
    subscription = rig.subscribe("t", visibility_s=10)
    assert rig.take(subscription)
    rig.ack("t", 0, 0)
    topic = weakref.ref(rig.broker.topic("t"))
    del subscription
    rig.delete("t")
    rig.woken.clear()
    rig.advance(20)
    gc.collect()
    assert topic() is None, "something keeps it"


def test_delete_waits_for_the_commit_in_flight() -> None:
    rig = BrokerRig()
    outcome = rig.broker.topic_or_new("t").publisher.publish([b""], [b"a"])[0]
    answers: list[int] = []
    rig.broker.delete("t", lambda count, error: answers.append(count))
    refused = rig.broker.topics["t"].publisher.publish([b""], [b"b"])[0]
    assert isinstance(refused.error, NoSuchTopic)
    rig.loop.advance(0)
    assert outcome.commit.state is CommitState.DONE
    assert answers == [1]


def test_a_topic_that_is_being_deleted_takes_nothing() -> None:
    rig = BrokerRig()
    rig.publish("t", b"a")
    rig.broker.delete("t", lambda count, error: None)
    assert rig.change("configure", "t", visibility="1") == "NO_SUCH_TOPIC"


def test_create_and_delete_of_a_topic_that_is_being_deleted() -> None:
    rig = BrokerRig()
    rig.publish("t", b"a")
    rig.broker.delete("t", lambda count, error: None)
    with pytest.raises(NoSuchTopic, match="being deleted"):
        rig.broker.delete("t", lambda count, error: None)
    assert rig.change("create", "t") == "NO_SUCH_TOPIC"
    told: list[object] = []
    rig.loop.advance(0)
    assert rig.change("create", "t") == "OK", "it is gone by now"
    topic = rig.broker.topic("t")
    rig.broker.delete("t", lambda count, error: None)
    topic.flush_offsets(told.append)
    assert isinstance(told[0], NoSuchTopic)


def test_delete_behind_a_change_of_settings() -> None:
    rig = BrokerRig()
    rig.publish("t", b"a")
    told: list[object] = []
    rig.broker.configure("t", {"visibility": "1"}, told.append)
    rig.broker.delete("t", lambda count, error: told.append(count))
    rig.loop.advance(0)
    assert told == [None, 1]
    assert not rig.files("t")


def test_a_delete_that_fails_leaves_the_data_and_the_name() -> None:
    rig = BrokerRig()
    rig.publish("t", b"a", b"b")
    rig.disk.fail("rename", 1, errno.EIO, path="topics/t")
    assert rig.delete("t") == "Input/output error"
    with pytest.raises(StorageFailed, match="could not be deleted"):  # nothing new is written over what is there
        rig.publish("t", b"c")
    rig.reopen()
    assert rig.broker.topic("t").log.committed_id == 2
    assert rig.delete("t") == 2


def test_what_cannot_be_unlinked_goes_at_the_next_start() -> None:
    rig = BrokerRig()
    rig.publish("t", b"a")
    rig.disk.fail("unlink", 1, errno.EIO)
    assert rig.delete("t") == 1
    assert [path for path in rig.disk.snapshot() if ".deleted" in path]
    rig.publish("t", b"new")
    rig.reopen()
    assert not [path for path in rig.disk.snapshot() if ".deleted" in path]
    assert rig.broker.topic("t").log.committed_id == 1


def modes(root: Path) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in [root, *root.rglob("*")]}


def served(data: Path) -> tuple[Broker, SimLoop]:
    clock = FakeClock()
    loop = SimLoop(clock, random.Random(1))
    options = BrokerOptions(data_dir=str(data), min_free_bytes=0, segment_bytes=4096)
    broker = Broker(options, fs=RealFileSystem(), scheduler=loop, clock=clock)
    broker.open(1)
    return broker, loop


def publish(broker: Broker, loop: SimLoop, *payloads: bytes) -> None:
    for payload in payloads:
        broker.topic_or_new("orders").publisher.publish([b""], [payload])
        loop.drain()


def test_what_it_makes_is_its_owners_alone_whatever_the_umask(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = tmp_path / "data"
    before = os.umask(0)
    try:
        broker, loop = served(data)
        done: list[object] = []
        broker.create("orders", {"ttl": "5000000"}, done.append)
        broker.directory.store_webhooks({}, done.append)
        for _ in range(4):
            broker.topics["orders"].publisher.publish([b"k"], [b"x" * 3000])
            broker.topics["orders"].publisher.publish([b""], [b"x" * 3000])
            loop.drain()
        broker.topics["orders"].flush_offsets(done.append)
        loop.advance(1)
        assert done == [None, None, None]
        broker.close()
        back_up(RealFileSystem(), str(data), str(tmp_path / "backup"), pid=1, wall_ns=1)
        restore(RealFileSystem(), str(tmp_path / "backup"), str(tmp_path / "new"), pid=1)
        log = next((tmp_path / "new/topics/orders").glob("*.log"))
        log.write_bytes(b"!" + log.read_bytes()[1:])
        assert list(repair(RealFileSystem(), str(tmp_path / "new"), pid=1))
    finally:
        os.umask(before)
    assert {path.suffix for path in data.rglob("*.*")} >= {".log", ".idx", ".json"}
    assert modes(data) | modes(tmp_path / "backup") | modes(tmp_path / "new") == {0o600, 0o700}
    assert "other users" not in caplog.text


def test_a_directory_that_others_can_read_is_left_and_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = tmp_path / "data"
    for directory in (data, data / "topics"):
        directory.mkdir(mode=0o755)
        directory.chmod(0o755)
    broker, _ = served(data)
    broker.close()
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        f"{data}: other users of this machine can read it, an older version made it so: `chmod -R go= {data}`"
    ]
    assert modes(data / "topics") == {0o755}
    (data / "topics").chmod(0o700)
    caplog.clear()
    served(data)[0].close()
    assert not caplog.records, "others do not get below it"


@pytest.mark.parametrize(("mode", "said"), [(0o777, True), (0o770, True), (0o1777, True), (0o2770, False), (0o755, False)])
def test_a_directory_in_which_others_can_rename_is_said(
    mode: int, said: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Found by a trial: another user renamed ``topics``, which was its owner's alone. 2770 is a volume for a fsGroup."""
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(mode)
    for _ in range(2):
        served(data)[0].close()
    says = f"{data}: other users of this machine can change what is in it (mode {mode:04o}): `chmod go-w {data}`"
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [says] * 2 * said


@pytest.mark.parametrize("first", ["the copy", "the original"])
def test_a_directory_and_its_hard_linked_copy_do_not_write_into_the_same_file(
    first: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Found: after `cp -al` without LOCK two brokers appended to the same file, each over the other's records."""
    data, copy = tmp_path / "data", tmp_path / "copy"
    broker, loop = served(data)
    publish(broker, loop, b"1", b"2", b"3" * 3000, b"4" * 3000)
    if first == "the original":
        broker.close()
    shutil.copytree(data, copy, copy_function=os.link, ignore=shutil.ignore_patterns("LOCK"))
    active = data / "topics/orders" / segment_name(3)
    assert active.samefile(copy / "topics/orders" / active.name)
    if first == "the original":
        broker, loop = served(data)  # the copy is a backup, and stays as it is
    other, loop_of_other = served(copy)
    assert "had other names, hard links: it is a copy now" in caplog.text
    publish(broker, loop, b"of the original")
    publish(other, loop_of_other, b"of the copy", b"another")
    broker.close()
    other.close()
    assert (data / "topics/orders" / segment_name(0)).samefile(copy / "topics/orders" / segment_name(0)), "sealed: it stays one"
    for path, last in (data, [b"of the original"]), (copy, [b"of the copy", b"another"]):
        reports = [*verify(RealFileSystem(), str(path))]
        assert not any(report.damaged for report in reports), reports
        broker, _ = served(path)
        run, row, _ = broker.topic("orders").log.read(4, 100)
        broker.close()
        assert run is not None
        assert run.payloads[row:] == last


def test_root_serves_the_directory_of_another_user_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container's volume may belong to another user on purpose, so this is not an error as it is for `toymq repair`."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(RealFileSystem, "owner", lambda fs, path: 4711)
    data = tmp_path / "data"
    served(data)[0].close()
    assert not caplog.records, "root has made it"
    served(data)[0].close()
    (warning,) = caplog.records
    assert warning.getMessage() == (
        f"{data} belongs to user 4711, whose broker cannot read what root writes there: `chown -R` it before that user's "
        "broker starts again"
    )


@pytest.mark.parametrize("name", ["partitions.json", "moves.json"])
def test_a_file_without_which_no_broker_starts_is_named_with_the_remedy(name: str) -> None:
    """Found: for ``moves.json`` the error had neither the name nor the remedy."""
    rig = BrokerRig()
    rig.disk = rig.disk.kill()
    rig.put(name, b"{")
    with pytest.raises(DataDirectoryError, match=rf"is damaged: .* \({name}: see `toymq verify` and `toymq repair`\)$"):
        rig.restart()
