"""What the header of a damaged record still tells of it: its id, and where it ends (ADR 0289).

Pure: bytes in, positions out. Nothing here is checked by a checksum.
"""

import re

from toymq_py.storage.record import (
    ATTRIBUTE_DELIVER_AT,
    ATTRIBUTE_EXPIRES_AT,
    ATTRIBUTE_HEADERS,
    ATTRIBUTE_SEQUENCE,
    FRAME_BYTES_MAX,
    HEADER,
    LENGTH_MAX,
    LENGTH_MIN,
    NUMBER_BYTES,
    TAG_LENGTH,
    U32,
    claimed_extent,
    possible_ends,
)

KEY_LEN_PLAUSIBLE = 1024
"""The longest key that is plausible, longer than any that a broker writes: 512 bytes from clients, somewhat more of its own."""
ATTRIBUTES_PLAUSIBLE = 64
"""The most attributes that are plausible, more than any record has."""
UNSEEN_BYTES_PLAUSIBLE = 64
"""Most bytes that may stand between a payload that goes on behind the data and the end of the record by its length: a sequence,
two times and a few bytes of headers."""
LOST_BYTES_PLAUSIBLE = 1024
"""Most bytes of attributes that are believed when nothing of them can be read: a header block as clients write it."""

_KEY = re.compile(rb"[!-~]*")
_NUMBERS = (ATTRIBUTE_DELIVER_AT, ATTRIBUTE_EXPIRES_AT, ATTRIBUTE_SEQUENCE)
_NUMBERS_ALONE = tuple(count * NUMBER_BYTES for count in range(len(_NUMBERS) + 1))
"""The sizes of attributes without a header block."""


def likely_ends(data: bytes, pos: int) -> list[int]:
    """Where the damaged record at ``pos`` ends if one bit of its lengths was flipped, or if of its lengths only those of its
    attributes are lost; ascending, inside the data. Assumes that its id is whole."""
    if pos + LENGTH_MIN > len(data):
        return []
    length, _, _, key_len = HEADER.unpack_from(data, pos)
    ends = set()
    at = _payload_at(data, pos, key_len)
    if at is not None:
        behind = possible_ends(data, pos)
        behind += [end + size for end in behind[:1] for size in _NUMBERS_ALONE]
        ends = {end for end in behind if (end - pos - 4 ^ length).bit_count() == 1}
    if LENGTH_MIN <= length <= LENGTH_MAX and _is_borne_out(data, pos, pos + length, key_len):
        ends.add(pos + 4 + length)
    return sorted(end for end in ends if end <= len(data))


def payload_end(data: bytes, pos: int) -> int | None:
    """Where the payload of the record at ``pos`` ends by its header; None when its key is none."""
    at = _payload_at(data, pos, HEADER.unpack_from(data, pos)[3])
    return None if at is None else at + int(U32.unpack_from(data, at - 4)[0])


def _is_borne_out(data: bytes, pos: int, stop: int, key_len: int) -> bool:
    """Whether the lengths of key and payload lead to ``stop``, but for lost attributes or for one bit."""
    at = _payload_at(data, pos, key_len)
    if at is not None:
        (payload_len,) = U32.unpack_from(data, at - 4)
        if 0 <= stop - at - payload_len <= LOST_BYTES_PLAUSIBLE:
            return True
        if any(_leads_to(data, at + (payload_len ^ 1 << bit), stop) for bit in range(32)):
            return True
    others = (_payload_at(data, pos, key_len ^ 1 << bit) for bit in range(16))
    return any(_leads_to(data, at + U32.unpack_from(data, at - 4)[0], stop) for at in others if at is not None)


def _payload_at(data: bytes, pos: int, key_len: int) -> int | None:
    """Where the payload begins behind a key of this length, None when no key can be there. Small numbers stand everywhere, and
    would pass for the length of a payload; behind a key, only one does."""
    at = pos + 26 + key_len
    is_key = key_len <= KEY_LEN_PLAUSIBLE and at <= len(data) and _KEY.fullmatch(data, pos + 22, at - 4) is not None
    return at if is_key else None


def _leads_to(data: bytes, at: int, stop: int) -> bool:
    """Whether attributes of a broker may stand from ``at`` to ``stop``, as far as they can be read."""
    for _ in range(len(_NUMBERS) + 2):
        if stop - at in _NUMBERS_ALONE:
            return True
        if at + 5 > min(stop, len(data)):
            return False
        tag, size = TAG_LENGTH.unpack_from(data, at)
        if not (size == 8 if tag in _NUMBERS else tag == ATTRIBUTE_HEADERS):
            return False
        at += 5 + size
    return False


def is_near(data: bytes, pos: int, msg_id: int) -> bool:
    """Whether the id in the header at ``pos`` differs from ``msg_id`` by one bit at most."""
    return (int.from_bytes(data[pos + 4 : pos + 12], "little") ^ msg_id).bit_count() <= 1


def reaches_beyond(data: bytes, pos: int, *, strict: bool = False) -> bool:
    """Whether not only the length field says that the record at ``pos`` goes on behind the data: its payload length says so,
    too, or the lengths of its attributes add up. Assumes that the length field says so.

    ``strict``: a payload length that the data does not have proves nothing, and neither do attributes that no broker writes:
    the checksum behind a payload may look like one.
    """
    length: int
    key_len: int
    length, _, _, key_len = HEADER.unpack_from(data, pos)
    at = pos + 22 + key_len
    if at + 4 > len(data):
        return not strict and key_len <= KEY_LEN_PLAUSIBLE  # at most so many bytes of data are in question
    at += 4 + int.from_bytes(data[at : at + 4], "little")
    stop = pos + length
    unseen = at + 5 > len(data)
    if at > stop or (strict and unseen and stop - at > UNSEEN_BYTES_PLAUSIBLE):
        return False
    for _ in range(ATTRIBUTES_PLAUSIBLE):
        if at + 5 > len(data) or at >= stop:
            break
        tag, size = TAG_LENGTH.unpack_from(data, at)
        if strict and not (size == 8 if tag in _NUMBERS else tag == ATTRIBUTE_HEADERS):
            return False
        at += 5 + size
    return at == stop or (at > len(data) and at <= stop) or (at <= len(data) < at + 5 and at < stop)


def frame_bytes(data: bytes) -> int | None:
    """Size of the frame at the beginning of ``data`` that goes on behind its end; None when its header is not plausible."""
    claim = claimed_extent(data, 0)
    return claim[1] if claim is not None and claim[1] <= FRAME_BYTES_MAX and reaches_beyond(data, 0) else None
