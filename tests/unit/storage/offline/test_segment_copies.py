"""Copying segments over those of an earlier backup. ADR 0026, 0086, 0091."""

from collections.abc import Callable

import pytest

from tests.support.backups import BACK, TO, broker, contents, do_backup, spoil
from tests.support.broker_rig import DIR, BrokerRig
from toymq_py.storage import offsets
from toymq_py.storage.offline.dump import dump_topic
from toymq_py.storage.offline.repair import repair
from toymq_py.storage.offline.restore import restore
from toymq_py.storage.record import Frame


def a_segment(at: int) -> Callable[[BrokerRig], str]:
    return lambda rig: rig.broker.topic("a").log.segments[at].path


@pytest.mark.parametrize("at", [10, 30, 400, 3000])
@pytest.mark.parametrize("which", [0, 1, -1])
@pytest.mark.parametrize("grows", [True, False])
def test_the_parts_of_a_repaired_segment_are_not_copied_beside_the_whole_one(which: int, at: int, grows: bool) -> None:
    """Found: the copy of the damaged segment already had the same records, so every later backup was reported as damaged."""
    rig = broker()
    path = a_segment(which)(rig)
    do_backup(rig)
    before = contents(rig, "a")
    rig.broker.close()
    spoil(rig.disk, path, min(at, rig.disk.file_size(path) - 20))
    list(repair(rig.disk, DIR, pid=9))
    rig.restart()
    for n in range(9 if grows else 0):
        (stored,) = rig.publish("a", b"later %d" % n * 90)
        before[stored.first_id] = b"later %d" % n * 90
        assert not any(each.findings for each in do_backup(rig).reports)
    for _ in range(2):
        report = do_backup(rig)
        assert not any(each.findings for each in report.reports)
        assert report.superseded == []
        assert report.problems, "what the repair gave up is named"
    assert not any(each.damaged for each in restore(rig.disk, TO, BACK, pid=3))
    assert contents(BrokerRig(disk=rig.disk, data_dir=BACK), "a") == before


@pytest.mark.parametrize("at", [10, 400])
def test_a_copy_that_is_damaged_at_another_place_than_its_source_is_put_aside(at: int) -> None:
    """Neither file has all records of the other. Found: the copy was replaced, and its good records with it."""
    rig = broker()
    do_backup(rig)
    before, path = contents(rig, "a"), a_segment(0)(rig)
    rig.broker.close()
    spoil(rig.disk, path, at)
    spoil(rig.disk, f"{TO}{path.removeprefix(DIR)}", 2000)
    report = do_backup(rig)
    ((topic, place),) = report.superseded
    assert (topic, report.damaged) == ("a", True)
    held = [item for backup in (TO, place) for item in dump_topic(rig.disk, f"{backup}/topics/a") if isinstance(item, Frame)]
    assert {frame.msg_id: frame.payload for frame in held} == before


@pytest.mark.parametrize("repairs", [True, False])
@pytest.mark.parametrize("both", [True, False])
def test_consumers_that_the_source_lost_stay_in_the_backup(both: bool, repairs: bool) -> None:
    """Found: the broker, or a repair, went on without the consumers; two backups later the copy had lost them, too, and a
    consumer that begins at the end had skipped unacked messages."""
    rig = broker()
    for _ in range(2):
        rig.subscribe("a", "late", start="latest")
        rig.ack("a", 0, 0, "first")
        rig.flush("a")
        do_backup(rig)
    rig.broker.close()
    for name in (offsets.FILE_NAME, offsets.PREVIOUS_NAME)[: 1 + both]:
        rig.put(f"topics/a/{name}", b"{")
    if repairs:
        list(repair(rig.disk, DIR, pid=9))
    rig.restart()
    for _ in range(3):
        rig.subscribe("a", "another", start="latest")
        rig.publish("a", b"later")
        rig.take(rig.subscribe("a", "another"))
        rig.ack("a", 14, 14, "another")
        rig.flush("a")
        report = do_backup(rig)
        consumers = offsets.load(rig.disk, f"{TO}/topics/a").state.consumers
        assert {"another", "first", "late"} <= consumers.keys()
    if both:
        assert [problem for problem in report.problems if "keeps what it has of first, late" in problem]
        rig.disk.unlink(f"{DIR}/topics/a/offsets.json.damaged")
        assert not do_backup(rig).damaged, "the loss is accepted"
        assert offsets.load(rig.disk, f"{TO}/topics/a").state.consumers.keys() == {"another"}


def test_damaged_offsets_are_said_although_the_ones_before_are_whole() -> None:
    rig = broker()
    rig.ack("a", 0, 0, "first")
    rig.flush("a")
    rig.broker.close()
    rig.put("topics/a/offsets.json", b"{")
    (problem,) = do_backup(rig).problems
    assert problem.startswith("topic a: offsets.json: ")
    assert problem.endswith("used is its previous generation")
