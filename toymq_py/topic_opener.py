"""Opens the topics of a data directory, and reports what is wrong with each. Contract: storage.md, "Recovery".

Blocks; nothing is served meanwhile. The caller knows which topics belong to other workers. Topics are recovered on several
threads, since each syncs a file and a directory, and are then made one by one. ADR 0277.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from toymq_py import units
from toymq_py.auth.quotas import Quotas
from toymq_py.clock import Clock
from toymq_py.config.options import BrokerOptions
from toymq_py.data_directory import DataDirectory
from toymq_py.deadletter import LETTER_KEYS, DeadLetters
from toymq_py.errors import DamagedData, DataDirectoryError, StorageFailed
from toymq_py.names import is_dead_letters
from toymq_py.storage import id_ranges, offsets, topic_settings
from toymq_py.storage.fs import FileSystem
from toymq_py.storage.recovery import RecoveredLog, recover_log
from toymq_py.topic import Topic

logger = logging.getLogger("toymq_py.broker")


class Recovered(NamedTuple):
    """The recovered contents of a topic's directory."""

    settings: topic_settings.LoadedSettings
    offsets: offsets.LoadedOffsets
    log: RecoveredLog


class TopicOpener:
    """Opens the topics of one broker. With ``strict_recovery`` any loss or damage is an error."""

    def __init__(
        self, fs: FileSystem, clock: Clock, options: BrokerOptions, directory: DataDirectory, topics: dict[str, Topic],
        unopened: dict[str, StorageFailed], quotas: Quotas, dead_letters: DeadLetters, make: Callable[..., Topic],
        threads: int,
    ) -> None:  # fmt: skip
        """
        Args:
            threads: the number of threads that recover topics; 0: the caller's thread does.
            topics, unopened: the broker's dicts, which get the topics.
            make: makes a topic from its name, settings and recovered state; has the arguments of ``Topic``.
        """
        self._fs = fs
        self._clock = clock
        self._options = options
        self._directory = directory
        self._topics = topics
        self._unopened = unopened
        self._quotas = quotas
        self._dead_letters = dead_letters
        self._make = make
        self._threads = threads

    def open_all(self, names: Iterable[str]) -> None:
        """Open topics. A topic that fails stays closed until a restart, and the others are served. Raises: as ``open``, but
        only with ``strict_recovery``."""
        for name, recover in self._recoveries(names):
            try:
                self._serve(name, recover())
            except (OSError, DamagedData) as error:
                if self._options.strict_recovery:
                    raise
                logger.error("topic %s cannot be opened and stays closed until a restart: %s", name, error)  # noqa: TRY400 (one line)
                self._unopened[name] = StorageFailed(f"{name} could not be opened when the broker started: {error}")

    def _recoveries(self, names: Iterable[str]) -> Iterator[tuple[str, Callable[[], Recovered]]]:
        """Recover topics. Yields: each name, in order, and a function that returns the recovered state, or raises the error."""
        if not self._threads:
            for name in names:
                yield name, lambda: self._recover(name, self._directory.topic_path(name))  # noqa: B023 (called at once)
            return
        ahead: deque[tuple[str, Future[Recovered]]] = deque()
        pool = ThreadPoolExecutor(self._threads, "recovery")
        try:
            for name in names:
                ahead.append((name, pool.submit(self._recover, name, self._directory.topic_path(name))))
                if len(ahead) >= self._threads:  # and no more ahead: what they hold is in memory twice
                    first, future = ahead.popleft()
                    yield first, future.result
            for name, future in ahead:
                yield name, future.result
        finally:
            pool.shutdown(cancel_futures=True)

    def open(self, name: str, path: str) -> None:
        """Recover a topic from its directory. Raises: OSError, DamagedData, DataDirectoryError."""
        self._serve(name, self._recover(name, path))

    def _recover(self, name: str, path: str) -> Recovered:
        """Read a topic's directory, repair torn tails, and sync the result. Runs on any thread, as it uses nothing of the
        broker but the options. Raises: as ``open``."""
        found = topic_settings.load(self._fs, path)
        if found.problem is not None and self._options.strict_recovery:
            raise DataDirectoryError(f"topic {name}: {found.problem}, and --strict-recovery is on")
        topic_settings.mark(self._fs, path)
        loaded = offsets.load(self._fs, path)
        try:
            offsets.settle(self._fs, path, loaded)
        except OSError as error:
            logger.warning("topic %s: its damaged offsets cannot be set aside: %s", name, error)
        state = loaded.state
        wanted = found.settings.value(name, "dedupe_keys", self._options)
        if is_dead_letters(name):
            wanted = max(wanted, LETTER_KEYS)
        recovered = recover_log(
            self._fs, path, first_id=state.first_id, next_id=state.next_id, removed=state.removed,
            first_id_known=loaded.first_id_known,
            dedupe_keys=wanted, now_ns=self._clock.wall_ns(),
        )  # fmt: skip
        return Recovered(found, loaded, recovered)

    def _serve(self, name: str, found_there: Recovered) -> None:
        """Make a topic from its recovered state, and report its damage. Raises: DataDirectoryError with ``strict_recovery``."""
        found, loaded, recovered = found_there
        topic = self._make(name, found.settings, recovered=recovered, offsets=loaded, incarnation=found.incarnation)
        if found.problem is not None:
            topic.distrust_settings(found.problem)
            logger.error("topic %s is degraded: its settings cannot be trusted: %s; the defaults hold and nothing is removed, "
                         "until CONFIG or `toymq repair`", name, found.problem)  # fmt: skip
        self._topics[name] = topic
        self._quotas.topic_there(name, self._topics)
        self._dead_letters.note_recovered_keys(name, recovered.keys)
        if topic.offsets.problem is not None:
            level = logging.WARNING if loaded.source is offsets.OffsetsSource.CURRENT else logging.ERROR
            logger.log(level, "topic %s: offsets from %s: %s", name, loaded.source.value, topic.offsets.problem)
        log = topic.log
        if log.degraded and self._options.strict_recovery:
            what = f"is damaged: {next(iter(log.problems), '')}"
            for first, last in (log.lost or log.unreadable)[:1]:
                what = f"has a hole, {id_ranges.record_range(first, last, 'are lost' if log.lost else 'are unreadable')}"
            raise DataDirectoryError(f"topic {name} {what}, and --strict-recovery is on")
        if log.degraded:
            unreadable = sum(last - first + 1 for first, last in log.unreadable)
            what = f"{units.counted(log.lost_count(), 'record', 'are lost')}, {unreadable} unreadable"
            logger.error("topic %s is degraded: %s", name, "; ".join([what, *log.problems[:1]]))
