"""The directories of topics in a data directory, for what knows no open broker. Contract: storage.md, "Layout"; ADR 0221."""

from collections.abc import Iterator

from toymq_py.errors import DataDirectoryError
from toymq_py.names import is_topic_name
from toymq_py.storage.fs import FileSystem

OF_A_USED_DIRECTORY = frozenset((
    "LOCK", "quarantine", "alerts.json", "amqp.json", "moves.json", "partitions.json", "webhooks.json",
))  # fmt: skip
"""What is only where ``topics`` was before."""


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
    """Raise DataDirectoryError when ``topics`` is not there: the directory looks like one that never had a topic."""
    names = {*fs.listdir(data_dir)}
    if (there := OF_A_USED_DIRECTORY & names) and "workers" not in names and not fs.is_dir(f"{data_dir}/topics"):
        raise DataDirectoryError(
            f"{data_dir} has no directory topics, and was used before, it has {min(there)}: mount the file system of its "
            f"topics, or restore it from a backup; `mkdir {data_dir}/topics` goes on without them"
        )
