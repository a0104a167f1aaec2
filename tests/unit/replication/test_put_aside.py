"""A follower's own records are on stable storage elsewhere before anything is cut; a plan must match this follower's files."""

import json
import random

import pytest

from tests.support.fake_clock import FakeClock
from tests.support.mounts import mounted
from tests.support.sim_disk import SimDisk
from toymq_py.errors import BadOperation
from toymq_py.replication.content_digests import ContentDigests
from toymq_py.replication.disk_calls import StopFlag
from toymq_py.replication.manifest import Action, FilePlan, JoinPlan, Manifest, take_manifest
from toymq_py.replication.put_aside import KEPT_NS, Moved, carry_out, check_plan, remove_old
from toymq_py.storage import topic_settings

ROOT = "/data/d"
LOG, IDX, MINE = (f"topics/{name}" for name in (f"t/{1:020d}.log", f"t/{1:020d}.idx", f"mine/{1:020d}.log"))
OFFSETS = "topics/t/offsets.json"
PLACE = "replaced/7-0123456789abcdef"
NOW = 1_700_000_000 * 10**9


def new_disk(files: dict[str, bytes], seed: int = 1) -> SimDisk:
    """Return a disk with these files, synced."""
    disk = SimDisk(random.Random(seed), tracing=False, torn_sectors=True)
    disk.mkdir(ROOT)
    for path, content in files.items():
        at = ROOT
        for part in path.split("/")[:-1]:
            at = f"{at}/{part}"
            disk.mkdir(at)
        file = disk.open(f"{ROOT}/{path}", create=True)
        file.pwrite(content, 0)
        file.sync()
    for directory in ("/data", ROOT, *{f"{ROOT}/{path.rpartition('/')[0]}" for path in files}, f"{ROOT}/topics"):
        disk.sync_dir(directory)
    return disk


def join(disk: SimDisk, *files: FilePlan, directories: tuple[str, ...] = ("topics", "topics/t")) -> Moved:
    manifest = take_manifest(ContentDigests(disk, ROOT, FakeClock()), StopFlag())
    plan = JoinPlan(files, directories)
    check_plan(plan, manifest)
    return carry_out(disk, ROOT, plan, manifest, "7-0123456789abcdef", NOW, StopFlag())


def content(disk: SimDisk) -> dict[str, bytes]:
    return {
        path.removeprefix(f"{ROOT}/"): data for path, data in disk.snapshot().items()
        if not path.endswith("/") and not path.endswith("replaced.json")
    }  # fmt: skip


def test_each_file_goes_where_the_plan_says() -> None:
    files = {LOG: b"log", IDX: b"index", OFFSETS: b"{}", MINE: b"mine", "topics/mine/x.tmp": b"", "webhooks.json": b"[]"}
    disk = new_disk(files)
    moved = join(
        disk, FilePlan(LOG, Action.COPY), FilePlan(IDX, Action.KEEP), FilePlan(OFFSETS, Action.COPY),
        FilePlan(MINE, Action.ASIDE), FilePlan("webhooks.json", Action.ASIDE), FilePlan("topics/new/topic.json", Action.COPY),
        directories=("topics", "topics/t", "topics/new"),
    )  # fmt: skip
    assert content(disk) == {
        IDX: b"index", f"{PLACE}/{LOG}": b"log", f"{PLACE}/{MINE}": b"mine", f"{PLACE}/webhooks.json": b"[]",
    }  # fmt: skip
    assert disk.listdir(f"{ROOT}/topics") == ["new", "t"]
    assert moved == Moved(PLACE, 3, 9, [LOG, MINE])


def test_settings_that_go_aside_are_not_missing() -> None:
    """The mark that settings were stored is each replica's own: if it stayed, this log's settings would count as missing."""
    settings, mark = (f"topics/t/{name}" for name in (topic_settings.FILE_NAME, topic_settings.MARK_NAME))
    disk = new_disk({LOG: b"log", settings: b"{}", mark: b""})
    join(disk, FilePlan(LOG, Action.KEEP), FilePlan(settings, Action.ASIDE))
    assert topic_settings.load(disk, f"{ROOT}/topics/t").problem is None


def test_a_prefix_is_cut_to_its_content_and_what_is_equal_stays() -> None:
    disk = new_disk({LOG: b"log" + bytes(50), IDX: b"index"})
    moved = join(disk, FilePlan(LOG, Action.APPEND, 3), FilePlan(IDX, Action.KEEP))
    assert content(disk) == {LOG: b"log", IDX: b"index"}
    assert moved.files == 0
    assert disk.listdir(ROOT) == ["topics"]


def test_an_empty_segment_is_nothing_to_put_aside() -> None:
    disk = new_disk({LOG: b""})
    assert join(disk, FilePlan(LOG, Action.COPY)).files == 0
    assert content(disk) == {}


@pytest.mark.parametrize("is_mounted", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_no_power_cut_loses_what_only_the_follower_had(
    monkeypatch: pytest.MonkeyPatch, seed: int, is_mounted: bool
) -> None:  # fmt: skip
    """The power is cut at any call of the disk: each file is whole in its place, or aside. Found: where ``topics`` is a file
    system of its own, a follower could not put files aside by rename, and did not get in sync."""
    if is_mounted:
        mounted(monkeypatch, ROOT)
    files = {LOG: b"a segment of its own", MINE: b"another one", OFFSETS: b"{}"}
    calls = 0
    while True:
        disk = new_disk(files, seed)
        manifest = take_manifest(ContentDigests(disk, ROOT, FakeClock()), StopFlag())
        plans = (FilePlan(LOG, Action.COPY), FilePlan(MINE, Action.ASIDE), FilePlan(OFFSETS, Action.COPY))
        plan = JoinPlan(plans, ("topics", "topics/t"))
        stop = StopAfter(calls)
        ended = True
        try:
            carry_out(disk, ROOT, plan, manifest, "7-0123456789abcdef", NOW, stop)
        except RuntimeError:
            ended = False
        after = content(disk.crash())
        for path in (LOG, MINE):
            assert files[path] in (after.get(path), after.get(f"{PLACE}/{path}")), (calls, path, sorted(after))
        if ended:
            return
        calls += 1


class StopAfter(StopFlag):
    """Ends a job at one of its steps, like a kill."""

    __slots__ = ("left",)

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.left = steps

    def check(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("killed here")


OWN_DIGESTS = ContentDigests(new_disk({LOG: b"log", IDX: b"index"}), ROOT, FakeClock())
OWN = Manifest(take_manifest(OWN_DIGESTS, StopFlag()).files, ("topics", "topics/t"))


@pytest.mark.parametrize("files", [
    (), (FilePlan(LOG, Action.KEEP),), (FilePlan(LOG, Action.KEEP), FilePlan(IDX, Action.KEEP), FilePlan(MINE, Action.KEEP)),
    (FilePlan(LOG, Action.KEEP), FilePlan(IDX, Action.KEEP), FilePlan(MINE, Action.ASIDE)),
    (FilePlan(LOG, Action.APPEND, 2), FilePlan(IDX, Action.KEEP)),
    (FilePlan(LOG, Action.APPEND, 4), FilePlan(IDX, Action.KEEP)),
])  # fmt: skip
def test_a_plan_of_other_files_is_refused(files: tuple[FilePlan, ...]) -> None:
    with pytest.raises(BadOperation):
        check_plan(JoinPlan(files, ("topics", "topics/t")), OWN)


def test_what_went_aside_is_removed_after_seven_days() -> None:
    disk = new_disk({LOG: b"log", f"{PLACE}x/{MINE}": b"it has no date", "replaced/y/replaced.json": b"[" * 9})
    assert remove_old(new_disk({LOG: b""}), ROOT, NOW) == 0
    join(disk, FilePlan(LOG, Action.ASIDE))
    assert json.loads(disk.read_file(f"{ROOT}/{PLACE}/replaced.json")) == {"version": 1, "wall_ns": NOW}
    assert remove_old(disk, ROOT, NOW + KEPT_NS) == 0
    assert remove_old(disk, ROOT, NOW + KEPT_NS + 1) == 1
    assert disk.listdir(f"{ROOT}/replaced") == ["7-0123456789abcdefx", "y"]
