"""The partitioned topics of a cluster with groups, as the leader of one of them knows and changes them. ADR 0198.

Contract: groups.md, stage 4. The record of a partitioned topic in etcd names its *home*, the group whose leaders change that
record, with the number and the settings of the partitions. Each partition has a record of its own, as every topic has.

    CREATE   1  the home writes the record of the topic         DELETE   1  the home marks the record as being deleted
             2  the home writes the records of the partitions,           2  each group removes its partitions, then their
                each only while that of the topic stays as it is            records
             3  each group reads them, and makes its partitions          3  the home removes the record, if no partition has one

A kill between two steps leaves a topic that a repeat of the command completes: nothing but these steps makes a partition or its
record. A leader knows the topics of other homes from etcd's watch, and from its own reads of etcd for a command. CREATE and
DELETE are answered when every group has read the change.
"""

import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from toymq_py.errors import EtcdError, NoSuchTopic, PlacementUnknown, RequestError, TopicExists
from toymq_py.names import DEAD_LETTERS, some_of
from toymq_py.partitions import PARTITIONS, Partitioned
from toymq_py.placement import spread
from toymq_py.replication.kept_places import CLAIMED_TOGETHER, KeptPlaces, Record
from toymq_py.storage.partitions_file import StoredPartitions

logger = logging.getLogger("toymq_py.cluster")

TRIES_MAX = 10
"""Most tries of a change, while other leaders change the same records."""

T = TypeVar("T")


class Books(Protocol):
    """What partitioned topics need of ``GroupPlacement``."""

    group: str
    epoch: int

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task that ends with the leader's term."""

    async def alone(self, origin: str, work: Callable[[], Awaitable[T]]) -> T:
        """Run a change of a topic's record once no other change of it runs. Raises: PlacementUnknown."""

    def learn(self, topic: str, record: Record | None) -> None:
        """Apply a record that was read linearizably from etcd; None when the topic has none."""

    def groups_for_parts(self, topic: str, wanted: str | None) -> Sequence[str]:
        """The groups that get the partitions of a topic. Raises: PlacementUnknown when one has no leader; BadArgument."""

    def moved_to(self, name: str, topic: str, has: str = "has") -> RequestError:
        """The MOVED error for a topic of the group ``name``; ``has``: the verb that the text says of that group."""

    def has_topic(self, topic: str) -> bool:
        """Whether this broker has the topic or its dead letters."""

    async def quiet(self, topics: Iterable[str]) -> None:
        """Wait until no change of these topics' records is under way. Raises: PlacementUnknown."""

    async def let_go(self, topics: Iterable[str]) -> None:
        """Remove this group's records of topics that do not exist any more. Raises: PlacementUnknown."""


class GroupPartitions:
    """The ``PartitionTable`` of a broker in a cluster with groups. Belongs to the event loop."""

    def __init__(self, kept: KeptPlaces, books: Books) -> None:
        self.on_change: Callable[[str, Partitioned | None, bool], None] = lambda name, topic, deleting: None
        self.is_complete = False
        self._kept = kept
        self._books = books
        self._known: dict[str, StoredPartitions] = {}

    def known(self) -> Mapping[str, tuple[Partitioned, bool]]:
        return {name: (stored.topic, stored.deleting) for name, stored in self._known.items()}

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def note(self, name: str, stored: StoredPartitions | None) -> None:
        """Apply the current record of a name; None when the name is not that of a partitioned topic."""
        if stored == self._known.get(name):
            return
        if stored is None:
            del self._known[name]
            self.on_change(name, None, False)
        else:
            self._known[name] = stored
            self.on_change(name, stored.topic, stored.deleting)

    # -- as a ``PartitionTable``

    def make(
        self, wanted: Partitioned, group: str | None, done: Callable[[Partitioned | RequestError], None]
    ) -> None:
        """Make a partitioned topic (``PartitionTable.make``). ``done`` gets it, or the error."""
        work = partial(self._books.alone, wanted.name, partial(self._make, wanted, group))
        self._books.spawn(_answered(wanted.name, work, done))

    def begin_delete(self, name: str, done: Callable[[Partitioned | RequestError], None]) -> None:
        """Mark a partitioned topic as being deleted (``PartitionTable.begin_delete``). ``done`` gets it, or the error."""
        self._books.spawn(_answered(name, partial(self._books.alone, name, partial(self._begin_delete, name)), done))

    def end_delete(self, topic: Partitioned, done: Callable[[RequestError | None], None]) -> None:
        """Remove the record of a deleted partitioned topic (``PartitionTable.end_delete``). ``done`` gets an error or None."""
        work = partial(self._books.alone, topic.name, partial(self._end_delete, topic))
        self._books.spawn(_answered(topic.name, work, done))

    # -- steps

    async def _make(self, wanted: Partitioned, group: str | None) -> Partitioned:
        """Write the records of a partitioned topic. Raises: EtcdError; TopicExists, Moved, PlacementUnknown, BadArgument."""
        books, name = self._books, wanted.name
        await books.quiet(wanted.names)
        for _ in range(TRIES_MAX):
            records = await self._kept.records_of(name)
            record = records.get(name)
            if record is None or record.whole is None:
                self._check_free(name, record)
                books.groups_for_parts(name, group)  # before anything is written
                if group not in (None, books.group):
                    raise books.moved_to(group, name, "is to have")
                revision = None if record is None else record.revision
                await self._kept.divide(StoredPartitions(wanted), revision, books.group, books.epoch)
                continue
            books.learn(name, record)
            topic = record.whole.topic
            if record.whole.deleting:
                raise PlacementUnknown(f"{name} is being deleted: repeat DELETE {name} first")
            if topic.count != wanted.count:
                raise TopicExists(differs(topic, wanted))
            elsewhere = sorted({found.group for one, found in records.items() if one != name} - {group})
            if group is not None and elsewhere:
                raise TopicExists(f"{name} has partitions in group {some_of(elsewhere)}, not all in {group}")
            missing = [one for one in topic.names if one not in records]
            if not missing:
                self._learn_parts(topic, records)
                return topic
            if record.group != books.group:
                raise books.moved_to(record.group, name)
            groups = books.groups_for_parts(name, group)
            has = [records[one].group for one in topic.names if one in records]
            places = spread(missing, {group: has.count(group) for group in groups})
            for at in range(0, len(missing), CLAIMED_TOGETHER):
                some = {one: places[one] for one in missing[at : at + CLAIMED_TOGETHER]}
                if not (await self._kept.claim_parts(some, name, record.revision, books.epoch)).done:
                    break
        raise PlacementUnknown(f"{name} is changed by others, or this node leads {books.group} no longer: try again")

    def _check_free(self, name: str, record: Record | None) -> None:
        """Check that no plain topic has the name. Raises: Moved, TopicExists."""
        if record is not None and record.group != self._books.group:
            self._books.learn(name, record)
            raise self._books.moved_to(record.group, name)
        if self._books.has_topic(name):
            raise TopicExists(f"{name}, or {name}{DEAD_LETTERS}, exists and is not partitioned: delete it first")

    async def _begin_delete(self, name: str) -> Partitioned:
        """Mark a partitioned topic as being deleted. Raises: EtcdError; NoSuchTopic, Moved, PlacementUnknown."""
        for _ in range(TRIES_MAX):
            records = await self._kept.records_of(name)
            record = records.get(name)
            if record is None or record.whole is None:
                self._books.learn(name, record)
                raise NoSuchTopic(f"there is no topic {name} with partitions")
            self._books.learn(name, record)
            topic = record.whole.topic
            if record.whole.deleting:
                self._learn_parts(topic, records)
                return topic
            if record.group != self._books.group:
                raise self._books.moved_to(record.group, name)
            going = StoredPartitions(topic, deleting=True)
            await self._kept.divide(going, record.revision, record.group, self._books.epoch)
        raise PlacementUnknown(f"{name} is changed by others: repeat DELETE {name}")

    async def _end_delete(self, topic: Partitioned) -> None:
        """Remove the record of a partitioned topic that was deleted. Raises: EtcdError; PlacementUnknown."""
        await self._books.let_go(topic.names)
        records = await self._kept.records_of(topic.name)
        record = records.pop(topic.name, None)
        if record is not None and record.group == self._books.group and not records:
            outcome = await self._kept.release(topic.name, record.revision, self._books.epoch)
            if not outcome.done:
                raise PlacementUnknown(f"this node leads {self._books.group} no longer: repeat DELETE {topic.name}")
            record = None
        self._books.learn(topic.name, record)

    def _learn_parts(self, topic: Partitioned, records: Mapping[str, Record]) -> None:
        for one in topic.names:
            self._books.learn(one, records.get(one))


def differs(present: Partitioned, wanted: Partitioned) -> str:
    """The error text for a CREATE with another number of partitions than the topic has."""
    there = f"{PARTITIONS}={present.count}, not {wanted.count}"
    return f"{present.name} exists with {there}: the number is fixed at creation"


async def _answered(name: str, work: Callable[[], Awaitable[T]], done: Callable[[T | RequestError], None]) -> None:
    outcome: T | RequestError
    try:
        outcome = await work()
    except RequestError as error:
        outcome = error
    except EtcdError as error:
        outcome = PlacementUnknown(f"etcd does not say what becomes of {name} ({error}): repeat the command")
    except Exception:
        logger.exception("a bug in the partitions of %s", name)
        outcome = PlacementUnknown(f"a bug: the log of this leader has the details of what becomes of {name}")
    done(outcome)
