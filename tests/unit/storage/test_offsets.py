"""Consumer state on disk: two generations, a checksum, and what is reported when both are lost. Contract: storage.md."""

import errno
import json
import random
from dataclasses import replace
from typing import cast

import pytest

from tests.support.logs import PATH, disk_with
from tests.support.sim_disk import SimDisk
from toymq_py.errors import DamagedData
from toymq_py.id_rows import ID_ROWS_BLOCK, IdRows
from toymq_py.storage import checked_json, offsets
from toymq_py.storage.fs import FileSystem
from toymq_py.storage.offsets import AckedView, OffsetsSource, OffsetsState

CONSUMER = {"since_ns": 1, "start": 0, "has_acked": True, "last_acked": 0, "acked_above": [[2, 3]], "attempts": [[1, 1, 2]]}


def state(next_id: int) -> OffsetsState:
    return OffsetsState(0, next_id, {"c": CONSUMER})


def put(disk: SimDisk, name: str, data: bytes) -> None:
    file = disk.open(f"{PATH}/{name}", create=True)
    file.truncate(0)
    file.pwrite(data, 0)
    file.close()


def test_the_file_is_json_that_a_person_can_read() -> None:
    data = offsets.encode(state(5))
    found = json.loads(data)
    assert found["state"] == {"version": 1, "first_id": 0, "next_id": 5, "consumers": {"c": CONSUMER}}
    assert list(found) == ["crc32", "state"]
    assert offsets.decode(data) == state(5)


def test_what_retention_removed_is_there_only_when_there_is_some() -> None:
    assert b"removed" not in offsets.encode(state(5))
    removed = OffsetsState(0, 90, {}, ((10, 19), (30, 39)))
    assert offsets.decode(offsets.encode(removed)) == removed


def test_modes_are_there_only_when_there_are_some() -> None:
    assert b"modes" not in offsets.encode(state(5))
    keyed = replace(state(5), modes={"c": "keyed"})
    assert offsets.decode(offsets.encode(keyed)) == keyed


def test_the_present_generation_and_the_one_before() -> None:
    disk = disk_with({})
    assert offsets.load(disk, PATH).source is OffsetsSource.NEW
    for next_id in (1, 2, 3):
        offsets.write(disk, PATH, offsets.encode(state(next_id)))
    assert offsets.load(disk, PATH) == offsets.LoadedOffsets(state(3), OffsetsSource.CURRENT)
    put(disk, "offsets.json", b"garbage")
    loaded = offsets.load(disk, PATH)
    assert (loaded.state.next_id, loaded.source) == (2, OffsetsSource.PREVIOUS)
    assert loaded.problem is not None
    assert loaded.problem.startswith("offsets.json: ")
    put(disk, "offsets.json.prev", b"")
    loaded = offsets.load(disk, PATH)
    assert (loaded.state, loaded.source) == (OffsetsState(), OffsetsSource.LOST)
    assert loaded.problem is not None
    assert "offsets.json.prev" in loaded.problem


def test_between_the_two_renames_the_previous_generation_serves() -> None:
    disk = disk_with({})
    offsets.write(disk, PATH, offsets.encode(state(1)))
    disk.rename(f"{PATH}/offsets.json", f"{PATH}/offsets.json.prev")
    put(disk, "offsets.json.tmp", b"")
    loaded = offsets.load(disk, PATH)
    assert (loaded.state.next_id, loaded.source, loaded.problem) == (1, OffsetsSource.PREVIOUS, None)


def test_a_generation_that_cannot_be_read_is_passed_over() -> None:
    disk = disk_with({})
    for next_id in (1, 2):
        offsets.write(disk, PATH, offsets.encode(state(next_id)))
    disk.fail("read_file", 1, errno.EIO)
    assert offsets.load(disk, PATH).source is OffsetsSource.PREVIOUS


@pytest.mark.parametrize("seed", range(30))
def test_a_power_cut_at_any_call_leaves_a_generation(seed: int) -> None:
    disk = disk_with({})
    offsets.write(disk, PATH, offsets.encode(state(1)))
    for nth in range(1, 40):
        copy = disk.peek_crash(random.Random(seed))
        op = ("open", "truncate", "pwrite", "sync", "rename", "sync_dir")[nth % 6]
        copy.fail(op, 1 + nth // 30, errno.EIO)
        try:
            offsets.write(copy, PATH, offsets.encode(state(2)))
            finished = True
        except OSError:
            finished = False
        after = offsets.load(copy.crash(random.Random(nth)), PATH)
        assert after.source in (OffsetsSource.CURRENT, OffsetsSource.PREVIOUS)
        assert after.state.next_id == 2 if finished else after.state.next_id in (1, 2)
        assert after.problem is None


def test_a_full_disk_leaves_no_torn_file_behind() -> None:
    disk = disk_with({})
    offsets.write(disk, PATH, offsets.encode(state(1)))
    disk.fail("pwrite", 1, errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        offsets.write(disk, PATH, offsets.encode(state(2)))
    assert not [path for path in disk.snapshot() if path.endswith(".tmp")]


def test_the_first_offsets_of_a_topic_make_its_directory() -> None:
    disk = disk_with({})
    offsets.write(disk, "/data/topics/new", offsets.encode(state(0)))
    assert offsets.load(disk.crash(), "/data/topics/new").source is OffsetsSource.CURRENT


def test_one_flipped_bit_is_seen() -> None:
    data = offsets.encode(state(5))
    for at in range(len(data) - 1):  # but for the newline at the end
        for bit in (1, 4, 64):
            damaged = data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]
            with pytest.raises(DamagedData):
                offsets.decode(damaged)


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2},
        {"first_id": -1},
        {"first_id": 6},
        {"first_id": True},
        {"next_id": 1 << 64},
        {"next_id": "5"},
        {"next_id": None},
        {"consumers": []},
        {"consumers": {"c": 1}},
        {"removed": 1},
        {"removed": [[1]]},
        {"removed": [["a", 1]]},
        {"generation": -1},
        {"generation": "3"},
        {"generation": True},
        {"modes": ["keyed"]},
        {"modes": {"c": 1}},
    ],
    ids=str,
)
def test_a_state_that_makes_no_sense_is_not_believed(changes: dict[str, object]) -> None:
    found = {"version": 1, "first_id": 0, "next_id": 5, "consumers": {}} | changes
    with pytest.raises(DamagedData):
        offsets.decode(checked_json.encode("state", found))


@pytest.mark.parametrize("rows", [0, 1, ID_ROWS_BLOCK, 2 * ID_ROWS_BLOCK + 3])
def test_what_is_encoded_in_pieces_has_the_bytes_of_one_piece(rows: int) -> None:
    above = [[10 * row, 10 * row + 3] for row in range(rows)]
    attempts = [[10 * row + 5, 10 * row + 5, 2] for row in range(rows)]
    plain = {"c": CONSUMER | {"acked_above": above, "attempts": attempts}, "ä\n": CONSUMER}
    packed = {"c": CONSUMER | {"acked_above": IdRows.of(2, above), "attempts": IdRows.of(3, attempts)}, "ä\n": CONSUMER}
    data = offsets.encode(OffsetsState(0, 9, packed, ((3, 4),)))
    fields = {"version": 1, "first_id": 0, "next_id": 9, "consumers": plain, "removed": [[3, 4]]}
    assert data == checked_json.encode("state", fields)
    assert offsets.decode(data).consumers == plain
    assert offsets.encode(offsets.decode(data)) == data
    assert offsets.encode(OffsetsState()) == checked_json.encode(
        "state", {"version": 1, "first_id": 0, "next_id": 0, "consumers": {}}
    )


def test_what_is_acked_is_looked_up_in_blocks() -> None:
    above = [[10 * row, 10 * row + 3] for row in range(1, 3 * ID_ROWS_BLOCK)]
    view = AckedView.of(CONSUMER | {"last_acked": 4, "acked_above": above})
    assert all(view.covers(first, last) for first, last in above)
    assert view.covers(0, 4)
    assert not view.covers(4, 5)
    assert not any(view.covers(first, last + 1) or view.covers(first - 1, last) for first, last in above)
    with pytest.raises(DamagedData):
        AckedView.of(CONSUMER | {"acked_above": [[1]]})


def test_the_offsets_of_another_topic_are_damage() -> None:
    """Found: offsets of two topics that were exchanged, by a restore for example, acked messages that their consumers had never
    seen."""
    disk = SimDisk(random.Random(1))
    for path in ("/data", "/data/topics"):
        disk.mkdir(path)
    for topic in ("a", "b"):
        for next_id in (2, 3):
            offsets.write(disk, f"/data/topics/{topic}", offsets.encode(state(next_id), topic))
    theirs = disk.read_file("/data/topics/b/offsets.json")
    disk.rename("/data/topics/b/offsets.json", "/data/topics/a/offsets.json")
    loaded = offsets.load(disk, "/data/topics/a")
    assert (loaded.state, loaded.source) == (state(2), OffsetsSource.PREVIOUS)
    assert loaded.problem == "offsets.json: these are the offsets of topic 'b'"
    assert offsets.decode(theirs) == offsets.decode(offsets.encode(state(3)), "a") == state(3), "an older toymq's names none"


def test_a_generation_that_is_too_large_gives_way_to_the_one_before_and_is_never_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = disk_with({})
    offsets.write(disk, PATH, offsets.encode(state(1)))
    offsets.write(disk, PATH, offsets.encode(state(2)))
    limit = len(disk.read_file(f"{PATH}/offsets.json"))
    monkeypatch.setattr(checked_json, "FILE_BYTES_MAX", limit)
    with pytest.raises(OSError, match=f"bytes of consumers exceed {limit}"):
        offsets.write(disk, PATH, offsets.encode(state(10**6)))
    put(disk, "offsets.json", disk.read_file(f"{PATH}/offsets.json") + b" ")
    loaded = offsets.load(disk, PATH)
    assert (loaded.state.next_id, loaded.source) == (1, OffsetsSource.PREVIOUS)
    assert loaded.problem == f"offsets.json: it has {limit + 1} bytes, and no such file has more than {limit}"


def test_a_shortage_of_descriptors_sets_no_offsets_aside() -> None:
    disk = disk_with({})
    offsets.write(disk, PATH, offsets.encode(state(1)))
    disk.fail("read_file", 1, errno.EMFILE)
    with pytest.raises(OSError, match="Too many open files"):
        offsets.load(disk, PATH)


def numbered(generation: int) -> bytes:
    return offsets.encode(replace(state(generation), generation=generation))


@pytest.mark.parametrize("seed", range(10))
def test_no_crash_leaves_a_previous_generation_that_is_as_new_as_the_present_one(seed: int) -> None:
    rng = random.Random(seed)
    disk = disk_with({})
    written = 0
    for generation in range(1, 60):
        ops = ("open", "truncate", "pwrite", "sync", "rename", "sync_dir")
        disk.fail(rng.choice(ops), rng.randrange(1, 4), errno.EIO)
        try:
            offsets.write(disk, PATH, numbered(generation))
            written = generation
        except OSError:
            pass
        disk.heal()
        if rng.random() < 0.5:
            disk = disk.crash(rng) if rng.random() < 0.5 else disk.kill()
        loaded = offsets.load(disk, PATH)
        assert loaded.problem is None
        assert written <= (loaded.state.generation or 0) <= generation
        offsets.settle(disk, PATH, loaded)


@pytest.mark.parametrize("writes", [1, 2])
def test_a_broker_that_writes_meanwhile_leaves_nothing_that_looks_stale(writes: int) -> None:
    """Tools, and the tier's thread, read the offsets of a running broker, which writes between their opens."""

    class Written:
        def __init__(self, at: int) -> None:
            self._left = at

        def __getattr__(self, name: str) -> object:
            if name == "open":
                self._left -= 1
                if self._left == 0:
                    for generation in range(3, 3 + writes):
                        offsets.write(disk, PATH, numbered(generation))
            return getattr(disk, name)

    for at in (1, 2, 3):
        disk = disk_with({})
        for generation in (1, 2):
            offsets.write(disk, PATH, numbered(generation))
        loaded = offsets.load(cast(FileSystem, Written(at)), PATH)
        assert (loaded.problem, loaded.source, loaded.state.generation) == (None, OffsetsSource.CURRENT, 2)


def test_a_newer_previous_generation_counts_only_when_it_is_sound() -> None:
    disk = disk_with({})
    put(disk, "offsets.json", numbered(1))
    put(disk, "offsets.json.prev", numbered(12))
    loaded = offsets.load(disk, PATH)
    assert (loaded.state.generation, loaded.source) == (12, OffsetsSource.PREVIOUS)
    assert loaded.problem == "offsets.json: it is older than offsets.json.prev: generation 1, and 12"
    for data in (numbered(12).replace(b"12", b"92"), numbered(12)[:-9], offsets.encode(state(12), "another")):
        put(disk, "offsets.json.prev", data)
        assert offsets.load(disk, PATH) == offsets.LoadedOffsets(state(1), OffsetsSource.CURRENT)
