"""Tells which log a segment belongs to: ``segments.json`` holds the head of each segment of a topic (ADR 0048).

A frame's checksum covers neither topic nor log. The head of a segment does: time in nanoseconds and checksum of its first
record, which never change. ``segments.json`` keeps them, by first id. It is written behind the commit that began a segment, and
only when that record is on stable storage: it never claims more than a power cut leaves. With ``--fsync never`` nothing else
syncs that record, so the writer of the heads does, once a segment (ADR 0241).
It is no manifest:

    a head that is known        the file is this log's if its first record is that one, or is damaged
    no head, a later base id    the file is this log's: the broker died before the head was written
    no head, an earlier base id the file is not this log's: it appeared when the heads of all its segments were known
    no file, or a damaged one   all segments are this log's, as in a directory of an older version
    a file of another topic or incarnation
                                segments with its heads are that log's, the others are this log's (ADR 0281)
    a whole first record with another id than the file's name: the file is misplaced, whatever heads are known
    a whole first record of another place, but such records fill a page at most and the log's own records go on behind them:
                                the file is this log's, and damaged (ADR 0084)
    the same, or a damaged first record, and the times of the other records do not fit the known head:
                                the file is not this log's (ADR 0222)

A file of another log is never served, cut or removed: its ids are missing here, and ``toymq repair`` puts it aside. Ids that it
may stand for are not used again.

The file names the log's incarnation, too; ``incarnation`` tells which one is the topic's where files name several.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from toymq_py.disk_errors import is_lasting
from toymq_py.errors import DamagedData
from toymq_py.records import IdRange
from toymq_py.storage import checked_json, incarnation
from toymq_py.storage.evicted import Evicted
from toymq_py.storage.evicted import load as load_evicted
from toymq_py.storage.fs import File, FileSystem, Stamp, replace_file
from toymq_py.storage.record import HEADER, LENGTH_MAX, LENGTH_MIN, valid_frame
from toymq_py.storage.segment import bases_of, parse_removed_name, segment_name, topic_of
from toymq_py.storage.segment_origin import is_of_log, reached_by

FILE_NAME = "segments.json"
VERSION = 1
SECTOR_BYTES, PAGE_BYTES = 512, 4096
"""Most bytes that a disk writes to a wrong place."""
HEAD_SEARCH_BYTES = 4 << 20
"""How far behind such a page records are looked for."""

MORE_MAY_BE_GONE = "there may have been more behind them, whose ids are given out again"
"""The end of the text about ids that are known and have no file at the end of the log. Heads know the first record of a
segment, and offsets what there was at their last write."""

Head = tuple[int, int]
"""Time in nanoseconds and checksum of a segment's first record."""


class KnownHeads(NamedTuple):
    """What ``segments.json`` says. A running broker keeps it since the start, and never takes it again from the disk."""

    heads: Mapping[int, Head] = {}
    whose: str | None = None
    """The log of the heads, if it is another one than the directory's."""
    problem: str | None = None
    """What is wrong with the file."""
    incarnation: str | None = None
    stamp: Stamp | None = None
    """The stamp of the file when it was read or written; None for no file."""


NO_HEADS = KnownHeads()


@dataclass(frozen=True, slots=True)
class SegmentFiles:
    """The segment files in a directory of a topic: those of this log, and those of others."""

    bases: list[int]
    """The first ids of this log's segments, ascending."""
    foreign: dict[int, str] = field(default_factory=dict)
    """The first ids in the names of other logs' files, ascending, and what is known of each."""
    foreign_heads: Mapping[int, int] = field(default_factory=dict)
    """The first ids of this log's segments whose first bytes are another place's, and how many bytes (ADR 0084)."""
    heads: Mapping[int, Head] = field(default_factory=dict)
    """Known heads of this log."""
    problem: str | None = None
    """What is wrong with ``segments.json`` itself."""
    removed: Sequence[IdRange] = ()
    """The ranges that retention removed before this could be written to the offsets: marks stand for them (ADR 0065)."""
    first_id_known: bool | None = False
    """As of ``LoadedOffsets.first_id_known``."""
    evicted: Evicted = field(default_factory=Evicted)
    """The segments in ``bases`` whose files are in the bucket of ``--tier``."""
    incarnation: str | None = None
    """The incarnation of this log; None where ``segments.json`` does not say."""
    foreign_end: int = 0
    """The id behind those of this log that files of ``foreign`` may hold or stand for."""
    known: KnownHeads = NO_HEADS

    @property
    def local(self) -> list[int]:
        """The first ids of the segments whose files are on this disk."""
        return [base_id for base_id in self.bases if base_id not in self.evicted.segments]

    def begin(self, first_id: int) -> int:
        """The first id of this log: that of the offsets, if they know it. Otherwise the lowest id of its files and of other
        logs' files; if nothing was ever removed, known heads count, too."""
        if not self.first_id_known:
            known = self.heads if self.first_id_known is None else ()
            first_id = max(first_id, min([*self.bases[:1], *self.foreign, *known], default=0))
        for first, last in self.removed:
            if first <= first_id <= last:
                first_id = last + 1
        return first_id

    def end(self, next_id: int) -> int:
        """The id after the last one of the log. A known head stands for at least one record, and so does another log's file at
        the end. Assumes that ``next_id`` is behind everything in this log's files and offsets."""
        next_id = max(next_id, max(self.heads, default=-1) + 1, self.foreign_end)
        for base_id in self.foreign:
            if base_id == next_id:
                next_id += 1
        return next_id


def list_bases(fs: FileSystem, path: str) -> list[int]:
    """First ids in the names of all segment files, ascending. Raises: OSError."""
    return bases_of(fs.listdir(path))


def list_segment_files(fs: FileSystem, path: str, first_id_known: bool | None = False) -> SegmentFiles:
    """List the segment files and tell this log's from others. Reads 24 bytes of each.

    Args:
        first_id_known: see ``LoadedOffsets.first_id_known``.

    Raises: OSError.
    """
    known = _known(fs, path)  # first: a head is written when its file is there
    names = fs.listdir(path)
    bases = bases_of(names)
    removed = sorted(ids for name in names if (ids := parse_removed_name(name)) is not None)
    foreign: dict[int, str] = {}
    foreign_heads: dict[int, int] = {}
    for base_id in bases:
        with suppress(OSError):  # then it is for the scan to tell
            reason, hit = _judge(fs, path, base_id, known)
            if reason is not None:
                foreign[base_id] = reason
            elif hit:
                foreign_heads[base_id] = hit
    away = load_evicted(fs, path, names)
    ours = sorted([*(base_id for base_id in bases if base_id not in foreign), *away.segments])
    heads, word = (known.heads, known.incarnation) if known.whose is None else ({}, None)
    end = _foreign_end(fs, path, foreign, known) if foreign else 0
    return SegmentFiles(ours, foreign, foreign_heads, heads, known.problem, removed, first_id_known, away, word, end, known)


def log_incarnation(fs: FileSystem, path: str) -> str | None:
    """The incarnation of the topic in a directory, as ``incarnation.decide`` tells; None when no file names one. Raises:
    OSError of a passing shortage."""
    topic, heads, _, word = _load(fs, path)
    of_segments = word if topic == topic_of(path) else None
    return incarnation.decide(fs, path, of_segments, lambda: _balance(fs, path, heads))


def settings_doubt(fs: FileSystem, path: str, settings: str) -> str | None:
    """Why settings of the incarnation ``settings`` are not to be used; None when they are (ADR 0285). Where the first segment
    begins with the record that its head knows, no other is read. Raises: OSError of a passing shortage."""
    topic, heads, _, word = _load(fs, path)
    word = word if topic == topic_of(path) else None
    log = incarnation.decide(fs, path, word, lambda: _balance(fs, path, heads))
    if log != settings:
        what = f"these are the settings of another incarnation, {settings}, and the topic is {log}"
        return None if log is None else f"{what}: say all settings anew with CONFIG, also where an older toymq wrote them"
    bases = list_bases(fs, path) if word == log else []
    try:
        is_right = not bases or _compare(fs, f"{path}/{segment_name(bases[0])}", heads.get(bases[0]))[0]
    except OSError as error:
        if not is_lasting(error) and not isinstance(error, FileNotFoundError):
            raise
        is_right = False
    if is_right or _balance(fs, path, heads) >= 0:
        return None
    return f"{FILE_NAME} names the same incarnation, {settings}, and most segments are another log's"


def judge(fs: FileSystem, path: str, base_id: int, known: KnownHeads) -> tuple[str | None, int]:
    """Judge one segment file of a topic's directory by the heads that the running broker knows, as ``list_segment_files`` does
    for all.

    Returns: why the file is another log's, None if it is this log's; and how many bytes at its beginning are another place's
    (``SegmentFiles.foreign_heads``), 0 for none. Raises: OSError for want of descriptors or memory; the scan reports other
    problems of the file.
    """
    try:
        return _judge(fs, path, base_id, known)
    except OSError as error:
        if not is_lasting(error):
            raise
    return None, 0


def look_again(fs: FileSystem, path: str, known: KnownHeads) -> KnownHeads | None:
    """Look whether ``segments.json`` still says what the running broker knows; one that it cannot trust is not compared.
    Returns: that, with the present stamp; None when the file says something else, or is gone. Raises: OSError of a passing
    shortage."""
    stamp = _stamp(fs, path)
    if known.problem is not None or stamp == known.stamp:
        return known
    topic, heads, _, word = _load(fs, path)
    is_same = topic == topic_of(path) and heads == known.heads and word == known.incarnation
    return known._replace(stamp=stamp) if is_same else None


def _stamp(fs: FileSystem, path: str) -> Stamp | None:
    """The stamp of ``segments.json``; None without one. Raises: OSError of a passing shortage."""
    try:
        return fs.stamp(f"{path}/{FILE_NAME}")
    except OSError as error:
        if not is_lasting(error) and not isinstance(error, FileNotFoundError):
            raise
        return None


def _known(fs: FileSystem, path: str) -> KnownHeads:
    """Read ``segments.json``, and judge whose it is. Raises: OSError of a passing shortage."""
    stamp = _stamp(fs, path)  # first: what is written meanwhile is looked at again
    topic, heads, problem, word = _load(fs, path)
    whose = None
    if topic and topic != topic_of(path):
        whose, problem = f"topic {topic}", f"{FILE_NAME} is of topic {topic}"
    elif word is not None:
        right = incarnation.decide(fs, path, word, lambda: _balance(fs, path, heads))
        if word != right:
            whose = "another incarnation of the topic"
            problem = f"{FILE_NAME} is of another incarnation, {word}, and the topic is {right}"
    return KnownHeads(heads, whose, problem, word, stamp)


def _judge(fs: FileSystem, path: str, base_id: int, told_heads: KnownHeads) -> tuple[str | None, int]:
    """Judge a segment file; see ``judge``. Raises: OSError."""
    heads, theirs = told_heads.heads, told_heads.whose
    known = heads.get(base_id)
    file = f"{path}/{segment_name(base_id)}"
    fits, record = _compare(fs, file, known)
    told = known is not None or record != base_id
    hit = 0
    if theirs is None and record is not None and told:
        hit = _foreign_head_bytes(fs, file, base_id)
    is_doubtful = theirs is None and not fits and (record is None or hit > 0)
    if is_doubtful and known is not None and _is_others(fs, file, base_id, known, hit):
        return "is a segment of another log, and its beginning is damaged", 0
    if hit:
        return None, hit
    if theirs is not None and fits:
        return f"is a segment of {theirs}", 0
    if record is not None and record != base_id:
        return f"is not what its name says: it begins with record {record}", 0
    if theirs is None and record is not None and (known is not None or base_id < max(heads, default=-1)):
        return f"is a segment of another log: it begins with record {record}, which is not of this log", 0
    return None, 0


def _balance(fs: FileSystem, path: str, heads: Mapping[int, Head]) -> int:
    """How many segments begin with the records that the heads know, less those with whole first records that they do not."""
    balance = 0
    for base_id in list_bases(fs, path):
        with suppress(OSError):
            fits, record = _compare(fs, f"{path}/{segment_name(base_id)}", heads.get(base_id))
            known = base_id in heads or base_id < max(heads, default=-1)
            balance += 1 if fits else -(record == base_id and known)
    return balance


def _foreign_end(fs: FileSystem, path: str, foreign: Mapping[int, str], known: KnownHeads) -> int:
    """See ``SegmentFiles.foreign_end``. Files of this log may have changed places. And where the heads are no sure witness,
    since they are another log's, fit no more segments than they contradict, or another file names another incarnation, a file
    may be this log's although they contradict it."""
    doubted = known.whose is not None or len(incarnation.claims(fs, path, known.incarnation)) > 1
    doubted = doubted or _balance(fs, path, known.heads) <= 0
    end = 0
    for base_id in foreign:
        name = f"{path}/{segment_name(base_id)}"
        with suppress(OSError):
            is_theirs, record = _compare(fs, name, known.heads.get(base_id))
            if doubted if record in (None, base_id) else record in foreign:
                reached = 0 if is_theirs else reached_by(fs, name, base_id if record is None else record)
                end = max(end, base_id + 1, reached)
    return end


def store(fs: FileSystem, path: str, heads: Mapping[int, Head], incarnation: str | None = None) -> KnownHeads:
    """Write the heads, and the log's incarnation, to stable storage. Returns: what the file says now. Raises: OSError."""
    bases = sorted(heads)
    columns = [bases, [heads[base_id][0] for base_id in bases], [heads[base_id][1] for base_id in bases]]
    identity = {} if incarnation is None else {"incarnation": incarnation}
    value = {"version": VERSION, "topic": topic_of(path), **identity, "heads": columns}
    replace_file(fs, f"{path}/{FILE_NAME}", checked_json.encode("segments", value))
    return KnownHeads(heads, None, None, incarnation, _stamp(fs, path))


def read_heads(fs: FileSystem, path: str, bases: Iterable[int], known: Mapping[int, Head]) -> dict[int, Head]:
    """The heads of segments: known ones, and the others from their files if the first record is whole. Raises: OSError."""
    heads = {}
    for base_id in bases:
        if base_id in known:
            heads[base_id] = known[base_id]
            continue
        file = fs.open(f"{path}/{segment_name(base_id)}", write=False)
        try:
            head = head_of(file)
            if head is not None and _record_at(file) == base_id:
                heads[base_id] = head
        finally:
            file.close()
    return heads


def readable_heads(fs: FileSystem, path: str, bases: Iterable[int], known: Mapping[int, Head]) -> dict[int, Head]:
    """As ``read_heads``, without the segments that cannot be read. Use it to compare, and never store it: a file without a head
    before one with a head would look like another log's. Raises: OSError of a passing shortage."""
    heads: dict[int, Head] = {}
    for base_id in bases:
        try:
            heads |= read_heads(fs, path, [base_id], known)
        except OSError as error:
            if not is_lasting(error):
                raise
    return heads


def is_used(fs: FileSystem, path: str) -> bool:
    """Whether a segment file begins with a whole record. Raises: OSError."""
    return _compare(fs, path, None)[1] is not None


def _load(fs: FileSystem, path: str) -> tuple[str, dict[int, Head], str | None, str | None]:
    """Read the topic and the heads from ``segments.json``; empty without a file. Returns: these, what is wrong with the file,
    and the log's incarnation. Raises: OSError of a passing shortage."""
    try:
        data = checked_json.read(fs, f"{path}/{FILE_NAME}")
        if data is None:
            return "", {}, None, None
        found = checked_json.decode("segments", data)
        if found.get("version") != VERSION:
            unknown = f"{FILE_NAME}: version {found.get('version')!r} is unknown: this toymq reads version {VERSION}"
            return "", {}, unknown, None
        incarnation = checked_json.incarnation_of(found)
        bases, times, checksums = (checked_json.numbers(column) for column in found["heads"])
        heads = dict(zip(bases, zip(times, checksums, strict=True), strict=True))
        return str(found["topic"]), heads, None, incarnation
    except (DamagedData, KeyError, TypeError, ValueError) as error:
        return "", {}, f"{FILE_NAME}: {error}", None


def _compare(fs: FileSystem, path: str, known: Head | None) -> tuple[bool, int | None]:
    """Whether a file begins with the record of the known head. Returns: that; and if it does not, the id of its first record,
    None when that is incomplete."""
    file = fs.open(path, write=False)
    try:
        if known is not None and head_of(file) == known:
            return True, None
        return False, _record_at(file)
    finally:
        file.close()


def _foreign_head_bytes(fs: FileSystem, path: str, base_id: int) -> int:
    """How many bytes at the beginning of a file of this log hold records that belong elsewhere: a page at most, and records of
    higher ids follow. 0 when there are none, or the file is another log's."""
    file = fs.open(path, write=False)
    try:
        data = file.pread(HEAD_SEARCH_BYTES, 0).rstrip(b"\0")
    finally:
        file.close()
    end = 0
    while (found := valid_frame(data, end)) is not None:
        end += found[1]
        if end >= PAGE_BYTES:
            return 0
    for high in (base_id >> 16, (base_id >> 16) + 1):
        pattern = high.to_bytes(6, "little")  # the upper bytes of an id: bytes 6 to 12 of a frame
        at = data.find(pattern, end + 6)
        while at >= 0:
            found = valid_frame(data, at - 6)
            if found is not None and found[0] > base_id:  # a sector is written whole: it may end within a foreign record
                return min(-(-end // SECTOR_BYTES) * SECTOR_BYTES, at - 6)
            at = data.find(pattern, at + 1)
    return 0


def _is_others(fs: FileSystem, path: str, base_id: int, known: Head, hit: int) -> bool:
    """Whether the records behind a damaged beginning are another log's. If their times do not tell, they are when the first
    header has the id ``base_id`` but another time and checksum, and the next record follows at its end: no single damage turns
    a record of this log into that."""
    is_ours = is_of_log(fs, path, base_id, known[0], hit)
    if is_ours is not None or hit:
        return is_ours is False
    file = fs.open(path, write=False)
    try:
        head, end = head_of(file), 4 + _length(file)
        return (
            head is not None and head[0] != known[0] and head[1] != known[1]
            and HEADER.unpack(file.pread(HEADER.size, 0))[1] == base_id
            and _record_at(file, end) == base_id + 1
        )  # fmt: skip
    finally:
        file.close()


def _length(file: File, position: int = 0) -> int:
    """The length of the frame at a position, by default the first one, as its header claims; 0 if that is impossible."""
    length = int.from_bytes(file.pread(4, position), "little")
    return length if LENGTH_MIN <= length <= LENGTH_MAX else 0


def head_of(file: File) -> Head | None:
    """The head (time and checksum) of the first frame, valid or not; None when the file is too short."""
    length = _length(file)
    start, checksum = file.pread(HEADER.size, 0), file.pread(4, length)
    if not length or len(start) < HEADER.size or len(checksum) < 4:
        return None
    return HEADER.unpack(start)[2], int.from_bytes(checksum, "little")


def _record_at(file: File, position: int = 0) -> int | None:
    """The id of the frame at a position, by default the first one; None unless it is complete."""
    length = _length(file, position)
    found = valid_frame(file.pread(4 + length, position), 0) if length else None
    return None if found is None else found[0]
