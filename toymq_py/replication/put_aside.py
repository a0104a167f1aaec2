"""Prepares a follower's files for the copy: files with records that only the follower has are put aside, other files are cut to
where their copy begins.

Contract: replication.md, section 6; ADR 0097, item 10; ADR 0106. ``replaced/<epoch>-<stream-id>/`` has the files under their
paths in the data directory, and ``replaced.json`` with the time. Their records were never acknowledged, but they are messages
of clients, so they are kept for 7 days. All calls block.
"""

import contextlib
import json
from dataclasses import dataclass, field

from toymq_py.errors import BadOperation, DamagedData
from toymq_py.replication.content_digests import has_records
from toymq_py.replication.disk_calls import StopFlag
from toymq_py.replication.manifest import Action, FilePlan, JoinPlan, Manifest
from toymq_py.storage import checked_json, topic_settings
from toymq_py.storage.fs import FileSystem, move_file, remove_tree, replace_file

DIRECTORY_NAME = "replaced"
KEPT_NS = 7 * 24 * 3600 * 10**9


@dataclass(slots=True)
class Moved:
    """The files that were put aside. ``place``: their directory; ``segments``: those of ``files`` that are segments."""

    place: str
    files: int = 0
    bytes: int = 0
    segments: list[str] = field(default_factory=list)


def check_plan(plan: JoinPlan, manifest: Manifest) -> None:
    """Check that a leader's plan covers all of this follower's files, and no others. Raises: BadOperation."""
    ours = {each.path: each for each in manifest.files}
    for each in plan.files:
        entry = ours.pop(each.path, None)
        if entry is None and each.action is not Action.COPY:
            raise BadOperation(f"the plan has {each.action.value} for {each.path!a}, which is not here")
        if entry is not None and each.action is Action.APPEND and each.size != entry.size:
            raise BadOperation(f"the plan cuts {each.path!a} to {each.size} bytes, its content has {entry.size}")
    if ours:
        raise BadOperation(f"the plan leaves out {min(ours)!a} and {len(ours) - 1} more")


def carry_out(
    fs: FileSystem, root: str, plan: JoinPlan, manifest: Manifest, place: str, wall_ns: int, stop: StopFlag
) -> Moved:
    """Bring a follower's files into the state in which the bulk copy begins.

    Args:
        place: the directory for files that are put aside, ``<epoch>-<stream-id>``.

    Raises: OSError; Stopped. Assumes that ``replica.json`` says that a copy is under way.
    """
    moved = Moved(f"{DIRECTORY_NAME}/{place}")
    entries = {each.path: each for each in manifest.files}
    aside = [
        each for each in plan.files
        if each.action is Action.ASIDE or (each.action is Action.COPY and each.path in entries and has_records(each.path))
    ]  # fmt: skip
    aside = [each for each in aside if each.action is Action.ASIDE or entries[each.path].size]
    if aside:
        _put_aside(fs, root, aside, moved, wall_ns, stop)
    for each in plan.files:
        stop.check()
        path = f"{root}/{each.path}"
        if each.action is Action.APPEND and entries[each.path].length > each.size:
            file = fs.open(path)
            try:
                file.truncate(each.size)
            finally:
                file.close()
        elif each.action is Action.COPY:
            with contextlib.suppress(FileNotFoundError):
                fs.unlink(path)
    for directory in sorted(set(manifest.directories) - set(plan.directories), reverse=True):
        remove_tree(fs, f"{root}/{directory}")
    for directory in sorted(plan.directories):
        fs.mkdir(f"{root}/{directory}")
    return moved


def touched(plan: JoinPlan, manifest: Manifest) -> set[str]:
    """The paths that a copy by this plan changes: files that it writes, and directories in which it adds or removes names."""
    had = {each.path for each in manifest.files}
    changed = {*plan.directories} ^ {*manifest.directories}
    changed |= {each.path for each in plan.files if each.action is Action.ASIDE or each.path not in had}
    written = {each.path for each in plan.copied()}
    return written | {path.rpartition("/")[0] for path in changed | written}


def _put_aside(fs: FileSystem, root: str, files: list[FilePlan], moved: Moved, wall_ns: int, stop: StopFlag) -> None:
    """Move files aside. First put their new directories on stable storage: a power cut could otherwise keep a move but lose its
    target."""
    place = f"{root}/{moved.place}"
    sources = {each.path.rpartition("/")[0] for each in files}
    made = [f"{root}/{DIRECTORY_NAME}", place]
    for directory in sorted({f"{place}/{above}" for source in sources for above in _and_above(source)}):
        made.append(directory)
    for path in made:
        fs.mkdir(path)
    replace_file(fs, f"{place}/replaced.json", json.dumps({"version": 1, "wall_ns": wall_ns}).encode() + b"\n")
    for path in [root, *made]:
        stop.check()
        fs.sync_dir(path)
    for each in files:
        stop.check()
        directory, _, name = each.path.rpartition("/")
        if name == topic_settings.FILE_NAME:
            topic_settings.forget(fs, f"{root}/{directory}")
        file = fs.open(f"{root}/{each.path}")
        try:
            moved.bytes += file.size()
            file.sync()
        finally:
            file.close()
        move_file(fs, f"{root}/{each.path}", f"{place}/{each.path}")
        moved.files += 1
        if has_records(each.path):
            moved.segments.append(each.path)
    for path in [*made, *(f"{root}/{source}" if source else root for source in sorted(sources))]:
        stop.check()
        fs.sync_dir(path)


def _and_above(directory: str) -> list[str]:
    """A directory and those above it, up to but without the data directory, from the top down."""
    parts = directory.split("/") if directory else []
    return ["/".join(parts[:depth]) for depth in range(1, len(parts) + 1)]


def remove_old(fs: FileSystem, root: str, wall_ns: int) -> int:
    """Remove files that were put aside more than 7 days ago. Returns: the number of joins whose files were removed. Raises:
    OSError."""
    parent = f"{root}/{DIRECTORY_NAME}"
    if not fs.is_dir(parent):
        return 0
    removed = 0
    for name in fs.listdir(parent):
        try:
            data = checked_json.read(fs, f"{parent}/{name}/replaced.json")
            at = checked_json.parse_object("note", data or b"")["wall_ns"]
        except (OSError, DamagedData, KeyError):
            continue  # not ours, or damaged: it stays
        if isinstance(at, int) and at + KEPT_NS < wall_ns:
            remove_tree(fs, f"{parent}/{name}")
            removed += 1
    return removed
