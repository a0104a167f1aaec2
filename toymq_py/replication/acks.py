"""What a follower tells its leader: values and their frames. Bytes in, reports out; no I/O.

Contract: replication.md, section 4. Little-endian:

    'K' seq u64               that sync is done, or that BEAT applied, or that bulk copy redone and synced
    'E' seq u64, errno u16    it failed: the follower ends
    'F' epoch u64             it has promised this higher epoch: the leader steps down
"""

from dataclasses import dataclass
from struct import Struct

from toymq_py.errors import BadOperation


@dataclass(frozen=True, slots=True)
class Synced:
    """Everything up to ``seq`` is applied, and that operation is done."""

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


Report = Synced | Failed | Fenced

_SYNCED, _FAILED = Struct("<cQ"), Struct("<cQH")
_SIZES = {b"K": _SYNCED.size, b"E": _FAILED.size, b"F": _SYNCED.size}


def encode_report(report: Report) -> bytes:
    match report:
        case Synced(seq):
            return _SYNCED.pack(b"K", seq)
        case Failed(seq, code):
            return _FAILED.pack(b"E", seq, code)
        case Fenced(epoch):
            return _SYNCED.pack(b"F", epoch)


class ReportReader:
    """Reads the frames of a follower, whatever pieces their bytes come in. Holds at most the last piece."""

    def __init__(self) -> None:
        self._buffer = b""
        self._at = 0

    def receive(self, data: bytes) -> None:
        """Take the next bytes."""
        self._buffer = self._buffer[self._at :] + data
        self._at = 0

    def next_report(self) -> Report | None:
        """The next whole report; None until more bytes come. Raises: BadOperation."""
        buffer, at = self._buffer, self._at
        if at == len(buffer):
            return None
        kind = buffer[at : at + 1]
        size = _SIZES.get(kind)
        if size is None:
            raise BadOperation(f"unknown report {kind!a}")
        if len(buffer) < at + size:
            return None
        self._at = at + size
        if kind == b"E":
            _, seq, code = _FAILED.unpack_from(buffer, at)
            return Failed(seq, code)
        _, number = _SYNCED.unpack_from(buffer, at)
        return Synced(number) if kind == b"K" else Fenced(number)
