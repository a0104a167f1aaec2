"""What is reported when a topic is opened, and that the others are served. Contract: storage.md, "Recovery"."""

import errno
import logging
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.broker_rig import DIR, BrokerRig
from tests.support.fake_clock import FakeClock
from tests.support.sim_loop import SimLoop
from toymq_py.broker import Broker
from toymq_py.config.options import BrokerOptions
from toymq_py.errors import DataDirectoryError, StorageFailed
from toymq_py.storage.fs import FileSystem, RealFileSystem
from toymq_py.storage.offline.repair import repair
from toymq_py.storage.offline.verify import verify
from toymq_py.storage.segment import segment_name
from toymq_py.topic.publisher import Refused

FIRST = segment_name(0)


def stop(rig: BrokerRig) -> None:
    rig.broker.stop_deliveries()
    rig.broker.finish(rig.broker.close)
    rig.loop.advance(0)


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"colour": 1}', b'{"visibility": -1}', b"\xff"])
def test_a_topic_whose_settings_cannot_be_read_is_degraded_and_goes_on(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """Found: the topic was closed, with all of its intact records."""
    rig = BrokerRig()
    rig.publish("t", b"x")
    rig.put("topics/t/topic.json", data)
    rig.reopen()
    assert "topic t is degraded: its settings cannot be trusted: topic.json: " in caplog.text
    assert rig.publish("t", b"y")[0].first_id == 1
    (found,) = rig.broker.describe("t")
    assert (found["state"], found["settings_problem"].split(":")[0], found["settings"]) == ("degraded", "topic.json", {})
    assert rig.change("create", "t") == "EXISTS", "an application that creates its topics at its start confirms nothing"
    assert rig.broker.topic("t").state == "degraded"
    assert rig.change("configure", "t", visibility="default") == "OK"
    (found,) = rig.broker.describe("t")
    assert (found["state"], "settings_problem" in found) == ("ok", False), "they are said anew"
    rig.reopen()
    assert rig.broker.topic("t").state == "ok"


def test_a_topic_that_has_the_settings_of_another_one_removes_nothing() -> None:
    """Found: when two topics' topic.json were exchanged, one topic's limit dropped messages that the other was to keep, and
    every check was ok."""
    rig = BrokerRig(segment_bytes=4096)
    rig.change("create", "cache", retain_max_bytes="1")
    rig.change("create", "money", retain_acked_for="604800000")
    for _ in range(30):
        rig.publish("money", b"m" * 500)
    data = {name: rig.disk.read_file(f"{DIR}/topics/{name}/topic.json") for name in ("cache", "money")}
    rig.put("topics/money/topic.json", data["cache"])
    rig.put("topics/cache/topic.json", data["money"])
    rig.reopen()
    money = rig.broker.topic("money")
    money.retention.apply()
    assert (money.state, money.first_id, money.retention.dropped_total) == ("degraded", 0, 0)
    assert money.settings_queue.problem == "topic.json: these are the settings of topic 'cache'"
    assert rig.change("configure", "money", retain_max_bytes="1") == "OK"
    assert money.first_id > 0


def test_strict_recovery_does_not_start_without_a_topic() -> None:
    rig = BrokerRig(strict_recovery=True)
    rig.publish("t", b"x")
    rig.put("topics/t/topic.json", b"{")
    with pytest.raises(DataDirectoryError, match=r"topic t: topic\.json: .*, and --strict-recovery is on"):
        rig.reopen()


def test_a_log_that_the_disk_refuses_closes_that_topic_alone() -> None:
    rig = BrokerRig()
    rig.publish("t", b"x")
    rig.publish("other", b"x")
    rig.disk = rig.disk.kill()
    rig.disk.fail("pread", 1, errno.EIO, sticky=True, path="/t/")
    rig.restart()
    (refused,) = rig.publish("t", b"y")
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, StorageFailed)
    assert not isinstance(rig.publish("other", b"y")[0], Refused)
    assert {found["topic"]: found["state"] for found in rig.broker.describe(None)} == {"other": "ok", "t": "failed"}
    rig.reopen()
    assert rig.broker.topic("t").log.committed_id == 1


def test_a_topic_whose_directory_the_disk_refuses_is_closed_alone() -> None:
    rig = BrokerRig()
    for topic in ("t", "other"):
        rig.publish(topic, b"x")
    rig.disk = rig.disk.kill()
    rig.disk.fail("listdir", 1, errno.EIO, sticky=True, path=f"{DIR}/topics/t")
    rig.restart()
    with pytest.raises(StorageFailed):
        rig.broker.topic("t")
    assert rig.change("create", "t") == "STORAGE_FAILED"
    assert rig.publish("other", b"y")[0].first_id == 1
    assert [(found["topic"], found["state"]) for found in rig.broker.describe(None)] == [("other", "ok"), ("t", "failed")]
    assert [found["topic"] for found in rig.broker.describe("t*"[:1])] == ["t"]
    assert [found["topic"] for found in rig.broker.describe("*")] == ["other", "t"]


def with_hole(**options: object) -> BrokerRig:
    rig = BrokerRig(**options)
    rig.publish("t", b"a", b"b" * 50, b"c")
    rig.disk.open(f"{DIR}/topics/t/{FIRST}").pwrite(b"\xff", 31 + 60)
    return rig


def test_a_hole_degrades_the_topic_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    rig = with_hole()
    rig.publish("other", b"x")
    with caplog.at_level(logging.ERROR):
        rig.reopen()
    assert (rig.broker.topic("t").state, rig.broker.topic("other").state) == ("degraded", "ok")
    assert "topic t is degraded: 1 record is lost" in caplog.text
    assert rig.take(rig.subscribe("t")) == [(0, 1), (2, 1)]
    described = rig.broker.topic("t").describe()
    assert (described["lost"], described["messages"], described["state"]) == (1, 2, "degraded")


def test_strict_recovery_does_not_start_on_a_hole() -> None:
    rig = with_hole(strict_recovery=True)
    with pytest.raises(DataDirectoryError, match="record 1 is lost, and --strict-recovery"):
        rig.reopen()


def test_an_id_is_never_used_twice_although_the_log_lost_its_end() -> None:
    rig = BrokerRig()
    rig.publish("t", b"a", b"b", b"c")
    rig.take(rig.subscribe("t"))
    rig.ack("t", 0, 1)
    rig.disk.open(f"{DIR}/topics/t/{FIRST}").truncate(31)
    rig.reopen()
    assert rig.broker.topic("t").log.lost == [(1, 2)]
    assert rig.publish("t", b"d")[0].first_id == 3
    assert rig.take(rig.subscribe("t")) == [(3, 1)]
    assert segment_name(3) in rig.files("t")


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff" * 200])
def test_damaged_heads_of_segments_are_said_by_broker_and_verify_alike(damage: bytes) -> None:
    """Found: verify reported damage and the broker ok. If a segment is missing at an end, too, only the heads may tell."""
    rig = BrokerRig()
    for _ in range(4):
        rig.publish("t", b"x" * 3000)
    stop(rig)
    rig.put("topics/t/segments.json", damage)
    (report,) = verify(rig.disk, DIR)
    rig.restart()
    assert (report.damaged, rig.broker.topic("t").state) == (True, "degraded")
    rig.publish("t", b"x" * 3000)  # behind a commit they are made anew
    stop(rig)
    (report,) = verify(rig.disk, DIR)
    rig.restart()
    assert (report.damaged, rig.broker.topic("t").state) == (False, "ok")
    stop(rig)
    rig.put("topics/t/segments.json", damage)
    rig.options = replace(rig.options, strict_recovery=True)
    with pytest.raises(DataDirectoryError, match=r"is damaged: .*segments\.json.*, and --strict-recovery is on"):
        rig.restart()


def test_a_missing_offsets_file_is_said_by_broker_and_verify_alike() -> None:
    """Found: verify and repair found no damage, but the broker was degraded and doctor failed."""
    rig = BrokerRig()
    rig.publish("t", b"x")
    for msg_id in range(2):
        rig.publish("t", b"x")
        rig.take(rig.subscribe("t"))
        rig.ack("t", msg_id, msg_id)
        rig.flush("t")
    stop(rig)
    rig.disk.unlink(f"{DIR}/topics/t/offsets.json")
    (report,) = verify(rig.disk, DIR)
    assert report.damaged
    (repaired,) = repair(rig.disk, DIR, pid=9)
    assert repaired.notes == ["offsets.json: the file is missing; taken is its previous generation"]
    assert not any(report.damaged for report in verify(rig.disk, DIR))
    rig.restart()
    assert rig.broker.topic("t").state == "ok"


# -- topics are recovered side by side


class SyncsInPairs(RealFileSystem):
    """A disk on which a sync of a topic's directory ends when two are under way."""

    def __init__(self) -> None:
        self._two = threading.Barrier(2)

    def sync_dir(self, path: str) -> None:
        if "/topics/" in path:
            self._two.wait(timeout=30)
        super().sync_dir(path)


class SyncsFail(RealFileSystem):
    """A disk on which syncs of two topics' directories fail."""

    def sync_dir(self, path: str) -> None:
        if path.endswith(("/t3", "/t49")):
            raise OSError(errno.EIO, "no", path)
        super().sync_dir(path)


@contextmanager
def opened(root: Path, fs: FileSystem, threads: int, *, strict: bool = False) -> Iterator[Broker]:
    options = BrokerOptions(data_dir=str(root), min_free_bytes=0, strict_recovery=strict)
    loop = SimLoop(FakeClock(), random.Random(1))
    broker = Broker(options, fs=fs, scheduler=loop, clock=FakeClock(), recovery_threads=threads)
    broker.open(1)
    yield broker
    broker.close()


def directory_of(root: Path, topics: int) -> Path:
    """Return a directory of so many topics with one message each."""
    loop = SimLoop(FakeClock(), random.Random(1))
    broker = Broker(BrokerOptions(data_dir=str(root), min_free_bytes=0), fs=RealFileSystem(), scheduler=loop, clock=FakeClock())
    broker.open(1)
    for number in range(topics):
        broker.topic_or_new(f"t{number}").publisher.publish([b""], [b"of %d" % number])
    loop.drain()
    broker.close()
    return root


def test_syncs_of_several_topics_are_under_way_at_once(tmp_path: Path) -> None:
    """Found: with two thousand topics a start made 4,000 syncs, one after the other, before it served anything."""
    with opened(directory_of(tmp_path, 6), SyncsInPairs(), threads=2) as broker:
        assert [*broker.topics] == [f"t{number}" for number in range(6)], "in order"
        assert all(topic.next_id == 1 for topic in broker.topics.values())


@pytest.mark.parametrize("threads", [0, 1, 8])
def test_a_topic_that_fails_closes_no_other_however_many_threads_there_are(tmp_path: Path, threads: int) -> None:
    directory_of(tmp_path, 50)
    with opened(tmp_path, SyncsFail(), threads) as broker:
        assert broker.unopened.keys() == {"t3", "t49"}
        assert len(broker.topics) == 48
    with pytest.raises(DataDirectoryError, match=f"{tmp_path}.*topics/t3"), opened(tmp_path, SyncsFail(), threads, strict=True):
        pass
