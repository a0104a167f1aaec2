"""A follower's files and the plan for each, by content: JSON both ways, and the plan of each pair of files."""

import json
import random
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fake_clock import FakeClock
from tests.support.sealed_segments import directory_with_segments, flip_bit
from tests.support.sim_disk import SimDisk
from toymq_py.errors import BadOperation
from toymq_py.replication import content_digests
from toymq_py.replication import manifest as manifest_module
from toymq_py.replication.content_digests import ContentDigests, FileEntry
from toymq_py.replication.disk_calls import StopFlag, Stopped
from toymq_py.replication.manifest import (
    Action,
    FilePlan,
    JoinPlan,
    Manifest,
    decode_manifest,
    decode_plan,
    encode_manifest,
    encode_plan,
    make_plan,
    may_be_cached_only,
    missing_bytes,
    take_manifest,
)
from toymq_py.storage.fs import RealFileSystem
from toymq_py.storage.record import crc32

ROOT = "/data/d"
LOG, OTHER, IDX = (f"topics/t/{name}" for name in (f"{1:020d}.log", f"{9:020d}.log", f"{1:020d}.idx"))
DIGEST = "0" * 32


def disk_with(files: dict[str, bytes], *directories: str) -> SimDisk:
    disk = SimDisk(random.Random(1))
    disk.mkdir(ROOT)
    for directory in directories:
        files = files | {f"{directory}/x.tmp": b""}
    for path, content in files.items():
        at = ROOT
        for part in path.split("/")[:-1]:
            at = f"{at}/{part}"
            disk.mkdir(at)
        file = disk.open(f"{ROOT}/{path}", create=True)
        file.truncate(len(content))
        file.pwrite(content, 0)
        file.close()
    return disk


def digests_of(disk: SimDisk) -> ContentDigests:
    return ContentDigests(disk, ROOT, FakeClock())


def planned(ours: dict[str, bytes], theirs: dict[str, bytes]) -> dict[str, FilePlan]:
    manifest = take_manifest(digests_of(disk_with(theirs)), StopFlag())
    found = decode_manifest(encode_manifest(manifest))
    assert found == manifest
    plan = make_plan(found, digests_of(disk_with(ours)), StopFlag())
    assert decode_plan(encode_plan(plan)) == plan
    return {each.path: each for each in plan.files}


RECORDS = b"one record, two records, " * 9
CASES = {
    "the same": (RECORDS, RECORDS, (Action.KEEP, 0)),
    "a prefix": (RECORDS, RECORDS[:50], (Action.APPEND, 50)),
    "a prefix with reserved space": (RECORDS, RECORDS[:50] + bytes(500), (Action.APPEND, 50)),
    "the same with reserved space there": (RECORDS, RECORDS + bytes(500), (Action.KEEP, 0)),
    "the same with reserved space here": (RECORDS + bytes(500), RECORDS, (Action.APPEND, len(RECORDS))),
    "reserved space on both sides": (RECORDS + bytes(500), RECORDS + bytes(700), (Action.KEEP, 0)),
    "a record that ends with a zero which the follower lacks": (RECORDS + b"\0", RECORDS, (Action.APPEND, len(RECORDS))),
    "nothing yet": (RECORDS, b"", (Action.APPEND, 0)),
    "reserved space alone": (bytes(500), bytes(300), (Action.APPEND, 0)),
    "a suffix of its own": (RECORDS, RECORDS + b"own", (Action.COPY, 0)),
    "another end": (RECORDS, RECORDS[:50] + b"own", (Action.COPY, 0)),
    "one byte changed, lengths the same": (RECORDS, RECORDS.replace(b"two", b"tw0", 1), (Action.COPY, 0)),
    "nothing here": (b"", RECORDS, (Action.COPY, 0)),
    "nothing on either side": (b"", b"", (Action.KEEP, 0)),
    "zeros where the leader has a record": (RECORDS, RECORDS[:50] + bytes(20) + RECORDS[70:], (Action.COPY, 0)),
}


@pytest.mark.parametrize(("ours", "theirs", "expected"), CASES.values(), ids=CASES.keys())
def test_what_becomes_of_a_segment(ours: bytes, theirs: bytes, expected: tuple[Action, int]) -> None:
    assert planned({LOG: ours}, {LOG: theirs}) == {LOG: FilePlan(LOG, *expected)}


@pytest.mark.parametrize(("ours", "theirs", "expected"), [
    (b"{}", b"{}", Action.KEEP), (b"{}", b"{", Action.COPY), (b"{}", b"{}\0", Action.COPY), (b"{} ", b"{}", Action.COPY),
    (b"", b"", Action.KEEP), (b"[]", b"{}", Action.COPY),
])  # fmt: skip
def test_any_other_file_is_the_same_or_comes_as_a_whole(ours: bytes, theirs: bytes, expected: Action) -> None:
    assert planned({IDX: ours}, {IDX: theirs}) == {IDX: FilePlan(IDX, expected)}


def test_files_that_one_side_lacks() -> None:
    assert planned({LOG: b"x"}, {OTHER: b"x"}) == {LOG: FilePlan(LOG, Action.COPY), OTHER: FilePlan(OTHER, Action.ASIDE)}


def test_a_digest_that_fools_no_checksum() -> None:
    """The CRC-32 of two whole frames does not depend on their content, as each ends with its own checksum."""
    ours, theirs = (content + crc32(content).to_bytes(4, "little") for content in (b"mine!", b"yours"))
    assert crc32(ours) == crc32(theirs)
    assert planned({LOG: ours}, {LOG: theirs})[LOG].action is Action.COPY


def test_only_what_replicas_share_is_in_it() -> None:
    disk = disk_with(
        {LOG: b"x", "LOCK": b"", "replica.json": b"", "webhooks.json": b"{}", "topics/t/topic.json.tmp": b""},
        "spool", "replaced", "topics/empty",
    )  # fmt: skip
    found = take_manifest(digests_of(disk), StopFlag())
    assert [each.path for each in found.files] == [LOG, "webhooks.json"]
    assert found.directories == ("topics", "topics/empty", "topics/t")
    plan = make_plan(Manifest((), ()), digests_of(disk), StopFlag())
    assert plan.directories == found.directories
    assert missing_bytes(Manifest((), ()), digests_of(disk)) == 3
    assert missing_bytes(found, digests_of(disk)) == 0


def test_a_directory_in_the_place_of_a_file_is_moved_away_at_a_follower_and_left_alone_at_a_leader() -> None:
    """Found: neither could be opened as a file, so the join failed again and again."""
    disk = disk_with({LOG: b"x"}, "topics/t/offsets.json.prev")
    plan = make_plan(Manifest((), ()), digests_of(disk), StopFlag())
    assert [each.path for each in plan.files] == [LOG]
    assert missing_bytes(Manifest((), ()), digests_of(disk)) == 1
    assert disk.is_dir(f"{ROOT}/topics/t/offsets.json.prev")
    assert [each.path for each in take_manifest(digests_of(disk), StopFlag()).files] == [LOG]
    assert not disk.exists(f"{ROOT}/topics/t/offsets.json.prev")
    assert disk.is_dir(f"{ROOT}/topics/t/offsets.json.prev.damaged")


def test_large_files_are_read_in_pieces_with_the_same_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {name: planned({LOG: ours}, {LOG: theirs}) for name, (ours, theirs, _) in CASES.items()}
    monkeypatch.setattr(content_digests, "READ_BYTES", 7)
    for name, (ours, theirs, _) in CASES.items():
        assert planned({LOG: ours}, {LOG: theirs}) == whole[name], name


def test_an_unreadable_file_of_the_leader_is_copied() -> None:
    manifest = take_manifest(digests_of(disk_with({LOG: RECORDS})), StopFlag())
    disk = disk_with({LOG: RECORDS})
    disk.fail("pread", 1, 5)
    assert make_plan(manifest, digests_of(disk), StopFlag()).files == (FilePlan(LOG, Action.COPY),)


def test_a_long_comparison_can_be_stopped() -> None:
    stop = StopFlag()
    stop.is_set = True
    with pytest.raises(Stopped):
        take_manifest(digests_of(disk_with({LOG: RECORDS})), stop)


entries = st.builds(lambda size, more: FileEntry(LOG, size, size + more, DIGEST), st.integers(0, 2**62), st.integers(0, 2**20))


@given(st.one_of(st.none(), entries))
def test_a_manifest_is_read_as_it_was_written(entry: FileEntry | None) -> None:
    manifest = Manifest(() if entry is None else (entry,), ("topics", "topics/t"))
    assert decode_manifest(encode_manifest(manifest)) == manifest


HOSTILE = [
    b"", b"\xff", b"[]", b"{}", b"[" * 50_000, b'{"files":{},"directories":[]}', b'{"files":[],"directories":[1]}',
    b'{"files":[],"directories":[""]}', b'{"files":[],"directories":["spool"]}', b'{"files":[],"directories":["topics/t"]}',
    b'{"files":[],"directories":["topics","topics"]}', b'{"files":[5],"directories":[]}',
]  # fmt: skip


@pytest.mark.parametrize("data", HOSTILE)
def test_a_hostile_manifest_or_plan_is_refused_by_name(data: bytes) -> None:
    with pytest.raises(BadOperation, match="manifest"):
        decode_manifest(data)
    with pytest.raises(BadOperation, match="plan"):
        decode_plan(data)


ROWS = [
    [LOG, 1, 1], [LOG, 1, 0, DIGEST], [LOG, -1, 1, DIGEST], [LOG, 1.5, 2, DIGEST], [LOG, True, True, DIGEST],
    [LOG, 1, 2**63, DIGEST], [LOG, 1, 1, "x"], [LOG, 1, 1, DIGEST.replace("0", "G")], ["../x", 1, 1, DIGEST],
    ["LOCK", 1, 1, DIGEST], [1, 1, 1, DIGEST],
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS)
def test_a_hostile_row_of_a_manifest_is_refused(row: list[object]) -> None:
    with pytest.raises(BadOperation):
        decode_manifest(json.dumps({"files": [row], "directories": []}).encode())


def test_a_file_that_is_named_twice_is_refused() -> None:
    with pytest.raises(BadOperation, match="twice"):
        decode_manifest(json.dumps({"files": [[LOG, 1, 1, DIGEST]] * 2, "directories": []}).encode())


@pytest.mark.parametrize("row", [
    [LOG, "keep"], [LOG, "steal", 0], [LOG, "keep", 5], [IDX, "append", 5], [LOG, "append", -1], [LOG, "append", 2**63],
    ["topics/u/00000000000000000001.log", "copy", 0], ["/etc/passwd", "copy", 0], [LOG, "copy", 1],
])  # fmt: skip
def test_a_hostile_row_of_a_plan_is_refused(row: list[object]) -> None:
    with pytest.raises(BadOperation):
        decode_plan(json.dumps({"files": [row], "directories": ["topics", "topics/t"]}).encode())


def test_too_many_files_are_refused_before_they_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_module, "COMPARED_BYTES_MAX", 100)
    with pytest.raises(BadOperation, match="at most 100"):
        encode_plan(JoinPlan(tuple(FilePlan(f"topics/t/{n:020d}.log", Action.COPY) for n in range(5)), ("topics", "topics/t")))


# -- a leader whose own copy rots


async def test_a_followers_segment_is_not_replaced_by_one_that_rots_here(tmp_path: Path) -> None:
    """Found: the follower's good copy was put aside, and the leader's rotten one copied to it."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    segments = await directory_with_segments(ours)
    shutil.copytree(ours, theirs)
    flip_bit(ours, segments[1])
    plan = {each.path: each.action for each in _plan_of(ours, theirs).files}
    assert [plan[each] for each in segments] == [Action.KEEP] * len(segments)
    flip_bit(theirs, segments[2])
    assert {each.path: each.action for each in _plan_of(ours, theirs).files}[segments[2]] is Action.COPY, "it is whole here"


async def test_without_a_later_segment_in_common_the_leaders_word_counts(tmp_path: Path) -> None:
    """The follower's segment may have messages of another history, which were never acknowledged."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    segments = await directory_with_segments(ours)
    shutil.copytree(ours, theirs)
    flip_bit(ours, segments[1])
    for later in segments[2:]:
        flip_bit(theirs, later, 100)
    assert {each.path: each.action for each in _plan_of(ours, theirs).files}[segments[1]] is Action.COPY


def _plan_of(ours: Path, theirs: Path) -> JoinPlan:
    fs, clock = RealFileSystem(), FakeClock()
    manifest = take_manifest(ContentDigests(fs, str(theirs), clock), StopFlag())
    return make_plan(manifest, ContentDigests(fs, str(ours), clock), StopFlag())


def test_of_segments_only_the_newest_can_be_in_the_cache_alone() -> None:
    offsets = "topics/t/offsets.json"
    manifest = take_manifest(digests_of(disk_with({LOG: RECORDS, OTHER: RECORDS + bytes(500), offsets: b"{}"})), StopFlag())
    assert may_be_cached_only(manifest, any_file=False) == {OTHER: len(RECORDS), offsets: 2}
    assert may_be_cached_only(manifest, any_file=True) == {LOG: len(RECORDS), OTHER: len(RECORDS), offsets: 2}
