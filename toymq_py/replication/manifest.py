"""What a follower has, and what a bulk copy does with it: values, their JSON, and how each is found out.

Contract: replication.md, section 6; ADR 0097, 0106. Files are compared by content, never by a remembered position. A digest is
BLAKE2b of 128 bits: a CRC-32 of frames that each end with their own says nothing of what is in them.

The content of a segment ends with its last byte that is not zero: space that is only reserved does not count. ``length`` is the
size of the file with that space. Of all other files the content is the whole file.
"""

import enum
import errno
import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from toymq_py.errors import BadOperation
from toymq_py.replication.disk_calls import StopFlag
from toymq_py.replication.operations import COMPARED_BYTES_MAX, POSITION_MAX
from toymq_py.replication.paths import is_directory, is_file
from toymq_py.storage.fs import File, FileSystem
from toymq_py.storage.scanner import scan_segment
from toymq_py.storage.segment import parse_segment_name

logger = logging.getLogger("toymq_py.replication")

READ_BYTES = 1 << 20
_DIGEST = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file of a follower. ``size``: of its content; ``length``: of the file; ``digest``: of the content."""

    path: str
    size: int
    length: int
    digest: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """All that a follower has of what replicas share."""

    files: tuple[FileEntry, ...]
    directories: tuple[str, ...]


class Action(enum.Enum):
    """What happens to a file at the follower, before its bulk copy."""

    KEEP = "keep"
    APPEND = "append"
    """It is cut to ``size`` bytes, all of which the leader has, too; what follows comes."""
    COPY = "copy"
    """It comes as a whole. What is there goes aside if it has records, and is emptied if not."""
    ASIDE = "aside"
    """The leader has no such file: it goes aside."""


@dataclass(frozen=True, slots=True)
class FilePlan:
    """What happens to a file. ``size``: where its copy begins; 0 but for APPEND."""

    path: str
    action: Action
    size: int = 0


@dataclass(frozen=True, slots=True)
class JoinPlan:
    """What happens to each file of both. ``directories``: those of the leader; others are removed."""

    files: tuple[FilePlan, ...]
    directories: tuple[str, ...]

    def copied(self) -> list[FilePlan]:
        """The files of which something comes."""
        return [each for each in self.files if each.action in (Action.APPEND, Action.COPY)]


def has_records(path: str) -> bool:
    """Whether a file is a segment, a foreign one included: what it has is of clients."""
    return path.endswith((".log", ".log.foreign"))


# -- JSON


def encode_manifest(manifest: Manifest) -> bytes:
    """Raises: BadOperation when there are too many files."""
    files = [[each.path, each.size, each.length, each.digest] for each in manifest.files]
    return _encode({"files": files, "directories": manifest.directories})


def encode_plan(plan: JoinPlan) -> bytes:
    """Raises: BadOperation when there are too many files."""
    files = [[each.path, each.action.value, each.size] for each in plan.files]
    return _encode({"files": files, "directories": plan.directories})


def _encode(value: object) -> bytes:
    data = json.dumps(value, separators=(",", ":")).encode()
    if len(data) > COMPARED_BYTES_MAX:
        raise BadOperation(f"the files of this directory take {len(data)} bytes to name, at most {COMPARED_BYTES_MAX} are sent")
    return data


def decode_manifest(data: bytes) -> Manifest:
    """Raises: BadOperation."""
    rows, directories = _decode(data, "manifest")
    files: list[FileEntry] = []
    for row in rows:
        match row:
            case [str(path), int(size), int(length), str(digest)] if (
                _is_size(size) and _is_size(length) and size <= length and _DIGEST.fullmatch(digest) is not None
            ):
                files.append(FileEntry(path, size, length, digest))
            case _:
                raise BadOperation(f"the manifest has an invalid row {row!a:.100}")
    _check_paths("manifest", [each.path for each in files], directories)
    return Manifest(tuple(files), tuple(directories))


def decode_plan(data: bytes) -> JoinPlan:
    """Raises: BadOperation."""
    rows, directories = _decode(data, "plan")
    files: list[FilePlan] = []
    for row in rows:
        match row:
            case [str(path), str(word), int(size)] if word in _ACTIONS and _is_size(size):
                action = _ACTIONS[word]
                if size and (action is not Action.APPEND or not has_records(path)):
                    raise BadOperation(f"the plan has a size where there is none: {row!a:.100}")
                files.append(FilePlan(path, action, size))
            case _:
                raise BadOperation(f"the plan has an invalid row {row!a:.100}")
    _check_paths("plan", [each.path for each in files], directories)
    known = set(directories)
    for each in files:
        if each.action is not Action.ASIDE and _parent(each.path) not in known | {""}:
            raise BadOperation(f"the plan has the file {each.path!a} and not its directory")
    return JoinPlan(tuple(files), tuple(directories))


_ACTIONS = {action.value: action for action in Action}


def _decode(data: bytes, what: str) -> tuple[list[object], list[str]]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadOperation(f"the {what} is not JSON: {error!s:.100}") from None
    match value:
        case {"files": list(files), "directories": list(directories)} if all(isinstance(each, str) for each in directories):
            return files, directories
        case _:
            raise BadOperation(f"the {what} lacks files or directories")


def _is_size(value: int) -> bool:
    return type(value) is int and 0 <= value <= POSITION_MAX


def _check_paths(what: str, files: list[str], directories: list[str]) -> None:
    for path in files:
        if not is_file(path):
            raise BadOperation(f"the {what} names {path!a:.100}, not a file of the layout")
    for path in directories:
        if not path or not is_directory(path):
            raise BadOperation(f"the {what} names {path!a:.100}, not a directory of the layout")
    if any("/" in path for path in directories) and "topics" not in directories:
        raise BadOperation(f"the {what} names directories of topics and not that of all topics")
    if len(set(files)) < len(files) or len(set(directories)) < len(directories):
        raise BadOperation(f"the {what} names something twice")


# -- what is on a disk. All of it blocks; ``stop`` is looked at between reads


def list_shared(
    fs: FileSystem, root: str, in_the_way: Callable[[str], None] = lambda path: None
) -> tuple[list[str], list[str]]:
    """The files and the directories that replicas share, in order. What vanishes meanwhile may be among them.

    ``in_the_way`` is told the path of each directory that is in the place of a file.

    Raises: OSError.
    """
    files: list[str] = []
    directories: list[str] = []
    pending = [""]
    while pending:
        directory = pending.pop()
        try:
            names = fs.listdir(f"{root}/{directory}" if directory else root)
        except (FileNotFoundError, NotADirectoryError):
            continue
        if directory:
            directories.append(directory)
        for name in names:
            path = f"{directory}/{name}" if directory else name
            if is_file(path):
                if fs.is_dir(f"{root}/{path}"):
                    in_the_way(path)
                else:
                    files.append(path)
            elif is_directory(path) and fs.is_dir(f"{root}/{path}"):
                pending.append(path)
    return sorted(files), sorted(directories)


def take_manifest(fs: FileSystem, root: str, stop: StopFlag) -> Manifest:
    """Read all of a follower's directory, which nothing changes meanwhile. A directory in the place of a file is moved aside:
    the leader's file could not be written there. Raises: OSError; Stopped."""

    def move_aside(path: str) -> None:
        logger.error("%s was a directory, in the place of a file of the leader: moved to %s.damaged", path, path)
        fs.rename(f"{root}/{path}", f"{root}/{path}.damaged")

    files, directories = list_shared(fs, root, move_aside)
    return Manifest(tuple(_entry(fs, root, path, stop) for path in files), tuple(directories))


def _entry(fs: FileSystem, root: str, path: str, stop: StopFlag) -> FileEntry:
    file = fs.open(f"{root}/{path}", write=False)
    try:
        digest = _ContentDigest(reserves=has_records(path))
        for data in _read(file, None, stop):
            digest.update(data)
        return FileEntry(path, digest.size, max(digest.length, digest.size), digest.hex())
    finally:
        file.close()


def may_be_cached_only(manifest: Manifest, *, any_file: bool) -> dict[str, int]:
    """Files that may be in the cache and not on the disk after a sync has failed, and the bytes of their content.

    A sync is over before what comes next in its topic: of segments, only the newest can have failed. ``any_file``: a bulk copy
    was not whole, so any can. Files that are no segments are small.
    """
    newest: dict[str, str] = {}
    for each in manifest.files:  # in order
        if each.path.endswith(".log"):
            newest[_parent(each.path)] = each.path
    return {
        each.path: each.size for each in manifest.files
        if any_file or not has_records(each.path) or newest.get(_parent(each.path)) == each.path
    }  # fmt: skip


def make_plan(fs: FileSystem, root: str, manifest: Manifest, stop: StopFlag) -> JoinPlan:
    """Compare a follower's files with a leader's, which may change meanwhile: what changes since the join has begun is in the
    stream, too. Raises: OSError; Stopped."""
    theirs = {each.path: each for each in manifest.files}
    files, directories = list_shared(fs, root)
    plans: list[FilePlan] = []
    for path in files:
        stop.check()
        entry = theirs.pop(path, None)
        if entry is None:
            plans.append(FilePlan(path, Action.COPY))
            continue
        try:
            plans.append(_compared(fs, root, entry, stop))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EIO):
                raise
            plans.append(FilePlan(path, Action.COPY))  # gone meanwhile, as the stream says, or unreadable, as the copy will
    plans = _without_own_damage(fs, root, plans, manifest, stop)
    plans += [FilePlan(path, Action.ASIDE) for path in sorted(theirs)]
    known = set(directories)
    known.update(_parent(each.path) for each in plans if each.action is not Action.ASIDE)
    return JoinPlan(tuple(plans), tuple(sorted(known - {""})))


def _without_own_damage(
    fs: FileSystem, root: str, plans: list[FilePlan], manifest: Manifest, stop: StopFlag
) -> list[FilePlan]:
    """Keep a follower's segment where this leader's own is damaged and a later one of the topic is the same on both.

    Segments are written one after the other. So both have the same history there, and the follower's lacks at most what rots on
    its own disk. Without such a later segment, it may be of another history, which was never acknowledged.
    """
    sizes = {each.path: each.size for each in manifest.files}
    kept: list[FilePlan] = []
    shared: set[str] = set()  # topics of which both have one of the segments that were seen
    following: dict[str, int] = {}  # by topic: the first id of the segment behind
    for plan in reversed(plans):  # in the order of paths, so of first ids within a topic
        directory, _, name = plan.path.rpartition("/")
        base_id = parse_segment_name(name)
        if base_id is not None:
            if plan.action is Action.COPY and plan.path in sizes and directory in shared:
                stop.check()
                with suppress(FileNotFoundError):
                    found = scan_segment(
                        fs, f"{root}/{plan.path}", base_id, next_id=following[directory], progress=lambda _: stop.check()
                    )
                    if found.segment.damages:
                        logger.error("%s is damaged at %d here: the follower keeps its own", plan.path,
                                     found.segment.damages[0].position)  # fmt: skip
                        plan = FilePlan(plan.path, Action.KEEP)
            elif plan.action in (Action.KEEP, Action.APPEND) and sizes[plan.path]:
                shared.add(directory)
            following[directory] = base_id
        kept.append(plan)
    return kept[::-1]


def _compared(fs: FileSystem, root: str, entry: FileEntry, stop: StopFlag) -> FilePlan:
    path = entry.path
    file = fs.open(f"{root}/{path}", write=False)
    try:
        length = file.size()
        if length < entry.size or (length != entry.size and not has_records(path)):
            return FilePlan(path, Action.COPY)
        hashing = hashlib.blake2b(digest_size=16)
        for data in _read(file, entry.size, stop):
            hashing.update(data)
        if hashing.hexdigest() != entry.digest:
            return FilePlan(path, Action.COPY)
        more = length > entry.length or any(
            data.count(0) != len(data) for data in _read(file, None, stop, start=entry.size)
        )
        return FilePlan(path, Action.APPEND, entry.size) if more and has_records(path) else FilePlan(path, Action.KEEP)
    finally:
        file.close()


def missing_bytes(fs: FileSystem, root: str, manifest: Manifest) -> int:
    """About how many bytes a join would copy, by sizes alone. Raises: OSError."""
    theirs = {each.path: each.size for each in manifest.files}
    total = 0
    for path in list_shared(fs, root)[0]:
        with suppress(FileNotFoundError):
            total += max(0, fs.file_size(f"{root}/{path}") - theirs.get(path, 0))
    return total


def _read(file: File, size: int | None, stop: StopFlag, start: int = 0) -> Iterator[bytes]:
    """The bytes of a file, to its end or for ``size`` bytes."""
    at, end = start, None if size is None else start + size
    while end is None or at < end:
        stop.check()
        data = file.pread(READ_BYTES if end is None else min(READ_BYTES, end - at), at)
        if not data:
            return
        yield data
        at += len(data)


class _ContentDigest:
    """The digest of a file's content, and where it ends."""

    def __init__(self, *, reserves: bool) -> None:
        """``reserves``: zeros at the end are reserved space."""
        self.size = 0
        self.length = 0
        self._reserves = reserves
        self._hashing = hashlib.blake2b(digest_size=16)

    def update(self, data: bytes) -> None:
        content = data.rstrip(b"\0") if self._reserves else data
        if content:
            for zeros in _zeros(self.length - self.size):
                self._hashing.update(zeros)
            self._hashing.update(content)
            self.size = self.length + len(content)
        self.length += len(data)

    def hex(self) -> str:
        return self._hashing.hexdigest()


def _zeros(count: int) -> Iterable[bytes]:
    while count > 0:
        step = min(count, READ_BYTES)
        yield bytes(step)
        count -= step


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


