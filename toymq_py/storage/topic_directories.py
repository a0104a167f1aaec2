"""The directories of topics in a data directory, for what knows no open broker. Contract: storage.md, "Layout"; ADR 0221.

An empty mount point is told from a ``topics`` without topics by two marks: ``.toymq`` is in the directory, and ``has-topics``
beside it says so (ADR 0253).
"""

from collections.abc import Iterator
from contextlib import suppress

from toymq_py.errors import DataDirectoryError
from toymq_py.names import is_topic_name
from toymq_py.storage import unclean_ends
from toymq_py.storage.fs import FileSystem

INSIDE_NAME = ".toymq"
"""An empty directory in ``topics``, which is the one that a broker has used. No topic and nothing in the stream
to replicas has such a name."""
BESIDE_NAME = "has-topics"
"""An empty file, which is made behind the one inside and is gone before it."""
OF_A_USED_DIRECTORY = frozenset((
    BESIDE_NAME, "LOCK", "quarantine", "alerts.json", "amqp.json", "moves.json", "partitions.json", "webhooks.json",
))  # fmt: skip
"""What is only where ``topics`` was before."""
LEFT_BY_PROCESSES = frozenset(("LOCK", unclean_ends.FILE_NAME, BESIDE_NAME))
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


def mark(fs: FileSystem, data_dir: str) -> None:
    """Make the marks, synced, where they are not. A disk that refuses, such as a full one, leaves that to a later start."""
    inside, beside = f"{data_dir}/topics/{INSIDE_NAME}", f"{data_dir}/{BESIDE_NAME}"
    with suppress(OSError):
        if not fs.is_dir(inside):  # also of topics that were copied here without it
            fs.mkdir(inside)
            fs.sync_dir(f"{data_dir}/topics")
        if not fs.exists(beside):
            fs.open(beside, create=True).close()
            fs.sync_dir(data_dir)


def unmark(fs: FileSystem, data_dir: str) -> None:
    """Remove the marks, for ``topics`` to be removed. Raises: OSError."""
    beside, inside = f"{data_dir}/{BESIDE_NAME}", f"{data_dir}/topics/{INSIDE_NAME}"
    if fs.exists(beside):
        fs.unlink(beside)
        fs.sync_dir(data_dir)
    if fs.is_dir(inside):
        fs.rmdir(inside)


def is_unused(fs: FileSystem, data_dir: str) -> bool:
    """Whether ``topics`` is missing, or has nothing but the mark. Raises: OSError."""
    topics = f"{data_dir}/topics"
    return not fs.is_dir(topics) or {*fs.listdir(topics)} <= {INSIDE_NAME}


def check_topics(fs: FileSystem, data_dir: str) -> None:
    """Raise DataDirectoryError when ``topics`` is not there, or an empty directory is in its place, as of a mount point: the
    data directory looks like one that never had a topic."""
    names = {*fs.listdir(data_dir)}
    topics, marked = f"{data_dir}/topics", BESIDE_NAME in names
    if not fs.is_dir(topics):
        there = OF_A_USED_DIRECTORY & names
        if not there or ("workers" in names and not marked):
            return
        what = f"{data_dir} has no directory topics, and was used before, it has {min(there)}"
    elif marked and not fs.is_dir(f"{topics}/{INSIDE_NAME}") and not topic_names(fs, data_dir):
        what = f"{topics} is not the directory that was used before, it has neither {INSIDE_NAME} nor topics"
    else:
        return
    raise DataDirectoryError(
        f"{what}: mount the file system of its topics, or restore it from a backup; `{made_anew(data_dir)}` goes on without "
        "them"
    )


def made_anew(data_dir: str) -> str:
    """The command that makes ``topics`` where it is missing, or is not the one that was used."""
    return f"mkdir -p {data_dir}/topics/{INSIDE_NAME}"
