"""A set of message ids as bits.

Contract: delivery.md, "Delay" (a million scheduled ids in bounded memory, without a lease run for any of them).
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from typing import Final

_SHIFT: Final = 12
CHUNK_IDS: Final = 1 << _SHIFT
_MASK: Final = CHUNK_IDS - 1
_FULL: Final = (1 << CHUNK_IDS) - 1


class IdSet:
    """A set of ids in chunks of 4096, each chunk one integer of bits. Empty chunks are not stored.

    A chunk costs up to half a KiB: that is a bit for each id if all are in the set, but half a KiB for an id alone in its
    chunk.
    """

    __slots__ = ("_bits", "_chunks", "_size")

    def __init__(self) -> None:
        self._bits: dict[int, int] = {}
        self._chunks: list[int] = []  # the keys of ``_bits``, ascending
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __contains__(self, msg_id: int) -> bool:
        return bool(self._bits.get(msg_id >> _SHIFT, 0) >> (msg_id & _MASK) & 1)

    def __iter__(self) -> Iterator[int]:
        for chunk in self._chunks:
            bits, base = self._bits[chunk], chunk << _SHIFT
            while bits:
                low = bits & -bits
                yield base + low.bit_length() - 1
                bits ^= low

    def add(self, msg_id: int) -> None:
        chunk, bit = msg_id >> _SHIFT, 1 << (msg_id & _MASK)
        bits = self._bits.get(chunk, 0)
        if not bits & bit:
            self._put(chunk, bits, bits | bit)

    def add_range(self, first: int, last: int) -> None:
        """Add the ids ``first`` to ``last``; none when ``last`` is below ``first``."""
        for chunk in range(first >> _SHIFT, (last >> _SHIFT) + 1 if last >= first else 0):
            bits = self._bits.get(chunk, 0)
            self._put(chunk, bits, bits | _mask(chunk, first, last))

    def discard(self, msg_id: int) -> bool:
        """Remove an id. Returns: whether it was in the set."""
        chunk, bit = msg_id >> _SHIFT, 1 << (msg_id & _MASK)
        bits = self._bits.get(chunk, 0)
        if not bits & bit:
            return False
        self._put(chunk, bits, bits ^ bit)
        return True

    def discard_each(self, ids: Sequence[int]) -> None:
        """Remove ascending ids."""
        at = 0
        while at < len(ids):
            chunk, gone = ids[at] >> _SHIFT, 0
            while at < len(ids) and ids[at] >> _SHIFT == chunk:
                gone |= 1 << (ids[at] & _MASK)
                at += 1
            bits = self._bits.get(chunk, 0)
            self._put(chunk, bits, bits & ~gone)

    def discard_range(self, first: int, last: int) -> None:
        for chunk in self._between(first, last):
            bits = self._bits[chunk]
            self._put(chunk, bits, bits & ~_mask(chunk, first, last))

    def discard_all(self, other: "IdSet", first: int, last: int) -> None:
        """Remove the ids ``first`` to ``last`` of another set."""
        for chunk in other._between(first, last):
            bits = self._bits.get(chunk, 0)
            self._put(chunk, bits, bits & ~(other._bits[chunk] & _mask(chunk, first, last)))

    def clear(self) -> None:
        self._bits.clear()
        self._chunks.clear()
        self._size = 0

    def lowest(self, max_count: int, limit: int) -> list[int]:
        """The lowest ids of the set below ``limit``, at most ``max_count``."""
        found: list[int] = []
        for chunk in self._chunks:
            bits, base = self._bits[chunk], chunk << _SHIFT
            while bits:
                low = bits & -bits
                msg_id = base + low.bit_length() - 1
                if msg_id >= limit or len(found) == max_count:
                    return found
                found.append(msg_id)
                bits ^= low
        return found

    def next_in(self, msg_id: int, limit: int) -> int:
        """The lowest id of the set at or above ``msg_id``, ``limit`` at most."""
        for at in range(bisect_left(self._chunks, msg_id >> _SHIFT), len(self._chunks)):
            chunk = self._chunks[at]
            base = chunk << _SHIFT
            if base >= limit:
                break
            bits = self._bits[chunk]
            if msg_id > base:
                bits = bits >> (msg_id - base) << (msg_id - base)
            if bits:
                return min(base + (bits & -bits).bit_length() - 1, limit)
        return limit

    def next_out(self, msg_id: int) -> int:
        """The lowest id at or above ``msg_id`` that is not in the set."""
        chunk = msg_id >> _SHIFT
        bits = self._bits.get(chunk, 0) >> (msg_id & _MASK)
        if not bits & 1:
            return msg_id
        found = msg_id + (~bits & (bits + 1)).bit_length() - 1
        while not found & _MASK and self._bits.get(found >> _SHIFT, 0) & 1:
            bits = self._bits[found >> _SHIFT]
            found += (~bits & (bits + 1)).bit_length() - 1
        return found

    def spans(self, first: int, last: int) -> list[tuple[int, int]]:
        """The ranges of ids in the set from ``first`` to ``last``."""
        found: list[tuple[int, int]] = []
        while (first := self.next_in(first, last + 1)) <= last:
            found.append((first, min(self.next_out(first) - 1, last)))
            first = found[-1][1] + 1
        return found

    def count(self, first: int, last: int, without: "IdSet | None" = None) -> int:
        """How many ids of the range are in this set and not in ``without``. Cost grows with the chunks of the range, except
        when it spans the whole set and ``without`` is empty."""
        total = 0
        chunks = self._between(first, last)
        if len(chunks) == len(self._chunks) > 2 and (without is None or not without._size):
            total = self._size - self._bits[chunks[0]].bit_count() - self._bits[chunks[-1]].bit_count()
            chunks = [chunks[0], chunks[-1]]
        for chunk in chunks:
            bits = self._bits[chunk]
            if first > chunk << _SHIFT or last < (chunk << _SHIFT) + _MASK:
                bits &= _mask(chunk, first, last)
            if without is not None and without._size:
                bits &= ~without._bits.get(chunk, 0)
            total += bits.bit_count()
        return total

    def copy_range(self, other: "IdSet", first: int, last: int) -> None:
        """Add the ids ``first`` to ``last`` of another set."""
        for chunk in other._between(first, last):
            bits = self._bits.get(chunk, 0)
            self._put(chunk, bits, bits | other._bits[chunk] & _mask(chunk, first, last))

    def _between(self, first: int, last: int) -> list[int]:
        """Chunks that hold ids of the range."""
        if last < first or not self._chunks:
            return []
        low = bisect_left(self._chunks, first >> _SHIFT)
        return self._chunks[low : bisect_left(self._chunks, (last >> _SHIFT) + 1, low)]

    def _put(self, chunk: int, before: int, bits: int) -> None:
        self._size += bits.bit_count() - before.bit_count()
        if bits:
            if not before:
                insort(self._chunks, chunk)
            self._bits[chunk] = bits
        elif before:
            del self._bits[chunk]
            del self._chunks[bisect_left(self._chunks, chunk)]


def _mask(chunk: int, first: int, last: int) -> int:
    """A chunk's bits that belong to the ids ``first`` to ``last``."""
    base = chunk << _SHIFT
    low = max(first - base, 0)
    high = min(last - base, _MASK)
    return _FULL >> (_MASK - high) & ~((1 << low) - 1)
