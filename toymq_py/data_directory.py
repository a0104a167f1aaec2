"""The data directory of a running broker: its lock, the directories of its topics, and the files beside them.

Contract: storage.md, "Layout"; ADR 0049. Knows the names and paths of topics, not their contents. Belongs to the event loop.
"""

import contextlib
import logging
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count
from typing import Any, TypeVar

from toymq_py.config.alerts import Alert
from toymq_py.config.webhooks import Webhook
from toymq_py.errors import DamagedData, DataDirectoryError, RequestError, StorageFailed
from toymq_py.names import check_name, some_of
from toymq_py.storage import alerts_file, amqp_file, directory_owner, moves_file, partitions_file, unclean_ends, webhooks_file
from toymq_py.storage.commit.sync_threads import Scheduler
from toymq_py.storage.dirlock import DirectoryLock
from toymq_py.storage.fs import FileSystem, remove_tree
from toymq_py.storage.topic_directories import begin, no_directories, note_mounted
from toymq_py.storage.workers_file import check_no_part, check_usable

logger = logging.getLogger("toymq_py.broker")

DELETED_PREFIX = ".deleted-"
"""Prefix of a deleted topic's directory, which is removed in the background or at the next start."""
OF_OTHERS = stat.S_IRWXG | stat.S_IRWXO

Stored = Callable[[OSError | None], None]
"""Called when a change is on stable storage, or with the error that prevented it."""

Loaded = TypeVar("Loaded")


class DataDirectory:
    """One data directory, locked from ``open`` to ``close``."""

    def __init__(self, fs: FileSystem, scheduler: Scheduler, path: str) -> None:
        self.path = path
        self.fs = fs
        self.scheduler = scheduler
        self._topics = f"{path}/topics"
        self._deleted = count()
        self._lock: DirectoryLock | None = None
        self._of_workers: dict[int, tuple[int, Mapping[str, partitions_file.StoredPartitions]]] = {}
        self.unclean_ends = 0
        """How many broker processes in a row before this one ended without a clean stop."""

    def open(self, pid: int, address: str | None, lock: DirectoryLock | None = None, *, is_part: bool = False) -> None:
        """Make the directory if it is missing, and lock it. Blocks.

        Args:
            address: where clients will reach the broker; shown to a process that finds the directory locked.
            lock: the lock of the directory, if this process already holds it; ``close`` releases it.
            is_part: the directory may be that of one worker, while other workers serve the rest of the topics.

        Raises:
            DirectoryLocked: another process holds the lock.
            DataDirectoryError: the directory cannot be used; its restore was interrupted; it is divided over workers, or
                belongs to one worker; or it was used before and lacks ``topics``, as when its file system is not mounted.
        """
        fs, path = self.fs, self.path
        if not is_part:
            check_no_part(fs, path)
        self._lock = lock if lock is not None else made_and_locked(fs, path, pid, address)
        try:
            check_usable(fs, path)
        except DataDirectoryError:
            self.close()
            raise
        self.unclean_ends = unclean_ends.count_life(fs, path)
        warn_of_access(fs, path)

    def close(self, *, clean: bool = False) -> None:
        """Release the lock. Idempotent. ``clean``: everything was stored, so the stop counts as clean."""
        if self._lock is not None:
            if clean:
                unclean_ends.end_cleanly(self.fs, self.path)
            self._lock.release()
            self._lock = None

    def uncount_life(self) -> None:
        """Do not count this process's end as unclean: it ends in order, though not everything is stored. Blocks."""
        unclean_ends.uncount_life(self.fs, self.path, self.unclean_ends)

    def lost(self) -> str | None:
        """Why the directory at the path is not the one that was locked; None if it is (``DirectoryLock.lost``). Thread-safe."""
        lock = self._lock
        return None if lock is None else lock.lost()

    # -- topics

    def topic_path(self, name: str) -> str:
        return f"{self._topics}/{name}"

    def has_topic(self, name: str) -> bool:
        """Whether a topic has a directory."""
        return self.fs.is_dir(self.topic_path(name))

    def topic_names(self) -> Iterator[str]:
        """Yield the topics that have a directory, and remove the directories of deleted ones. Blocks. Raises: OSError."""
        fs, topics = self.fs, self._topics
        fs.mkdir(topics)
        fs.sync_dir(self.path)
        fs.sync_dir(topics)  # a killed broker may have made names that are not on stable storage
        note_mounted(fs, self.path)
        assert self._lock is not None, "open() comes first"
        self._lock.watch(topics)
        for name in fs.listdir(topics):
            if name.startswith(DELETED_PREFIX):
                self._remove_tree(name)
                continue
            try:
                check_name("topic", name)
            except RequestError:
                continue  # not a topic
            if fs.is_dir(self.topic_path(name)):
                yield name

    def refuse_no_directories(self, unopened: dict[str, StorageFailed], *, strict: bool) -> None:
        """Enter into ``unopened`` each topic in whose place is something other than a directory. Blocks. Raises:
        DataDirectoryError when ``strict``; OSError."""
        for name, text in no_directories(self.fs, self.path):
            if strict:
                raise DataDirectoryError(f"{text}; --strict-recovery is on")
            logger.error("topic %s stays closed: %s", name, text)
            unopened[name] = StorageFailed(text)

    def refuse_strays(self, strays: Mapping[str, RequestError], unopened: dict[str, StorageFailed]) -> None:
        """Enter into ``unopened`` the topics that belong to another worker or group but are also stored here; log one line.
        ``strays``: for each topic the error that tells where it belongs."""
        if not strays:
            return
        copy = f"copy what you need, `toymq dump {self.path} NAME`"
        remedy = f"{copy}; then, with the broker stopped, move it out of {self._topics}"
        for name, elsewhere in strays.items():
            unopened[name] = StorageFailed(f"{name} is stored here, too, where it stays closed: {elsewhere}; {remedy}")
        (name, elsewhere), *more = strays.items()
        if more:
            what, why = f"topics {some_of(strays)} are stored here, and stay closed", "others have them"
        else:
            what, why = f"topic {name} is stored here, and stays closed", str(elsewhere)
        logger.error("%s: %s; %s", what, why, remedy)

    def remove_topic(self, name: str, done: Stored) -> None:
        """Free a topic's name and remove its files. ``done`` is called when the name is durably free, or with an error.

        Assumes that nothing writes into the topic's directory.
        """
        fs, path = self.fs, self.topic_path(name)
        while fs.exists(self.topic_path(grave := f"{DELETED_PREFIX}{next(self._deleted)}")):
            pass

        def rename() -> None:
            if fs.exists(path):
                fs.rename(path, self.topic_path(grave))
            fs.sync_dir(self._topics)  # also where only that had failed before

        def renamed(error: OSError | None) -> None:
            done(error)
            if error is None:
                self.scheduler.offload(lambda: self._remove_tree(grave), lambda: None)

        self._offload(rename, renamed)

    def remove_topic_now(self, name: str) -> None:
        """Remove a topic's files, if there are some. Blocks. Assumes that the topic is not open. Raises: OSError."""
        fs, path = self.fs, self.topic_path(name)
        if fs.is_dir(path):
            while fs.exists(self.topic_path(grave := f"{DELETED_PREFIX}{next(self._deleted)}")):
                pass
            fs.rename(path, self.topic_path(grave))
            fs.sync_dir(self._topics)
            self._remove_tree(grave)

    def _remove_tree(self, name: str) -> None:
        """Remove a deleted topic's directory; the next start removes what is left."""
        with contextlib.suppress(OSError):
            remove_tree(self.fs, self.topic_path(name))

    # -- partitioned topics

    def read_partitions(self) -> dict[str, partitions_file.StoredPartitions]:
        """The partitioned topics, by name. Blocks. Raises: DamagedData, OSError."""
        return self._read(partitions_file.FILE_NAME, partitions_file.load)

    def has_partitions(self) -> bool:
        """Whether there is a table of partitioned topics, maybe an empty one. Blocks."""
        return self.fs.exists(f"{self.path}/{partitions_file.FILE_NAME}")

    def topics_of_workers(self, workers: Iterable[int]) -> Iterator[str]:
        """The names in the topic directories of other workers. Blocks. Raises: OSError."""
        for worker in workers:
            topics = f"{self._of_worker(worker)}/topics"
            if self.fs.is_dir(topics):
                yield from self.fs.listdir(topics)

    def partitions_of_worker(
        self, worker: int, change: int | None
    ) -> Mapping[str, partitions_file.StoredPartitions] | None:  # fmt: skip
        """The partitioned topics that another worker knows; None if they have to be read. ``change``: that worker's current
        ``Placement.change_of``."""
        known = self._of_workers.get(worker)
        return None if known is None or known[0] != change else known[1]

    def read_partitions_of_worker(
        self, worker: int, change: int | None, done: Callable[[Mapping[str, partitions_file.StoredPartitions]], None]
    ) -> None:
        """Read the partitioned topics of another worker on a sync thread; ``done`` gets them, or none after a failure.
        ``change``: ``Placement.change_of`` before the read. After a failure, or if it is None, the result is not cached."""
        found: list[Mapping[str, partitions_file.StoredPartitions]] = []

        def read() -> None:
            with contextlib.suppress(OSError, DamagedData):
                found.append(partitions_file.load(self.fs, self._of_worker(worker)))

        def ended() -> None:
            if found and change is not None:
                self._of_workers[worker] = change, found[0]
            done(found[0] if found else {})

        self.scheduler.offload(read, ended)

    def _of_worker(self, worker: int) -> str:
        return f"{self.path.rpartition('/')[0]}/{worker}"

    def write_partitions(self, found: Mapping[str, partitions_file.StoredPartitions]) -> None:
        """Replace the partitioned topics. Blocks. Raises: OSError."""
        partitions_file.FILE.write(self.fs, self.path, partitions_file.encode(found))

    def store_partitions(self, found: Mapping[str, partitions_file.StoredPartitions], done: Stored) -> None:
        """Replace the partitioned topics, on a sync thread. Assumes one call at a time."""
        data = partitions_file.encode(found)
        self._offload(lambda: partitions_file.FILE.write(self.fs, self.path, data), done)

    # -- topics that are moved

    def read_moves(self) -> dict[str, moves_file.Mark]:
        """The marks of topics that are being moved, by name. Blocks. Raises: DamagedData, OSError."""
        return self._read(moves_file.FILE_NAME, moves_file.load)

    def write_moves(self, marks: Mapping[str, moves_file.Mark]) -> None:
        """Replace the marks of moved topics. Blocks. Raises: OSError."""
        moves_file.FILE.write(self.fs, self.path, moves_file.encode(marks))

    def store_moves(self, marks: Mapping[str, moves_file.Mark], done: Stored) -> None:
        """Replace the marks of moved topics, on a sync thread. Assumes one call at a time."""
        data = moves_file.encode(marks)
        self._offload(lambda: moves_file.FILE.write(self.fs, self.path, data), done)

    # -- webhooks

    def read_webhooks(self) -> dict[str, Webhook]:
        """The webhooks, by name. Blocks. Raises: DamagedData, OSError."""
        return webhooks_file.load(self.fs, self.path)

    def store_webhooks(self, webhooks: Mapping[str, Webhook], done: Stored) -> None:
        """Replace the webhooks. Assumes one call at a time. Raises: BadArgument when there are too many."""
        data = webhooks_file.encode(webhooks)
        self._offload(lambda: webhooks_file.FILE.write(self.fs, self.path, data), done)

    # -- alerts

    def read_alerts(self) -> dict[str, Alert]:
        """The alert rules, by name. Blocks. Raises: DamagedData, OSError."""
        return alerts_file.load(self.fs, self.path)

    def store_alerts(self, alerts: Mapping[str, Alert], done: Stored) -> None:
        """Replace the alert rules. Assumes one call at a time. Raises: BadArgument when there are too many."""
        data = alerts_file.encode(alerts)
        self._offload(lambda: alerts_file.FILE.write(self.fs, self.path, data), done)

    # -- AMQP

    def read_amqp(self) -> dict[str, Any]:
        """The AMQP exchanges, queues and bindings that ``store_amqp`` stored; {} without a file. Blocks. Raises: DamagedData,
        OSError."""
        data = amqp_file.FILE.read(self.fs, self.path)
        return {} if data is None else amqp_file.decode(data)

    def store_amqp(self, topology: dict[str, Any], done: Stored) -> None:
        """Replace the stored AMQP exchanges, queues and bindings. Assumes one call at a time."""
        data = amqp_file.encode(topology)
        self._offload(lambda: amqp_file.FILE.write(self.fs, self.path, data), done)

    def _read(self, name: str, load: Callable[[FileSystem, str], Loaded]) -> Loaded:
        """Read a file that must be intact for the broker to start. Raises: DamagedData, with the file's name and the remedy;
        OSError."""
        try:
            return load(self.fs, self.path)
        except DamagedData as error:
            raise DamagedData(f"{error} ({name}: see `toymq verify` and `toymq repair`)") from None

    def _offload(self, job: Callable[[], None], done: Stored) -> None:
        errors: list[OSError] = []

        def run() -> None:
            try:
                job()
            except OSError as error:
                errors.append(error)

        self.scheduler.offload(run, lambda: done(errors[0] if errors else None))


def warn_of_access(fs: FileSystem, path: str) -> None:
    """Warn when other users may change or read a data directory. Blocks.

    The group of a directory with the setgid bit is the operator's decision: Kubernetes makes a volume so for its fsGroup.
    """
    with contextlib.suppress(OSError):  # a directory of topics that is missing is made for the owner alone
        mode = fs.mode(path)
        if mode & stat.S_IWOTH or (mode & stat.S_IWGRP and not mode & stat.S_ISGID):
            logger.warning("%s: other users of this machine can change what is in it (mode %04o): `chmod go-w %s`",
                           path, mode, path)  # fmt: skip
        elif mode & OF_OTHERS and fs.mode(f"{path}/topics") & OF_OTHERS:
            logger.warning("%s: other users of this machine can read it, an older version made it so: `chmod -R go= %s`",
                           path, path)  # fmt: skip


def made_and_locked(fs: FileSystem, path: str, pid: int, address: str | None) -> DirectoryLock:
    """Make a data directory if it is missing, and lock it, as ``DataDirectory.open``. Blocks.

    Raises: DirectoryLocked, DataDirectoryError.
    """
    parent = path.rpartition("/")[0] or ("/" if path.startswith("/") else ".")
    try:
        known = fs.is_dir(path)
        if (doubt := directory_owner.doubt(fs, path)) is not None:
            logger.warning("%s: `chown -R` it before that user's broker starts again", doubt)
        if not known:
            fs.mkdir(path)
        try:
            fs.sync_dir(parent)  # also if it exists: the process that created it may have been killed before this
        except PermissionError:
            if not known:
                raise
        begin(fs, path)
    except OSError as error:
        raise DataDirectoryError(f"cannot make {path}: {error.strerror or error}") from error
    return DirectoryLock.take(fs, path, pid, address)
