"""Finding the valid frames behind damage, in linear time whatever the bytes.

Contract: storage.md, "Recovery", step 6; ADR 0003 tells the rule and its limits. Pure: bytes in, positions out.

A break is a position where the frame of the next id should begin and none does. In order:
  1. The header at the break still tells where its record ends (``trusted_end``): go on there. What lies between is
     payload, however much it looks like frames.
  2. Otherwise collect every valid frame behind the break and join neighbours of consecutive ids to chains.
  3. Walk the chains from the end of the data backwards (``find_chains``). A chain counts only as a whole, and only if
       - the bytes before it have room for the ids that are missing there, at 30 bytes each, and at least one is missing
         (bytes of a log always belong to some record), and
       - it ends at the end of the data or at a torn frame of the next id, or where such a frame was hit and another
         accepted chain follows.
     A payload that holds frames ends with its own record's checksum and not in such a way.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

from toymq_py.storage.record import (
    CRC_RESIDUE,
    FRAME_OVERHEAD,
    HEADER,
    LENGTH_MAX,
    LENGTH_MIN,
    claimed_extent,
    crc32,
    possible_ends,
    valid_frame,
)

KEY_LEN_PLAUSIBLE = 1024
"""Longer keys than any that a broker writes: 512 bytes from clients, somewhat more of its own."""
DIRECT_CRC_BYTES = 16 * 1024
"""Up to this length a candidate's checksum is computed as it stands; beyond, from prefix sums, so that a payload made of
overlapping long claims cannot make the search quadratic."""

_POLYNOMIAL = 0xEDB88320

Claim = tuple[int, int, int]
"""Position, id and bytes of what looks like a frame."""


@dataclass(frozen=True, slots=True)
class Chain:
    """Valid frames of consecutive ids, one behind the other."""

    start: int
    end: int
    first_id: int
    last_id: int


def proven_end(data: bytes, pos: int, msg_id: int) -> int | None:
    """Where the damaged record at ``pos`` ends, when one of its lengths leads to a valid frame of the next id."""
    for end in _lone_ends(data, pos):
        following = valid_frame(data, end)
        if following is not None and following[0] == msg_id + 1:
            return end
        if end <= len(data) and _fits_with_length(data, pos, end):
            return end
    return None


def _fits_with_length(data: bytes, pos: int, end: int) -> bool:
    """Whether only the length field was hit: with the one that leads to ``end`` the checksum fits. No payload can feign
    that, since the checksum covers the header."""
    length = end - pos - 4
    if not LENGTH_MIN <= length <= LENGTH_MAX:
        return False
    crc: int = crc32(memoryview(data)[pos + 4 : end], crc32(length.to_bytes(4, "little")))
    return crc == CRC_RESIDUE


def trusted_end(data: bytes, pos: int, msg_id: int) -> int | None:
    """Where the damaged record at ``pos`` ends, when its header still tells.

    It is proven; or all lengths agree; or one leads to the end of the data exactly. The end may lie beyond ``data``: then
    the record was torn, if its lengths agree on that, too: a flipped bit in one of them must not hide what is behind it.
    """
    end = proven_end(data, pos, msg_id)
    if end is not None:
        return end
    claim = claimed_extent(data, pos)
    if claim is not None and (pos + claim[1] <= len(data) or _reaches_beyond(data, pos)):
        return pos + claim[1]
    for end in _lone_ends(data, pos):
        if end <= len(data) and not data[end:].strip(b"\0"):
            return end
    return None


def _reaches_beyond(data: bytes, pos: int) -> bool:
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


def _lone_ends(data: bytes, pos: int) -> list[int]:
    ends = possible_ends(data, pos)
    if pos + 4 <= len(data):
        length = int.from_bytes(data[pos : pos + 4], "little")
        if LENGTH_MIN <= length <= LENGTH_MAX:
            ends.append(pos + 4 + length)
    return ends


def find_chains(data: bytes, start: int, last_id: int) -> list[Chain]:
    """Chains behind a break whose own header tells nothing, first to last; empty when nothing may be trusted.

    Args:
        data: everything from the segment that can hold records; ends where they end.
        start: position of the break.
        last_id: id of the valid frame before it, -1 for none.
    """
    chains = _join(_valid_frames(data, start, last_id))
    written = len(data.rstrip(b"\0"))
    accepted: list[Chain] = []
    following: Chain | None = None
    for chain in reversed(chains):
        if not _fits(start, last_id, chain.start, chain.first_id):
            continue
        if following is None:
            if chain.end != len(data) and not _looks_torn(data, chain.end, chain.last_id + 1, written):
                continue
        elif not (
            _fits(chain.end, chain.last_id, following.start, following.first_id)
            and _looks_hit(data, chain.end, chain.last_id + 1)
        ):
            continue
        accepted.append(chain)
        following = chain
    accepted.reverse()
    return accepted


def _fits(end: int, last_id: int, start: int, first_id: int) -> bool:
    """Whether the ids missing between two frames have room in the bytes between them."""
    missing = first_id - last_id - 1
    return 1 <= missing <= (start - end) // FRAME_OVERHEAD


def _looks_hit(data: bytes, pos: int, msg_id: int) -> bool:
    """Whether a frame of this id was here before it was damaged: a lost page reads as zeros, and damage rarely takes
    both the length and the id."""
    head = data[pos : pos + 12]
    if not head.strip(b"\0"):
        return True
    if head[4:] == msg_id.to_bytes(8, "little"):
        return True
    return claimed_extent(data, pos, check_attributes=False) is not None


def _looks_torn(data: bytes, pos: int, msg_id: int, written: int) -> bool:
    """Whether the rest of the data is the beginning of the frame of this id, or unwritten: all zeros, from ``written`` on."""
    if pos >= written:
        return True
    head = data[pos : pos + 12]
    length = int.from_bytes(head[:4], "little")
    if len(head) < 5 or not LENGTH_MIN <= length <= LENGTH_MAX:
        return False
    return head[4:] == msg_id.to_bytes(8, "little")[: len(head) - 4] and pos + 4 + length > len(data)


def _join(frames: list[Claim]) -> list[Chain]:
    """Chains in order of their start, without those that lie inside another: what stands in the payload of a valid
    frame is payload."""
    open_chains: dict[int, list[int]] = {}  # where it ends -> [start, end, first id, last id]
    chains: list[list[int]] = []
    for pos, msg_id, size in frames:
        chain = open_chains.pop(pos, None)
        if chain is None or chain[3] + 1 != msg_id:
            chain = [pos, pos, msg_id, msg_id]
            chains.append(chain)
        chain[1] = pos + size
        chain[3] = msg_id
        open_chains[pos + size] = chain
    outermost_end = -1
    outer = []
    for start, end, first_id, last_id in chains:
        if end > outermost_end:
            outer.append(Chain(start, end, first_id, last_id))
            outermost_end = end
    return outer


def _valid_frames(data: bytes, start: int, last_id: int) -> list[Claim]:
    """Every valid frame behind ``start`` whose id could be there at all, in order of position."""
    low = last_id + 1
    high = last_id + 1 + (len(data) - start) // FRAME_OVERHEAD
    # The upper id bytes are the same for all that may be found: a regular expression finds the places, Python looks only there.
    constant = 8
    while constant and low >> (64 - 8 * constant) != high >> (64 - 8 * constant):
        constant -= 1
    upper = re.escape(low.to_bytes(8, "little")[8 - constant :])
    # A length of at least 26 and at most 64 MiB and a little, then the id. The lookahead finds overlapping places too.
    header = re.compile(rb"(?s)(?=.{3}[\0-\4].{%d}%b)(?![\0-\x19]\0\0\0)" % (8 - constant, upper))
    claims: list[Claim] = []
    written = len(data.rstrip(b"\0"))  # preallocated space holds no header
    for match in header.finditer(data, start + 1, min(written + 12, len(data))):
        at = match.start()
        claim = claimed_extent(data, at, check_attributes=False)
        if claim is not None and low <= claim[0] <= high and at + claim[1] <= len(data):
            claims.append((at, claim[0], claim[1]))
    return _check(data, claims)


def _check(data: bytes, claims: list[Claim]) -> list[Claim]:
    """Those claims whose checksum fits."""
    ids = {pos: msg_id for pos, msg_id, _ in claims}
    claims = [
        (pos, msg_id, size)
        for pos, msg_id, size in claims
        if size <= DIRECT_CRC_BYTES  # a long one must lead somewhere before it costs a checksum
        or pos + size == len(data)
        or ids.get(pos + size) == msg_id + 1
        or _looks_torn(data, pos + size, msg_id + 1, len(data))
        or data[pos + size + 4 : pos + size + 12] == (msg_id + 1).to_bytes(8, "little")
        or not data[pos + size : pos + size + 12].strip(b"\0")  # a lost page, perhaps
    ]
    view = memoryview(data)
    long = [claim for claim in claims if claim[2] > DIRECT_CRC_BYTES]
    prefixes: dict[int, int] = {}
    if sum(size for _, _, size in long) > len(data):
        at, crc = 0, 0
        for place in sorted({place for pos, _, size in long for place in (pos, pos + size)}):
            crc = crc32(view[at:place], crc)
            prefixes[place] = crc
            at = place
    valid = []
    for pos, msg_id, size in claims:
        if size > DIRECT_CRC_BYTES and prefixes:
            crc = prefixes[pos + size] ^ _shift(prefixes[pos], size)
        else:
            crc = crc32(view[pos : pos + size])
        if crc == CRC_RESIDUE and claimed_extent(data, pos) is not None:
            valid.append((pos, msg_id, size))
    return valid


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
