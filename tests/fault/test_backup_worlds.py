"""Random lives of a directory and its backup: damage, repairs, lost and older directories, kills, full disks.

Whatever happens to the source, a backup without ``--prune`` loses no record that an earlier one had, and what can be read of
the source is in it. ADR 0086, 0091.
"""

import errno
import random
from contextlib import suppress

import pytest

from tests.support.backups import TO
from tests.support.broker_rig import DIR, BrokerRig
from tests.support.directory_copies import copy_tree
from tests.support.shares import seeds
from toymq_py.errors import DataDirectoryError
from toymq_py.storage import offsets
from toymq_py.storage.fs import remove_tree
from toymq_py.storage.offline.backup import back_up
from toymq_py.storage.offline.dump import dump_topic
from toymq_py.storage.offline.repair import repair
from toymq_py.storage.offline.restore import restore
from toymq_py.storage.record import Frame
from toymq_py.storage.topic_directories import topic_names

TOPICS = ("a", "b")


class World:
    """A broker and a backup of its directory. The broker is killed before each event on its disk."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.rig = BrokerRig(retain_acked_for_ms=3_600_000)
        self.published = 0
        self.snapshots: list[str] = []
        self.held: set[tuple[str, bytes]] = set()
        """Topics and payloads that the backup has."""
        self.may_go: set[tuple[str, bytes]] = set()
        """What was acked or purged: what the broker removes goes from the backup, too."""
        self.happened: list[str] = []
        self.publishes()

    def step(self) -> None:
        happens = self.rng.choice(
            [self.publishes, self.publishes, self.acks, self.spoils, self.removes, self.snapshots_it, self.goes_back,
             self.loses_topic, self.repairs, self.backs_up, self.backs_up, self.fails, self.rots, self.deletes,
             self.retains, self.purges, self.prunes]
        )  # fmt: skip
        self.happened.append(happens.__name__)
        happens()
        self.happened.append("backs_up")
        self.backs_up()

    def publishes(self) -> None:
        self.rig.clock.advance(0.001)
        for _ in range(self.rng.randrange(1, 12)):
            self.published += 1
            payload = b"%d " % self.published * self.rng.choice([1, 20, 300])
            self.rig.publish(self.rng.choice(TOPICS), payload)
        for topic in self.rig.broker.topics:
            self.rig.flush(topic)

    def acks(self) -> None:
        for topic in self.rig.broker.topics:
            payloads = {frame.msg_id: frame.payload for frame in self.frames(DIR, topic)}
            for msg_id, _ in self.rig.take(self.rig.subscribe(topic))[:3]:
                self.may_go.add((topic, payloads[msg_id]))
                self.rig.ack(topic, msg_id, msg_id)
            lost = [frame for frame in self.frames(TO, topic) if frame.msg_id not in payloads]
            self.may_go |= {(topic, frame.payload) for frame in lost}  # they count as acked
            self.rig.flush(topic)

    def stops(self) -> None:
        if self.rng.random() < 0.5:
            self.rig.broker.close()
        else:
            self.rig.disk = self.rig.disk.kill()

    def starts(self) -> None:
        self.rig.clock.advance(0.001)
        self.rig.restart()

    def _file(self, root: str) -> str | None:
        disk = self.rig.disk
        files = [f"{root}/{topic}/{name}" for topic in disk.listdir(root) for name in disk.listdir(f"{root}/{topic}")]
        return self.rng.choice(files) if files else None

    def spoils(self, root: str = f"{DIR}/topics") -> None:
        self.stops()
        path = self._file(root)
        if path is not None:
            file = self.rig.disk.open(path)
            size = file.size()
            at = self.rng.randrange(max(size, 1))
            how = self.rng.randrange(3)
            if how == 0 and size:
                file.pwrite(bytes([file.pread(1, at)[0] ^ 1 << self.rng.randrange(8)]), at)
            elif how == 1 and size:
                file.pwrite(bytes(min(4096, size - at // 4096 * 4096)), at // 4096 * 4096)
            else:
                file.truncate(at)
            file.close()
        self.starts()

    def removes(self) -> None:
        self.stops()
        if (path := self._file(f"{DIR}/topics")) is not None:
            self.rig.disk.unlink(path)
        self.starts()

    def snapshots_it(self) -> None:
        self.stops()
        self.snapshots.append(f"/data/snapshot{len(self.snapshots)}")
        copy_tree(self.rig.disk, f"{DIR}/topics", self.snapshots[-1])
        self.starts()

    def goes_back(self) -> None:
        if self.snapshots:
            self.stops()
            remove_tree(self.rig.disk, f"{DIR}/topics")
            copy_tree(self.rig.disk, self.rng.choice(self.snapshots), f"{DIR}/topics")
            self.starts()

    def loses_topic(self) -> None:
        self.stops()
        remove_tree(self.rig.disk, f"{DIR}/topics/{self.rng.choice(TOPICS)}")
        self.starts()

    def deletes(self) -> None:
        if self.rig.broker.topics:
            self.rig.delete(self.rng.choice(list(self.rig.broker.topics)))

    def retains(self) -> None:
        self.rig.advance(7200)

    def purges(self) -> None:
        self.may_go |= self.records(DIR) | self.records(TO)
        for topic in self.rig.broker.topics:
            self.rig.purge(topic)

    def prunes(self) -> None:
        if topic_names(self.rig.disk, DIR):
            back_up(self.rig.disk, DIR, TO, pid=2, wall_ns=self.rig.clock.wall_ns(), prune=True)
            self.held = self.of_backup()

    def repairs(self) -> None:
        self.stops()
        list(repair(self.rig.disk, DIR, pid=9))
        self.starts()

    def fails(self) -> None:
        """Make a backup on a disk that is full, then kill the broker or cut the power."""
        op = self.rng.choice(["pwrite", "sync", "rename", "sync_dir", "unlink"])
        self.rig.disk.fail(op, self.rng.randrange(1, 60), errno.ENOSPC, sticky=True, path=TO)
        with suppress(OSError):
            self.backs_up()
        self.rig.disk.heal()
        self.rig.reopen(power_cut=self.rng.random() < 0.5)

    def rots(self) -> None:
        """Damage the backup itself. The records that are lost by this do not count as lost by ``toymq backup``."""
        if self.rig.disk.exists(f"{TO}/topics"):
            self.spoils(f"{TO}/topics")
            self.held = self.of_backup()

    def backs_up(self) -> None:
        disk = self.rig.disk
        source = self.records(DIR)
        if topic_names(disk, TO) and not topic_names(disk, DIR):
            with pytest.raises(DataDirectoryError, match="has no topics"):
                back_up(disk, DIR, TO, pid=2, wall_ns=1)
            return
        back_up(disk, DIR, TO, pid=2, wall_ns=self.rig.clock.wall_ns())
        may_go = self.may_go | {record for record in self.held if self.says_nothing(record[0])}
        self.check(self.held - may_go, self.of_backup(), "lost what it had")
        self.check(source, self.records(TO), "has not what can be read")
        self.held = self.of_backup()

    def says_nothing(self, topic: str) -> bool:
        """Whether the source has no record of a topic and its log begins above id 0: then nothing shows whether this log is the
        one in the backup."""
        path = f"{DIR}/topics/{topic}"
        return not self.frames(DIR, topic) and offsets.load(self.rig.disk, path).state.first_id > 0

    def check(self, due: set[tuple[str, bytes]], there: set[tuple[str, bytes]], what: str) -> None:
        missing = sorted((topic, payload[:12]) for topic, payload in due - there)
        assert not missing, f"the backup {what}: {missing} after {self.happened}"

    def of_backup(self) -> set[tuple[str, bytes]]:
        disk, earlier = self.rig.disk, f"{TO}/earlier"
        places = [f"{earlier}/{name}" for name in disk.listdir(earlier)] if disk.is_dir(earlier) else []
        return {record for place in (TO, *places) for record in self.records(place)}

    def records(self, data_dir: str) -> set[tuple[str, bytes]]:
        return {
            (topic, frame.payload) for topic in topic_names(self.rig.disk, data_dir) for frame in self.frames(data_dir, topic)
        }

    def frames(self, data_dir: str, topic: str) -> list[Frame]:
        path = f"{data_dir}/topics/{topic}"
        found = dump_topic(self.rig.disk, path) if self.rig.disk.is_dir(path) else ()
        return [item for item in found if isinstance(item, Frame)]


def live(seed: int, steps: int) -> None:
    world = World(seed)
    for _ in range(steps):
        world.step()
    restore(world.rig.disk, TO, "/data/back", pid=3)
    held = world.records(TO)
    BrokerRig(disk=world.rig.disk, data_dir="/data/back").broker.close()
    world.check(held, world.records("/data/back"), "gives back less than it has")


@pytest.mark.parametrize("seed", seeds(4, 60))
def test_no_backup_loses_what_an_earlier_one_had(seed: int) -> None:
    live(seed, 12)


def test_a_copy_of_a_damaged_segment_stays_when_retention_removes_what_is_left_of_it() -> None:
    """Found: a damaged segment had been cut, and the backup kept its whole copy. When retention removed the last record of the
    cut segment, the backup removed its copy, too."""
    live(4052, 16)


@pytest.mark.torture
def test_many_lives() -> None:
    for seed in range(1000, 6000):
        live(seed, 16)
