"""Exactly the damaged records are lost, however many damages meet (storage.md, "Recovery", step 6; ADR 0101).

The judge is what was written and what was changed: a record is intact when all its bytes stand where they were. Neither scanner
nor salvage is asked for that.
"""

import random
from collections.abc import Callable
from itertools import pairwise

import pytest

from tests.support.frames import encode_frame
from tests.support.logs import PATH, TS_NS, disk_with, ids_of, recover, report_of
from toymq_py.storage.offline.dump import dump_topic
from toymq_py.storage.record import Frame

COUNT = 200
FRAMES = [encode_frame(n, TS_NS + n, b"k%03d" % n, b"x" * 150) for n in range(COUNT)]
LOG = b"".join(FRAMES)
SIZE = len(FRAMES[0])
NOISE = random.Random(5)

Hit = Callable[[bytearray], None]


def flip(msg_id: int, offset: int, bit: int = 2) -> Hit:
    """One bit of a record, by its offset."""

    def hit(data: bytearray) -> None:
        data[msg_id * SIZE + offset] ^= bit

    return hit


def over(position: int, content: bytes) -> Hit:
    def hit(data: bytearray) -> None:
        data[position : position + len(content)] = content

    return hit


def header(msg_id: int, content: bytes) -> Hit:
    """All of a header, up to the key."""
    return over(msg_id * SIZE, content)


def tail(content: bytes) -> Hit:
    def hit(data: bytearray) -> None:
        data += content

    return hit


def intact(written: bytes, data: bytes, starts: list[int]) -> set[int]:
    """Ids of the records whose bytes are what they were, where they were."""
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
    """Behind a first damage, 177 of 177 healthy records were cut as a torn tail, and their ids used again, since junk behind
    the last one, a length beyond the end or a random header did not look like the place where a log breaks off."""
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
