"""Divide the topics of a stopped broker over another number of workers: ``toymq workers --set N``. ADR 0158.

    1  workers.json says where it goes: nothing serves the directory from here on
    2  the directories of the new workers are made, and each gets the table of partitioned topics
    3  each topic's directory is renamed to where its new worker has it
    4  each webhook goes to the worker of its topic, one on a pattern to all: it is added there, then dropped by the others
    5  each worker counts the lives without a clean stop that the one with the most did (ADR 0249)
    6  directories of workers that are no more are removed, if nothing is left in them
    7  workers.json says the new number; for one process the file is removed

A rename takes no time, however large the topic. Killed anywhere, or cut off from power, the same command goes on: every step
begins with what it finds, and step 2 syncs the names that a killed run left in the new directories, before anything is dropped
from the old ones (ADR 0142). So it also makes a ``workers.json`` again that is missing or damaged (ADR 0216). A number of 1 is
an ordinary data directory.
"""

from collections.abc import Callable, Iterator

from toymq_py.config.webhooks import Webhook
from toymq_py.errors import DataDirectoryError
from toymq_py.names import is_pattern
from toymq_py.placement import worker_of
from toymq_py.storage import partitions_file, webhooks_file
from toymq_py.storage.fs import FileSystem
from toymq_py.storage.partitions_file import StoredPartitions
from toymq_py.storage.topic_directories import LEFT_BY_PROCESSES, check_topics, no_directories, topic_names
from toymq_py.storage.unclean_ends import carry_over
from toymq_py.storage.workers_file import (
    Division,
    UnknownDivision,
    check_dividable,
    check_worker,
    drop_empty_topics,
    forget,
    load_division,
    store,
    worker_path,
    workers_there,
)


def present(fs: FileSystem, root: str) -> Division:
    """How a directory is divided now. Raises: UnknownDivision, DataDirectoryError, OSError."""
    found = load_division(fs, root)
    if found is None and not fs.is_dir(f"{root}/topics") and not fs.is_dir(f"{root}/workers"):
        raise DataDirectoryError(f"{root} is not a data directory: it has neither topics nor workers")
    return found or Division(1)


def redistribute(
    fs: FileSystem, root: str, number: int, moved: Callable[[str, int], None] = lambda topic, worker: None
) -> None:
    """Divide the topics anew. Blocks. Assumes that the caller holds the lock of the directory; ``moved`` is called with each
    topic.

    Raises: DataDirectoryError when it cannot be divided, and nothing was changed; OSError: then call it again.
    """
    check_topics(fs, root)
    division, known = _division(fs, root)
    if division.following not in (None, number):
        raise DataDirectoryError(
            f"{root} is on its way to {division.following} workers: complete that first, with --set {division.following}"
        )
    last = division.number if division.following is None else min(division.number, division.following)
    for worker in range(last) if last > 1 else ():  # a run that was killed has made or left these, at any step
        check_worker(fs, root, worker)
    tables = _check(fs, root)
    if known and division == Division(number):
        fs.sync_dir(root)  # a run that was killed may have said so last
        return
    homes = [_home(root, number, worker) for worker in range(number)]
    _check_mounts(fs, root, homes)
    store(fs, root, Division(division.number, number))
    for path in (f"{root}/workers", *homes, *(f"{home}/topics" for home in homes)):
        fs.mkdir(path)
    for path in (*(f"{home}/topics" for home in homes), *homes, f"{root}/workers", root):
        fs.sync_dir(path)
    table = _united(tables)
    for home in homes:
        if table and tables.get(home) != table:
            partitions_file.FILE.write(fs, home, partitions_file.encode(table))
    for directory in _directories(fs, root):
        for topic in topic_names(fs, directory):
            worker = worker_of(topic, number)
            if homes[worker] != directory:
                fs.rename(f"{directory}/topics/{topic}", f"{homes[worker]}/topics/{topic}")
                fs.sync_dir(f"{homes[worker]}/topics")
                fs.sync_dir(f"{directory}/topics")
                moved(topic, worker)
    _move_webhooks(fs, root, homes)
    carry_over(fs, _directories(fs, root), homes)
    for directory in _directories(fs, root):
        if directory not in homes:
            if tables.get(directory):
                fs.unlink(f"{directory}/{partitions_file.FILE_NAME}")
                fs.sync_dir(directory)
            _remove_empty(fs, root, directory)
    if number > 1:
        store(fs, root, Division(number))
    else:
        forget(fs, root)


def _division(fs: FileSystem, root: str) -> tuple[Division, bool]:
    """How the directory is divided, and whether its file says so; if not, each topic is looked for in every directory."""
    try:
        return present(fs, root), True
    except UnknownDivision as unknown:
        return Division(unknown.number), False


def _home(root: str, number: int, worker: int) -> str:
    return worker_path(root, worker) if number > 1 else root


def _directories(fs: FileSystem, root: str) -> Iterator[str]:
    """Every directory that may have topics, in a fixed order."""
    yield root
    for worker in workers_there(fs, root):
        yield worker_path(root, worker)


def _check(fs: FileSystem, root: str) -> dict[str, dict[str, StoredPartitions]]:
    """Check that all topics can be moved. Returns: the partitioned topics of each directory. Raises: DataDirectoryError."""
    tables: dict[str, dict[str, StoredPartitions]] = {}
    seen: dict[str, str] = {}
    webhooks: dict[str, Webhook] = {}
    for directory in _directories(fs, root):
        tables[directory] = partitions_file.load(fs, directory)
        check_dividable(fs, directory)
        for _, text in no_directories(fs, directory):
            raise DataDirectoryError(text)
        for topic in topic_names(fs, directory):
            if topic in seen:
                remedy = f"move one out of {root}, into a topics/ elsewhere: `toymq verify` and `toymq dump` show what is in it"
                raise DataDirectoryError(f"topic {topic} is in {seen[topic]} and in {directory}; {remedy}")
            seen[topic] = directory
        for name, webhook in webhooks_file.load(fs, directory).items():
            if webhooks.setdefault(name, webhook) != webhook:
                raise DataDirectoryError(
                    f"webhook {name} is for {webhooks[name].topic} at one worker and another one, for {webhook.topic}, in "
                    f"{directory}: give one of them another name"
                )
    _united(tables)
    return tables


def _check_mounts(fs: FileSystem, root: str, homes: list[str]) -> None:
    """Raise DataDirectoryError when a topic would go to another file system: nothing is renamed there."""
    def device(directory: str) -> int:
        topics = f"{directory}/topics"
        return fs.inode(topics if fs.is_dir(topics) else root)[0]

    devices = {directory: device(directory) for directory in (*_directories(fs, root), *homes)}
    for directory in _directories(fs, root):
        for topic in topic_names(fs, directory) if len({*devices.values()}) > 1 else ():
            home = homes[worker_of(topic, len(homes))]
            if devices[home] != devices[directory]:
                raise DataDirectoryError(
                    f"topic {topic} would go from {directory}/topics to {home}/topics, and these are different file systems: "
                    f"copy the topics of each that is mounted to the file system of {root}, in the place of the mount, first"
                )


def _united(tables: dict[str, dict[str, StoredPartitions]]) -> dict[str, StoredPartitions]:
    """The tables of partitioned topics of all workers, merged. A topic that only some workers have after a kill during CREATE
    is in the result; one that a worker is deleting is marked as ``deleting``. Raises: DataDirectoryError."""
    found: dict[str, StoredPartitions] = {}
    for directory, table in tables.items():
        for name, stored in table.items():
            before = found.setdefault(name, stored)
            if before.topic.count != stored.topic.count:
                raise DataDirectoryError(
                    f"topic {name} has {before.topic.count} partitions at one worker, and {stored.topic.count} in {directory}: "
                    f"serve it with the number of workers that it has, and delete the topic"
                )
            if stored.deleting:
                found[name] = stored
    return found


def _move_webhooks(fs: FileSystem, root: str, homes: list[str]) -> None:
    known = {directory: webhooks_file.load(fs, directory) for directory in _directories(fs, root)}
    everywhere = {name: webhook for each in known.values() for name, webhook in each.items()}
    wanted = {
        home: {
            name: webhook for name, webhook in everywhere.items()
            if is_pattern(webhook.topic) or homes[worker_of(webhook.topic, len(homes))] == home
        }
        for home in homes
    }
    for directory in known:  # added first: a webhook is in two files at times, and never in none
        both = {**known[directory], **wanted.get(directory, {})}
        if both != known[directory]:
            webhooks_file.FILE.write(fs, directory, webhooks_file.encode(both))
            known[directory] = both
    for directory, present in known.items():
        left = wanted.get(directory, {})
        if left != present and left:
            webhooks_file.FILE.write(fs, directory, webhooks_file.encode(left))
        elif left != present:
            fs.unlink(f"{directory}/{webhooks_file.FILE_NAME}")
            fs.sync_dir(directory)


def _remove_empty(fs: FileSystem, root: str, directory: str) -> None:
    """Remove a directory that is not used any more, if it holds nothing unknown."""
    drop_empty_topics(fs, directory)
    if directory != root and set(fs.listdir(directory)) <= LEFT_BY_PROCESSES:
        for name in fs.listdir(directory):
            fs.unlink(f"{directory}/{name}")
        fs.rmdir(directory)
        fs.sync_dir(f"{root}/workers")
