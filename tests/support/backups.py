"""A broker with three topics, things that happen to it during a backup, and what a power cut leaves of the backup."""

import random
from collections.abc import Callable
from typing import Any

from tests.support.broker_rig import DIR, BrokerRig
from tests.support.sim_disk import SimDisk
from toymq_py.storage import checked_json
from toymq_py.storage.fs import File
from toymq_py.storage.offline.backup import BackupReport, back_up
from toymq_py.storage.offline.restore import restore

TO = "/data/backup"
BACK = "/data/back"
TOPICS = ("a", "b", "c")
HOUR_MS = 3_600_000


class Interrupted:
    """A disk that calls ``happens`` before its nth call, counted over calls of files and of the disk alike."""

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
    """A file of an ``Interrupted`` disk, whose calls count, too."""

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
    """A disk that keeps copies of what a power cut would leave of it. It makes them before each rename and each sync of a
    directory, where the order of writes matters."""

    def __init__(self, disk: SimDisk, draws: int = 40) -> None:
        """``draws``: how many random power cuts are tried at each moment; a result that was kept before is not kept again."""
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
    """Return a broker with three topics, each with three sealed segments and an active one, and a consumer that has acked
    nothing."""
    rig = BrokerRig(**{"retain_acked_for_ms": HOUR_MS} | options)
    for topic in TOPICS:
        rig.subscribe(topic, "first")
        for n in range(7):
            rig.publish(topic, *[b"%s-%d-%d" % (topic.encode(), n, m) * 180 for m in range(2)])
        assert len(rig.broker.topic(topic).log.segments) == 4
        rig.flush(topic)
    return rig


def do_backup(rig: BrokerRig, fs: Any = None, *, prune: bool = False) -> BackupReport:
    return back_up(fs or rig.disk, DIR, TO, pid=2, wall_ns=rig.clock.wall_ns(), prune=prune)


def restored(rig: BrokerRig) -> BrokerRig:
    """Restore the backup, and return a broker on the result."""
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
    """Ack everything, and let retention remove segments."""
    acks(rig)
    before = [len(rig.files(topic)) for topic in TOPICS]
    rig.advance(2 * HOUR_MS / 1000)
    assert [len(rig.files(topic)) for topic in TOPICS] < before


def removes_from_behind(rig: BrokerRig, topics: tuple[str, ...] = TOPICS) -> None:
    """Let retention remove segments after an unacked message (the first): the removed range is then recorded in the offsets
    file."""
    for topic in topics:
        subscription = rig.subscribe(topic, "first")
        for msg_id, _ in rig.take(subscription)[1:]:
            rig.ack(topic, msg_id, msg_id, "first")
    rig.advance(2 * HOUR_MS / 1000)
    assert all(rig.broker.topic(topic).log.removed for topic in topics)


def purges(rig: BrokerRig) -> None:
    """Purge the topics and publish more: the removed range begins where the consumers stand."""
    for topic in TOPICS:
        assert isinstance(rig.purge(topic), int)
        rig.publish(topic, b"after" * 20)


def deletes(rig: BrokerRig) -> None:
    for topic in TOPICS:
        rig.delete(topic)


def makes_anew(rig: BrokerRig) -> None:
    """Delete each topic and create another one of the same name, with as many records of the same sizes."""
    rig.clock.advance(1e-6)
    for topic in TOPICS:
        rig.delete(topic)
        subscription = rig.subscribe(topic, "first")
        for n in range(7):
            rig.publish(topic, *[b"%s~%d~%d" % (topic.encode(), n, m) * 180 for m in range(2)])
        rig.take(subscription)
        rig.ack(topic, 0, 0, "first")


def moves(rig: BrokerRig) -> None:
    """Do what dead letters and redrives do: store messages in one topic, then ack them in the other, in either direction. Then
    retention removes what is acked."""
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


def spoil(disk: SimDisk, path: str, position: int) -> None:
    file = disk.open(path)
    file.pwrite(b"\xff\xff", position)
    file.close()


def webhooks(*names: str) -> bytes:
    """Make the gateway's document of webhooks, with as much as a backup looks at."""
    return checked_json.encode("webhooks", {name: {"topic": "a", "url": "https://example.com/"} for name in names})
