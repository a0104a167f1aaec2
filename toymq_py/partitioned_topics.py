"""The partitioned topics of a broker: a list of them, and the making and removing of their partitions.

Contract: groups.md, stage 4; ADR 0184. Belongs to the event loop.

    CREATE   1  partitions.json gets the topic         DELETE   1  partitions.json marks the topic as being deleted
             2  each partition is made                          2  each partition is removed, with its dead letters
                                                                3  the topic is removed from partitions.json

After a kill between two steps the next start completes the change before it opens a topic. With several workers, each has the
whole file, and the partitions that are placed with it. In a cluster with groups the leaders agree on the topics in etcd
(``PartitionTable``, ADR 0198), and the file is a copy in case etcd loses them.

A topic that has partitions on the disk, but is not in the file, is *lost*: it is refused until a CREATE with its number of
partitions, so that no plain topic takes its name (ADR 0216).
"""

import logging
import secrets
from collections.abc import Callable, Container, Iterator, Mapping, Sequence

from toymq_py.callbacks import call_all
from toymq_py.config.topic_settings import TopicSettings
from toymq_py.data_directory import DataDirectory
from toymq_py.errors import (
    BadArgument,
    BeingDeleted,
    IsPartitioned,
    NameBusy,
    NoSuchTopic,
    PlacementUnknown,
    RequestError,
    ShuttingDown,
    StorageFailed,
    TopicExists,
)
from toymq_py.names import DEAD_LETTERS, PARTITION_MARK, TopicPattern, is_pattern, other_name, whole_name
from toymq_py.partitions import (
    PARTITIONS,
    Partitioned,
    check_whole_name,
    half_made,
    number_of,
    parse_partitions,
    wholes_of,
    without_number,
)
from toymq_py.placement import PartitionTable, Placement
from toymq_py.storage import topic_settings as settings_file
from toymq_py.storage.fs import FileSystem
from toymq_py.storage.partitions_file import StoredPartitions
from toymq_py.units import counted

logger = logging.getLogger("toymq_py.broker")

Done = Callable[[OSError | RequestError | None], None]


class PartitionedTopics:
    """All partitioned topics of one broker."""

    def __init__(
        self, fs: FileSystem, directory: DataDirectory, placement: Callable[[], Placement], topics: Container[str],
        unopened: dict[str, StorageFailed],
    ) -> None:  # fmt: skip
        """
        Args:
            topics, unopened: the broker's dicts. Lost topics are put into ``unopened``.
        """
        self.by_name: dict[str, Partitioned] = {}
        """The partitioned topics that are served, and those that are being made or deleted."""
        self.lost: dict[str, int] = {}
        """The lost topics, and how many partitions each has at least."""
        self._topics, self._unopened = topics, unopened
        self._fs = fs
        self._directory = directory
        self._placement = placement
        self._busy: dict[str, list[Callable[[], None]]] = {}  # not on the disk yet, or going; with what waits for the end
        self._deleting: set[str] = set()
        self._stuck: dict[str, RequestError] = {}  # some of their partitions are removed, and others could not be, or not yet
        self._storing: list[Done] | None = None
        self._to_store: list[Done] = []

    # -- opening

    def open(self) -> None:
        """Read the file, and complete changes that a kill has interrupted. Blocks. Assumes that no topic is open yet.

        Raises: DamagedData, OSError.
        """
        stored_here = found = self._directory.read_partitions()
        if (table := self._placement().table) is not None:
            agreed = {name: StoredPartitions(*known) for name, known in table.known().items()}
            found = agreed if table.is_complete else {**found, **agreed}
            table.on_change = self._agreed
        for stored in found.values():
            names = [name for one in stored.topic.names for name in (one, one + DEAD_LETTERS)]
            if stored.deleting:
                for name in names:
                    self._directory.remove_topic_now(name)
                if table is None:
                    continue
                self._stuck[stored.topic.name] = _going(stored.topic.name)
            self.by_name[stored.topic.name] = stored.topic
            if stored.deleting:
                continue
            for name in self.here(stored.topic.names):
                path = self._directory.topic_path(name)
                if not self._fs.is_dir(path) and name not in self._unopened:
                    logger.warning("partition %s was not made yet, or is lost: it is made empty", name)
                    settings = TopicSettings().changed(stored.topic.settings)
                    settings_file.store(self._fs, path, settings, secrets.token_hex(8))
        if self._content() != stored_here:
            self._placement().changing(False)
            self._directory.write_partitions(self._content())
        self._placement().changing(True)

    def note_lost(self, names: Sequence[str]) -> None:
        """Refuse lost topics, given the names of all topics here. Blocks. Assumes ``open``."""
        placement, found = self._placement(), wholes_of(names)
        if placement.table is None and placement.is_divided and not self._directory.has_partitions():
            # here would be a plain topic of the name, which must not be
            of_others = wholes_of(self._directory.topics_of_workers(placement.others()))
            found |= {name: max(least, found.get(name, 0)) for name, least in of_others.items() if placement.has(name)}
        self.lost = {name: least for name, least in sorted(found.items()) if name not in self.by_name}
        for name, least in self.lost.items():
            text = without_number(name, least)
            if name in names:
                logger.error("%s; before that, DELETE the topic %s without partitions, which is served", text, name)
            else:
                logger.error("%s", text)
                self._unopened[name] = StorageFailed(text)

    def _is_back(self, name: str) -> None:
        """Note that a lost topic is known again."""
        if self.lost.pop(name, None) is not None:
            self._unopened.pop(name, None)

    def _agreed(self, name: str, topic: Partitioned | None, deleting: bool) -> None:
        """Apply a change of a topic on which the leaders of the groups have agreed; ``topic`` None: it does not exist."""
        before = self._content().get(name)
        self._stuck.pop(name, None)
        if topic is None:
            self.by_name.pop(name, None)
        else:
            self.by_name[name] = topic
            self._is_back(name)
            if deleting:
                self._stuck[name] = _going(name)
        if before != self._content().get(name):
            self._store(lambda error: None)

    def _content(self) -> dict[str, StoredPartitions]:
        return {
            name: StoredPartitions(topic, name in self._deleting or name in self._stuck) for name, topic in self.by_name.items()
        }

    def here(self, names: tuple[str, ...]) -> Iterator[str]:
        """The partitions of a topic that are placed with this process."""
        placement = self._placement()
        return filter(placement.has, names)

    # -- looking

    def find(self, name: str) -> Partitioned | None:
        """The partitioned topic of this name, or the one for whose dead letters it stands. Raises: BeingDeleted,
        StorageFailed."""
        topic = self.by_name.get(name) or self.by_name.get(name.removesuffix(DEAD_LETTERS))
        if topic is not None and (topic.name in self._busy or topic.name in self._stuck):
            raise self._stuck.get(topic.name) or self._not_now(topic.name)
        if topic is None and self.lost:
            self.refuse_lost(name)
        return topic

    def refuse_lost(self, name: str) -> None:
        """Refuse a lost topic and its dead letters, except a plain topic of that name. Raises: StorageFailed."""
        origin = name.removesuffix(DEAD_LETTERS)
        if origin in self.lost and origin not in self.by_name and name not in self._topics:
            raise StorageFailed(without_number(origin, self.lost[origin]))

    def of_worker(self, worker: int) -> Container[str] | None:
        """The partitioned topics that another worker knows; None where ``read_of_worker`` is needed."""
        return self._directory.partitions_of_worker(worker, self._placement().change_of(worker))

    def read_of_worker(self, worker: int, done: Callable[[Container[str]], None]) -> None:
        """Read the partitioned topics of a worker from its disk, on a thread."""
        self._directory.read_partitions_of_worker(worker, self._placement().change_of(worker), done)

    @staticmethod
    def refuse_half_made(name: str, known: Container[str]) -> None:
        """Refuse a topic that is not partitioned here but is ``known`` as partitioned to the worker that would have a plain
        one: that worker would answer for its own partitions as if they were all. Raises: PlacementUnknown."""
        if name.removesuffix(DEAD_LETTERS) in known:
            raise half_made(name)

    def _not_now(self, name: str) -> BeingDeleted:
        what = "is being deleted" if name in self._deleting else "is being made"
        return BeingDeleted(name, self._busy[name].append, what)

    def members(self, name: str) -> list[str] | None:
        """The partitions of a partitioned topic that this process has, or their dead-letter topics; None if the topic is not
        partitioned. Raises: BeingDeleted."""
        topic = self.find(name)
        return None if topic is None else list(self.here(topic.members(name)))

    def pattern_of(self, name: str) -> TopicPattern | None:
        """A name as a pattern: itself if it is one, or the pattern of a partitioned topic's partitions; None for a plain topic.

        Raises: BadName, BeingDeleted.
        """
        if is_pattern(name):
            return TopicPattern(name)
        return TopicPattern.of_partitions(name) if self._has_some and self.find(name) is not None else None

    def other_name(self, name: str) -> str:
        """The other name that a subscription to all partitions may have: ``orders#*`` for ``orders``, and the reverse; the name
        itself for a plain topic."""
        is_whole = is_pattern(name) or name in self.by_name or name.removesuffix(DEAD_LETTERS) in self.by_name
        return (other_name(name) or name) if is_whole else name

    @property
    def _has_some(self) -> bool:
        return bool(self.by_name or self.lost)

    def is_whole(self, name: str) -> IsPartitioned | None:
        """The error for the name of a partitioned topic, or of all its dead letters, where a partition is required.

        Raises: BeingDeleted, StorageFailed.
        """
        whole = self.find(name) if self._has_some else None
        return None if whole is None else IsPartitioned.of(whole.name, whole.count, name.removeprefix(whole.name))

    def has_none(self, pattern: str) -> bool:
        """Whether a pattern matches the partitions, or their dead letters, of one topic that is not partitioned."""
        origin = whole_name(pattern).removesuffix(DEAD_LETTERS)
        return PARTITION_MARK in pattern and not (is_pattern(origin) or origin in self.by_name or origin in self.lost)

    def refuse_whole(self, name: str) -> None:
        """Refuse a partitioned topic where a pattern of its partitions is meant. Raises: BadArgument."""
        if name in self.by_name:
            raise BadArgument(f"{name} is partitioned: write {name}{PARTITION_MARK}*, or one of its partitions")

    def is_none(self, name: str) -> NoSuchTopic | None:
        """The error for the name of a partition that no partitioned topic has, or that is being deleted.

        Raises: StorageFailed.
        """
        if PARTITION_MARK not in name:
            return None
        origin = whole_name(name).removesuffix(DEAD_LETTERS)
        self.refuse_lost(origin)
        of, number = self.by_name.get(origin), number_of(name)
        if of is not None and number is not None and number < of.count and of.name not in self._deleting:
            return None
        if of is not None and of.name in self._deleting:
            return NoSuchTopic(f"{of.name} is being deleted")
        there = f"{origin} is not partitioned; create it with a number of partitions to have some"
        if of is not None:
            there = f"{origin} has {counted(of.count, 'partition')}, {of.names[0]} to {of.names[-1]}"
        return NoSuchTopic(f"there is no partition {name}: {there}")

    def part_of(self, name: str) -> str | None:
        """The partitioned topic that a name is a partition of."""
        origin, number = whole_name(name), number_of(name)
        if origin == name or number is None:
            return None
        count = of.count if (of := self.by_name.get(origin)) is not None else self.lost.get(origin, 0)
        return origin if number < count else None

    # -- changing

    def create(
        self, name: str, count: str, settings: Mapping[str, str], has: Callable[[str], bool],
        make: Callable[[str, Mapping[str, str], Done], None], remove: Callable[[str, Done], None], done: Done,
        group: str | None = None,
    ) -> None:  # fmt: skip
        """Make a topic with its partitions, or confirm an existing one. A lost topic comes back.

        Args:
            has: whether a topic of a name exists here.
            make: makes or confirms one partition, which is placed here.
            remove: removes one partition.
            group: the group of the cluster that shall have all partitions; None: they are spread over all groups.

        Raises: BadName, BadArgument, TopicExists, BeingDeleted; then ``done`` is not called.
        """
        wanted = Partitioned(check_whole_name(name), parse_partitions(count), dict(settings))
        TopicSettings().changed(settings)
        is_lost = name in self.lost and name not in self.by_name
        if is_lost and wanted.count < self.lost[name]:
            raise TopicExists(without_number(name, self.lost[name]))
        if (table := self._placement().table) is not None:
            self._create_agreed(table, wanted, group, has, make, done)
            return
        if group is not None:
            self._placement().admit(name, group)  # there are no groups
        if name in self._busy:  # also where a DELETE has taken it out of the table, which is being written
            raise self._not_now(name)
        present = None if is_lost else self.find(name)
        if has(name):
            raise TopicExists(f"{name} exists and is not partitioned: delete it first, or take another name")
        if present is not None and present.count != wanted.count:
            there = f"{PARTITIONS}={present.count}, not {wanted.count}"
            raise TopicExists(f"{name} exists with {there}: the number is fixed at creation")

        def made(error: OSError | RequestError | None) -> None:
            if error is not None and present is None and not is_lost:
                self.delete(name, remove, lambda failed: done(error))
            else:
                done(error)

        def stored(error: OSError | RequestError | None) -> None:
            waiting = self._busy.pop(name)
            if error is not None:
                del self.by_name[name]
                done(error)
            else:
                self._is_back(name)
                for_each(list(self.here(wanted.names)), lambda one, ended: make(one, settings, ended), made)
            call_all(waiting)

        if present is not None:
            for_each(list(self.here(present.names)), lambda one, ended: make(one, settings, ended), done)
            return
        self.by_name[name] = wanted
        self._busy[name] = []
        self._store(stored)

    def _create_agreed(
        self, table: PartitionTable, wanted: Partitioned, group: str | None, has: Callable[[str], bool],
        make: Callable[[str, Mapping[str, str], Done], None], done: Done,
    ) -> None:  # fmt: skip
        """Agree on a topic with the other groups, then make this group's partitions. After a failure, a repeat of the command
        completes them. Raises: BeingDeleted."""
        end = self._begin_alone(wanted.name, done)

        def made(outcome: Partitioned | RequestError) -> None:
            if isinstance(outcome, RequestError):
                end(outcome)
                return
            of_new = {**outcome.settings, **wanted.settings}
            for_each(
                list(self.here(outcome.names)),
                lambda one, ended: make(one, wanted.settings if has(one) else of_new, ended), end,
            )  # fmt: skip

        table.make(wanted, group, made)

    def _begin_alone(self, name: str, done: Done) -> Done:
        """Begin an exclusive change of a topic: other changes are refused until the returned function, which calls ``done``, is
        called. Raises: BeingDeleted."""
        if name in self._busy:
            raise self._not_now(name)
        self._busy[name] = []

        def end(error: OSError | RequestError | None) -> None:
            waiting = self._busy.pop(name)
            done(PlacementUnknown(str(error)) if isinstance(error, NameBusy) else error)
            call_all(waiting)

        return end

    def _delete_agreed(self, table: PartitionTable, name: str, remove: Callable[[str, Done], None], done: Done) -> None:
        """Agree on the deletion with the other groups, and remove this group's partitions. Raises: BeingDeleted."""
        end = self._begin_alone(name, done)
        self._deleting.add(name)

        def ended(error: OSError | RequestError | None) -> None:
            self._deleting.discard(name)
            end(error)

        def begun(outcome: Partitioned | RequestError) -> None:
            if isinstance(outcome, RequestError):
                ended(outcome)
                return
            topic = outcome
            names = [*self.here(topic.names), *self.here(topic.members(name + DEAD_LETTERS))]
            for_each(names, remove, lambda error: removed(topic, error))

        def removed(topic: Partitioned, error: OSError | RequestError | None) -> None:
            if error is not None:
                ended(error)
            else:
                table.end_delete(topic, ended)

        table.begin_delete(name, begun)

    def delete(self, name: str, remove: Callable[[str, Done], None], done: Done) -> None:
        """Remove a partitioned topic; ``remove`` removes one partition or dead-letter topic, which need not exist.

        Raises: BeingDeleted; then ``done`` is not called.
        """
        if (table := self._placement().table) is not None:
            self._delete_agreed(table, name, remove, done)
            return
        topic = self.find(name)
        assert topic is not None
        names = [*self.here(topic.names), *self.here(topic.members(name + DEAD_LETTERS))]
        self._busy[name] = []
        self._deleting.add(name)

        def finish(error: OSError | RequestError | None) -> None:
            waiting = self._busy.pop(name)
            done(error)
            call_all(waiting)

        def gone(error: OSError | RequestError | None) -> None:
            self._deleting.discard(name)
            finish(error)

        def removed(error: OSError | RequestError | None) -> None:
            if error is not None:
                self._stuck[name] = _undeleted(name, error)
                finish(self._stuck[name])
                return
            del self.by_name[name]
            self._store(gone)

        def announced(error: OSError | RequestError | None) -> None:
            if error is not None:
                gone(error)
            else:
                for_each(names, remove, removed)

        self._store(announced)

    def _store(self, done: Done) -> None:
        """Write the file; changes that come during a write share the next one."""
        self._to_store.append(done)
        if self._storing is None:
            self._store_next()

    def _store_next(self) -> None:
        self._storing, self._to_store = self._to_store, []
        self._placement().changing(False)

        def stored(error: OSError | None) -> None:
            waiting, self._storing = self._storing or [], None
            self._placement().changing(True)
            call_all(waiting, error)
            if self._to_store and self._storing is None:
                self._store_next()

        self._directory.store_partitions(self._content(), stored)


def _going(name: str) -> PlacementUnknown:
    return PlacementUnknown(f"{name} is being deleted, and that was interrupted: repeat DELETE {name}")


def _undeleted(name: str, error: OSError | RequestError) -> RequestError:
    if isinstance(error, ShuttingDown):
        return ShuttingDown(f"some of {name} may be deleted, and the broker is shutting down: its next start deletes the rest")
    reason = error.strerror if isinstance(error, OSError) else error
    return StorageFailed(f"{name} could not be deleted ({reason}): a restart of the broker completes it")


def for_each(
    names: Sequence[str], begin: Callable[[str, Done], None], done: Done, *, lacking: type[RequestError] | None = None
) -> None:
    """Call ``begin`` for each name; when all have ended, ``done`` gets the first error. An error of the class ``lacking``
    counts only if all names have it."""
    left, succeeded = len(names), 0
    errors: list[OSError | RequestError] = []

    def ended(error: OSError | RequestError | None) -> None:
        nonlocal left, succeeded
        left -= 1
        if error is None:
            succeeded += 1
        else:
            errors.append(error)
        if not left:
            graves = [one for one in errors if lacking is None or not isinstance(one, lacking) or not succeeded]
            done(graves[0] if graves else None)

    if not names:
        done(None)
    for name in names:
        try:
            begin(name, ended)
        except (OSError, RequestError) as error:
            ended(error)


def refuse_partitions(changes: Mapping[str, str]) -> None:
    """Refuse a change of the number of partitions. Raises: BadArgument."""
    if PARTITIONS in changes:
        raise BadArgument("the number of partitions is fixed at creation: create another topic with the number that you want")


