"""``workers.json``: over how many broker processes a data directory is divided. ADR 0128.

A directory without it belongs to one process. One with it has no ``topics``: each worker has a data directory of its own, which
is ``workers/<n>``.
"""

from toymq_py.errors import DamagedData, DataDirectoryError
from toymq_py.storage import checked_json
from toymq_py.storage.fs import FileSystem, replace_file

FILE_NAME = "workers.json"

OF_A_NEW_DIRECTORY = frozenset(("LOCK", "topics", f"{FILE_NAME}.tmp"))
"""What an empty data directory may have: the lock, no topics, and what a kill left of this file."""


def worker_path(data_dir: str, worker: int) -> str:
    """The data directory of a worker."""
    return f"{data_dir}/workers/{worker}"


def load(fs: FileSystem, data_dir: str) -> int | None:
    """The number of workers, None for a directory of one process. Blocks. Raises: DataDirectoryError, OSError."""
    path = f"{data_dir}/{FILE_NAME}"
    if not fs.exists(path):
        return None
    try:
        found = checked_json.decode("workers", fs.read_file(path)).get("number")
    except DamagedData as error:
        raise DataDirectoryError(f"{path} is damaged ({error}): its number of workers is that of {data_dir}/workers") from error
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise DataDirectoryError(f"{path} is damaged: {found!r} is not a number of workers")
    return found


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
                f"serve it without --workers, or give --workers another --data-dir"
            )
        replace_file(fs, f"{data_dir}/{FILE_NAME}", checked_json.encode("workers", {"number": number}))
    elif found != number:
        raise DataDirectoryError(
            f"{data_dir} is divided over {found} workers, which cannot be changed yet: serve it with --workers {found}"
        )
    for path in (f"{data_dir}/workers", *(worker_path(data_dir, worker) for worker in range(number))):
        fs.mkdir(path)
    fs.sync_dir(f"{data_dir}/workers")
    fs.sync_dir(data_dir)
