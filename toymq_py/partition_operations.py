"""Commands for a topic that may be partitioned: they act on each partition that this process has. Contract: groups.md,
stage 4; ADR 0184. Belongs to the event loop."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from toymq_py.broker import Broker, Done
from toymq_py.consumer_options import Start
from toymq_py.errors import BadArgument, NoSuchConsumer, NoSuchTopic, RequestError
from toymq_py.names import DEAD_LETTERS, is_dead_letters
from toymq_py.partitioned_topics import for_each, refuse_partitions
from toymq_py.partitions import PARTITIONS, Partitioned, common_settings, described_whole
from toymq_py.records import IdRange

Counted = Callable[[int, OSError | RequestError | None], None]
"""Called with a number of messages, or the error."""


def create(broker: Broker, name: str, changes: Mapping[str, str], done: Done) -> None:
    """Create a topic, partitioned if ``changes`` has a number of partitions, or confirm an existing one. Raises: as
    ``Broker.create``, BadName."""
    broker.refuse_late()
    whole = None if PARTITIONS in changes else _whole(broker, name)
    if PARTITIONS not in changes and (whole is None or is_dead_letters(name)):
        broker.create(name, changes, done)
        return
    settings = {word: value for word, value in changes.items() if word not in (PARTITIONS, "group")}
    count = changes.get(PARTITIONS) or str(whole.count if whole is not None else 0)
    broker.partitioned.create(
        name, count, settings, partial(_is_topic, broker), broker.create,
        partial(_remove, broker), done, changes.get("group"),
    )  # fmt: skip


def _is_topic(broker: Broker, name: str) -> bool:
    return name in broker.topics or (name in broker.unopened and name not in broker.partitioned.lost)


def _whole(broker: Broker, name: str) -> Partitioned | None:
    """Find the partitioned topic to create or delete. In a cluster with groups the state known here only tells whether the name
    is that of a partitioned topic; etcd is asked afterwards.

    Raises: BeingDeleted, StorageFailed.
    """
    if broker.placement.table is None:
        return broker.partitioned.find(name)
    return broker.partitioned.by_name.get(name.removesuffix(DEAD_LETTERS))


def configure(broker: Broker, name: str, changes: Mapping[str, str], done: Done) -> None:
    """Change settings of a topic, or of all its partitions. Raises: as ``Broker.configure``; then ``done`` is not called."""
    refuse_partitions(changes)
    members = broker.partitioned.members(name)
    if members is None:
        broker.configure(name, changes, done)
        return
    present = [broker.topic(one) for one in members]
    for topic in present:
        topic.settings.changed(changes)
    for_each(members, lambda one, ended: broker.configure(one, changes, ended), done)


def settings_of(broker: Broker, name: str) -> dict[str, Any] | None:
    """The settings of a topic; of a partitioned one those that all its partitions here have in common, with the number of
    partitions, or None if none is here. Raises: NoSuchTopic."""
    members = broker.partitioned.members(name)
    if members is None:
        return dict(broker.topic(name).settings.to_json())
    whole = broker.partitioned.find(name)
    assert whole is not None
    found = [broker.topic(one).settings.to_json() for one in members]
    return {PARTITIONS: whole.count, **common_settings(found)} if found else None


def delete(broker: Broker, name: str, done: Counted) -> None:
    """Remove a topic; a partitioned one with the dead letters of its partitions.

    Raises: NoSuchTopic, BadArgument, ShuttingDown; then ``done`` is not called.
    """
    broker.refuse_late()
    whole = _whole(broker, name)
    if whole is None or is_dead_letters(name):
        if (part := broker.partitioned.part_of(name)) is not None:
            raise BadArgument(f"{name} is a partition of {part}: delete {part}, or purge {name}")
        _counted(broker, name, broker.delete, done)
        return
    total = 0

    def remove(one: str, ended: Done) -> None:
        def removed(count: int, error: OSError | RequestError | None) -> None:
            nonlocal total
            total += count
            ended(error)

        if one in broker.topics:
            broker.delete(one, removed)
        else:
            ended(broker.unopened.get(one))

    broker.partitioned.delete(name, remove, lambda error: done(total, error))


def _remove(broker: Broker, name: str, done: Done) -> None:
    if name in broker.topics:
        broker.delete(name, lambda count, error: done(error))
    else:
        done(None)


def purge(broker: Broker, name: str, done: Counted) -> None:
    """Drop the messages of a topic. Raises: NoSuchTopic."""
    _counted(broker, name, lambda one, ended: broker.topic(one).purge(ended), done)


def redrive(broker: Broker, name: str, ids: Sequence[IdRange] | None, max_count: int | None, done: Counted) -> None:
    """Redrive dead letters as ``Broker.redrive``; ``max_count`` is for all partitions together. Raises: also BadArgument."""
    members = broker.partitioned.members(name)
    if members is None:
        broker.redrive(name, ids, max_count, done)
        return
    if ids is not None or max_count is not None:
        raise BadArgument(f"ids and max are of one partition: name its dead letters, such as {members[0] if members else name}")
    _counted(broker, name, lambda one, ended: broker.redrive(one, None, None, ended), done, lacking=NoSuchTopic)


def _counted(
    broker: Broker, name: str, begin: Callable[[str, Counted], None], done: Counted, lacking: type[RequestError] | None = None
) -> None:
    members = broker.partitioned.members(name)
    if members is None:
        begin(name, done)
        return
    total = 0

    def start(one: str, ended: Done) -> None:
        def counted(count: int, error: OSError | RequestError | None) -> None:
            nonlocal total
            total += count
            ended(error)

        begin(one, counted)

    for_each(members, start, lambda error: done(total, error), lacking=lacking)


def forget(broker: Broker, name: str, consumer: str, done: Done) -> None:
    """Delete a consumer. Raises: NoSuchTopic, NoSuchConsumer; then ``done`` is not called."""
    for_each_with(broker, name, lambda one, ended: _forget(broker, one, consumer, ended), done)


def _forget(broker: Broker, name: str, consumer: str, done: Done) -> None:
    topic = broker.topic(name)
    topic.forget(consumer)
    topic.flush_offsets(done)


def for_each_with(broker: Broker, name: str, begin: Callable[[str, Done], None], done: Done) -> None:
    """Call ``begin`` for a topic, or for each of its partitions that has the consumer. Raises: as ``begin``, for a plain
    topic."""
    members = broker.partitioned.members(name)
    if members is None:
        begin(name, done)
    elif members:
        for_each(members, begin, done, lacking=NoSuchConsumer)
    else:
        raise NoSuchConsumer(f"no partition of {name} with this worker has such a consumer")


def check_seek(broker: Broker, name: str, start: Start) -> None:
    """Refuse to seek a consumer of all partitions to an id, as each partition has its own ids. Raises: BadArgument."""
    if start.kind == "id" and broker.partitioned.find(name) is not None:
        others = "or give earliest, latest or a time"
        raise BadArgument(f"{start} is an id, and each partition has its own: name one, such as {name}#0, {others}")


def describe(broker: Broker, name: str) -> dict[str, Any]:
    """The JSON object of DESCRIBE. Raises: NoSuchTopic."""
    members = broker.partitioned.members(name)
    if members is None:
        return broker.topic(name).describe()
    whole = broker.partitioned.find(name)
    assert whole is not None
    return described_whole(name, whole.count, [broker.topic(one).describe() for one in members if broker.has(one)])
