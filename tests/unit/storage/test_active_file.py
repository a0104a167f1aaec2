"""An active segment that was truncated by another program while the broker runs, and written to since. ADR 0140."""

import os
from pathlib import Path

import pytest

from tests.support.broker_rig import DIR, BrokerRig
from toymq_py.storage.active_file import find_cut
from toymq_py.storage.fs import RealFileSystem
from toymq_py.storage.offline.verify import verify
from toymq_py.storage.segment import segment_name

PATH = f"{DIR}/topics/a/{segment_name(0)}"


def cut(rig: BrokerRig, size: int) -> None:
    file = rig.disk.open(PATH)
    file.truncate(size)
    file.close()


def look(rig: BrokerRig) -> None:
    rig.broker.check_directory()
    rig.loop.drain()


def filled(segment_bytes: int = 1 << 20) -> BrokerRig:
    """Return a broker with topic a, whose active segment has 60,000 bytes, all written since the last check."""
    rig = BrokerRig(segment_bytes=segment_bytes)
    for n in range(60):
        rig.publish("a", bytes([n + 1]) * 1000)
    return rig


@pytest.mark.parametrize("off", [20_000, 30_000, 60_000])
def test_one_that_was_cut_and_written_to_since_closes_its_topic(off: int, caplog: pytest.LogCaptureFixture) -> None:
    """Found: the next commit wrote at its own offset, so the size was right again: the topic was ``ok``, and nothing lost,
    until a reader came."""
    rig = filled()
    size = rig.broker.topic("a").log.segments[-1].end
    cut(rig, max(size - off, 0))
    for _ in range(3):
        assert rig.publish("a", b"after" * 10)[0].commit.error is None
    look(rig)
    topic = rig.broker.topic("a")
    assert topic.state == "failed"
    assert topic.describe()["lost"] > 0
    assert f"{PATH} was cut below the running broker, or zeroed" in caplog.text
    error = rig.publish("a", b"y")[0].error
    assert "was cut below the running broker" in str(error)
    lost = topic.describe()["lost"]
    rig.broker.close()
    (report,) = verify(rig.disk.kill(), DIR)
    assert report.lost == lost, "what the next start will lack"


def test_a_few_bytes_of_what_a_look_has_seen_are_missed_too() -> None:
    """No page is zero throughout, so the file has no hole."""
    rig = filled()
    look(rig)
    cut(rig, rig.broker.topic("a").log.segments[-1].end - 10)
    rig.publish("a", b"after")
    look(rig)
    assert rig.broker.topic("a").state == "failed"


def test_before_a_new_segment_the_file_is_looked_at(caplog: pytest.LogCaptureFixture) -> None:
    """Found: a roll set the file to its expected size, and sealed the hole."""
    for off, written in ((20_000, True), (20_000, False), (10, False)):
        rig = filled()
        cut(rig, rig.broker.topic("a").log.segments[-1].end - off)
        if written:
            rig.publish("a", b"after")
        rig.broker.topic("a").committer.begin_segment()
        rig.loop.drain()
        topic = rig.broker.topic("a")
        assert (topic.state, len(topic.log.segments)) == ("failed", 1), f"{off} bytes off"
        assert not rig.disk.exists(f"{DIR}/topics/a/{segment_name(topic.next_id)}")
    assert "was cut below the running broker" in caplog.text


def test_zeros_that_were_published_are_no_cut() -> None:
    """A file copied by a program that saves zeros as holes has holes where the payload is zero."""
    rig = BrokerRig(segment_bytes=1 << 20)
    for payload in (b"x", bytes(20_000), b"y"):
        rig.publish("a", payload)
    look(rig)
    assert rig.broker.topic("a").log.segments[-1].is_sparse
    for _ in range(2):
        rig.publish("a", b"z")
        look(rig)
    assert rig.broker.topic("a").state == "ok"
    rig.broker.topic("a").committer.begin_segment()
    rig.publish("a", b"next")
    assert (rig.broker.topic("a").state, len(rig.broker.topic("a").log.segments)) == ("ok", 2)


def test_the_machines_file_system_tells_of_a_hole(tmp_path: Path) -> None:
    fs = RealFileSystem()
    file = fs.open(f"{tmp_path}/x", create=True)
    assert file.hole(0) is None
    file.pwrite(b"x" * 100_000, 0)
    file.allocate(100_000, 100_000)
    file.sync()
    assert file.hole(100_000) is None, "what is reserved is behind"
    file.truncate(50_000)
    file.pwrite(b"y", 120_000)
    file.sync()
    at = file.hole(120_001)
    if at is None:
        pytest.skip(f"{os.fspath(tmp_path)}: the file system does not tell")
    assert 50_000 <= at < 120_000
    file.close()


def test_only_what_was_committed_is_asked_for() -> None:
    rig = filled()
    segment = rig.broker.topic("a").log.segments[-1]
    file = segment.open(rig.disk)
    file.truncate(segment.end + 100_000)
    assert find_cut(rig.disk, file, segment, segment.next_id, segment.end) is None
