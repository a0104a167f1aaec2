"""``workers.json``: over how many broker processes a data directory is divided. ADR 0128.

A directory without it belongs to one process. One with it has no ``topics``: each worker has a data directory of its own, which
is ``workers/<n>``.
"""

from dataclasses import dataclass

from toymq_py.errors import DamagedData, DataDirectoryError
from toymq_py.storage import checked_json
from toymq_py.storage.fs import FileSystem, replace_file

FILE_NAME = "workers.json"

OF_A_NEW_DIRECTORY = frozenset(("LOCK", "topics", f"{FILE_NAME}.tmp"))
"""What an empty data directory may have: the lock, no topics, and what a kill left of this file."""


def worker_path(data_dir: str, worker: int) -> str:
    """The data directory of a worker."""
    return f"{data_dir}/workers/{worker}"


@dataclass(frozen=True, slots=True)
class Division:
    """How many workers have the topics; ``following``: the number to which they are being moved."""

    number: int
    following: int | None = None


def load_division(fs: FileSystem, data_dir: str) -> Division | None:
    """None for a directory of one process. Blocks. Raises: DataDirectoryError, OSError."""
    path = f"{data_dir}/{FILE_NAME}"
    try:
        data = checked_json.read(fs, path)
        if data is None:
            return None
        content = checked_json.decode("workers", data)
    except DamagedData as error:
        raise DataDirectoryError(f"{path} is damaged ({error}): its number of workers is that of {data_dir}/workers") from error
    found = [content.get("number"), content.get("following", 1)]
    if any(not isinstance(number, int) or isinstance(number, bool) or number < 1 for number in found):
        raise DataDirectoryError(f"{path} is damaged: {content!r} has no number of workers")
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
    """Blocks. Raises: OSError."""
    content = {"number": division.number}
    if division.following is not None:
        content["following"] = division.following
    replace_file(fs, f"{data_dir}/{FILE_NAME}", checked_json.encode("workers", content))


def forget(fs: FileSystem, data_dir: str) -> None:
    """The directory belongs to one process. Blocks. Raises: OSError."""
    fs.unlink(f"{data_dir}/{FILE_NAME}")
    fs.sync_dir(data_dir)


def check_undivided(fs: FileSystem, data_dir: str) -> None:
    """Raise DataDirectoryError when the topics are with several workers: the directory looks like one without topics."""
    if (number := load(fs, data_dir)) is not None:
        raise DataDirectoryError(
            f"{data_dir} is divided over {number} workers: `toymq serve --workers {number}` serves it, and the tools for a "
            f"stopped broker take one worker's directory, such as {worker_path(data_dir, 0)}"
        )


def divide(fs: FileSystem, data_dir: str, number: int) -> None:
    """Divide a directory without topics over workers, or check that it is divided so. Blocks.

    Assumes that the caller holds its lock. Raises: DataDirectoryError, OSError.
    """
    found = load(fs, data_dir)
    if found is None:
        there = [name for name in fs.listdir(data_dir) if name not in OF_A_NEW_DIRECTORY]
        if there or (fs.is_dir(f"{data_dir}/topics") and fs.listdir(f"{data_dir}/topics")):
            raise DataDirectoryError(
                f"{data_dir} holds {there[0] if there else 'topics'}, and only an empty directory can be divided over workers: "
                f"serve it without --workers, or divide it with `toymq workers {data_dir} --set {number}`"
            )
        store(fs, data_dir, Division(number))
    elif found != number:
        raise DataDirectoryError(
            f"{data_dir} is divided over {found} workers: serve it with --workers {found}, or change that with "
            f"`toymq workers {data_dir} --set {number}`"
        )
    for path in (f"{data_dir}/workers", *(worker_path(data_dir, worker) for worker in range(number))):
        fs.mkdir(path)
    fs.sync_dir(f"{data_dir}/workers")
    fs.sync_dir(data_dir)
