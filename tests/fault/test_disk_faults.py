"""A disk that fails once, at every call of a scripted run: nothing promised is lost, nothing refused appears, the broker lives.

Each case is one run of the script with the n-th call of one kind failing, then a kill or a power cut, and a new start.
"""

import errno
import random
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from tests.support.broker_rig import DIR, BrokerRig
from tests.support.shares import one_in
from tests.support.sim_disk import SimDisk
from toymq_py.errors import LocalError, RequestError
from toymq_py.names import is_topic_name
from toymq_py.storage.commit.batch import CommitState
from toymq_py.storage.offline.verify import verify_topic
from toymq_py.topic import Subscription

OPS = (
    "pwrite", "sync", "rename", "unlink", "open", "truncate", "allocate", "sync_dir", "mkdir", "pread", "read_file", "listdir",
    "rmdir", "free_bytes", "lock",
)  # fmt: skip
SHORT = "short write"
TOPICS = ("t", "u")


@dataclass
class Promises:
    """The answers that the clients of one run got."""

    accepted: dict[tuple[str, int], bytes] = field(default_factory=dict)
    refused: set[bytes] = field(default_factory=set)
    acked: set[tuple[str, int]] = field(default_factory=set)
    """Whatever became of the ack: retention may take these."""
    synced: set[tuple[str, int]] = field(default_factory=set)
    """Acked with ``sync=1``, and answered."""
    deleted: set[str] = field(default_factory=set)
    moved: bool = False


class Script:
    """One life of a broker, with every operation that uses the disk."""

    def __init__(self, disk: SimDisk, retain_ms: int) -> None:
        self.promises = Promises()
        self.rig = BrokerRig(disk=disk, retain_acked_for_ms=retain_ms, min_free_bytes=1)
        self._number = 0

    def run(self) -> None:
        rig = self.rig
        rig.change("create", "t", visibility="5000")
        self.publish("t", 10, 20, 0)
        reader = self.subscribe("t")
        self.ack("t", self.take(reader)[:2])
        self.publish("t", 3000, 2000)
        self.publish("u", 10)
        self.publish("t", 100, 3000, 3000, 10)
        self.ack("t", self.take(reader)[:3])
        rig.advance(1)
        rig.change("configure", "t", visibility="6000")
        self.ack("u", self.take(self.subscribe("u")))
        self.ack("t", self.take(reader))
        rig.advance(2)
        self.restart()
        self.ack("t", self.take(self.subscribe("t")))
        self.publish("t", 10, 3000, 3000)
        if "u" in rig.broker.topics:
            self.promises.deleted.add("u")
            self.delete("u")
        rig.advance(1)

    def restart(self) -> None:
        """Stop and start on the same disk. Raises: what a start raises."""
        self.rig.broker.finish(lambda: None)
        self.rig.loop.advance(0)
        self.rig.broker.close()
        self.rig.restart()

    def publish(self, topic: str, *sizes: int) -> None:
        payloads = [b"%d:%d:" % (self._number, row) + bytes([row]) * size for row, size in enumerate(sizes)]
        self._number += 1
        try:
            outcomes = self.rig.broker.topic_or_new(topic).publisher.publish([b""] * len(payloads), payloads)
        except (RequestError, OSError):
            self.promises.refused.update(payloads)
            return
        self.rig.loop.drain()
        at = 0
        for outcome in outcomes:
            part = payloads[at : at + outcome.count]
            at += outcome.count
            error = outcome.error or outcome.commit.error
            if error is None:
                assert outcome.commit.state is CommitState.DONE, "every publish is answered"
                self.promises.accepted.update({(topic, outcome.first_id + row): each for row, each in enumerate(part)})
            elif error.code != "STORAGE_FAILED":
                self.promises.refused.update(part)

    def subscribe(self, topic: str) -> Subscription | None:
        try:
            return self.rig.subscribe(topic, visibility_s=0.5)
        except (RequestError, OSError):
            return None

    def take(self, subscription: Subscription | None) -> list[int]:
        if subscription is None or subscription.closed:
            return []
        try:
            return [msg_id for msg_id, _ in self.rig.take(subscription)]
        except OSError:
            return []

    def ack(self, topic: str, ids: list[int]) -> None:
        """Ack messages, and wait for the ack to be on the disk."""
        answers: list[object] = []
        try:
            for msg_id in ids:
                self.rig.broker.topic(topic).ack("c", [(msg_id, msg_id)])
            self.promises.acked.update((topic, msg_id) for msg_id in ids)
            self.rig.broker.topic(topic).flush_offsets(answers.append)
        except (RequestError, OSError):
            return
        self.rig.loop.advance(0)
        if answers == [None]:
            self.promises.synced.update((topic, msg_id) for msg_id in ids)

    def delete(self, topic: str) -> None:
        try:
            self.rig.broker.delete(topic, lambda *_: None)
        except RequestError:
            return
        self.rig.loop.advance(0)


def look(disk: SimDisk, promises: Promises, where: str) -> None:
    """Start a broker without faults on the disk, and compare what it has with the promises."""
    for name in filter(is_topic_name, disk.listdir(f"{DIR}/topics") if disk.is_dir(f"{DIR}/topics") else []):
        report = verify_topic(disk, f"{DIR}/topics/{name}", name)
        assert not report.damaged, f"{where}: {report.findings}"
    rig = BrokerRig(disk=disk, retain_acked_for_ms=0)
    seen: set[bytes] = set()
    for name in TOPICS:
        topic = rig.broker.topics.get(name)
        mine = {msg_id: payload for (of, msg_id), payload in promises.accepted.items() if of == name}
        if topic is None:
            assert not mine or name in promises.deleted, f"{where}: topic {name} is gone"
            continue
        log = topic.log
        assert log.lost == [], f"{where}: {log.lost} of {name} count as lost"
        for msg_id, payload in mine.items():
            gone = msg_id < log.first_id or any(first <= msg_id <= last for first, last in log.removed)
            if gone:
                assert (name, msg_id) in promises.acked or name in promises.deleted, f"{where}: {name} {msg_id} was removed"
                continue
            run, row, _ = log.read(msg_id, 1)
            assert run is not None, f"{where}: {name} {msg_id} is lost"
            assert run.payloads[row] == payload, f"{where}: {name} {msg_id} has changed"
        at = log.first_id
        while at < log.committed_id:
            run, row, following = log.read(at, 64)
            if run is not None:
                seen.update(run.payloads[row : row + following - at])
            at = following
        if name not in promises.deleted:
            again = {(name, msg_id) for msg_id, _ in rig.take(rig.subscribe(name))}
            assert not again & promises.synced, f"{where}: acked messages came again"
            next_id = log.committed_id
            assert rig.publish(name, b"after")[0].first_id == next_id >= max(mine, default=-1) + 1, where
    assert not seen & promises.refused, f"{where}: a refused message is there"


def fresh() -> SimDisk:
    return SimDisk(random.Random(1))


def calls(retain_ms: int) -> Counter[str]:
    """Return how often the script makes each call to the disk."""
    script = Script(fresh(), retain_ms)
    script.run()
    assert len(script.promises.accepted) == 13, len(script.promises.accepted)
    assert not script.promises.refused
    assert (script.rig.broker.topics["t"].log.first_id > 0) == (retain_ms == 0), "retention has done something"
    return Counter(op for op, _, _ in script.rig.disk.trace)


DAY_MS = 24 * 3_600_000
COUNTS = {retain_ms: calls(retain_ms) for retain_ms in (0, DAY_MS)}


def test_the_script_does_everything() -> None:
    assert {op for op in OPS if not COUNTS[0][op]} == {"allocate"}, "small segments are not preallocated"


# With retention what was acked is gone before one looks; without, all that was ever written is looked at.
FAULTS = [
    *((op, 0, code) for op in (*OPS, SHORT) for code in (errno.EIO, errno.ENOSPC)),
    *((op, DAY_MS, code) for op in ("pwrite", "sync", "truncate", SHORT) for code in (errno.EIO, errno.ENOSPC)),
    *((op, 0, errno.EMFILE) for op in ("open", "sync_dir", "read_file")),
]


@one_in(18)
@pytest.mark.parametrize(
    ("op", "retain_ms", "code"), FAULTS, ids=[f"{op}-{retain_ms}-{errno.errorcode[code]}" for op, retain_ms, code in FAULTS]
)
def test_every_call_fails_once(op: str, retain_ms: int, code: int, share: int) -> None:
    for nth in range(1, COUNTS[retain_ms]["pwrite" if op == SHORT else op] + 1, share):
        disk = fresh()
        if op == SHORT:
            disk.short_write(nth, 7, sticky=False)
            if code == errno.ENOSPC:
                disk.fail("pwrite", nth + 1, code)
        else:
            disk.fail(op, nth, code)
        promises = Promises()
        # A start that fails is said, nothing worse; the next one succeeds.
        with suppress(LocalError, OSError):
            script = Script(disk, retain_ms)
            promises = script.promises
            script.run()
        disk.heal()
        # One run is enough for all endings: a cut copies the disk, and the kill, which hands it on, comes last.
        endings = {ending: disk.peek_crash(random.Random(ending)) for ending in ("cut 1", "cut 2")}
        for ending, after in (endings | {"kill": disk.kill()}).items():
            look(after, promises, f"{op} {nth} fails with {errno.errorcode[code]}, then {ending}")
