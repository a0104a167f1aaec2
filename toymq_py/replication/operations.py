"""The stream from a leader to its followers: operations as values, and their frames. Bytes in, operations out; no I/O.

Contract: replication.md, section 4. A frame has one operation, little-endian:

    length   u32       bytes that follow
    op       u8        below
    seq      u64
    path_len u16
    path     bytes     relative to the data directory, see ``paths``
    offset   u64
    data     bytes     the rest of ``length``
    crc32    u32       over all preceding bytes

    op               offset        data
    1  WRITE         position      the bytes
    2  TRUNCATE      new size      -
    3  CREATE        -             u32 mode
    4  REPLACE       -             the whole content
    5  MKDIR  6 RMDIR  7 UNLINK    -
    8  RENAME        -             the new path
    9  SYNC  10 SYNCDIR            -
    11 COPY          position      the bytes
    12 COPIED                      -
    13 BEAT          wall time ns  u64: the lowest seq that some follower has not synced yet, less 1
    14 BYE           -             -
    15 PLAN          -             JSON, see ``manifest``

``seq`` numbers operations without a gap, except those of a bulk copy, which go to one follower only: PLAN and COPY have seq 0,
COPIED repeats the last seq that was sent before it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import Final

from toymq_py.errors import BadOperation
from toymq_py.replication.paths import (
    PATH_BYTES_MAX,
    is_deleted,
    is_directory,
    is_file,
    is_rename,
    is_topic_directory,
)
from toymq_py.storage.record.checksum import CRC_RESIDUE, crc32, crc32_held

Data = bytes | memoryview

PIECE_BYTES: Final = 1 << 20
"""The most that one WRITE or COPY carries: a leader sends a longer write in pieces, so that neither end holds long frames."""
REPLACE_BYTES_MAX: Final = 1 << 28
"""The most that one REPLACE carries: its content changes as a whole, so it is not sent in pieces."""
COMPARED_BYTES_MAX: Final = 1 << 25
"""The most that a manifest or a plan has: some 200,000 files."""
MODE: Final = 0o600
"""The mode of each file: only its owner may read messages."""
POSITION_MAX: Final = 2**63 - 1
"""The largest size of a file on Linux."""


@dataclass(frozen=True, slots=True)
class Write:
    """Write bytes at a position. The leader sends this when it begins to write, so its own write may fail afterwards."""

    seq: int
    path: str
    offset: int
    data: Data


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut a file, or extend it with zeros, to ``size`` bytes. Sent when the leader begins."""

    seq: int
    path: str
    size: int


@dataclass(frozen=True, slots=True)
class Create:
    """Create an empty file, if it is missing."""

    seq: int
    path: str


@dataclass(frozen=True, slots=True)
class Replace:
    """Make ``data`` the whole content of a file; a crash leaves the old content or the new."""

    seq: int
    path: str
    data: Data


@dataclass(frozen=True, slots=True)
class Mkdir:
    """Make a directory, if it is missing."""

    seq: int
    path: str


@dataclass(frozen=True, slots=True)
class Rmdir:
    """Remove a deleted topic's directory, which is empty on the leader."""

    seq: int
    path: str


@dataclass(frozen=True, slots=True)
class Unlink:
    """Remove a file, if it is there."""

    seq: int
    path: str


@dataclass(frozen=True, slots=True)
class Rename:
    """Give a file or a topic's directory another name."""

    seq: int
    path: str
    to: str


@dataclass(frozen=True, slots=True)
class Sync:
    """Put a file's bytes on stable storage, then acknowledge ``seq``."""

    seq: int
    path: str


@dataclass(frozen=True, slots=True)
class SyncDir:
    """Put a directory's names on stable storage, then acknowledge ``seq``."""

    seq: int
    path: str


@dataclass(frozen=True, slots=True)
class Copy:
    """A part of the bulk copy: bytes that the leader read from its file at some moment. ``seq`` is 0."""

    seq: int
    path: str
    offset: int
    data: Data


@dataclass(frozen=True, slots=True)
class Copied:
    """The end of the bulk copy. The follower redoes what it spooled, syncs all, then acknowledges ``seq``."""

    seq: int


@dataclass(frozen=True, slots=True)
class Beat:
    """A sign of life. Acknowledged when all operations before it are applied.

    Args:
        wall_ns: the time of the leader's wall clock.
        synced: every follower in sync has synced all operations up to this seq.
    """

    seq: int
    wall_ns: int
    synced: int


@dataclass(frozen=True, slots=True)
class Bye:
    """The leader ends its term in an orderly way."""

    seq: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What the follower does with its files before a bulk copy. Acknowledged as 0 when that is done. ``seq`` is 0."""

    seq: int
    data: Data


Change = Write | Truncate | Create | Replace | Mkdir | Rmdir | Unlink | Rename
"""An operation that changes a follower's disk."""
Operation = Change | Sync | SyncDir | Copy | Copied | Beat | Bye | Plan

_HEAD = Struct("<IBQH")
_U32, _U64 = Struct("<I"), Struct("<Q")
_AFTER_LENGTH = _HEAD.size - 4
_FIXED = _AFTER_LENGTH + 8 + 4  # bytes that follow the length, without path and data

_Parse = Callable[[int, str, int, bytes], Operation]


def _wants(what: bool, why: str) -> None:
    if not what:
        raise BadOperation(why)


def _file(path: str) -> str:
    _wants(is_file(path), f"{path!a} is not a file of the layout")
    return path


def _directory(path: str) -> str:
    _wants(is_directory(path), f"{path!a} is not a directory of the layout")
    return path


def _made(path: str) -> str:
    _wants(path == "topics" or is_topic_directory(path), f"{path!a} is not a directory that a leader makes")
    return path


def _grave(path: str) -> str:
    _wants(is_deleted(path), f"{path!a} is not a deleted topic's directory")
    return path


def _nothing(path: str) -> None:
    _wants(not path, f"path {path!a} where there is none")


def _size(size: int) -> int:
    _wants(size <= POSITION_MAX, f"size {size} exceeds that of a file")
    return size


def _position(offset: int, data: bytes) -> int:
    _wants(offset + len(data) <= POSITION_MAX, f"position {offset} exceeds the size of a file")
    return offset


def _create(seq: int, path: str, offset: int, data: bytes) -> Create:
    _wants(data == _U32.pack(MODE), f"mode {data.hex()} is not that of a file of the layout")
    return Create(seq, _file(path))


def _rename(seq: int, path: str, offset: int, data: bytes) -> Rename:
    to = _text(data)
    _wants(is_rename(path, to), f"no rename of the layout is from {path!a} to {to!a}")
    return Rename(seq, path, to)


def _copy(seq: int, path: str, offset: int, data: bytes) -> Copy:
    _wants(seq == 0, f"COPY has the number {seq} and should have none")
    return Copy(seq, _file(path), _position(offset, data), data)


def _copied(seq: int, path: str, offset: int, data: bytes) -> Copied:
    _nothing(path)
    return Copied(seq)


def _beat(seq: int, path: str, offset: int, data: bytes) -> Beat:
    _nothing(path)
    _wants(len(data) == 8, f"BEAT has {len(data)} bytes and should have 8")
    return Beat(seq, offset, _U64.unpack(data)[0])


def _bye(seq: int, path: str, offset: int, data: bytes) -> Bye:
    _nothing(path)
    return Bye(seq)


def _plan(seq: int, path: str, offset: int, data: bytes) -> Plan:
    _nothing(path)
    _wants(seq == 0, f"PLAN has the number {seq} and should have none")
    return Plan(seq, data)


def _text(data: bytes) -> str:
    try:
        return data.decode("ascii")
    except UnicodeDecodeError:
        raise BadOperation(f"path {data[:PATH_BYTES_MAX]!a} is not ASCII") from None


WRITE, COPY, BEAT = 1, 11, 13
_USES_OFFSET = (WRITE, 2, COPY, BEAT)
_KINDS: dict[int, tuple[str, int, _Parse]] = {
    WRITE: ("WRITE", PIECE_BYTES, lambda s, p, o, d: Write(s, _file(p), _position(o, d), d)),
    2: ("TRUNCATE", 0, lambda s, p, o, d: Truncate(s, _file(p), _size(o))),
    3: ("CREATE", 4, _create),
    4: ("REPLACE", REPLACE_BYTES_MAX, lambda s, p, o, d: Replace(s, _file(p), d)),
    5: ("MKDIR", 0, lambda s, p, o, d: Mkdir(s, _made(p))),
    6: ("RMDIR", 0, lambda s, p, o, d: Rmdir(s, _grave(p))),
    7: ("UNLINK", 0, lambda s, p, o, d: Unlink(s, _file(p))),
    8: ("RENAME", PATH_BYTES_MAX, _rename),
    9: ("SYNC", 0, lambda s, p, o, d: Sync(s, _file(p))),
    10: ("SYNCDIR", 0, lambda s, p, o, d: SyncDir(s, _directory(p))),
    COPY: ("COPY", PIECE_BYTES, _copy),
    12: ("COPIED", 0, _copied),
    BEAT: ("BEAT", 8, _beat),
    14: ("BYE", 0, _bye),
    15: ("PLAN", COMPARED_BYTES_MAX, _plan),
}
"""Code to name, most bytes of data, and how the fields are checked."""


def _fields(operation: Operation) -> tuple[int, str, int, Data]:
    """The code, path, offset and data of an operation."""
    match operation:
        case Write(_, path, offset, data):
            return WRITE, path, offset, data
        case Sync(_, path):
            return 9, path, 0, b""
        case Truncate(_, path, size):
            return 2, path, size, b""
        case Create(_, path):
            return 3, path, 0, _U32.pack(MODE)
        case Replace(_, path, data):
            return 4, path, 0, data
        case Mkdir(_, path):
            return 5, path, 0, b""
        case Rmdir(_, path):
            return 6, path, 0, b""
        case Unlink(_, path):
            return 7, path, 0, b""
        case Rename(_, path, to):
            return 8, path, 0, to.encode()
        case SyncDir(_, path):
            return 10, path, 0, b""
        case Copy(_, path, offset, data):
            return COPY, path, offset, data
        case Copied():
            return 12, "", 0, b""
        case Beat(_, wall_ns, synced):
            return BEAT, "", wall_ns, _U64.pack(synced)
        case Bye():
            return 14, "", 0, b""
        case Plan(_, data):
            return 15, "", 0, data


def encode(operation: Operation) -> tuple[bytes, Data, bytes]:
    """Encode the frame of an operation in three parts, for ``sendmsg``, without copying the data. Assumes that the operation is
    within the limits of its kind."""
    code, path, offset, data = _fields(operation)
    name = path.encode()
    head = _HEAD.pack(_FIXED + len(name) + len(data), code, operation.seq, len(name)) + name + _U64.pack(offset)
    return head, data, _U32.pack(crc32_held(data, crc32(head)))


class OperationReader:
    """Parses the frames of a stream from bytes in pieces of any size. Holds at most one frame and the last piece.

    A length is checked against the limit of its kind before its bytes are collected. After the first ``BadOperation`` every
    call raises it again: nothing after a broken frame can be trusted.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._at = 0  # where the next frame begins
        self._bad: BadOperation | None = None

    def receive(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        if self._at:
            del self._buffer[: self._at]
            self._at = 0
        self._buffer += data

    def next_operation(self) -> Operation | None:
        """The next complete operation; None until more bytes come. Raises: BadOperation."""
        if self._bad is not None:
            raise self._bad
        try:
            return self._next()
        except BadOperation as error:
            self._bad = error
            raise

    def _next(self) -> Operation | None:
        buffer, at = self._buffer, self._at
        have = len(buffer) - at
        if have < 5:
            return None
        length, code = _U32.unpack_from(buffer, at)[0], buffer[at + 4]
        kind = _KINDS.get(code)
        if kind is None:
            raise BadOperation(f"unknown operation {code}")
        name, data_max, parse = kind
        if not _FIXED <= length <= _FIXED + PATH_BYTES_MAX + data_max:
            raise BadOperation(f"{name} has a length of {length} bytes, beyond its limits")
        end = at + 4 + length
        if len(buffer) < end:
            return None
        with memoryview(buffer)[at:end] as frame:
            if crc32_held(frame) != CRC_RESIDUE:
                raise BadOperation(f"{name} fails its checksum")
            _, _, seq, path_len = _HEAD.unpack_from(frame)
            data_at = _HEAD.size + path_len + 8
            if data_at + 4 > len(frame) or len(frame) - 4 - data_at > data_max:
                raise BadOperation(f"{name} has a path of {path_len} bytes, which does not fit its length")
            path = _text(bytes(frame[_HEAD.size : _HEAD.size + path_len]))
            (offset,) = _U64.unpack_from(frame, data_at - 8)
            data = bytes(frame[data_at:-4])
        if offset and code not in _USES_OFFSET:
            raise BadOperation(f"{name} has the offset {offset} and should have none")
        operation = parse(seq, path, offset, data)
        self._at = end
        return operation
