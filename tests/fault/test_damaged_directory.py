"""Every bit of a small data directory flipped, every page of a larger one zeroed, files swapped, cut, emptied, gone or stale.

Always: the broker starts, the topic beside it is served, what is delivered is what was published, and of the records exactly
those that were hit are lost, and named. The cases of single logs are in test_damage.py.
"""

import random
from itertools import combinations

import pytest

from tests.support.broker_rig import DIR, BrokerRig
from tests.support.logs import some_frames
from tests.support.shares import one_in
from tests.support.sim_disk import SimDisk
from toymq_py.errors import StorageFailed
from toymq_py.storage.fs import write_all
from toymq_py.storage.offline.verify import verify_topic
from toymq_py.storage.record import decode_frame

Files = dict[str, bytes]
"""Path to content, below the data directory."""

TOPIC = "topics/t"
FIRST = f"{TOPIC}/{0:020d}.log"
PAGE_BYTES = 4096


class Directory:
    """A data directory with the topics "t" and "other". The consumer "c" of "t" has acked some messages."""

    def __init__(self, segments: dict[int, list[bytes]], acked: list[int]) -> None:
        self.acked = acked
        self.frames = [frame for _, frames in sorted(segments.items()) for frame in frames]
        self.payloads = [decode_frame(frame).payload for frame in self.frames]
        rig = BrokerRig()
        rig.publish("other", b"beside it")
        rig.change("create", "t", visibility="5000")
        files = files_of(rig.disk)
        for first_id, frames in segments.items():
            files[f"{TOPIC}/{first_id:020d}.log"] = b"".join(frames)
        rig = BrokerRig(disk=disk_of(files))
        rig.take(rig.subscribe("t", window=1000))
        for msg_id in acked:
            self.before = files_of(rig.disk)  # so that the last ack is in one generation of the offsets only
            rig.ack("t", msg_id, msg_id)
        rig.broker.close()
        self.files = files_of(rig.disk)
        self.segments = segments

    def hit(self, path: str, first: int, last: int) -> set[int]:
        """Return the ids whose frames have a byte in a range of a log."""
        base_id = int(path.split("/")[-1].split(".")[0])
        at, found = 0, set()
        for row, frame in enumerate(self.segments[base_id]):
            if at <= last and at + len(frame) > first:
                found.add(base_id + row)
            at += len(frame)
        return found


def files_of(disk: SimDisk) -> Files:
    return {path.removeprefix(DIR + "/"): data for path, data in disk.snapshot().items() if path[-1] != "/" and DIR in path}


def disk_of(files: Files) -> SimDisk:
    disk = SimDisk(random.Random(1), tracing=False)
    disk.mkdir(DIR)
    for path, data in files.items():
        above = f"{DIR}/{path}"[: -len(path.split("/")[-1]) - 1]
        for depth in range(len(DIR.split("/")), len(above.split("/"))):
            disk.mkdir("/".join(above.split("/")[: depth + 1]))
        file = disk.open(f"{DIR}/{path}", create=True)
        write_all(file, data, 0)
        file.close()
    return disk


class Start:
    """A broker started on a damaged directory: its findings and its deliveries."""

    def __init__(self, files: Files, whole: Directory, where: str) -> None:
        self.where = where
        disk = disk_of(files)
        self.findings = verify_topic(disk, f"{DIR}/{TOPIC}", "t").findings
        rig = BrokerRig(disk=disk)
        assert [msg_id for msg_id, _ in rig.take(rig.subscribe("other"))] == [0], f"{where}: the topic beside it is served"
        self.ids: set[int] = set()
        self.again: set[int] = set()
        self.failed = False
        try:
            every = rig.subscribe("t", "every", window=10_000)
            while (delivery := every.take(1 << 20)) is not None:
                run = delivery.records
                for row in range(delivery.start, delivery.stop):
                    msg_id = run.ids[row]
                    assert msg_id < len(whole.payloads), f"{where}: message {msg_id} was never published"
                    assert run.payloads[row] == whole.payloads[msg_id], f"{where}: message {msg_id} was changed"
                    self.ids.add(msg_id)
            self.again = {msg_id for msg_id, _ in rig.take(rig.subscribe("t", "c", window=10_000))}
            self.next_id = rig.publish("t", b"after")[0].first_id
        except StorageFailed:
            self.failed = True
        (self.state,) = [found["state"] for found in rig.broker.describe(None) if found["topic"] == "t"]
        rig.broker.close()


SMALL = Directory({0: some_frames(3, size_max=20), 3: some_frames(3, first_id=3, size_max=20)}, acked=[0, 4])
SMALL_IDS = set(range(6))
LARGE = Directory(
    {base: some_frames(40, first_id=base, size_max=900) for base in range(0, 160, 40)}, acked=[*range(30), 77, 100]
)
LARGE_IDS = set(range(160))


def test_the_directories_are_what_the_tests_assume() -> None:
    kinds = {path.split("/")[-1].lstrip("0123456789") for path in SMALL.files if path.startswith(TOPIC)}
    of_offsets, of_settings = {"offsets.json", "offsets.json.prev", "has-offsets"}, {"topic.json", "has-settings"}
    assert kinds == {".log", ".idx", "segments.json"} | of_offsets | of_settings
    start = Start(SMALL.files, SMALL, "whole")
    assert (start.ids, start.again, start.state, start.next_id) == (SMALL_IDS, {1, 2, 3, 5}, "ok", 6)
    assert max(len(data) for data in LARGE.files.values()) > 3 * PAGE_BYTES


def check(start: Start, whole: Directory, path: str, hit: set[int]) -> None:
    """Check that exactly the records ``hit`` are lost, and that all acks are still known except those that only a damaged file
    had."""
    where, every = start.where, set(range(len(whole.payloads)))
    assert not start.failed, where
    assert start.ids == every - hit, f"{where}: lost {every - start.ids}, hit {hit}"
    is_judged = path.endswith(("offsets.json", "topic.json", "segments.json"))
    lacks = is_judged and bool(start.findings)  # but for the line break at its end
    assert start.state == ("degraded" if hit or lacks else "ok"), where
    assert start.findings or not hit, f"{where}: verify sees it, too"
    open_ids = every - hit - set(whole.acked)
    if path.endswith("offsets.json"):
        assert start.again in (open_ids, open_ids | {whole.acked[-1]}), f"{where}: the previous generation serves"
    else:
        assert start.again == open_ids, where
    assert start.next_id >= len(whole.payloads), f"{where}: an id is never used twice"


@one_in(61)  # which is every bit of a byte in turn
@pytest.mark.parametrize("path", sorted(path for path in SMALL.files if "other" not in path))
def test_every_bit_flipped(path: str, share: int) -> None:
    for bit in range(0, 8 * len(SMALL.files[path]), share):
        data = bytearray(SMALL.files[path])
        data[bit // 8] ^= 1 << bit % 8
        hit = SMALL.hit(path, bit // 8, bit // 8) if path.endswith(".log") else set()
        check(Start({**SMALL.files, path: bytes(data)}, SMALL, f"{path}, bit {bit}"), SMALL, path, hit)


@pytest.mark.parametrize("path", sorted(path for path in LARGE.files if "other" not in path))
def test_every_page_zeroed(path: str) -> None:
    data = LARGE.files[path]
    for first in range(0, len(data), PAGE_BYTES):
        last = min(first + PAGE_BYTES, len(data)) - 1
        zeroed = data[:first] + bytes(last + 1 - first) + data[last + 1 :]
        hit = LARGE.hit(path, first, last) if path.endswith(".log") else set()
        check(Start({**LARGE.files, path: zeroed}, LARGE, f"{path}, page {first // PAGE_BYTES}"), LARGE, path, hit)


@pytest.mark.parametrize("path", sorted(path for path in SMALL.files if "other" not in path))
@one_in(10)
def test_cut_at_every_byte_emptied_and_gone(path: str, share: int) -> None:
    data = SMALL.files[path]
    for length in range(0, len(data), share):
        hit = SMALL.hit(path, length, len(data)) if path.endswith(".log") else set()
        check(Start({**SMALL.files, path: data[:length]}, SMALL, f"{path} cut at {length}"), SMALL, path, hit)
    gone = {other: content for other, content in SMALL.files.items() if other != path}
    hit = SMALL.hit(path, 0, len(data)) if path.endswith(".log") else set()
    start = Start(gone, SMALL, f"{path} gone")
    if path != FIRST:  # looks like retention on a full disk: see the next test
        check(start, SMALL, path, hit)


def test_the_first_segment_gone_costs_its_records_and_is_told() -> None:
    gone = {path: data for path, data in SMALL.files.items() if path != FIRST}
    start = Start(gone, SMALL, "first segment gone")
    assert (start.ids, start.again, start.next_id) == ({3, 4, 5}, {3, 5}, 6)


def test_any_two_files_swapped() -> None:
    """No wrong message is delivered, whichever file has the place of another one. A record in a log that cannot be read may be
    missing."""
    for one, other in combinations(sorted(SMALL.files), 2):
        files = {**SMALL.files, one: SMALL.files[other], other: SMALL.files[one]}
        if "other/" in one + other:
            continue
        start = Start(files, SMALL, f"{one} swapped with {other}")
        if not one.endswith(".log") and not other.endswith(".log"):
            assert start.ids == SMALL_IDS, start.where


def test_stale_sidecars_and_offsets() -> None:
    """Files of an earlier time, of another segment, or of another topic: acks may be forgotten, but no message is lost."""
    for path, data in SMALL.before.items():
        if path.endswith((".idx", "offsets.json", "offsets.json.prev")):
            start = Start({**SMALL.files, path: data}, SMALL, f"{path} of before")
            told = "degraded" if path.endswith("offsets.json") else "ok"  # no newer than the .prev beside it
            assert (start.ids, start.state) == (SMALL_IDS, told), start.where
            assert {1, 2, 3, 5} <= start.again <= {1, 2, 3, 4, 5}, start.where
    for name in ("offsets.json", "offsets.json.prev"):
        foreign = {f"{TOPIC}/{name}": LARGE.files[f"{TOPIC}/{name}"] for name in (name,)}
        start = Start({**SMALL.files, **foreign}, SMALL, f"{name} of another topic")
        assert start.ids <= SMALL_IDS, start.where
