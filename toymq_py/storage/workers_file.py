"""``workers.json``: the number of worker processes that a data directory is divided over. ADR 0128.

A directory without it belongs to one process. One with it has no ``topics``: each worker has a data directory of its own,
``workers/<n>``, in which ``topics`` is made before the file is written. So a directory that is missing, or a mount point
without its file system, is not taken for one without topics, and neither is a directory whose file is missing (ADR 0216).
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from toymq_py.errors import DamagedData, DataDirectoryError
from toymq_py.storage import checked_json
from toymq_py.storage.fs import FileSystem, replace_file
from toymq_py.storage.restoring import check_restored
from toymq_py.storage.topic_directories import LEFT_BY_PROCESSES, check_topics, topic_names

FILE_NAME = "workers.json"

OF_A_NEW_DIRECTORY = LEFT_BY_PROCESSES | {"topics", "workers", f"{FILE_NAME}.tmp"}
"""Names that an empty data directory may have: those that a process leaves, no topics, and what a kill left of a division."""

UNDIVIDABLE = {
    "amqp.json": "workers serve no AMQP: `toymq definitions export --data-dir {0} > FILE` keeps its exchanges, queues and "
    "bindings for `import`; then move {0}/amqp.json away, and the messages of its queues stay, as those of topics",
    "replica.json": "it is one copy of a cluster: divide what `toymq restore` makes of a backup of it",
    "topics.restoring": "a restore into it was interrupted: run `toymq restore` again",
}
"""Files of a broker that ``--workers`` cannot serve, or of a copy that is not complete; and what to do."""


def worker_path(data_dir: str, worker: int) -> str:
    """The data directory of a worker."""
    return f"{data_dir}/workers/{worker}"


def divided_directory(path: str) -> str | None:
    """The divided directory above a path that is a worker's; None for any other path."""
    found = re.fullmatch(r"(?:(.*)/)?workers/\d+", path)
    return None if found is None else (found[1] or ("/" if path.startswith("/") else "."))


@dataclass(frozen=True, slots=True)
class Part:
    """One worker's part of a division: its data directory is ``worker_path(root, worker)``."""

    root: str
    worker: int


def part_of(fs: FileSystem, path: str) -> Part | None:
    """The worker's part that a data directory is, however its path is written; None if it is not part of a divided directory.
    Blocks."""
    for each in (path, os.path.abspath(path), os.path.realpath(path)):  # noqa: PTH100 (no Path is needed)
        root = divided_directory(each)
        if root is not None and fs.exists(f"{root}/{FILE_NAME}"):
            return Part(root, int(each.rpartition("/")[2]))
    return None


def check_no_part(fs: FileSystem, path: str) -> None:
    """Raise DataDirectoryError for one worker's part of a divided directory. A broker or command on the part alone would make
    the other workers' partitions anew, and accept what is published for them. Blocks."""
    if (part := part_of(fs, path)) is not None:
        division = load_division(fs, part.root)
        number = 1 if division is None else division.number
        raise DataDirectoryError(
            f"{path} is the part of worker {part.worker} of {part.root}: "
            f"`toymq serve --workers {number} --data-dir {part.root}` serves all parts, `toymq workers {part.root}` is for all"
        )


def workers_there(fs: FileSystem, data_dir: str) -> Iterator[int]:
    """The numbers of the workers that have a directory, in order."""
    workers = f"{data_dir}/workers"
    names = fs.listdir(workers) if fs.is_dir(workers) else []
    for worker in sorted(int(name) for name in names if name.isascii() and name.isdecimal()):
        if fs.is_dir(worker_path(data_dir, worker)):
            yield worker


class UnknownDivision(DataDirectoryError):
    """``workers.json`` is damaged, or missing where workers have topics."""

    def __init__(self, fs: FileSystem, data_dir: str, problem: str) -> None:
        self.number = max(workers_there(fs, data_dir), default=0) + 1
        """The number of workers, from the highest one that has a directory."""
        super().__init__(
            f"{data_dir}/{FILE_NAME} {problem}: `toymq workers {data_dir} --set {self.number}` makes it again, from the "
            f"directories in {data_dir}/workers; bring back first what is missing there"
        )


def check_worker(fs: FileSystem, data_dir: str, worker: int) -> None:
    """Raise DataDirectoryError when the topics of a worker are missing. Blocks."""
    path = worker_path(data_dir, worker)
    if not fs.is_dir(f"{path}/topics"):
        raise DataDirectoryError(
            f"{path} is missing, or has no topics directory, and it has the topics of worker {worker}: mount its file system, "
            f"or restore it from a backup; `mkdir -p {path}/topics` goes on without them"
        )
    check_topics(fs, path)


@dataclass(frozen=True, slots=True)
class Division:
    """The number of workers that have the topics; ``following``: the number that they are being moved to."""

    number: int
    following: int | None = None


def load_division(fs: FileSystem, data_dir: str) -> Division | None:
    """Load the division; None for a directory of one process. Blocks. Raises: UnknownDivision, OSError."""
    path = f"{data_dir}/{FILE_NAME}"
    try:
        data = checked_json.read(fs, path)
        if data is None:
            if any(topic_names(fs, worker_path(data_dir, worker)) for worker in workers_there(fs, data_dir)):
                raise UnknownDivision(fs, data_dir, f"is missing, and {data_dir}/workers has topics")
            return None
        content = checked_json.decode("workers", data)
    except DamagedData as error:
        raise UnknownDivision(fs, data_dir, f"is damaged ({error})") from error
    found = [content.get("number"), content.get("following", 1)]
    if any(not isinstance(number, int) or isinstance(number, bool) or number < 1 for number in found):
        raise UnknownDivision(fs, data_dir, f"is damaged ({content!r} has no number of workers)")
    return Division(found[0], content.get("following"))


def load(fs: FileSystem, data_dir: str) -> int | None:
    """The number of workers, None for a directory of one process. Blocks.

    Raises: DataDirectoryError, also while topics are being moved; OSError.
    """
    division = load_division(fs, data_dir)
    if division is not None and division.following is not None:
        change = f"toymq workers {data_dir} --set {division.following}"
        raise DataDirectoryError(f"{data_dir} is on its way to {division.following} workers: `{change}` completes that")
    return None if division is None else division.number


def store(fs: FileSystem, data_dir: str, division: Division) -> None:
    """Store the division of the topics over workers. Blocks. Raises: OSError."""
    content = {"number": division.number}
    if division.following is not None:
        content["following"] = division.following
    replace_file(fs, f"{data_dir}/{FILE_NAME}", checked_json.encode("workers", content))


def forget(fs: FileSystem, data_dir: str) -> None:
    """Remove ``workers.json``: the directory belongs to one process. Blocks. Raises: OSError."""
    fs.unlink(f"{data_dir}/{FILE_NAME}")
    fs.sync_dir(data_dir)


def check_undivided(fs: FileSystem, data_dir: str) -> None:
    """Raise DataDirectoryError when several workers have the topics: the directory would look like one without topics."""
    if (number := load(fs, data_dir)) is not None:
        raise DataDirectoryError(
            f"{data_dir} is divided over {number} workers: `toymq serve --workers {number}` serves it, and the other "
            f"commands take the directory of one worker after the other, such as {worker_path(data_dir, 0)}"
        )


def check_usable(fs: FileSystem, data_dir: str) -> None:
    """Raise DataDirectoryError when a directory of one process was used before, but its ``topics`` is missing. Blocks."""
    check_restored(fs, data_dir)
    check_undivided(fs, data_dir)
    check_topics(fs, data_dir)


def check_dividable(fs: FileSystem, directory: str) -> None:
    """Raise DataDirectoryError when the directory of one process has what cannot be divided over workers. Blocks."""
    for name, remedy in UNDIVIDABLE.items():
        if fs.exists(f"{directory}/{name}"):
            raise DataDirectoryError(
                f"{directory} has {name}, and cannot be divided over workers: {remedy.format(directory)}"
            )


def divide(fs: FileSystem, data_dir: str, number: int) -> None:
    """Divide a directory without topics over ``number`` workers, or check that it is divided over as many. Blocks.

    Assumes that the caller holds its lock. Raises: DataDirectoryError, OSError.
    """
    found = load(fs, data_dir)
    homes = [worker_path(data_dir, worker) for worker in range(number)]
    if found is None:
        if there := _used(fs, data_dir):
            check_dividable(fs, data_dir)
            raise DataDirectoryError(
                f"{data_dir} holds {there}, and only an empty directory can be divided over workers: "
                f"serve it without --workers, or divide it with `toymq workers {data_dir} --set {number}`"
            )
        check_topics(fs, data_dir)
        for path in (f"{data_dir}/workers", *homes, *(f"{home}/topics" for home in homes)):
            fs.mkdir(path)
    elif found != number:
        raise DataDirectoryError(
            f"{data_dir} is divided over {found} workers: serve it with --workers {found}, or change that with "
            f"`toymq workers {data_dir} --set {number}`"
        )
    for worker in range(number):
        check_worker(fs, data_dir, worker)
    for path in (*homes, f"{data_dir}/workers", data_dir):
        fs.sync_dir(path)
    if found is None:
        store(fs, data_dir, Division(number))
    drop_empty_topics(fs, data_dir)


def drop_empty_topics(fs: FileSystem, directory: str) -> None:
    """Remove ``topics`` where it is empty: other directories have the topics. Raises: OSError."""
    topics = f"{directory}/topics"
    if fs.is_dir(topics) and not fs.listdir(topics):
        fs.rmdir(topics)
        fs.sync_dir(directory)


def _used(fs: FileSystem, data_dir: str) -> str | None:
    """The name of something in a directory that a broker has stored there; None for an empty directory, or one with only empty
    directories of workers, which a kill has left."""
    for name in fs.listdir(data_dir):
        if name not in OF_A_NEW_DIRECTORY:
            return name
    if fs.is_dir(f"{data_dir}/topics") and fs.listdir(f"{data_dir}/topics"):
        return "topics"
    workers = f"{data_dir}/workers"
    for name in fs.listdir(workers) if fs.is_dir(workers) else ():
        home = f"{workers}/{name}"
        held = fs.listdir(home) if fs.is_dir(home) else [name]
        if held not in ([], ["topics"]) or (held and fs.listdir(f"{home}/topics")):
            return f"workers/{name}"
    return None
