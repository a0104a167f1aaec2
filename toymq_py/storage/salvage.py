"""Finding the valid frames behind damage, in linear time whatever the bytes.

Contract: storage.md, "Recovery", step 6; ADR 0003 and ADR 0046 tell the rule and its limits. Pure: bytes in, positions out.

A break is a position where the frame of the next id should begin and none does. In order:
  1. Chains that an earlier break of this segment found (4) are gone on with: they were judged with everything in sight.
  2. A whole frame of another id stands there: it belongs to another place, and its length says nothing about this one. Go to 4.
  3. The header at the break still tells where its record ends (``trusted_end``): go on there. What lies between is
     payload, however much it looks like frames.
  4. Otherwise collect the chains behind the break: valid frames of consecutive ids, each chain as long as it gets. Walk them
     from the end of the data backwards (``find_chains``). A chain counts only as a whole, and only if
       - the bytes before it have room for the ids that are missing there, at 30 bytes each, and at least one is missing
         (bytes of a log always belong to some record), and
       - it ends at the end of the data or at a torn frame of the next id, or where such a frame was hit and another
         accepted chain follows, or the id that is known to follow the segment.
     A payload that holds frames ends with its own record's checksum and not in such a way.

The search of 4 happens once a segment. Checksums of what is long come from prefix sums.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

from toymq_py.storage.record import (
    CRC_RESIDUE,
    FRAME_BYTES_MAX,
    FRAME_OVERHEAD,
    HEADER,
    LENGTH_MAX,
    LENGTH_MIN,
    claimed_extent,
    crc32,
    possible_ends,
    scan,
)

KEY_LEN_PLAUSIBLE = 1024
"""Longer keys than any that a broker writes: 512 bytes from clients, somewhat more of its own."""
DIRECT_CRC_BYTES = 16 * 1024
"""Up to this length a checksum is computed as it stands; beyond, from prefix sums, so that a payload made of overlapping long
claims cannot make the search quadratic."""
PREFIX_BYTES = 4096
"""Distance of the prefix sums."""
SECTOR_BYTES = 512
"""What a medium loses at once begins on such a boundary."""

_POLYNOMIAL = 0xEDB88320
_NOT_ZERO = re.compile(rb"[^\0]")


@dataclass(frozen=True, slots=True)
class Chain:
    """Valid frames of consecutive ids, one behind the other."""

    start: int
    end: int
    first_id: int
    last_id: int


class Salvage:
    """The rest of a segment from its first break on: asked at every break where to go on.

    ``examined`` counts bytes that were looked at, for tests: it grows with the data and not with the number of breaks.
    """

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
        self.examined = 0
        self._next_id = next_id
        self._committed_id = committed_id
        self._origin = origin
        self._view = memoryview(data)
        self._prefixes: list[int] = []
        self._chains: list[Chain] | None = None
        self._chain = 0

    def resume(self, pos: int, msg_id: int) -> tuple[int, int] | None:
        """Where scanning goes on behind a break, and with which id; None when nothing behind it may be trusted."""
        if self._chains is None:
            end = None if self._is_foreign(pos, msg_id) else self.trusted_end(pos, msg_id)
            if end is not None:
                return (end, msg_id + 1) if end < self.written else None
            self._chains = self.find_chains(pos, msg_id - 1)
        while self._chain < len(self._chains) and self._chains[self._chain].start < pos:
            self._chain += 1
        if self._chain == len(self._chains):
            return None
        found = self._chains[self._chain]
        return found.start, found.first_id

    # -- one frame

    def valid_frame(self, pos: int, msg_id: int | None = None) -> tuple[int, int] | None:
        """(id, bytes) of the valid frame at ``pos``, when there is one; of this id, where one is asked for."""
        claim = claimed_extent(self.data, pos, check_attributes=False)
        if claim is None or pos + claim[1] > len(self.data) or (msg_id is not None and claim[0] != msg_id):
            return None
        if self._crc(pos, pos + claim[1]) != CRC_RESIDUE or claimed_extent(self.data, pos) is None:
            return None
        return claim

    def _is_foreign(self, pos: int, msg_id: int) -> bool:
        found = self.valid_frame(pos)
        return found is not None and found[0] != msg_id

    def trusted_end(self, pos: int, msg_id: int) -> int | None:
        """Where the damaged record at ``pos`` ends, when its header still tells.

        One of its lengths leads to a valid frame of the next id, or makes the checksum fit; or all lengths agree; or one leads
        to the end of the data exactly. The end may lie beyond the data: then the record was torn, if its lengths agree on
        that, too: a flipped bit in one of them must not hide what is behind it.
        """
        ends = self._lone_ends(pos)
        for end in ends:
            if self.valid_frame(end, msg_id + 1) is not None or (end <= len(self.data) and self._fits_with_length(pos, end)):
                return end
        claim = claimed_extent(self.data, pos)
        if claim is not None and (pos + claim[1] <= len(self.data) or reaches_beyond(self.data, pos)):
            return pos + claim[1]
        return next((end for end in ends if self.written <= end <= len(self.data)), None)

    def _fits_with_length(self, pos: int, end: int) -> bool:
        """Whether only the length field was hit: with the one that leads to ``end`` the checksum fits. No payload can feign
        that, since the checksum covers the header."""
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
            self.examined += end - start
            return int(crc32(self._view[start:end]))
        if not self._prefixes:
            self.examined += len(self.data)
            crc = 0
            for at in range(0, len(self.data), PREFIX_BYTES):
                self._prefixes.append(crc)
                crc = crc32(self._view[at : at + PREFIX_BYTES], crc)
        return self._prefix(end) ^ _shift(self._prefix(start), end - start)

    def _prefix(self, end: int) -> int:
        block = min(end // PREFIX_BYTES, len(self._prefixes) - 1)
        self.examined += end - block * PREFIX_BYTES
        return int(crc32(self._view[block * PREFIX_BYTES : end], self._prefixes[block]))

    # -- chains

    def find_chains(self, start: int, last_id: int) -> list[Chain]:
        """Chains behind a break whose own header tells nothing, first to last; empty when nothing may be trusted.

        Args:
            start: position of the break.
            last_id: id of the valid frame before it, -1 for none.
        """
        chains = [chain for chain in self._collect(start, last_id) if _fits(start, last_id, chain.start, chain.first_id)]
        accepted: list[Chain] = []
        if self._next_id is None:
            accepted = self._accept(chains, None)
        for known in (self._next_id, self._committed_id):
            if not accepted and known is not None:
                accepted = self._accept(chains, Chain(len(self.data), len(self.data), known, known))
        if not accepted and self._next_id is not None:  # the id is that of a later segment, and those between are missing
            accepted = self._accept([chain for chain in chains if chain.last_id < (self._next_id or 0)], None)
        return accepted

    def _accept(self, chains: list[Chain], following: Chain | None) -> list[Chain]:
        """Chains that lead from one to the other, and to ``following``; without, to where a log may end."""
        accepted: list[Chain] = []
        for chain in reversed(chains):
            if following is None:
                fits = chain.end == len(self.data) or self._looks_torn(chain.end, chain.last_id + 1)
            elif chain.end >= self.written and not accepted:
                fits = chain.last_id + 1 == following.first_id
            else:
                fits = _fits(chain.end, chain.last_id, following.start, following.first_id) and self._looks_hit(
                    chain.end, chain.last_id + 1
                )
            if fits:
                accepted.append(chain)
                following = chain
        accepted.reverse()
        return accepted

    def _collect(self, start: int, last_id: int) -> list[Chain]:
        """Every chain behind ``start`` whose ids could be there at all, in order. What stands inside one is payload."""
        data, stop = self.data, self.written
        low = last_id + 1
        high = last_id + 1 + (len(data) - start) // FRAME_OVERHEAD
        # The upper id bytes are the same for all that may be found: bytes.find finds the places, Python looks only there.
        constant = 8
        while constant and low >> (64 - 8 * constant) != high >> (64 - 8 * constant):
            constant -= 1
        upper = low.to_bytes(8, "little")[8 - constant :]
        before = 12 - constant
        chains: list[Chain] = []
        at = start + 1
        self.examined += len(data) - start
        while True:
            at = data.find(upper, at + before) - before
            if at < 0 or at >= stop:
                return chains
            if data[at : at + 4] == b"\0\0\0\0":  # so is every length before the zeros end
                behind = _NOT_ZERO.search(data, at)
                at = len(data) if behind is None else max(at + 1, behind.start() - 3)
                continue
            claim = claimed_extent(data, at, check_attributes=False)
            if (
                claim is None
                or not low <= claim[0] <= high
                or at + claim[1] > len(data)
                or (claim[1] > DIRECT_CRC_BYTES and not self._leads_on(at + claim[1], claim[0] + 1))
                or self.valid_frame(at) is None
            ):
                at += 1
                continue
            end, next_id, _ = scan(data, at, claim[0])
            self.examined += end - at
            chains.append(Chain(at, end, claim[0], next_id - 1))
            at = end

    def _leads_on(self, pos: int, msg_id: int) -> bool:
        """Whether a long claim ends where one might: otherwise it is not worth its checksum."""
        return pos == len(self.data) or self._looks_torn(pos, msg_id) or self._looks_hit(pos, msg_id)

    def _looks_hit(self, pos: int, msg_id: int) -> bool:
        """Whether a frame of this id was here before it was damaged: a lost page reads as zeros, damage of a bit rarely takes
        both the length and the id, and what a sector took of them begins where the sector does."""
        head = self.data[pos : pos + 12]
        if not head.strip(b"\0"):
            return True
        seen = -(self._origin + pos) % SECTOR_BYTES
        if head[4:seen] == msg_id.to_bytes(8, "little")[: max(seen - 4, 0)]:
            return True
        return claimed_extent(self.data, pos, check_attributes=False) is not None

    def _looks_torn(self, pos: int, msg_id: int) -> bool:
        """Whether the rest of the data is the beginning of the frame of this id, or unwritten."""
        if pos >= self.written:
            return True
        head = self.data[pos : pos + 12]
        length = int.from_bytes(head[:4], "little")
        if len(head) < 5 or not LENGTH_MIN <= length <= LENGTH_MAX:
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
    while at + 5 <= len(data) and at < stop:
        at += 5 + int.from_bytes(data[at + 1 : at + 5], "little")
    return at == stop or (at > len(data) and at <= stop) or (at <= len(data) < at + 5 and at < stop)


def frame_bytes(data: bytes) -> int | None:
    """How long the frame is that begins ``data`` and goes on behind it; None when its header does not bear it out."""
    claim = claimed_extent(data, 0)
    return claim[1] if claim is not None and claim[1] <= FRAME_BYTES_MAX and reaches_beyond(data, 0) else None


def _fits(end: int, last_id: int, start: int, first_id: int) -> bool:
    """Whether the ids missing between two frames have room in the bytes between them."""
    missing = first_id - last_id - 1
    return 1 <= missing <= (start - end) // FRAME_OVERHEAD


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
