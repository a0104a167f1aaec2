"""Exactly the damaged records are lost, however many damages meet (storage.md, "Recovery", step 6; ADR 0101).

The judge is what was written and what was changed: a record is intact when all its bytes stand where they were. Neither scanner
nor salvage is asked for that.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import pytest

from tests.support.frames import encode_attributes, encode_frame
from tests.support.logs import PATH, TS_NS, disk_with, ids_of, recover, report_of
from tests.support.shares import seeds
from toymq_py.storage import offsets
from toymq_py.storage.fs import write_all
from toymq_py.storage.offline.dump import dump_topic
from toymq_py.storage.offsets import OffsetsState
from toymq_py.storage.record import HEADER, Frame
from toymq_py.storage.recovery import recover_log
from toymq_py.storage.scanner import scan_segment
from toymq_py.storage.segment import segment_name

COUNT = 200
FRAMES = [encode_frame(n, TS_NS + n, b"k%03d" % n, b"x" * 150) for n in range(COUNT)]
LOG = b"".join(FRAMES)
SIZE = len(FRAMES[0])
NOISE = random.Random(5)

Hit = Callable[[bytearray], None]


def flip(msg_id: int, offset: int, bit: int = 2) -> Hit:
    """Flip one bit of a record; ``offset`` is in the record."""

    def hit(data: bytearray) -> None:
        data[msg_id * SIZE + offset] ^= bit

    return hit


def over(position: int, content: bytes) -> Hit:
    def hit(data: bytearray) -> None:
        data[position : position + len(content)] = content

    return hit


def header(msg_id: int, content: bytes) -> Hit:
    """Damage the whole header of a record, up to the key."""
    return over(msg_id * SIZE, content)


def tail(content: bytes) -> Hit:
    def hit(data: bytearray) -> None:
        data += content

    return hit


def intact(written: bytes, data: bytes, starts: list[int]) -> set[int]:
    """Return the ids of the records whose bytes are unchanged and in their places."""
    return {n for n, (at, end) in enumerate(pairwise(starts)) if end <= len(data) and data[at:end] == written[at:end]}


CASES: dict[str, tuple[Hit, ...]] = {
    "page of zeros, random tail": (over(4096, bytes(4096)), tail(NOISE.randbytes(40))),
    "page of noise, random tail": (over(4096, NOISE.randbytes(4096)), tail(NOISE.randbytes(40))),
    "page of zeros, page of random tail": (over(4096, bytes(4096)), tail(NOISE.randbytes(4096))),
    "page of zeros, a torn batch without its first page": (
        over(4096, bytes(4096)),
        tail(bytes(-len(LOG) % 4096) + encode_frame(COUNT, TS_NS, b"", b"y" * 12_000)[-len(LOG) % 4096 :]),
    ),
    "a key length, its neighbour, a length beyond the end": (flip(3, 20), flip(4, 60), flip(10, 3)),
    "a payload length, its neighbour, a length beyond the end": (flip(3, 26), flip(4, 60), flip(10, 3)),
    "a random header, a length beyond the end": (header(3, NOISE.randbytes(26)), flip(10, 3)),
    "a header of zeros, a random header": (header(3, bytes(26)), header(100, NOISE.randbytes(26))),
    "two random headers": (header(3, NOISE.randbytes(26)), header(100, NOISE.randbytes(26))),
    "three random headers, random tail": (
        header(3, NOISE.randbytes(26)), header(5, NOISE.randbytes(26)), header(100, NOISE.randbytes(26)),
        tail(NOISE.randbytes(40)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("sealed", [False, True], ids=["active", "sealed"])
@pytest.mark.parametrize("hits", CASES.values(), ids=CASES)
def test_a_chain_of_the_logs_records_counts_whatever_ends_it(hits: tuple[Hit, ...], sealed: bool) -> None:
    """Found: 177 of 177 healthy records behind a first damage were cut as a torn tail, and their ids used again. Junk behind
    the last one, a length beyond the end of the file or a random header did not look like the place where a log breaks off."""
    data = bytearray(LOG)
    for hit in hits:
        hit(data)
    kept = intact(LOG, bytes(data), list(range(0, len(LOG) + 1, SIZE)))
    assert len(kept) < COUNT
    disk = disk_with({0: bytes(data)} | ({COUNT: encode_frame(COUNT, TS_NS, b"", b"next")} if sealed else {}))
    expected = kept | ({COUNT} if sealed else set())

    report = report_of(disk)
    assert {item.msg_id for item in dump_topic(disk, PATH) if isinstance(item, Frame)} == expected
    log = recover(disk)

    assert set(ids_of(log)) == expected
    assert log.next_id == COUNT + sealed, "no id is used twice"
    assert (report.records, report.lost) == (len(expected), COUNT - len(kept))
    assert report.damaged


# -- random combinations


@dataclass
class World:
    """A log of one or two segments: what was written, and what the disk holds after damage."""

    written: list[bytes]
    starts: list[list[int]]
    data: list[bytearray]

    @classmethod
    def of(cls, rng: random.Random, *more: tuple[int, int]) -> "World":
        sizes = rng.choice([(0, 1), (0, 4), (4, 21), (0, 61), (100, 301), (0, 5000), *more])
        keyed, headed = rng.random() < 0.5, rng.random() < 0.3
        world, msg_id = cls([], [], []), 0
        for _ in range(rng.choice((1, 2))):
            frames = []
            for _ in range(rng.randrange(8, 60)):
                key = b"k%d" % msg_id if keyed else b""
                block = encode_attributes(headers=b"A: b\n") if headed and rng.random() < 0.5 else b""
                frames.append(encode_frame(msg_id, TS_NS + msg_id, key, rng.randbytes(rng.randrange(*sizes)), block))
                msg_id += 1
            world.written.append(b"".join(frames))
            world.starts.append([0, *accumulate(map(len, frames))])
            world.data.append(bytearray(world.written[-1]))
        return world

    @property
    def bases(self) -> list[int]:
        return [0, *accumulate(len(starts) - 1 for starts in self.starts)]

    def damage(self, rng: random.Random, kinds: Sequence[str]) -> None:
        """Damage a random segment once."""
        part = rng.randrange(len(self.data))
        data, starts = self.data[part], self.starts[part]
        row = rng.randrange(len(starts) - 1)
        kind = rng.choice(kinds)
        if kind == "bit":
            self._flip(part, row, rng.choice((*range(26), rng.randrange(starts[row + 1] - starts[row]))), 1 << rng.randrange(8))
        elif kind == "neighbours":
            for near in range(row, min(row + rng.choice((2, 2, 3)), len(starts) - 1)):
                self._flip(part, near, rng.choice((0, 1, 2, 3, 4, 20, 21, 22, 25, 29)), 1 << rng.randrange(8))
        elif kind == "length beyond the end":
            self._flip(part, row, 3, 1 << rng.randrange(2))
        elif kind == "header":
            self._fill(part, starts[row], 26, rng)
        elif kind == "tail":
            data += rng.choice((rng.randbytes(rng.randrange(1, 100)), rng.randbytes(4096), bytes(rng.randrange(1, 9000))))
        elif kind == "misplaced":
            self._misplace(part, rng.randrange(len(self.data)), rng.choice((512, 4096, 4096)), rng)
        else:
            size = int(kind)
            self._fill(part, rng.randrange(len(data)) // size * size, size, rng)

    def _flip(self, part: int, row: int, offset: int, mask: int) -> None:
        self.data[part][self.starts[part][row] + offset] ^= mask

    def _fill(self, part: int, at: int, size: int, rng: random.Random) -> None:
        size = min(size, len(self.data[part]) - at)
        self.data[part][at : at + size] = bytes(size) if rng.random() < 0.5 else rng.randbytes(size)

    def _misplace(self, part: int, source: int, size: int, rng: random.Random) -> None:
        """Copy a page over another page of this segment or of the other segment."""
        data, written = self.data[part], self.written[source]
        if len(written) < size:
            return
        at = rng.randrange(len(written) // size) * size
        to = rng.randrange(len(self.written[part])) // size * size
        if source != part and to == 0:  # whose file it is then, segment_heads says (ADR 0084)
            return
        stop = min(to + size, len(data))
        data[to:stop] = written[at : at + stop - to]

    def intact(self) -> set[int]:
        parts = zip(self.bases, self.written, self.data, self.starts, strict=False)
        return {base_id + n for base_id, written, data, starts in parts for n in intact(written, bytes(data), starts)}

    def there(self) -> set[int]:
        """Return the ids of the records whose bytes are anywhere in their segment: a copy may replace a lost record."""
        parts = zip(self.bases, self.written, self.data, self.starts, strict=False)
        return {
            base_id + n
            for base_id, written, data, starts in parts
            for n, (at, end) in enumerate(pairwise(starts))
            if written[at:end] in data
        }

    def is_undecidable(self) -> bool:
        """Whether two hits made lengths agree with each other on a wrong end (ADR 0101)."""
        for base_id, written, data, starts in zip(self.bases, self.written, self.data, self.starts, strict=False):
            for msg_id, at in enumerate(starts[:-1], base_id):
                length, there, _, key_len = HEADER.unpack_from(data, at)
                payload_at = at + 22 + key_len
                payload_len = int.from_bytes(data[payload_at : payload_at + 4], "little")
                length_hit = data[at : at + 4] != written[at : at + 4]
                others_hit = data[at + 20 : payload_at + 4] != written[at + 20 : payload_at + 4]
                fits = 0 <= length - 26 - key_len - payload_len <= 64
                if length_hit and others_hit and fits and (there ^ msg_id).bit_count() <= 1:
                    return True
        return False


DAMAGES = ("bit", "bit", "neighbours", "length beyond the end", "header", "tail", "64", "512", "4096")


def check_world(
    seed: int, kinds: Sequence[str] = DAMAGES, count_max: int = 4, sizes: Sequence[tuple[int, int]] = ()
) -> bool:
    """Damage a log, and check which records are kept. Returns: False, without a check, when the damage is undecidable
    (``World.is_undecidable``)."""
    rng = random.Random(seed)
    world = World.of(rng, *sizes)
    for _ in range(rng.randrange(1, count_max + 1)):
        world.damage(rng, kinds)
    if world.is_undecidable():
        return False
    kept, count = world.intact(), world.bases[-1]
    disk = disk_with({base_id: bytes(data) for base_id, data in zip(world.bases, world.data, strict=False)})
    if rng.random() < 0.3:  # a sidecar of what the segment was is no help, and no harm
        other = disk_with({0: world.written[0][: world.starts[0][-2]]})
        scan_segment(other, f"{PATH}/{segment_name(0)}", 0).segment.write_sidecar(other)
        file = disk.open(f"{PATH}/{segment_name(0)[:-4]}.idx", create=True)
        write_all(file, other.read_file(f"{PATH}/{segment_name(0)[:-4]}.idx"), 0)
        file.close()
    reached = rng.choice((0, rng.randrange(count), count))
    if reached:
        offsets.write(disk, PATH, offsets.encode(OffsetsState(next_id=reached)))

    report = report_of(disk)
    dumped = {item.msg_id for item in dump_topic(disk, PATH) if isinstance(item, Frame)}
    assert kept <= dumped <= world.there(), f"seed {seed}: dump {sorted(kept - dumped)} {sorted(dumped - world.there())}"
    kept = dumped
    log = recover_log(disk, PATH, next_id=reached, dedupe_keys=100)
    assert set(ids_of(log)) == kept, f"seed {seed}: start"
    assert max(kept, default=-1) < log.next_id <= count, f"seed {seed}: no id twice, and none that never was"
    assert log.next_id >= reached, f"seed {seed}"
    assert (report.records, report.lost) == (len(kept), log.next_id - len(kept)), f"seed {seed}: verify"
    again = recover_log(disk, PATH, next_id=reached, dedupe_keys=100)
    assert (set(ids_of(again)), again.next_id) == (kept, log.next_id), f"seed {seed}: the next start"
    return True


@pytest.mark.parametrize("number", seeds(8, 20))
def test_exactly_the_damaged_records_are_lost(number: int) -> None:
    decided = [check_world(20 * number + each) for each in range(20)]
    assert sum(decided) >= 19


@pytest.mark.parametrize("number", seeds(5, 20))
def test_a_page_over_another_one_loses_what_stood_there(number: int) -> None:
    """Found: a misdirected write copied a page over another one. The copy ended with the beginning of a record, whose length
    reached far, and all records up to that length were lost, often to the end of the segment."""
    for each in range(50 * number, 50 * number + 50):
        check_world(each, ("misplaced",), 1, [(500, 3000)] * 4)


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(1000, 41_000, 1000))
def test_exactly_the_damaged_records_are_lost_in_thousands_of_logs(seed: int) -> None:
    decided = [check_world(each) for each in range(seed, seed + 1000)]
    assert sum(decided) > 990
