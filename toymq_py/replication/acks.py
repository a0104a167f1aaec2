"""The reports that a follower sends to its leader, as values and as frames. Bytes in, reports out; no I/O.

Contract: replication.md, section 4. Little-endian:

    'K' seq u64               operation seq is done: a sync, a BEAT, or COPIED with the spool redone; 0: the PLAN is carried out
    'E' seq u64, errno u16    operation seq failed: the follower ends the link
    'F' epoch u64             the follower has promised this higher epoch: the leader steps down
    'W'                       alive, but busy: reads a file or redoes the spool, which may take long
    'D' position u64, path_len u16, path    a copied segment is damaged at this position, so the leader's file is, too
"""

from dataclasses import dataclass
from struct import Struct

from toymq_py.errors import BadOperation
from toymq_py.replication.paths import PATH_BYTES_MAX, is_file


@dataclass(frozen=True, slots=True)
class Synced:
    """All operations up to ``seq`` are applied, and ``seq`` itself, such as a sync, is done."""

    seq: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The operation ``seq`` failed with an ``errno``."""

    seq: int
    code: int


@dataclass(frozen=True, slots=True)
class Fenced:
    """The follower has promised a higher epoch."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Alive:
    """The follower is busy with something that takes longer than a sync."""


@dataclass(frozen=True, slots=True)
class Damaged:
    """The copy of a segment fails its checks at a position."""

    path: str
    position: int


Report = Synced | Failed | Fenced | Alive | Damaged

_SYNCED, _FAILED = Struct("<cQ"), Struct("<cQH")
_SIZES = {b"K": _SYNCED.size, b"E": _FAILED.size, b"F": _SYNCED.size, b"W": 1, b"D": _FAILED.size}
"""The sizes of the messages; that of DAMAGED without its path."""


def encode_report(report: Report) -> bytes:
    match report:
        case Synced(seq):
            return _SYNCED.pack(b"K", seq)
        case Failed(seq, code):
            return _FAILED.pack(b"E", seq, code)
        case Fenced(epoch):
            return _SYNCED.pack(b"F", epoch)
        case Alive():
            return b"W"
        case Damaged(path, position):
            name = path.encode()
            return _FAILED.pack(b"D", position, len(name)) + name


class ReportReader:
    """Parses the frames of a follower from bytes in pieces of any size. Holds at most the last piece."""

    def __init__(self) -> None:
        self._buffer = b""
        self._at = 0

    def receive(self, data: bytes) -> None:
        """Take the next bytes."""
        self._buffer = self._buffer[self._at :] + data
        self._at = 0

    def next_report(self) -> Report | None:
        """The next complete report; None until more bytes come. Raises: BadOperation."""
        buffer, at = self._buffer, self._at
        if at == len(buffer):
            return None
        kind = buffer[at : at + 1]
        size = _SIZES.get(kind)
        if size is None:
            raise BadOperation(f"unknown report {kind!a}")
        if len(buffer) < at + size:
            return None
        if kind == b"D":
            return self._next_damaged(at)
        self._at = at + size
        if kind == b"W":
            return Alive()
        if kind == b"E":
            _, seq, code = _FAILED.unpack_from(buffer, at)
            return Failed(seq, code)
        _, number = _SYNCED.unpack_from(buffer, at)
        return Synced(number) if kind == b"K" else Fenced(number)

    def _next_damaged(self, at: int) -> Damaged | None:
        _, position, length = _FAILED.unpack_from(self._buffer, at)
        if length > PATH_BYTES_MAX:
            raise BadOperation(f"DAMAGED has a path of {length} bytes, at most {PATH_BYTES_MAX} are allowed")
        end = at + _FAILED.size + length
        if len(self._buffer) < end:
            return None
        path = self._buffer[at + _FAILED.size : end].decode("ascii", "replace")
        if not is_file(path):
            raise BadOperation(f"{path!a} is not a file of the layout")
        self._at = end
        return Damaged(path, position)
