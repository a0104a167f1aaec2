"""``topics.restoring``: the topics of a data directory until ``toymq restore`` has copied all of them. ADR 0026."""

from toymq_py.errors import DataDirectoryError
from toymq_py.storage.fs import FileSystem

DIRECTORY_NAME = "topics.restoring"


def is_interrupted(fs: FileSystem, data_dir: str) -> bool:
    """Whether a restore into the directory was interrupted, or is running."""
    return fs.is_dir(f"{data_dir}/{DIRECTORY_NAME}") and not fs.exists(f"{data_dir}/topics")


def check_restored(fs: FileSystem, data_dir: str) -> None:
    """Raise DataDirectoryError when a restore was interrupted: the directory looks like one that never had a topic."""
    if is_interrupted(fs, data_dir):
        raise DataDirectoryError(f"a restore into {data_dir} was interrupted: run `toymq restore` again, it begins anew")
