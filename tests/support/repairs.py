"""Repairs a small damaged log, and compares the result with what could be read before."""

from tests.support.logs import PATH, report_of, some_frames
from tests.support.sim_disk import SimDisk
from toymq_py.storage import offsets
from toymq_py.storage.offline.dump import dump_topic
from toymq_py.storage.offline.repair import TopicRepair, repair
from toymq_py.storage.record import Frame
from toymq_py.storage.recovery import recover_log

FRAMES = some_frames(12)
LOG = b"".join(FRAMES)
STARTS = [sum(map(len, FRAMES[:n])) for n in range(len(FRAMES) + 1)]
SECOND = b"".join(some_frames(5, first_id=12))
CONSUMER = {"since_ns": 1, "start": 0, "has_acked": True, "last_acked": 1, "acked_above": [], "attempts": []}


def records(disk: SimDisk) -> list[Frame]:
    return [item for item in dump_topic(disk, PATH) if isinstance(item, Frame)]


def put(disk: SimDisk, name: str, data: bytes, base: str = PATH) -> None:
    file = disk.open(f"{base}/{name}", create=True)
    file.truncate(0)
    file.pwrite(data, 0)
    file.sync()
    file.close()


def mend(disk: SimDisk) -> TopicRepair | None:
    done = list(repair(disk, "/data", pid=1))
    assert len(done) <= 1
    return done[0] if done else None


def check(disk: SimDisk, where: str) -> TopicRepair:
    """Repair a log, and compare the result with what could be read before, and with what recovery makes of it."""
    before = records(disk)
    files = {name: data for name, data in disk.snapshot().items() if name.startswith(PATH) and not name.endswith(".idx")}
    done = mend(disk)
    assert done is not None, f"{where}: verify sees damage, so there is something to do"
    report = report_of(disk)
    assert not report.damaged, f"{where}: {report.findings}"
    assert records(disk) == before, f"{where}: what could be read can be read"
    lost = {msg_id for first, last in done.lost for msg_id in range(first, last + 1)}
    assert not lost & {frame.msg_id for frame in before}
    now = disk.snapshot()
    for name in done.quarantined:
        assert now[f"/data/quarantine/1/t/{name}"] == files[f"{PATH}/{name}"], f"{where}: the evidence is as it was"
    changed = {path for path, data in files.items() if now.get(path) not in (data, None)} | {p for p in files if p not in now}
    kept = {name.rpartition("/")[2] for name in changed if name.endswith((".log", "topic.json"))}
    assert kept <= set(done.quarantined), f"{where}: what was changed is in the quarantine"
    assert mend(disk) is None, f"{where}: a second time there is nothing to do"
    state = offsets.load(disk, PATH).state
    log = recover_log(disk, PATH, first_id=state.first_id, next_id=state.next_id, removed=state.removed)
    assert log.lost == [], f"{where}: nothing is degraded, every gap is known"
    assert [frame.msg_id for frame in records(disk)] == [frame.msg_id for frame in before]
    return done
