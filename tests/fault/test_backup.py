"""`toymq backup` beside a broker that goes on: whatever happens between any two of its calls to the disk, the copy is whole.

Contract: clients.md, "Command lines"; ADR 0026. Acknowledged before the start means: in the copy.
"""

import contextlib
import errno
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.broker_rig import DIR, BrokerRig
from tests.support.shares import one_in
from tests.support.sim_disk import SimDisk
from toymq_py.errors import DataDirectoryError, DirectoryLocked
from toymq_py.storage import checked_json, offsets, webhooks_file
from toymq_py.storage.dirlock import DirectoryLock
from toymq_py.storage.fs import File
from toymq_py.storage.offline.backup import BackupReport, back_up
from toymq_py.storage.offline.restore import restore
from toymq_py.storage.segment import segment_name

TO = "/data/backup"
BACK = "/data/back"
TOPICS = ("a", "b", "c")
HOUR_MS = 3_600_000


class Interrupted:
    """A disk on which something else happens before the nth call, counted over files and names alike."""

    def __init__(self, disk: SimDisk, nth: int, happens: Callable[[], object]) -> None:
        self._disk = disk
        self._nth = nth
        self._happens = happens
        self.happened = False

    def count(self, op: str) -> None:
        self._nth -= 1
        if not self._nth:
            self.happened = True
            self._happens()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._disk, name)

        def call(*args: Any, **options: Any) -> Any:
            self.count(name)
            found = method(*args, **options)
            return InterruptedFile(self, found) if name == "open" else found

        return call


class InterruptedFile:
    """A file of one."""

    def __init__(self, disk: Interrupted, file: File) -> None:
        self._disk = disk
        self._file = file

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._file, name)

        def call(*args: Any) -> Any:
            self._disk.count(name)
            return method(*args)

        return call


class Crashing(Interrupted):
    """A disk of which is kept what a power cut would leave of it, wherever the order of what is written matters: before each
    rename and each sync of a directory."""

    def __init__(self, disk: SimDisk, draws: int = 40) -> None:
        """``draws``: how often chance decides about what is not synced; what it left before is not kept again."""
        super().__init__(disk, 0, lambda: None)
        self._draws = draws
        self.crashed: list[SimDisk] = []
        self._seen: set[int] = set()
        self._rng = random.Random(1)

    def count(self, op: str) -> None:
        if op in ("rename", "sync_dir"):
            self.look()

    def look(self) -> None:
        for _ in range(self._draws):
            crashed = self._disk.peek_crash(self._rng)
            left = hash(frozenset(crashed.snapshot().items()))
            if left not in self._seen:
                self._seen.add(left)
                self.crashed.append(crashed)


def broker(**options: Any) -> BrokerRig:
    """Three topics of three sealed segments and an active one, with a consumer that has acked nothing."""
    rig = BrokerRig(**{"retain_acked_for_ms": HOUR_MS} | options)
    for topic in TOPICS:
        rig.subscribe(topic, "first")
        for n in range(7):
            rig.publish(topic, *[b"%s-%d-%d" % (topic.encode(), n, m) * 180 for m in range(2)])
        assert len(rig.broker.topic(topic).log.segments) == 4
        rig.flush(topic)
    return rig


def do_backup(rig: BrokerRig, fs: Any = None) -> BackupReport:
    return back_up(fs or rig.disk, DIR, TO, pid=2, wall_ns=rig.clock.wall_ns())


def restored(rig: BrokerRig) -> BrokerRig:
    """A broker on what comes back from the backup."""
    reports = restore(rig.disk, TO, BACK, pid=3)
    assert [report.findings for report in reports if report.findings] == []
    return BrokerRig(disk=rig.disk, data_dir=BACK)


def contents(rig: BrokerRig, topic: str) -> dict[int, bytes]:
    found = rig.broker.topics.get(topic)
    if found is None:
        return {}
    log, messages, at = found.log, {}, found.log.first_id
    while at < log.committed_id:
        run, row, next_id = log.read(at, 100)
        if run is not None:
            messages.update(zip(run.ids[row:], run.payloads[row:], strict=True))
        at = next_id
    return messages


def acked(rig: BrokerRig, topic: str, msg_id: int) -> bool:
    found = rig.broker.topics.get(topic)
    if found is None or "first" not in found.consumers:
        return False
    return found.consumers["first"].has_acked_all(msg_id, msg_id)


# -- what may happen meanwhile


def publishes(rig: BrokerRig) -> None:
    for topic in TOPICS:
        rig.publish(topic, b"later" * 300)


def rolls(rig: BrokerRig) -> None:
    for topic in TOPICS:
        for _ in range(3):
            rig.publish(topic, b"later" * 500)


def acks(rig: BrokerRig) -> None:
    for topic in TOPICS:
        subscription = rig.subscribe(topic, "first")
        for msg_id, _ in rig.take(subscription):
            rig.ack(topic, msg_id, msg_id, "first")


def removes_segments(rig: BrokerRig) -> None:
    """Retention, after everything was acked."""
    acks(rig)
    before = [len(rig.files(topic)) for topic in TOPICS]
    rig.advance(2 * HOUR_MS / 1000)
    assert [len(rig.files(topic)) for topic in TOPICS] < before


def removes_from_behind(rig: BrokerRig, topics: tuple[str, ...] = TOPICS) -> None:
    """Retention where one message stays unacked: the segments behind it go, and their range is in the offsets."""
    for topic in topics:
        subscription = rig.subscribe(topic, "first")
        for msg_id, _ in rig.take(subscription)[1:]:
            rig.ack(topic, msg_id, msg_id, "first")
    rig.advance(2 * HOUR_MS / 1000)
    assert all(rig.broker.topic(topic).log.removed for topic in topics)


def purges(rig: BrokerRig) -> None:
    """And then more is published: what is gone begins where the consumers stand."""
    for topic in TOPICS:
        assert isinstance(rig.purge(topic), int)
        rig.publish(topic, b"after" * 20)


def deletes(rig: BrokerRig) -> None:
    for topic in TOPICS:
        rig.delete(topic)


def makes_anew(rig: BrokerRig) -> None:
    """A topic of the same name, with as many records of the same sizes."""
    rig.clock.advance(1e-6)
    for topic in TOPICS:
        rig.delete(topic)
        subscription = rig.subscribe(topic, "first")
        for n in range(7):
            rig.publish(topic, *[b"%s~%d~%d" % (topic.encode(), n, m) * 180 for m in range(2)])
        rig.take(subscription)
        rig.ack(topic, 0, 0, "first")


def moves(rig: BrokerRig) -> None:
    """What dead letters and redrives do: stored in one topic, then acked in the other, in either direction; then what was
    acked goes."""
    for one, other in (("a", "c"), ("c", "b"), ("b", "a")):
        subscription = rig.subscribe(one, "first")
        payloads = contents(rig, one)
        for msg_id, _ in rig.take(subscription)[:5]:
            rig.publish(other, payloads[msg_id])
            rig.ack(one, msg_id, msg_id, "first")
    rig.advance(2 * HOUR_MS / 1000)


def settles(rig: BrokerRig) -> None:
    for topic in TOPICS:
        assert rig.change("configure", topic, visibility="5000") == "OK"


HAPPENINGS = [publishes, rolls, acks, removes_segments, removes_from_behind, purges, deletes, makes_anew, moves, settles]


def moments(seed: int, share: int) -> Iterator[int]:
    """Each of the first calls, then some of the many that follow; one in ``share`` of these."""
    rng = random.Random(seed)
    nth = 0
    while True:
        nth += share * (1 if nth < 20 else rng.randrange(6, 24))
        yield nth


@one_in(3)
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


def test_segments_that_go_while_they_are_listed_are_known_to_be_gone() -> None:
    """Between the offsets and the listing: the list lacks segments that the offsets do not name, and is made again."""
    rig = broker()
    listed = rig.disk.listdir
    calls = 0

    class Listing(Interrupted):
        def listdir(self, path: str) -> list[str]:
            nonlocal calls
            if path == f"{DIR}/topics/a":
                calls += 1
                if calls == 2:  # the first one looks for the mark
                    removes_from_behind(rig, ("a",))
            return listed(path)

    report = do_backup(rig, Listing(rig.disk, 0, lambda: None))
    assert calls > 2
    assert not report.damaged
    copy = restored(rig)
    assert copy.broker.topic("a").log.removed == rig.broker.topic("a").log.removed
    assert copy.broker.topic("a").state == "ok"


def test_a_consumer_goes_on_where_it_was() -> None:
    rig = broker()
    rig.take(rig.subscribe("a", "first"))
    rig.ack("a", 0, 4, "first")
    do_backup(rig)
    copy = restored(rig)
    assert [msg_id for msg_id, _ in copy.take(copy.subscribe("a", "first"))] == list(range(5, 14))


def test_the_second_backup_copies_only_what_is_new() -> None:
    rig = broker()
    first = do_backup(rig)
    assert (len(first.copied), len(first.kept)) == (12, 0)
    again = do_backup(rig)
    newest = {f"{TO}/topics/{topic}/{rig.broker.topic(topic).log.segments[-1].path[-24:]}" for topic in TOPICS}
    assert (again.copied, len(again.kept)) == (newest, 9)
    rolls(rig)
    third = do_backup(rig)
    assert third.kept == first.copied, "also what was the newest then and was sealed as it was"
    assert len(third.copied) == 9
    assert contents(restored(rig), "a") == contents(rig, "a")


def test_what_the_broker_has_removed_goes_from_the_backup_too() -> None:
    rig = broker()
    do_backup(rig)
    removes_segments(rig)
    rig.delete("c")
    assert rig.change("configure", "a", visibility="7") == "OK"
    do_backup(rig)
    names = rig.disk.listdir(f"{TO}/topics/a")
    assert [name for name in names if name.endswith(".log")] == [name for name in rig.files("a") if name.endswith(".log")]
    assert "topic.json" in names
    assert rig.disk.listdir(f"{TO}/topics") == ["a", "b"]
    assert rig.change("configure", "a", visibility="default") == "OK"
    do_backup(rig)
    assert "topic.json" not in rig.disk.listdir(f"{TO}/topics/a")


def test_a_topic_that_was_made_anew_is_not_mixed_with_the_one_before() -> None:
    rig = broker()
    do_backup(rig)
    makes_anew(rig)
    do_backup(rig)
    copy = restored(rig)
    assert contents(copy, "a") == contents(rig, "a")
    assert copy.broker.topic("a").consumers["first"].floor == 1


def test_damage_in_an_earlier_backup_is_mended_from_the_source() -> None:
    rig = broker()
    do_backup(rig)
    path = f"{TO}/topics/a/{segment_name(0)}"
    data = bytearray(rig.disk.snapshot()[path])
    assert len(data) < 5000
    rig.disk.mkdir("/data/spoilt")
    spoil(rig.disk, path, 2000)
    spoil(rig.disk, f"{TO}/topics/b/{segment_name(0)}", 10)
    report = do_backup(rig)
    assert not report.damaged
    assert rig.disk.snapshot()[path] == bytes(data)
    assert contents(restored(rig), "b") == contents(rig, "b")


def spoil(disk: SimDisk, path: str, position: int) -> None:
    file = disk.open(path)
    file.pwrite(b"\xff\xff", position)
    file.close()


def test_damage_of_the_source_is_said_and_the_rest_is_copied() -> None:
    rig = broker()
    rig.publish("a", b"more" * 200)
    rig.publish("a", b"last")
    active = rig.broker.topic("a").log.segments[-1]
    spoil(rig.disk, active.path, 40)
    spoil(rig.disk, f"{DIR}/topics/b/{segment_name(0)}", 40)
    report = do_backup(rig)
    assert report.damaged
    assert {each.topic for each in report.reports if each.damaged} == {"a", "b"}
    copy_of_b = next(each for each in report.reports if each.topic == "b")
    assert (copy_of_b.records, copy_of_b.lost) == (13, 1)


@pytest.mark.parametrize(("op", "code"), [("pread", errno.EIO), ("open", errno.EACCES)])
def test_a_segment_that_cannot_be_read_is_named_and_the_rest_is_copied(op: str, code: int) -> None:
    rig = broker()
    source = f"{DIR}/topics/a/{segment_name(0)}"
    rig.disk.fail(op, 1, code, sticky=True, path=source)
    report = do_backup(rig)
    assert report.damaged
    assert [problem for problem in report.problems if source in problem]
    copies = {each.topic: each for each in report.reports}
    assert (copies["a"].lost > 0, copies["a"].records > 0) == (True, True)
    assert not copies["b"].damaged
    rig.disk.heal()
    assert not do_backup(rig).damaged, "the next one brings it up to date"
    assert contents(restored(rig), "a") == contents(rig, "a")


def test_damaged_offsets_are_said_and_those_of_an_earlier_backup_stay() -> None:
    rig = broker()
    rig.ack("a", 0, 0, "first")
    do_backup(rig)
    state = offsets.load(rig.disk, f"{TO}/topics/a").state
    rig.broker.close()
    for name in ("offsets.json", "offsets.json.prev"):
        rig.put(f"topics/a/{name}", b"{")
    report = do_backup(rig)
    assert report.problems == ["topic a: both generations of its offsets are damaged: the backup has none that are newer"]
    assert report.damaged
    assert offsets.load(rig.disk, f"{TO}/topics/a").state == state


def webhooks(*names: str) -> bytes:
    """The document of the gateway, as far as a backup is concerned."""
    return checked_json.encode("webhooks", {name: {"topic": "a", "url": "https://example.com/"} for name in names})


def test_the_webhooks_go_along() -> None:
    """As they were when the backup began; they are updated, and go when they are gone."""
    rig = broker()
    rig.put(webhooks_file.FILE_NAME, webhooks("one"))
    disk = Interrupted(rig.disk, 200, lambda: rig.put(webhooks_file.FILE_NAME, webhooks("one", "two")))
    do_backup(rig, disk)
    assert disk.happened
    assert rig.disk.read_file(f"{TO}/{webhooks_file.FILE_NAME}") == webhooks("one")
    assert not do_backup(rig).damaged
    restored(rig)
    assert rig.disk.read_file(f"{BACK}/{webhooks_file.FILE_NAME}") == webhooks("one", "two")
    rig.disk.unlink(f"{DIR}/{webhooks_file.FILE_NAME}")
    do_backup(rig)
    assert not rig.disk.exists(f"{TO}/{webhooks_file.FILE_NAME}")


def test_damaged_webhooks_are_said_and_those_of_an_earlier_backup_stay() -> None:
    rig = broker()
    rig.put(webhooks_file.FILE_NAME, webhooks("one"))
    do_backup(rig)
    rig.put(webhooks_file.FILE_NAME, webhooks("two").replace(b"two", b"twi"))
    report = do_backup(rig)
    assert report.damaged
    assert [problem.split(":")[0] for problem in report.problems] == [webhooks_file.FILE_NAME]
    assert rig.disk.read_file(f"{TO}/{webhooks_file.FILE_NAME}") == webhooks("one")


def test_other_files_beside_the_topics_are_neither_read_nor_touched() -> None:
    """Somebody keeps the tokens in the data directory, and notes in that of the backup."""
    rig = broker()
    rig.put(webhooks_file.FILE_NAME, webhooks("one"))
    rig.put("tokens.json", b'{"tokens": ["s3cret"]}')
    unreadable = rig.disk.fail("read_file", 1, errno.EACCES, sticky=True, path="tokens.json")
    assert not do_backup(rig).damaged
    notes = rig.disk.open(f"{TO}/notes.json", create=True)
    notes.pwrite(b"every monday", 0)
    notes.close()
    assert not do_backup(rig).damaged
    present = [name for name in rig.disk.listdir(TO) if name.endswith(".json")]
    assert present == ["backup.json", "notes.json", webhooks_file.FILE_NAME]
    assert rig.disk.read_file(f"{TO}/notes.json") == b"every monday"
    restored(rig)
    assert [name for name in rig.disk.listdir(BACK) if name.endswith(".json")] == [webhooks_file.FILE_NAME]
    assert not unreadable.fired


def test_a_directory_that_holds_something_else_is_refused() -> None:
    rig = broker()
    rig.disk.mkdir(TO)
    rig.disk.open(f"{TO}/thesis.txt", create=True).close()
    with pytest.raises(DataDirectoryError, match="neither empty nor an earlier backup"):
        do_backup(rig)
    assert rig.disk.listdir(TO) == ["thesis.txt"]
    with pytest.raises(DataDirectoryError, match="is not a data directory"):
        back_up(rig.disk, "/data/none", "/data/other", pid=1, wall_ns=1)
    assert not rig.disk.exists("/data/other")


def test_what_somebody_uses_is_refused() -> None:
    rig = broker()
    do_backup(rig)
    lock = DirectoryLock.take(rig.disk, TO, 9)
    with pytest.raises(DirectoryLocked):
        do_backup(rig)
    with pytest.raises(DirectoryLocked):
        restore(rig.disk, TO, BACK, pid=1)
    lock.release()


def test_it_says_in_the_lock_what_it_is() -> None:
    rig = broker()
    said: set[bytes] = set()
    back_up(rig.disk, DIR, TO, pid=2, wall_ns=1, progress=lambda _bytes: said.add(rig.disk.read_file(f"{TO}/LOCK")))
    assert said == {b"2\ntoymq backup\n"}
    said.clear()
    restore(rig.disk, TO, BACK, pid=3, progress=lambda _bytes: said.add(rig.disk.read_file(f"{BACK}/LOCK")))
    assert said == {b"3\ntoymq restore\n"}


def test_restoring_overwrites_nothing() -> None:
    rig = broker()
    do_backup(rig)
    before = rig.disk.snapshot()
    with pytest.raises(DataDirectoryError, match="is not empty"):
        restore(rig.disk, TO, DIR, pid=3)
    with pytest.raises(DataDirectoryError, match=r"is not a backup: it has no backup\.json"):
        restore(rig.disk, DIR, BACK, pid=3)
    assert rig.disk.snapshot() == before
    rig.disk.mkdir(BACK)
    assert [report.topic for report in restore(rig.disk, TO, BACK, pid=3)] == list(TOPICS)


@pytest.mark.parametrize("mark", [b"", b"[]", b"{}", b'{"version": 2, "began_ns": 1, "finished": true}'])
def test_a_mark_that_makes_no_sense_is_named(mark: bytes) -> None:
    rig = broker()
    do_backup(rig)
    file = rig.disk.open(f"{TO}/backup.json")
    file.truncate(0)
    file.pwrite(mark, 0)
    file.close()
    with pytest.raises(DataDirectoryError, match=r"is damaged|version 2"):
        restore(rig.disk, TO, BACK, pid=3)


@pytest.mark.parametrize("op", ["pwrite", "sync", "rename", "unlink", "sync_dir", "mkdir", "pread"])
def test_a_backup_that_is_cut_short_is_whole_as_far_as_it_came(op: str) -> None:
    """Brought up to date over an earlier one, on a disk that fails at any call and then loses its power: what was there before
    is there, and it can be run again."""
    for nth in (1, 2, 3, *range(4, 400, 7)):
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


def test_an_unfinished_backup_is_restored_only_when_that_is_said() -> None:
    rig = broker()
    rig.disk.fail("pwrite", 9, errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        do_backup(rig)
    with pytest.raises(DataDirectoryError, match="is unfinished"):
        restore(rig.disk, TO, BACK, pid=3)
    assert not rig.disk.exists(BACK)


@one_in(8)
@pytest.mark.parametrize("ordered", [True, False])
def test_a_power_cut_at_any_step_of_a_backup_takes_nothing_that_was_there(ordered: bool, share: int) -> None:
    """Segments are on the disk before they have their names, and have them before the offsets speak of them; the mark is last.
    On a file system that keeps the order of names, and on one that does not."""
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
        assert [report.findings for report in reports if report.damaged] == [], number
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
