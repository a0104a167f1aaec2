"""Bytes inserted into the middle of a segment, or a range of it that stands there twice, with damage behind: what was damaged
is lost, and nothing else (storage.md, "Recovery", step 6; ADR 0238)."""

import random
from collections.abc import Callable
from itertools import pairwise

import pytest

from tests.fault.test_lost_exactly import World
from tests.fault.test_one_judge import agree_on, directory, ids_in
from tests.support.broker_rig import DIR, BrokerRig
from tests.support.frames import encode_frame
from tests.support.logs import PATH, TS_NS, disk_with, ids_of, recover, report_of
from toymq_py.storage.offline.dump import dump_topic
from toymq_py.storage.offline.repair import repair
from toymq_py.storage.record import Frame
from toymq_py.storage.segment import segment_name

COUNT = 400
FRAMES = [encode_frame(n, TS_NS + n, b"k%03d" % n, random.Random(n).randbytes(100)) for n in range(COUNT)]
LOG = b"".join(FRAMES)
SIZE = len(FRAMES[0])

PutIn = Callable[[bytearray], set[int]]
"""Changes a log. Returns: the records that this cuts in two."""


def put_in(position: int, content: bytes) -> PutIn:
    def change(data: bytearray) -> set[int]:
        data[position:position] = content
        return {position // SIZE} if position % SIZE else set()

    return change


def twice(start: int, stop: int) -> PutIn:
    """Make a change that duplicates a range of the log. The record that the insertion splits is lost if its header, which tells
    where it ends, stands before the copy; otherwise a whole one stands behind it."""

    def change(data: bytearray) -> set[int]:
        data[stop:stop] = data[start:stop]
        return {stop // SIZE} if stop % SIZE >= 26 else set()

    return change


KINDS: dict[str, PutIn] = {
    "a byte in a record": put_in(50 * SIZE + 60, b"Q"),
    "100 bytes in a record": put_in(50 * SIZE + 60, random.Random(3).randbytes(100)),
    "a page in a record": put_in(50 * SIZE + 60, random.Random(4).randbytes(4096)),
    "a byte between two records": put_in(50 * SIZE, b"Q"),
    "100 bytes between two records": put_in(50 * SIZE, random.Random(3).randbytes(100)),
    "a record twice": twice(50 * SIZE, 51 * SIZE),
    "ten records twice": twice(50 * SIZE, 60 * SIZE),
    "ten records and a half twice": twice(50 * SIZE, 60 * SIZE + 50),
    "a page twice": twice(4096, 8192),
    "half a record twice": twice(50 * SIZE + 40, 50 * SIZE + 90),
    "earlier records between later ones": put_in(70 * SIZE, LOG[50 * SIZE : 60 * SIZE]),
    "later records between earlier ones": put_in(50 * SIZE, LOG[200 * SIZE : 210 * SIZE]),
}
BEHIND = ("", "a bit", "a length", "a page of zeros", "a sector of noise")


def damage(data: bytearray, kind: str) -> set[int]:
    """Damage the log behind the middle. Returns: the records that this hits."""
    if not kind:
        return set()
    if kind in ("a bit", "a length"):
        data[300 * SIZE + (1 if kind == "a length" else 60)] ^= 1
        return {300}
    size = 4096 if "page" in kind else 512
    at = 300 * SIZE // size * size
    data[at : at + size] = bytes(size) if "zeros" in kind else random.Random(5).randbytes(size)
    return {*range(at // SIZE, (at + size - 1) // SIZE + 1)}


@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_what_is_put_in_costs_no_record_behind_it(kind: PutIn, behind: str) -> None:
    """Found: all records between inserted bytes and a later damage were lost, and repair gave them up, because a chain of
    records counted only when an id was missing before it. All readers agree now: verify, dump, reader, backup, start, delivery,
    DESCRIBE, the next start, repair."""
    data = bytearray(LOG)
    lost = damage(data, behind)
    lost |= kind(data)
    agree_on(directory({segment_name(0): bytes(data)}), {*range(COUNT)} - lost, lost)


@pytest.mark.parametrize("sealed", [False, True], ids=["active", "sealed"])
@pytest.mark.parametrize("repaired", [False, True], ids=["started", "repaired"])
def test_the_keys_of_records_behind_a_copy_are_known(repaired: bool, sealed: bool) -> None:
    """Found: where a record stands twice and a later one has a flipped bit, the key `k500` was forgotten: its message was
    stored a second time, and not answered DUP."""
    data = bytearray(LOG)
    data[300 * SIZE + 60] ^= 1
    twice(100 * SIZE, 101 * SIZE)(data)
    behind = {segment_name(COUNT): encode_frame(COUNT, TS_NS + COUNT, b"k%03d" % COUNT, b"")} if sealed else {}
    disk = directory({segment_name(0): bytes(data)} | behind)
    if repaired:
        (done,) = repair(disk, DIR, pid=1)
        assert done.lost == [(300, 300)]
    rig = BrokerRig(disk=disk.kill())
    again = [rig.publish("t", b"again", key=b"k%03d" % n)[0].duplicate for n in range(COUNT)]
    assert [n for n, duplicate in enumerate(again) if not duplicate] == [300]
    assert rig.broker.topic("t").describe()["state"] == ("ok" if repaired else "degraded")
    assert repaired or ids_in(rig.broker.topic("t").log.lost) == {300}


def test_the_last_record_behind_a_copy_of_the_one_before_is_no_torn_tail() -> None:
    """Found: the last record was cut off behind a copy of the record before it, with state ok."""
    data = LOG[: 9 * SIZE] + bytes(range(1, 60)) + LOG[8 * SIZE : 10 * SIZE]
    log = recover(disk_with({0: data}))
    assert (ids_of(log), log.next_id) == ([*range(10)], 10)


def test_bytes_cut_out_of_a_long_record_cost_no_short_ones_behind_it() -> None:
    """Found: bytes were cut out of a long record, so the length in its header led past three whole short records; these were
    lost with it."""
    long = encode_frame(3, TS_NS + 3, b"", random.Random(6).randbytes(8000))
    data = b"".join(FRAMES[:3]) + long[:4000] + long[4512:] + b"".join(FRAMES[4:30])
    assert ids_of(recover(disk_with({0: data}))) == [n for n in range(30) if n != 3]


@pytest.mark.parametrize("header", [bytes(26), b"\xee" * 26], ids=["zeros", "noise"])
@pytest.mark.parametrize("count", [1, 2, 20])
def test_frames_of_its_own_id_in_the_payload_of_a_record_do_not_become_records(count: int, header: bytes) -> None:
    """A record's header is damaged and its payload holds frames with the record's own id and the next ones. That looks like
    bytes inserted before the record, but the real records behind it contradict all frames but the first."""
    forged = b"".join(encode_frame(n, TS_NS + n, b"", b"forged") for n in range(5, 5 + count))
    carrier = header + encode_frame(5, TS_NS + 5, b"", b"p" * 100 + forged + b"q" * 50)[26:]
    for end in (6 + 2 * count, COUNT):
        data = bytearray(b"".join([*FRAMES[:5], carrier, *FRAMES[6:end]]))
        data[-SIZE + 60] ^= 1
        kept = {item.msg_id: item.payload for item in dump_topic(disk_with({0: bytes(data)}), PATH) if isinstance(item, Frame)}
        assert list(kept) == [n for n in range(end - 1) if n != 5]
        assert b"forged" not in kept.values()


def check(seed: int, changes_max: int) -> set[int]:
    """Change a random log, and damage it. Returns: the intact records that are lost. No frame becomes a record that is none,
    and every reader says the same."""
    rng = random.Random(seed)
    world = World.of(rng)
    hit: set[int] = set()
    changes: list[list[tuple[int, bytes]]] = [[] for _ in world.data]
    for _ in range(rng.randrange(1, changes_max + 1)):
        part = rng.randrange(len(world.data))
        starts, written = world.starts[part], world.written[part]
        row = rng.randrange(1, len(starts) - 1)
        at = rng.choice((starts[row], rng.randrange(starts[row], starts[row + 1])))
        first = rng.choice((starts[max(row - rng.randrange(1, 12), 0)], max(at - rng.choice((64, 512, 4096)), 0)))
        noise = rng.randbytes(rng.choice((1, 7, 25, 100, 4096)))
        content = rng.choice((noise, written[first:at], written[starts[row - 1] : at]))
        changes[part].append((at, content))
    for _ in range(rng.randrange(4)):
        part = rng.randrange(len(world.data))
        row = rng.randrange(len(world.starts[part]) - 1)
        offset = rng.choice((rng.randrange(26), rng.randrange(world.starts[part][row + 1] - world.starts[part][row])))
        world._flip(part, row, offset, 1 << rng.randrange(8))
        hit.add(world.bases[part] + row)
    for part, there in enumerate(changes):
        for at, content in sorted(there, reverse=True):
            rows = enumerate(pairwise(world.starts[part]), world.bases[part])
            hit |= {msg_id for msg_id, (start, end) in rows if start < at < end}
            world.data[part][at:at] = content
    disk = disk_with({first_id: bytes(data) for first_id, data in zip(world.bases, world.data, strict=False)})
    report = report_of(disk)
    dumped = {item.msg_id for item in dump_topic(disk, PATH) if isinstance(item, Frame)}
    assert dumped <= world.there(), f"seed {seed}"
    log = recover(disk)
    assert set(ids_of(log)) == dumped, f"seed {seed}: start"
    assert (report.records, report.lost) == (len(dumped), log.next_id - len(dumped)), f"seed {seed}: verify"
    return {*range(world.bases[-1])} - hit - dumped


def test_exactly_the_damaged_records_are_lost_where_bytes_were_put_in() -> None:
    """Two exceptions in 400 are allowed: a record that stands alone between inserted bytes and a damaged record cannot be told
    from a frame in a payload."""
    lost = [check(seed, 1) for seed in range(400)]
    assert all(len(each) <= 1 for each in lost)
    assert sum(map(bool, lost)) <= 2


def test_bytes_put_in_several_times_cost_few_records_beside_the_damaged_ones() -> None:
    lost = [check(seed, 3) for seed in range(400)]
    assert sum(map(bool, lost)) <= 8


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(1000, 21_000, 1000))
def test_exactly_the_damaged_records_are_lost_in_thousands_of_logs_that_bytes_were_put_in_to(seed: int) -> None:
    lost = [check(each, 1) for each in range(seed, seed + 1000)]
    assert sum(map(bool, lost)) <= 5


