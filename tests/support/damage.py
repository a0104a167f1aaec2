"""Logs with known records, damage like that of bad disks, and which records the damage hits."""

import random
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from tests.support.frames import encode_attributes
from toymq_py.storage.record import encode_records
from toymq_py.storage.segment import segment_name

TS_NS = 1_781_767_800_000_000_000
BYTES_KINDS = ("bit", "page of zeros", "page of noise", "sector of noise", "cut")
FILE_KINDS = ("swapped", "duplicated", "missing")
MANY_KINDS = (
    "every second page", "every second page but the first", "first page", "several pages", "every third page, noise",
    "two pages change places", "a page is an earlier one", "a page is a later one", "sectors of noise", "bits",
)  # fmt: skip
"""Many damages of one segment."""
PAGE = 4096


@dataclass
class DamagedLog:
    """A log as segments by first id, and the ids of records that are not complete any more."""

    segments: dict[int, bytearray] = field(default_factory=dict)
    starts: dict[int, list[int]] = field(default_factory=dict)
    """Of each segment, where its records begin, and where the last ends."""
    next_id: int = 0
    hit: set[int] = field(default_factory=set)
    files: dict[str, bytes] = field(default_factory=dict)
    """What the directory is to hold; filled by ``settle``."""

    @classmethod
    def of(
        cls, size: int, segment_bytes: int, rng: random.Random, *, payload_max: int = 400,
        payload: Callable[[int], bytes] | None = None,
    ) -> "DamagedLog":  # fmt: skip
        """Make a log of records of random length, some with keys, headers or a sequence.

        Args:
            payload: returns the payload of the record with an id; by default payloads are random bytes.
        """
        log = cls()
        written = 0
        while written < size:
            data, starts, base_id = bytearray(), [0], log.next_id
            while len(data) < segment_bytes and written + len(data) < size:
                rows = range(log.next_id, log.next_id + 64)
                keys = [b"key-%d" % row if row % 3 else b"" for row in rows]
                payloads = [payload(row) if payload else rng.randbytes(rng.randrange(payload_max)) for row in rows]
                blocks = [encode_attributes(headers=b"A: b\n") if rng.random() < 0.2 else b"" for _ in rows]
                pieces = encode_records(log.next_id, TS_NS + log.next_id, keys, payloads, blocks)
                for body, checksum in zip(pieces[::2], pieces[1::2], strict=True):
                    starts.append(starts[-1] + len(body) + len(checksum))
                data += b"".join(pieces)
                log.next_id = rows.stop
            log.segments[base_id], log.starts[base_id] = data, starts
            written += len(data)
        return log

    def damage(self, kind: str, rng: random.Random) -> None:
        """Damage bytes at a random place; the kind "cut" cuts a random segment."""
        base_id = rng.choice(list(self.segments))
        data, starts = self.segments[base_id], self.starts[base_id]
        if kind == "cut":
            first, last = rng.randrange(len(data)), len(data)
            del data[first:]
        elif kind == "bit":
            first = rng.randrange(len(data))
            last = first + 1
            data[first] ^= 1 << rng.randrange(8)
        else:
            size = 512 if kind.startswith("sector") else 4096
            first = rng.randrange(len(data)) // size * size
            last = min(first + size, len(data))
            data[first:last] = bytes(last - first) if kind.endswith("zeros") else rng.randbytes(last - first)
        low, high = _row(starts, first), _row(starts, last - 1)
        self.hit.update(range(base_id + low, base_id + high + 1))

    def damage_many(self, kind: str, base_id: int, rng: random.Random) -> None:
        """Damage a segment, and note the records that are hit: a record is intact when all its bytes are unchanged and at the
        same place."""
        data, starts = self.segments[base_id], self.starts[base_id]
        before, pages = bytes(data), range(0, len(data), PAGE)
        if kind.startswith("every"):
            hit = pages[1::3] if "third" in kind else pages[2::2] if "first" in kind else pages[::2]
            for at in hit:
                data[at : at + PAGE] = rng.randbytes(PAGE) if "noise" in kind else bytes(PAGE)
        elif kind == "first page":
            data[:PAGE] = bytes(PAGE)
        elif kind == "several pages":
            for at in rng.sample(pages, 6):
                data[at : at + PAGE] = bytes(PAGE)
        elif kind == "two pages change places":
            one, other = rng.sample(pages[:-2], 2)
            data[one : one + PAGE], data[other : other + PAGE] = data[other : other + PAGE], data[one : one + PAGE]
        elif kind == "a page is an earlier one":
            one, other = sorted(rng.sample(pages[:-2], 2))
            data[other : other + PAGE] = data[one : one + PAGE]
        elif kind == "a page is a later one":
            one, other = sorted(rng.sample(pages[:-2], 2))
            data[one : one + PAGE] = data[other : other + PAGE]
        elif kind == "sectors of noise":
            for at in rng.sample(range(0, len(data), 512), 20):
                data[at : at + 512] = rng.randbytes(512)
        else:
            for at in rng.sample(range(len(data)), 20):
                data[at] ^= 1 << rng.randrange(8)
        del data[len(before) :]
        rows = pairwise(starts)
        self.hit.update(base_id + row for row, (at, end) in enumerate(rows) if data[at:end] != before[at:end])

    def settle(self, kinds: list[str], rng: random.Random) -> None:
        """Damage whole files, and note what the directory should hold then. The first segment stays, or the log would begin
        later."""
        bases = list(self.segments)
        files = {base_id: bytes(data) for base_id, data in self.segments.items()}
        for kind in kinds:
            one, other = rng.sample(bases[1:], 2)
            if kind == "missing":
                files.pop(one, None)
                self.hit |= self.ids(one)
            elif kind == "swapped" and one in files and other in files:
                files[one], files[other] = files[other], files[one]
                self.hit |= self.ids(one) | self.ids(other)
            elif kind == "duplicated" and one in files:
                files[one + rng.randrange(1, len(self.starts[one]) - 1)] = files[one]
        self.files = {segment_name(base_id): data for base_id, data in files.items()}

    def ids(self, base_id: int) -> set[int]:
        return set(range(base_id, base_id + len(self.starts[base_id]) - 1))


def _row(starts: list[int], position: int) -> int:
    return bisect_right(starts, position) - 1
