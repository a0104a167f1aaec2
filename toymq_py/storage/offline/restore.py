"""Makes a data directory from a backup.

Contract: clients.md, "Command lines"; ADR 0026.
"""

from toymq_py.errors import DataDirectoryError
from toymq_py.storage import offsets
from toymq_py.storage.dirlock import DirectoryLock
from toymq_py.storage.fs import TEMPORARY, FileSystem, copy_file, remove_tree
from toymq_py.storage.offline import given_up
from toymq_py.storage.offline.backup_directory import is_empty, make_directory, read_mark, utc
from toymq_py.storage.offline.beside import BESIDE
from toymq_py.storage.offline.verify import TopicReport, verify_topic
from toymq_py.storage.restoring import DIRECTORY_NAME, is_interrupted
from toymq_py.storage.scanner import Progress
from toymq_py.storage.topic_directories import topic_names

_LEFTOVERS = (DIRECTORY_NAME, *(name for file in BESIDE for name in (file.name, f"{file.name}.tmp")))
"""The files that an interrupted restore leaves."""


def restore(
    fs: FileSystem,
    backup_dir: str,
    data_dir: str,
    *,
    pid: int,
    unfinished: bool = False,
    progress: Progress = lambda _bytes: None,
) -> list[TopicReport]:
    """Make a data directory from a backup, and verify it.

    Args:
        data_dir: missing or empty, but for what an interrupted restore left; its topics appear in one step, when everything is
            on the disk.
        pid: for the LOCKs of both directories, which keep brokers and backups out.
        unfinished: restore a backup that was interrupted, too.
        progress: told the bytes that were copied.

    Raises:
        DataDirectoryError: ``backup_dir`` is not a backup, or is unfinished; ``data_dir`` is not empty.
        DirectoryLocked: another process uses one of them.
        OSError: a disk refuses.
    """
    mark = read_mark(fs, backup_dir)
    if not mark.finished and not unfinished:
        raise DataDirectoryError(
            f"{backup_dir} is unfinished: a backup that began at {utc(mark.began_ns)} was interrupted; run the backup again, "
            "or restore what was copied with --unfinished"
        )
    if not is_empty(fs, data_dir, besides=_LEFTOVERS if is_interrupted(fs, data_dir) else ()):
        raise DataDirectoryError(f"{data_dir} is not empty: name a new directory, nothing was overwritten")
    make_directory(fs, data_dir)
    source = DirectoryLock.take(fs, backup_dir, pid, "toymq restore")
    try:
        target = DirectoryLock.take(fs, data_dir, pid, "toymq restore")
        try:
            staging = f"{data_dir}/{DIRECTORY_NAME}"
            remove_tree(fs, staging)
            fs.mkdir(staging)
            for name in topic_names(fs, backup_dir):
                _copy_tree(fs, f"{backup_dir}/topics/{name}", f"{staging}/{name}", progress)
            fs.sync_dir(staging)
            for file in BESIDE:
                if (data := file.read(fs, backup_dir)) is not None:
                    file.write(fs, data_dir, data)
            fs.rename(staging, f"{data_dir}/topics")
            fs.sync_dir(data_dir)
        finally:
            target.release()
    finally:
        source.release()
    return [verify_topic(fs, f"{data_dir}/topics/{name}", name) for name in topic_names(fs, data_dir)]


def _copy_tree(fs: FileSystem, path: str, to: str, progress: Progress) -> None:
    fs.mkdir(to)
    for name in fs.listdir(path):
        if name == given_up.FILE_NAME or (name.endswith(TEMPORARY) and name != offsets.TEMPORARY_NAME):
            continue  # nothing is lost there; of temp files that one tells which generation was finished last
        copy_file(fs, f"{path}/{name}", f"{to}/{name}", progress=progress, exclusive=True)
    fs.sync_dir(to)
