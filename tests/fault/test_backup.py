"""`toymq backup` beside a broker that goes on: whatever happens between any two of its calls to the disk, the copy is whole.

Contract: clients.md, "Command lines"; ADR 0026. Acknowledged before the start means: in the copy.
"""

import contextlib
import errno
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.backups import (
    BACK,
    TO,
    TOPICS,
    Crashing,
    Interrupted,
    acked,
    acks,
    broker,
    contents,
    deletes,
    do_backup,
    makes_anew,
    moves,
    publishes,
    purges,
    removes_from_behind,
    removes_segments,
    restored,
    rolls,
    settles,
    webhooks,
)
from tests.support.broker_rig import BrokerRig
from tests.support.shares import one_in
from tests.support.sim_disk import SimDisk
from toymq_py.errors import DataDirectoryError
from toymq_py.storage import offsets, webhooks_file
from toymq_py.storage.offline.restore import restore

HAPPENINGS = [publishes, rolls, acks, removes_segments, removes_from_behind, purges, deletes, makes_anew, moves, settles]


def moments(seed: int, share: int) -> Iterator[int]:
    """Yield the numbers of some calls to the disk: many of the first ones, few of the later ones, and only one in ``share`` of
    these."""
    rng = random.Random(seed)
    nth = 0
    while True:
        nth += share * (1 if nth < 20 else rng.randrange(6, 24))
        yield nth


@one_in(20)
@pytest.mark.parametrize("happens", HAPPENINGS)
def test_whatever_happens_between_two_calls_nothing_acknowledged_is_missing(
    happens: Callable[[BrokerRig], None], share: int
) -> None:
    for nth in moments(4, share):
        rig = broker()
        rig.take(rig.subscribe("b", "first"))
        assert rig.ack("b", 0, 2, "first") == 3
        before = {topic: contents(rig, topic) for topic in TOPICS}
        disk = Interrupted(rig.disk, nth, lambda rig=rig: happens(rig))  # type: ignore[misc]
        report = do_backup(rig, disk)
        if not disk.happened:
            assert nth > 100, "it did happen before most of the calls"
            return
        where = f"{happens.__name__} before call {nth}"
        assert not report.damaged, f"{where}: {report}"
        now = {topic: contents(rig, topic) for topic in TOPICS}
        gone = {topic for topic in TOPICS if happens in (deletes, makes_anew)}
        copy = restored(rig)
        held = {topic: contents(copy, topic) for topic in TOPICS}
        everywhere = {payload for messages in held.values() for payload in messages.values()}
        for topic in TOPICS:
            if topic not in copy.broker.topics:
                assert topic in gone, f"{where}: {topic} is not there"
                continue
            assert copy.broker.topic(topic).state == "ok", f"{where}: {topic} is degraded"
            assert held[topic].items() <= before[topic].items() or held[topic].items() <= (before[topic] | now[topic]).items()
            if topic in gone:
                assert held[topic].items() <= before[topic].items() or held[topic].items() <= now[topic].items(), (
                    f"{where}: two topics of one name are mixed"
                )
                continue
            for msg_id, payload in before[topic].items():
                if topic == "b" and msg_id < 3:
                    continue  # acked before: it may have gone
                if payload not in everywhere:
                    assert acked(rig, topic, msg_id), f"{where}: {msg_id} of {topic} is missing, and was not acked"
                    may_remove = happens in (removes_segments, removes_from_behind, purges)
                    assert may_remove, f"{where}: {msg_id} of {topic} is nowhere"
                elif happens is moves and acked(copy, topic, msg_id):
                    places = [t for t in TOPICS for m, p in held[t].items() if p == payload and not acked(copy, t, m)]
                    assert places, f"{where}: {msg_id} of {topic} is acked there, and waits nowhere else"


def test_a_source_whose_offsets_began_anew_leaves_no_stale_file_in_the_backup() -> None:
    """The generation numbers of the new offsets files are lower than those in the earlier backup."""
    rig = broker()
    for _ in range(5):
        rig.subscribe("a", "c")
        rig.flush("a")
    do_backup(rig)
    rig.broker.close()
    for name in ("offsets.json", "offsets.json.prev"):
        rig.put(f"topics/a/{name}", b"x")
    rig.restart()
    rig.subscribe("a", "later")
    rig.flush("a")
    do_backup(rig)
    loaded = offsets.load(rig.disk, f"{TO}/topics/a")
    assert (loaded.problem, {"c", "later"} <= loaded.state.consumers.keys()) == (None, True)


@one_in(140)
@pytest.mark.parametrize("op", ["pwrite", "sync", "rename", "unlink", "sync_dir", "mkdir", "pread"])
def test_a_backup_that_is_cut_short_is_whole_as_far_as_it_came(op: str, share: int) -> None:
    """A backup is updated on a disk that fails at the nth call and then loses its power. What the earlier backup had is still
    there, and the backup can be run again."""
    for nth in (1, 2, 3, *range(4, 440, share)):
        rig = broker()
        do_backup(rig)
        before = {topic: contents(rig, topic) for topic in TOPICS}
        rolls(rig)
        acks(rig)
        fault = rig.disk.fail(op, nth, errno.EIO, sticky=True)
        with contextlib.suppress(OSError):
            do_backup(rig)
        if not fault.fired:
            assert nth > 3, f"no {op} at all?"
            return
        rig.disk.heal()
        rig.disk = rig.disk.crash(random.Random(nth))
        reports = restore(rig.disk, TO, BACK, pid=3, unfinished=True)
        assert not any(report.damaged for report in reports), f"{op} {nth}: {reports}"
        copy = BrokerRig(disk=rig.disk, data_dir=BACK)
        for topic in TOPICS:
            assert before[topic].items() <= contents(copy, topic).items(), f"{op} {nth}"
            assert copy.broker.topic(topic).state == "ok"
        assert not do_backup(rig).damaged, f"{op} {nth}: it can be run again"
    raise AssertionError("it never ended")


@one_in(32)
@pytest.mark.parametrize("ordered", [True, False])
def test_a_power_cut_at_any_step_of_a_backup_takes_nothing_that_was_there(ordered: bool, share: int) -> None:
    """A backup syncs each segment before it names it, names it before the offsets refer to it, and writes its completion mark
    last. Tested on a file system that keeps the order of renames, and on one that does not."""
    rig = broker(disk=SimDisk(random.Random(1), ordered_metadata=ordered))
    do_backup(rig)
    before = {topic: contents(rig, topic) for topic in TOPICS}
    rolls(rig)
    acks(rig)
    for topic in TOPICS:
        rig.flush(topic)
    now = {topic: contents(rig, topic) for topic in TOPICS}
    disk = Crashing(rig.disk, 40 // share)
    assert not do_backup(rig, disk).damaged
    steps = len(disk.crashed)
    assert steps > 100 // share
    for number, crashed in enumerate([*disk.crashed, rig.disk.peek_crash(random.Random(1))]):
        try:
            reports, finished = restore(crashed, TO, BACK, pid=3), True
        except DataDirectoryError:
            assert number < steps, "what is done is done"
            reports, finished = restore(crashed, TO, BACK, pid=3, unfinished=True), False
        found = [finding.text for report in reports for finding in report.findings if finding.damage]
        # Where the names of the temp file and of the newest generation are lost and a later rename is not.
        assert ordered or {text.partition(";")[0] for text in found} <= {"offsets.json: the file is missing"}, number
        assert not ordered or found == [], number
        copy = BrokerRig(disk=crashed, data_dir=BACK)
        held = {topic: contents(copy, topic) for topic in TOPICS}
        assert [topic for topic in TOPICS if not before[topic].items() <= held[topic].items()] == [], number
        assert not finished or held == now or (held == before and number < steps), f"{number}: only a whole one says so"


@pytest.mark.parametrize("ordered", [True, False])
def test_a_power_cut_at_any_step_of_a_restore_leaves_all_or_nothing(ordered: bool) -> None:
    rig = broker(disk=SimDisk(random.Random(1), ordered_metadata=ordered))
    rig.put(webhooks_file.FILE_NAME, webhooks("one"))
    do_backup(rig)
    expected = {topic: contents(rig, topic) for topic in TOPICS}
    disk: Any = Crashing(rig.disk)
    restore(disk, TO, BACK, pid=3)
    steps, whole = len(disk.crashed), 0
    for number, crashed in enumerate([*disk.crashed, rig.disk.peek_crash(random.Random(1))]):
        if crashed.exists(f"{BACK}/topics"):
            whole += 1
            assert crashed.read_file(f"{BACK}/{webhooks_file.FILE_NAME}") == webhooks("one"), number
            copy = BrokerRig(disk=crashed, data_dir=BACK)
            assert {topic: contents(copy, topic) for topic in TOPICS} == expected, number
        else:
            assert number < steps, "what is done is there"
    assert whole > 1


def test_a_restore_that_is_cut_short_leaves_no_half_directory() -> None:
    rig = broker()
    do_backup(rig)
    for nth in range(1, 200):
        disk = rig.disk.peek_crash(random.Random(nth))
        fault = disk.fail("pwrite", nth, errno.EIO, sticky=True)
        try:
            restore(disk, TO, BACK, pid=3)
        except OSError:
            assert not disk.exists(f"{BACK}/topics"), "all at once or not at all"
        if not fault.fired:
            assert nth > 10
            return
    raise AssertionError("it never ended")
