"""The directory of a backup, and the mark file that tells it from other directories."""

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from toymq_py.errors import DamagedData, DataDirectoryError
from toymq_py.storage import checked_json
from toymq_py.storage.fs import FileSystem, replace_file
from toymq_py.storage.topic_directories import LEFT_BY_PROCESSES

MARK_NAME = "backup.json"
MARK_VERSION = 1
PROBLEMS_MAX = 100
"""Most problems that a mark keeps."""


def is_empty(fs: FileSystem, path: str, besides: Iterable[str] = ()) -> bool:
    """Whether a directory is missing, or holds only the leftovers of a file system or a lock, and the given names."""
    if not fs.is_dir(path):
        return not fs.exists(path)
    return not {*fs.listdir(path)} - LEFT_BY_PROCESSES - {"lost+found", *besides}


def make_directory(fs: FileSystem, path: str) -> None:
    """Make a directory unless it is there, durably. Raises: DataDirectoryError: its parent is missing; OSError."""
    parent = path.rpartition("/")[0] or ("/" if path.startswith("/") else ".")
    if not fs.exists(parent):  # a file system that is not mounted, or a name that is misspelled
        raise DataDirectoryError(f"there is no directory {parent}: make it before {path}")
    fs.mkdir(path)
    fs.sync_dir(parent)


@dataclass(frozen=True, slots=True)
class BackupMark:
    """What a backup says of itself: when it began, in nanoseconds since the epoch, whether it was finished, and what of the
    source it could not copy."""

    began_ns: int
    finished: bool
    problems: Sequence[str] = ()


def write_mark(fs: FileSystem, path: str, mark: BackupMark) -> None:
    """Mark a directory as a backup. Raises: OSError."""
    fields: dict[str, object] = {"version": MARK_VERSION, "began_ns": mark.began_ns, "finished": mark.finished}
    if mark.problems:
        fields["problems"] = list(mark.problems[:PROBLEMS_MAX])
    replace_file(fs, f"{path}/{MARK_NAME}", json.dumps(fields).encode() + b"\n")


def read_mark(fs: FileSystem, path: str) -> BackupMark:
    """The mark of a backup.

    Raises: DataDirectoryError when the directory is not a backup of this version; OSError.
    """
    try:
        data = checked_json.read(fs, f"{path}/{MARK_NAME}")
        if data is None:
            raise DataDirectoryError(f"{path} is not a backup: it has no {MARK_NAME}")
        found = checked_json.parse_object("mark", data)
        version, began_ns, finished = found["version"], found["began_ns"], found["finished"]
    except (DamagedData, KeyError) as error:
        raise DataDirectoryError(f"{path}/{MARK_NAME} is damaged: {error}") from None
    if version != MARK_VERSION:
        raise DataDirectoryError(f"{path} is a backup of version {version!r}, and this toymq reads version {MARK_VERSION}")
    problems = found.get("problems", [])
    return BackupMark(int(began_ns), finished is True, [*map(str, problems)] if isinstance(problems, list) else [])


def utc(wall_ns: int) -> str:
    """A time as text: ``2026-11-27 02:00:00 UTC``."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(wall_ns // 1_000_000_000))
