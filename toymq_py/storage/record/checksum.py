"""The checksum of the on-disk format: the library that computes it, and sums of whole frames. ADR 0001, ADR 0012."""

from collections.abc import Callable
from zlib import adler32 as _zlib_adler32
from zlib import crc32 as _zlib_crc32

import crcmod.predefined

try:  # 10 to 14 % less CPU per publish; it has no wheel for every machine
    from zlib_ng.zlib_ng import adler32 as _fast_adler32
    from zlib_ng.zlib_ng import crc32 as _fast_crc32
except ImportError:
    _fast_crc32, _fast_adler32 = _zlib_crc32, _zlib_adler32
crc32: Callable[..., int] = _fast_crc32
"""CRC-32 of some bytes, optionally continued from another one; this line alone chooses the library."""
adler32: Callable[[bytes], int] = _fast_adler32
"""Adler-32 of some bytes. It tells many frames apart; their CRC-32 does not, see ``run_residue``."""

HELD_BYTES = 5 * 1024
"""Most bytes of which both libraries compute a checksum without giving up the interpreter."""


def crc32_held(data: bytes | memoryview, value: int = 0) -> int:
    """As ``crc32``, without releasing the GIL: for a thread that holds a lock, or has little to do. The checksum takes some
    microseconds, but getting the GIL back from a busy loop up to five milliseconds (ADR 0205)."""
    if len(data) <= HELD_BYTES:
        return crc32(data, value)
    view = memoryview(data)
    for at in range(0, len(view), HELD_BYTES):
        value = crc32(view[at : at + HELD_BYTES], value)
    return value


crc32_reference = crcmod.predefined.mkPredefinedCrcFun("crc-32")
"""The definition of the checksum; the hot path's ``crc32`` is held equal to it by a property test."""

CRC_RESIDUE = 0x2144DF1C
"""CRC-32 of any bytes followed by their own little-endian CRC-32: one call checks a frame."""

_residues: dict[int, list[int]] = {}


def run_residue(stride: int, count: int) -> int:
    """The checksum of ``count`` valid frames of ``stride`` bytes in a row, whatever they contain.

    The CRC of bytes that end with their own CRC is a constant. And a CRC is affine: crc(A || B) follows from crc(B), and from
    crc(A) continued over as many zeros as B has bytes.
    """
    known = _residues.get(stride)
    if known is None or len(known) <= count:
        if len(_residues) >= 64:
            _residues.clear()
        known = (known or [0]).copy()  # another thread may be at it, too
        zeros = bytes(stride)
        constant = CRC_RESIDUE ^ crc32(zeros)
        while len(known) <= count:
            known.append(crc32(zeros, known[-1]) ^ constant)
        _residues[stride] = known
    return known[count]
