"""The directories of topics in a data directory, for what knows no open broker. Contract: storage.md, "Layout"; ADR 0221.

``topics`` may be a file system of its own, or lead to one. Where it is, a start leaves the file ``topics-mounted`` beside it:
the empty mount point is not to be taken for a broker without topics (ADR 0253).
"""

from collections.abc import Iterator
from contextlib import suppress

from toymq_py.errors import DataDirectoryError
from toymq_py.names import is_topic_name
from toymq_py.storage import unclean_ends
from toymq_py.storage.fs import FileSystem

MOUNTED_NAME = "topics-mounted"
"""An empty file of this machine alone: when a broker last started, ``topics`` was on another file system than the rest."""
OF_A_USED_DIRECTORY = frozenset((
    MOUNTED_NAME, "LOCK", "quarantine", "alerts.json", "amqp.json", "moves.json", "partitions.json", "webhooks.json",
))  # fmt: skip
"""What is only where ``topics`` was before."""
LEFT_BY_PROCESSES = frozenset(("LOCK", unclean_ends.FILE_NAME, MOUNTED_NAME))
"""What a process that had a data directory leaves in it without having stored anything."""


def topic_names(fs: FileSystem, data_dir: str) -> list[str]:
    """Names of the topics that the broker would open. Raises: OSError."""
    root = f"{data_dir}/topics"
    return [name for name in _names(fs, data_dir) if fs.is_dir(f"{root}/{name}")]


def no_directories(fs: FileSystem, data_dir: str) -> Iterator[tuple[str, str]]:
    """The names that topics could have and something else has, and what to say of each. Raises: OSError."""
    for name in _names(fs, data_dir):
        path = f"{data_dir}/topics/{name}"
        if not fs.is_dir(path):
            yield name, (
                f"{path} is no directory, and takes the place of topic {name}: move it away, bring the topic's directory back "
                "if you can, and restart the broker"
            )


def _names(fs: FileSystem, data_dir: str) -> list[str]:
    root = f"{data_dir}/topics"
    return [name for name in fs.listdir(root) if is_topic_name(name)] if fs.is_dir(root) else []


def begin(fs: FileSystem, data_dir: str) -> None:
    """Make ``topics`` in a new data directory, before anything else of it is on stable storage: from now on it is a directory
    that is missing. Raises: OSError."""
    if not ({*OF_A_USED_DIRECTORY, "workers", "topics.restoring"} & {*fs.listdir(data_dir)}):
        fs.mkdir(f"{data_dir}/topics")
        fs.sync_dir(data_dir)


def check_topics(fs: FileSystem, data_dir: str) -> None:
    """Raise DataDirectoryError when ``topics`` is not there, or is a mount point without its file system: the directory looks
    like one that never had a topic."""
    names = {*fs.listdir(data_dir)}
    topics, mounted = f"{data_dir}/topics", f"{data_dir}/{MOUNTED_NAME}"
    if not fs.is_dir(topics):
        if (there := OF_A_USED_DIRECTORY & names) and "workers" not in names:
            raise DataDirectoryError(
                f"{data_dir} has no directory topics, and was used before, it has {min(there)}: mount the file system of its "
                f"topics, or restore it from a backup; `mkdir {topics}` goes on without them"
            )
    elif MOUNTED_NAME in names and not _is_mounted(fs, data_dir) and not topic_names(fs, data_dir):
        raise DataDirectoryError(
            f"{topics} is empty, and was a file system of its own before: mount it; `rm {mounted}` goes on without its topics"
        )


def note_mounted(fs: FileSystem, data_dir: str) -> None:
    """Note for ``check_topics`` whether ``topics`` is a file system of its own. A disk that refuses, such as a full one,
    leaves that to the next start."""
    path = f"{data_dir}/{MOUNTED_NAME}"
    with suppress(OSError):
        mounted = _is_mounted(fs, data_dir)
        if mounted == fs.exists(path):
            return
        if mounted:
            fs.open(path, create=True).close()
        else:
            fs.unlink(path)
        fs.sync_dir(data_dir)


def _is_mounted(fs: FileSystem, data_dir: str) -> bool:
    return fs.inode(f"{data_dir}/topics")[0] != fs.inode(data_dir)[0]
