"""Finds the valid frames behind damage, in linear time whatever the bytes.

Contract: storage.md, "Recovery", step 6; ADR 0003, ADR 0046 and ADR 0067 tell the rule and its limits. Pure: bytes in,
positions out.

A break is a position where the frame of the next id should begin and none does. In order:
  1. Chains that an earlier break of this segment found (4) are gone on with: they were judged with everything in sight.
  2. A whole frame of another id stands there: it belongs to another place, and its length says nothing about this one. Go to 4.
  3. The header at the break still tells where its record ends (``trusted_end``; that of another record does not): go on
     there. What lies between is payload, however much it looks like frames.
  4. Otherwise collect the chains behind the break: valid frames of consecutive ids, each chain as long as it gets. A chain
     counts only as a whole, and only if it ends like a chain that was broken off (``_broken_off``): where the log ends, or in
     front of a record that was hit. A payload that holds frames ends with its own record's checksum and not in such a way.
  5. Of those, the reading that keeps most bytes: chains of ascending ids, at least one id missing before each, with room for
     the missing ones at 30 bytes each (bytes of a log always belong to some record). A reading that ends where the log does
     goes before any other: a payload is followed by real records.
  6. When no chain has such room, records stand where they were never written (pages changed places): the reading that keeps
     most, wherever it begins. What the others hold is lost, and not torn.

The search of 4 happens once a segment. The work is bounded for each byte, by construction: a checksum that fails covers a few
hundred bytes, or no more than what was valid before it; those of what is longer come from prefix sums.
"""

import re
from array import array
from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush

from toymq_py.storage.record import (
    CRC_RESIDUE,
    FRAME_BYTES_MAX,
    FRAME_OVERHEAD,
    HEADER,
    LENGTH_MAX,
    LENGTH_MIN,
    Stop,
    claimed_extent,
    crc32,
    possible_ends,
    scan,
)

KEY_LEN_PLAUSIBLE = 1024
"""Longer keys than any that a broker writes: 512 bytes from clients, somewhat more of its own."""
ATTRIBUTES_PLAUSIBLE = 64
"""More of them than any record has."""
DIRECT_CRC_BYTES = 512
"""Up to this length a checksum is computed as it stands; beyond, from prefix sums, so that a payload made of overlapping long
claims cannot make the search quadratic."""
PREFIX_BYTES = 256
"""Distance of the prefix sums."""
WINDOW_BYTES = 1 << 20
"""Valid frames are walked in windows that grow up to this with what was valid."""
SECTOR_BYTES = 512
"""What a medium loses at once begins on such a boundary."""

_POLYNOMIAL = 0xEDB88320
_NOT_ZERO = re.compile(rb"[^\0]")


@dataclass(frozen=True, slots=True)
class Chain:
    """Valid frames of consecutive ids, one behind the other; none when ``end`` is ``start``."""

    start: int
    end: int
    first_id: int
    next_id: int


class Salvage:
    """Finds the valid frames behind damage, in the rest of a segment from its first break on."""

    def __init__(
        self, data: bytes, next_id: int | None = None, *, committed_id: int | None = None, origin: int = 0
    ) -> None:
        """
        Args:
            data: ends where the segment ends, preallocated zeros included.
            next_id: the id that follows the segment's last record, where that is known.
            committed_id: otherwise, an id that it seems to reach.
            origin: where in the file the data begins.
        """
        self.data = data
        self.written = len(data.rstrip(b"\0"))
        """Where the zeros begin that end the data."""
        self.reached = 0
        """The log reached this id, by records that stand in a wrong place (6)."""
        self._next_id = next_id
        self._committed_id = committed_id
        self._origin = origin
        self._view = memoryview(data)
        self._prefixes = array("I")
        self._chains: list[Chain] | None = None
        self._chain = 0

    def resume(self, pos: int, msg_id: int) -> Chain | None:
        """The next chain of valid frames behind a break; None when no bytes behind it can be trusted."""
        if self._chains is None:
            end = None if self._is_foreign(pos, msg_id) else self.trusted_end(pos, msg_id)
            if end is not None:
                return self._chain_at(end, msg_id + 1) if end < self.written else None
            self._chains = self.find_chains(pos, msg_id - 1)
        while self._chain < len(self._chains) and self._chains[self._chain].start < pos:
            self._chain += 1
        return self._chains[self._chain] if self._chain < len(self._chains) else None

    # -- one frame

    def valid_frame(self, pos: int, msg_id: int | None = None) -> tuple[int, int] | None:
        """The id and size of the valid frame at ``pos``; None without one, or when it has another id than ``msg_id``."""
        claim = claimed_extent(self.data, pos, check_attributes=False)
        if claim is None or pos + claim[1] > len(self.data) or (msg_id is not None and claim[0] != msg_id):
            return None
        if self._crc(pos, pos + claim[1]) != CRC_RESIDUE or claimed_extent(self.data, pos) is None:
            return None
        return claim

    def _is_foreign(self, pos: int, msg_id: int) -> bool:
        return self.data[pos + 4 : pos + 12] != msg_id.to_bytes(8, "little") and self.valid_frame(pos) is not None

    def trusted_end(self, pos: int, msg_id: int) -> int | None:
        """End of the damaged record at ``pos``, when its header still tells it.

        All lengths agree; or one of them leads to a valid frame of the next id, or makes the checksum fit; or one leads to
        where the log ends, exactly. The end may lie beyond the data: then the record was torn, if its lengths agree on that: a
        flipped bit in one of them must not hide what is behind it.
        """
        claim = claimed_extent(self.data, pos)
        if claim is not None and (claim[0] ^ msg_id).bit_count() > 1:  # another place's bytes say nothing about this one
            end = pos + claim[1]
            return end if self.valid_frame(end, msg_id + 1) is not None or self._is_written_end(end) else None
        if claim is not None and pos + claim[1] <= len(self.data):
            return pos + claim[1]
        ends = self._lone_ends(pos)
        for end in ends:
            if self.valid_frame(end, msg_id + 1) is not None or (end <= len(self.data) and self._fits_with_length(pos, end)):
                return end
        if claim is not None and reaches_beyond(self.data, pos):
            return pos + claim[1]
        return next((end for end in ends if self._is_written_end(end)), None)

    def _is_written_end(self, end: int) -> bool:
        """Whether a record that ends here is the log's last: at most its checksum ends with zeros."""
        return self.written <= end <= min(self.written + 4, len(self.data))

    def _fits_with_length(self, pos: int, end: int) -> bool:
        """Whether only the length field was hit: with the length that leads to ``end`` the checksum fits. A payload cannot
        feign that, since the checksum covers the header."""
        length = end - pos - 4
        if not LENGTH_MIN <= length <= LENGTH_MAX:
            return False
        head: int = crc32(length.to_bytes(4, "little"))
        return self._crc(pos + 4, end) ^ _shift(head, length) == CRC_RESIDUE

    def _lone_ends(self, pos: int) -> list[int]:
        ends = possible_ends(self.data, pos)
        if pos + 4 <= len(self.data):
            length = int.from_bytes(self.data[pos : pos + 4], "little")
            if LENGTH_MIN <= length <= LENGTH_MAX:
                ends.append(pos + 4 + length)
        return ends

    def _crc(self, start: int, end: int) -> int:
        """The checksum of a part of the data."""
        if end - start <= DIRECT_CRC_BYTES:
            return int(crc32(self._view[start:end]))
        if not self._prefixes:
            crc, view, append = 0, self._view, self._prefixes.append
            for at in range(0, len(self.data), PREFIX_BYTES):
                append(crc)
                crc = crc32(view[at : at + PREFIX_BYTES], crc)
        return self._prefix(end) ^ _shift(self._prefix(start), end - start)

    def _prefix(self, end: int) -> int:
        block = min(end // PREFIX_BYTES, len(self._prefixes) - 1)
        return int(crc32(self._view[block * PREFIX_BYTES : end], self._prefixes[block]))

    # -- chains

    def find_chains(self, start: int, last_id: int) -> list[Chain]:
        """Find the chains to keep behind a break whose header tells nothing, in order; empty when no bytes can be trusted.

        Args:
            start: position of the break.
            last_id: id of the valid frame before it, -1 for none.
        """
        chains = [chain for chain in self._collect(start, last_id) if self._broken_off(chain.end, chain.next_id)]
        behind = [chain for chain in chains if _fits(start, last_id + 1, chain)]
        longest = max(chains, key=lambda chain: chain.end - chain.start, default=None)
        if longest is not None and not _fits(start, last_id + 1, longest):  # what was never moved fits
            self.reached = max(chain.next_id for chain in chains)
        return self._best(behind) if behind else self._best(chains, displaced=True)

    def _best(self, chains: list[Chain], *, displaced: bool = False) -> list[Chain]:
        """Choose the chains to keep: those that end where the log does, or else those with most bytes.

        Behind a chain that goes up to ``next_id`` and is passed at ``(id, end)``, another one may follow if its first id is
        higher than ``next_id``, and its ``start`` leaves the missing ids room: ``30 * id - end`` is no less than
        ``30 * first_id - start``. So one goes through the ids once, the best readings so far in a Fenwick tree.
        """
        passed = [self._passed(chain) for chain in chains]
        room = [FRAME_OVERHEAD * msg_id - end for msg_id, end in passed]
        slacks = sorted(set(room))
        tree = [-1] * (len(slacks) + 1)
        """Rows of chains: of those with as much slack or more, the one that ends the best reading."""
        kept, before = [0] * len(chains), [-1] * len(chains)
        events = sorted(
            [(chain.next_id, 0, row) for row, chain in enumerate(chains)]
            + [(chain.first_id - 1, 1, row) for row, chain in enumerate(chains)]
        )
        for _, asks, row in events:
            chain = chains[row]
            if asks:
                at = len(slacks) - bisect_left(slacks, FRAME_OVERHEAD * chain.first_id - chain.start)
                while at:
                    other = tree[at]
                    if other >= 0 and (before[row] < 0 or kept[other] > kept[before[row]]):
                        before[row] = other
                    at &= at - 1
                kept[row] = chain.end - chain.start + (kept[before[row]] if before[row] >= 0 else 0)
            else:
                at = len(slacks) - bisect_left(slacks, room[row])
                while at < len(tree):
                    if tree[at] < 0 or kept[row] > kept[tree[at]]:
                        tree[at] = row
                    at += at & -at
        row = -1 if displaced else self._last(chains, passed)
        if row < 0:
            row = max(range(len(chains)), key=kept.__getitem__, default=-1)
        best = []
        while row >= 0:
            best.append(chains[row])
            row = before[row]
        best.reverse()
        return best

    def _last(self, chains: list[Chain], passed: list[tuple[int, int]]) -> int:
        """Row of the chain that the log ends with, -1 for none. A chain inside a record that was hit does not count."""
        found, hiding = -1, list[tuple[int, int]]()
        for row, chain in enumerate(chains):
            while hiding and hiding[0][1] <= chain.start:
                heappop(hiding)
            hidden = bool(hiding) and hiding[0][0] <= chain.first_id
            if not hidden and self._ends_log(chain, *passed[row]):
                found = row
            claim = claimed_extent(self.data, chain.end, check_attributes=False)
            if claim is not None and claim[0] == chain.next_id:
                heappush(hiding, (chain.next_id, chain.end + claim[1]))
        return found

    def _passed(self, chain: Chain) -> tuple[int, int]:
        """The id and position from which a later chain may begin: behind the record that was hit, if its header tells its
        end."""
        pos, msg_id = chain.end, chain.next_id
        end = None if self._is_foreign(pos, msg_id) else self.trusted_end(pos, msg_id)
        return (msg_id, pos) if end is None else (msg_id + 1, end)

    def _collect(self, start: int, last_id: int) -> list[Chain]:
        """Collect every chain behind ``start`` whose ids are possible there, in order. A frame inside a chain is payload."""
        data, stop = self.data, self.written
        low = last_id + 1
        high = last_id + 1 + (len(data) - start) // FRAME_OVERHEAD
        if self._next_id is not None:
            high = min(high, self._next_id - 1)
        # The upper id bytes are the same for all that may be found: bytes.find finds the places, Python looks only there.
        constant = 8
        while constant and low >> (64 - 8 * constant) != high >> (64 - 8 * constant):
            constant -= 1
        upper = low.to_bytes(8, "little")[8 - constant :]
        before = 12 - constant
        chains: list[Chain] = []
        at = start + 1
        while True:
            at = data.find(upper, at + before) - before
            if at < 0 or at >= stop:
                return chains
            if data[at : at + 4] == b"\0\0\0\0":  # so is every length before the zeros end
                behind = _NOT_ZERO.search(data, at)
                at = len(data) if behind is None else max(at + 1, behind.start() - 3)
                continue
            claim = claimed_extent(data, at, check_attributes=False)
            if claim is None or not low <= claim[0] <= high or self.valid_frame(at) is None:
                at += 1
                continue
            chains.append(self._chain_at(at, claim[0]))
            at = chains[-1].end

    def _chain_at(self, start: int, first_id: int) -> Chain:
        """The chain of valid frames that begins here. Bytes checked in vain are at most as many as valid ones, or a few
        hundred."""
        pos, msg_id = start, first_id
        while pos < len(self.data):
            window = min(max(DIRECT_CRC_BYTES, pos - start), WINDOW_BYTES)
            used, msg_id, stop = scan(self.data[pos : pos + window], 0, msg_id)
            pos += used
            if stop is Stop.PARTIAL and not used:
                found = self.valid_frame(pos, msg_id)
                if found is None:
                    break
                pos, msg_id = pos + found[1], msg_id + 1
            elif stop is Stop.INVALID or stop is Stop.ZERO:
                break
        return Chain(start, pos, first_id, msg_id)

    # -- ends

    def _broken_off(self, pos: int, msg_id: int) -> bool:
        """Whether the log may have been broken off here, before the record with this id."""
        return pos >= self.written or self._looks_torn(pos, msg_id) or self._looks_hit(pos, msg_id)

    def _ends_log(self, chain: Chain, id_behind: int, end_behind: int) -> bool:
        """Whether the log ends with this chain or with the damaged record behind it, at the id that it should end with."""
        if end_behind < self.written and not self._looks_torn(chain.end, chain.next_id):
            return False
        if self._next_id is not None:
            return self._next_id in (chain.next_id, id_behind)
        return self._committed_id is None or id_behind >= self._committed_id

    def _looks_hit(self, pos: int, msg_id: int) -> bool:
        """Whether a frame of this id was here and was damaged. A lost page reads as zeros, a flipped bit rarely hits both
        length and id, and a lost sector begins on its boundary."""
        if pos + FRAME_OVERHEAD > len(self.data):
            return False
        head = self.data[pos : pos + 12]
        if not head.strip(b"\0"):  # too few zeros for a record are a payload's, unless they end where a sector does
            lost = self.data[pos : pos + FRAME_OVERHEAD]
            zeros = len(lost) - len(lost.lstrip(b"\0"))
            return zeros == FRAME_OVERHEAD or (self._origin + pos + zeros) % SECTOR_BYTES == 0
        seen = -(self._origin + pos) % SECTOR_BYTES
        if head[4:seen] == msg_id.to_bytes(8, "little")[: max(seen - 4, 0)]:
            return True
        return claimed_extent(self.data, pos, check_attributes=False) is not None

    def _looks_torn(self, pos: int, msg_id: int) -> bool:
        """Whether the rest of the data is the beginning of the frame of this id. Fewer than four bytes cannot be the checksum
        of a record."""
        head = self.data[pos : pos + 12]
        if len(head) < 4:
            return True
        length = int.from_bytes(head[:4], "little")
        if not LENGTH_MIN <= length <= LENGTH_MAX:
            return False
        return head[4:] == msg_id.to_bytes(8, "little")[: len(head) - 4] and pos + 4 + length > len(self.data)


def reaches_beyond(data: bytes, pos: int) -> bool:
    """Whether more than its length field says that the record at ``pos`` goes on behind the data: the payload does, or the
    attributes that begin behind it add up. Assumes a claim that does."""
    length: int
    key_len: int
    length, _, _, key_len = HEADER.unpack_from(data, pos)
    at = pos + 22 + key_len
    if at + 4 > len(data):
        return key_len <= KEY_LEN_PLAUSIBLE  # at most so many bytes of data are in question
    at += 4 + int.from_bytes(data[at : at + 4], "little")
    stop = pos + length
    for _ in range(ATTRIBUTES_PLAUSIBLE):
        if at + 5 > len(data) or at >= stop:
            break
        at += 5 + int.from_bytes(data[at + 1 : at + 5], "little")
    return at == stop or (at > len(data) and at <= stop) or (at <= len(data) < at + 5 and at < stop)


def frame_bytes(data: bytes) -> int | None:
    """Size of the frame that begins ``data`` and goes on behind it; None when its header is not plausible."""
    claim = claimed_extent(data, 0)
    return claim[1] if claim is not None and claim[1] <= FRAME_BYTES_MAX and reaches_beyond(data, 0) else None


def _fits(end: int, next_id: int, chain: Chain) -> bool:
    """Whether at least one id is missing before a chain, and the missing ones have room in the bytes before it."""
    return 1 <= chain.first_id - next_id <= (chain.start - end) // FRAME_OVERHEAD


def _multiply(a: int, b: int) -> int:
    """Product of two polynomials modulo the CRC's, in its reflected bit order."""
    product = 0
    mask = 1 << 31
    while a:
        if a & mask:
            product ^= b
            a ^= mask
        mask >>= 1
        b = (b >> 1) ^ _POLYNOMIAL if b & 1 else b >> 1
    return product


@lru_cache(maxsize=1)
def _powers() -> list[list[int]]:
    """x^(8 n) for n in four bytes: [byte number][byte value]."""
    base = 1 << 23  # x^8
    tables = []
    for _ in range(4):
        table = [1 << 31]
        for _ in range(255):
            table.append(_multiply(table[-1], base))
        tables.append(table)
        base = _multiply(table[-1], base)
    return tables


def _shift(crc: int, length: int) -> int:
    """What a CRC contributes after ``length`` more bytes: crc(A+B) == _shift(crc(A), len(B)) ^ crc(B)."""
    powers = _powers()
    for i in range(4):
        byte = (length >> (8 * i)) & 255
        if byte:
            crc = _multiply(powers[i][byte], crc)
    return crc
