"""The manifest of a follower's files, and the plan of the bulk copy: values, their JSON, and how each is made.

Contract: replication.md, section 6; ADR 0097, 0106. Files are compared by content, as ``content_digests`` defines it, never
by a remembered position.
"""

import enum
import errno
import json
import logging
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from toymq_py.errors import BadOperation
from toymq_py.replication.content_digests import ContentDigests, FileEntry, has_records
from toymq_py.replication.disk_calls import StopFlag
from toymq_py.replication.operations import COMPARED_BYTES_MAX, POSITION_MAX
from toymq_py.replication.paths import is_directory, is_file
from toymq_py.storage.fs import FileSystem
from toymq_py.storage.scanner import scan_segment
from toymq_py.storage.segment import parse_segment_name

logger = logging.getLogger("toymq_py.replication")

_DIGEST = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Manifest:
    """All files of a follower that replicas have in common, with their digests."""

    files: tuple[FileEntry, ...]
    directories: tuple[str, ...]


class Action(enum.Enum):
    """What a follower does with a file before the bulk copy."""

    KEEP = "keep"
    APPEND = "append"
    """The file is cut to ``size`` bytes, all of which the leader has, too; the leader sends the rest."""
    COPY = "copy"
    """The leader sends the whole file. The present one goes aside if it has records, and is emptied if not."""
    ASIDE = "aside"
    """The leader has no such file: it goes aside."""


@dataclass(frozen=True, slots=True)
class FilePlan:
    """The plan for one file. ``size``: the position at which its copy begins; 0 except for APPEND."""

    path: str
    action: Action
    size: int = 0


@dataclass(frozen=True, slots=True)
class JoinPlan:
    """The plan for each file of leader and follower. ``directories``: the leader's; the follower removes others."""

    files: tuple[FilePlan, ...]
    directories: tuple[str, ...]

    def copied(self) -> list[FilePlan]:
        """The files of which the bulk copy sends bytes."""
        return [each for each in self.files if each.action in (Action.APPEND, Action.COPY)]


# -- JSON


def encode_manifest(manifest: Manifest) -> bytes:
    """Encode a manifest. Raises: BadOperation when there are too many files."""
    files = [[each.path, each.size, each.length, each.digest] for each in manifest.files]
    return _encode({"files": files, "directories": manifest.directories})


def encode_plan(plan: JoinPlan) -> bytes:
    """Encode a plan. Raises: BadOperation when there are too many files."""
    files = [[each.path, each.action.value, each.size] for each in plan.files]
    return _encode({"files": files, "directories": plan.directories})


def _encode(value: object) -> bytes:
    data = json.dumps(value, separators=(",", ":")).encode()
    if len(data) > COMPARED_BYTES_MAX:
        raise BadOperation(f"the files of this directory take {len(data)} bytes to name, at most {COMPARED_BYTES_MAX} are sent")
    return data


def decode_manifest(data: bytes) -> Manifest:
    """Decode a manifest. Raises: BadOperation."""
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
    """Decode a plan. Raises: BadOperation."""
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
    """The files and the directories that replicas have in common, sorted. Files that vanish meanwhile may be among them.

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


def scrubbed(files: Iterable[str]) -> list[str]:
    """The sealed segments among ``files``, with their sidecars. Bit rot, which does not change a file's stamp, is found in
    these by the scrub; all other files are read at each join."""
    paths = list(files)
    newest = _newest_segments(paths)
    return [path for path in paths if path.endswith((".log", ".idx")) and path[:-4] < newest.get(_parent(path), "")[:-4]]


def _newest_segments(paths: Iterable[str]) -> dict[str, str]:
    """The newest segment of each topic, by the topic's directory."""
    newest: dict[str, str] = {}
    for path in paths:
        if path.endswith(".log"):
            newest[_parent(path)] = max(newest.get(_parent(path), ""), path)
    return newest


def take_manifest(digests: ContentDigests, stop: StopFlag) -> Manifest:
    """Make the manifest of a follower's directory. Assumes that nothing changes it meanwhile. A directory in the place of a
    file is moved aside, since the leader's file could not be written there. Raises: OSError; Stopped."""
    fs, root = digests.fs, digests.root

    def move_aside(path: str) -> None:
        logger.error("%s was a directory, in the place of a file of the leader: moved to %s.damaged", path, path)
        fs.rename(f"{root}/{path}", f"{root}/{path}.damaged")

    files, directories = list_shared(fs, root, move_aside)
    digests.keep(scrubbed(files))
    return Manifest(tuple(digests.entry(path, stop) for path in files), tuple(directories))


def may_be_cached_only(manifest: Manifest, *, any_file: bool) -> dict[str, int]:
    """Files that may be only in the page cache after a failed sync, with the sizes of their content.

    A sync ends before the next operation of its topic begins, so among segments only the newest can be affected; other files
    are small, and all of them count. ``any_file``: a bulk copy was incomplete, so any segment can be.
    """
    newest = _newest_segments(each.path for each in manifest.files)
    return {
        each.path: each.size for each in manifest.files
        if any_file or not has_records(each.path) or newest.get(_parent(each.path)) == each.path
    }  # fmt: skip


def make_plan(manifest: Manifest, digests: ContentDigests, stop: StopFlag) -> JoinPlan:
    """Compare a follower's files with a leader's. The leader's may change meanwhile: changes since the start of the join are in
    the stream, too. Raises: OSError; Stopped."""
    fs, root = digests.fs, digests.root
    theirs = {each.path: each for each in manifest.files}
    files, directories = list_shared(fs, root)
    digests.keep(scrubbed(files))
    plans: list[FilePlan] = []
    for path in files:
        stop.check()
        entry = theirs.pop(path, None)
        if entry is None:
            plans.append(FilePlan(path, Action.COPY))
            continue
        try:
            plans.append(_compared(entry, digests, stop))
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
    """Let the follower keep a segment that is damaged on this leader, if a later segment of the topic is the same on both.

    Segments are written one after the other, so in that case both have the same history, and the follower's segment lacks at
    most what bit rot destroyed on its own disk. Otherwise its segment may belong to a history that was never acknowledged.
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


def _compared(entry: FileEntry, digests: ContentDigests, stop: StopFlag) -> FilePlan:
    path = entry.path
    ours, prefix = digests.known(path), None
    if ours is None or ours.size > entry.size:
        ours, prefix = digests.read(path, stop, entry.size)
    is_same = ours.size == entry.size and ours.digest == entry.digest
    if not has_records(path):
        return FilePlan(path, Action.KEEP if is_same else Action.COPY)
    if is_same and ours.length <= entry.length:
        return FilePlan(path, Action.KEEP)
    return FilePlan(path, Action.APPEND, entry.size) if is_same or prefix == entry.digest else FilePlan(path, Action.COPY)


def missing_bytes(manifest: Manifest, digests: ContentDigests) -> int:
    """About how many bytes a join would copy, by sizes alone. Raises: OSError."""
    fs, root = digests.fs, digests.root
    theirs = {each.path: each.size for each in manifest.files}
    total = 0
    for path in list_shared(fs, root)[0]:
        with suppress(FileNotFoundError):
            total += max(0, fs.file_size(f"{root}/{path}") - theirs.get(path, 0))
    return total


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


