"""The groups of a cluster, and which group has which topic: the keys in etcd and their transactions. ADR 0188.

Contract: groups.md, stage 3. ``/toymq/<cluster>/topics/<topic>`` is ``{"group": "a"}``, written create-if-absent, by a leader.
Only leaders of the group that a record names change or remove it, each time with a compare of their epoch. So a leader's
knowledge of its own group's records is exact for as long as its publishes can be acknowledged. Nothing here decides
anything. The record of a partitioned topic also has the number and the settings of its partitions, and each partition has a
record of its own.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from toymq_py.errors import DamagedData, EtcdError
from toymq_py.names import DEAD_LETTERS, PARTITION_MARK, whole_name
from toymq_py.partitions import PARTITIONS
from toymq_py.replication.agreement import DEFAULT_GROUP, ClusterSettings, LeaderKey, Member, Outcome
from toymq_py.replication.group_keys import (
    TEXT_CHARS_MAX,
    GroupKeys,
    decode_group_settings,
    decode_in_sync,
    decode_leader,
    decode_member,
)
from toymq_py.replication.key_values import Check, Compare, Delete, Found, KeyRange, KeyValue, KeyValues, News, Put, Transaction
from toymq_py.storage.checked_json import parse_object
from toymq_py.storage.partitions_file import StoredPartitions, fields_of, stored_of

CLAIMED_TOGETHER = 100
"""Records that are claimed in one transaction: etcd takes 128 operations."""


@dataclass(frozen=True, slots=True)
class Record:
    """The group that has a topic. ``revision``: the record's in etcd; ``whole``: the partitions, of a partitioned topic (ADR
    0198)."""

    group: str
    revision: int
    whole: StoredPartitions | None = None


@dataclass(frozen=True, slots=True)
class Move:
    """A request to move a topic to a group. ``refused``: why it cannot be moved. ``revision``: the key's, new with each
    attempt."""

    to: str
    revision: int
    refused: str | None = None


@dataclass(slots=True)
class Group:
    """The known state of a group.

    Attributes:
        made: whether the group has settings, so that it may have topics.
        placed: whether a leader with ``--group`` has served it, so that each of its topics has a record.
        begun: whether a node has ever led it.
        settings: its settings, such as the number of copies; None when they cannot be read.
        in_sync: how many of its copies are in sync.
        settings_revision: the etcd revision of the last change of its settings.
        adopted_revision: the same, if the settings name a copy adopted after a loss of etcd; else 0.
        leader: the current leader; None without one.
        led: the last leader that was seen.
        nodes: the nodes with a lease, by replica id.
        seen: all nodes that ever had a lease and were not removed.
        load: messages stored and delivered per second, as its leader reports.
    """

    made: bool = False
    placed: bool = False
    begun: bool = False
    settings: ClusterSettings | None = None
    in_sync: int = 0
    settings_revision: int = 0
    adopted_revision: int = 0
    leader: LeaderKey | None = None
    led: Member | None = None
    nodes: dict[str, Member] = field(default_factory=dict)
    seen: dict[str, Member] = field(default_factory=dict)
    load: float = 0.0

    def addresses(self) -> list[str]:
        """The addresses (HOST:PORT) for clients of the group's nodes, the current or last leader first; of the last known nodes
        while none runs."""
        return list(dict.fromkeys(member.url for member in self._members()))

    def tls_addresses(self) -> list[str]:
        """The addresses (HOST:PORT) for TLS clients of the nodes that speak TLS; for a node of an older version its plain
        address."""
        found = (member.url if member.tls is None else member.tls for member in self._members())
        return [address for address in dict.fromkeys(found) if address]

    def _members(self) -> list[Member]:
        first = [self.led] if self.led is not None else []
        return [*first, *sorted((self.nodes or self.seen).values(), key=lambda each: each.url)]


class Picture:
    """The groups and topic records of a cluster, as far as etcd has reported them. ``revision``: that of the last change."""

    def __init__(self, cluster_root: str, found: Found | None = None) -> None:
        self._root = cluster_root
        self.groups: dict[str, Group] = {}
        self.records: dict[str, Record] = {}
        self.moves: dict[str, Move] = {}
        self.revision = found.revision if found is not None else 0
        for each in found.keys if found is not None else ():
            self._put(each)

    def unplaced(self) -> list[str]:
        """The groups that may have topics without records. A group that no node has led has no topics, unless its copies are
        older than a loss of etcd: then its settings were made before a copy of some group was adopted. ADR 0246."""
        lost_before = max((group.adopted_revision for group in self.groups.values()), default=0)
        return [
            name for name, group in self.groups.items()
            if group.made and not group.placed and (group.begun or group.settings_revision <= lost_before)
        ]  # fmt: skip

    def counts(self) -> Counter[str]:
        """The number of topics of each group, counted as for ``--max-topics``: partitions count, a partitioned topic itself
        does not. Dead-letter topics have no record."""
        return Counter(record.group for record in self.records.values() if record.whole is None)

    def apply(self, news: News) -> list[str]:
        """Apply changes, in their order. Returns: the topics whose records were written or removed."""
        topics = []
        for change in news.changes:
            if isinstance(change, tuple):
                key = change[0]
                self._remove(*change)
            else:
                key = change.key
                self._put(change)
            if key.startswith(of_topics := f"{self._root}topics/"):
                topics.append(key.removeprefix(of_topics))
        self.revision = max(self.revision, news.revision)
        return topics

    def _put(self, found: KeyValue) -> None:
        """Apply a changed key. An unreadable value, perhaps of a later version, changes nothing."""
        kind, _, rest = found.key.removeprefix(self._root).partition("/")
        try:
            if kind == "topics":
                known = self.records.get(rest)
                if known is None or known.revision <= found.changed:  # else it was read since
                    self.records[rest] = decode_record(rest, found)
            elif kind == "moves":
                self.moves[rest] = decode_move(found)
            elif kind == "config":
                self._put_settings(self._group(DEFAULT_GROUP), found)
            elif kind == "groups":
                self._put_of_group(*_divided(rest), found)
        except EtcdError:
            return

    def _put_of_group(self, name: str, part: str, found: KeyValue) -> None:
        group = self._group(name)
        if part == "config":
            self._put_settings(group, found)
        elif part == "placed":
            group.placed = True
        elif part == "isr":
            group.begun = True
            group.in_sync = len(decode_in_sync(found).members)
        elif part == "leader":
            group.leader = decode_leader(found)
            group.led = group.leader.member
        elif part == "weight":
            group.load = decode_load(found)
        elif part.startswith("seats/"):
            group.nodes[part.removeprefix("seats/")] = decode_member(found)
        elif part.startswith("seen/"):
            group.seen[part.removeprefix("seen/")] = decode_member(found)

    @staticmethod
    def _put_settings(group: Group, found: KeyValue) -> None:
        group.made, group.settings_revision = True, found.changed
        group.adopted_revision = found.changed if "adopted" in _object(found) else 0
        group.settings = decode_group_settings(found)

    def _remove(self, key: str, revision: int) -> None:
        kind, _, rest = key.removeprefix(self._root).partition("/")
        if kind == "topics":
            if (record := self.records.get(rest)) is not None and record.revision < revision:
                del self.records[rest]
            return
        if kind == "moves":
            self.moves.pop(rest, None)
            return
        name, part = _divided(rest) if kind == "groups" else (DEFAULT_GROUP, kind)
        group = self._group(name)
        if part == "config":
            group.made, group.adopted_revision = False, 0
        elif part == "placed":
            group.placed = False
        elif part == "isr":
            group.begun, group.in_sync = False, 0
        elif part == "leader":
            group.leader = None
        elif part == "weight":
            group.load = 0.0
        elif part.startswith("seats/"):
            group.nodes.pop(part.removeprefix("seats/"), None)
        elif part.startswith("seen/"):
            group.seen.pop(part.removeprefix("seen/"), None)

    def _group(self, name: str) -> Group:
        return self.groups.setdefault(name, Group())


def _divided(rest: str) -> tuple[str, str]:
    name, _, part = rest.partition("/")
    return name, part


def decode_record(topic: str, found: KeyValue) -> Record:
    """Decode the record of a topic. Raises: EtcdError."""
    fields = _object(found)
    group = fields.get("group")
    if not isinstance(group, str) or not group:
        raise EtcdError(f"{found.key} in etcd names no group")
    try:
        return Record(group, found.changed, stored_of(topic, fields) if PARTITIONS in fields else None)
    except DamagedData as error:
        raise EtcdError(f"{found.key} in etcd: {error}") from None


def decode_move(found: KeyValue) -> Move:
    """Decode the request for a move. Raises: EtcdError."""
    fields = _object(found)
    to, refused = fields.get("to"), fields.get("refused")
    if not isinstance(to, str) or not to or not isinstance(refused, str | None):
        raise EtcdError(f"{found.key} in etcd names no group to move to")
    return Move(to, found.changed, refused)


def decode_load(found: KeyValue) -> float:
    """Decode the load of a group. Raises: EtcdError."""
    load: Any = _object(found).get("messages_s")
    if type(load) not in (int, float) or not 0 <= load < float("inf"):
        raise EtcdError(f"{found.key} in etcd has no messages_s")
    return float(load)


def _object(found: KeyValue) -> dict[str, Any]:
    try:
        return parse_object("value", found.value)
    except DamagedData as error:
        raise EtcdError(f"{found.key} in etcd: {error}") from None


def why_it_stays(topic: str, record: Record | None) -> str | None:
    """The reason why a topic cannot move to another group; None if it can. A partitioned topic cannot: publishes to it are
    split over its partitions, and could not wait for one that is between two groups."""
    if PARTITION_MARK not in topic and (record is None or record.whole is None):
        return None
    whole = whole_name(topic).removesuffix(DEAD_LETTERS)
    what = f"{topic} is a partition of {whole}" if topic != whole else f"{topic} is partitioned"
    return (
        f"{what}, whose partitions stay in their groups: CREATE spreads those of a new topic over all groups, or makes them"
        f" in the one of group=; publish there, and delete {whole} when it is drained"
    )


class KeptPlaces:
    """The calls by which a node reads and changes these keys. Each may raise ``EtcdError``; then the outcome of a transaction
    is unknown."""

    def __init__(self, store: KeyValues, cluster: str, group: str) -> None:
        """Raises: ConfigError on an invalid name."""
        self._store = store
        self._keys = GroupKeys(cluster, group)
        root = self._keys.root
        self._range = KeyRange(f"{root}config", f"{root}topics0")  # "0" follows "/"

    def bound(self, ttl_s: float) -> None:
        """Set the time limits of calls and watches (``KeyValues.bound``)."""
        self._store.bound(ttl_s)

    async def read(self) -> Picture:
        """The whole picture, read linearizably."""
        return Picture(self._keys.root, await self._store.get(self._range))

    async def news(self, since: int) -> News:
        """Wait for changes after the revision ``since``, and return them (``KeyValues.news``)."""
        return await self._store.news(self._range, since)

    async def ping(self) -> None:
        """Read a small key, to see whether the etcd member of a silent watch still answers."""
        await self._store.get(self._keys.settings)

    async def record(self, topic: str) -> Record | None:
        """The current record of a topic, read linearizably; None without one."""
        key = self._topic(topic)
        found = await self._store.get(KeyRange(key, key + "\0"))
        return next((decode_record(topic, each) for each in found.keys), None)

    async def records_of(self, whole: str) -> dict[str, Record]:
        """The current records of a topic and its partitions, by name, read linearizably."""
        key = self._topic(whole)
        found = await self._store.get(KeyRange(key, key + chr(ord(PARTITION_MARK) + 1)))  # no name has what is before the mark
        names = [each.key.removeprefix(self._topic("")) for each in found.keys]
        return {name: decode_record(name, each) for name, each in zip(names, found.keys, strict=True)}

    async def claim(self, topics: Sequence[str], group: str, epoch: int | None) -> Outcome:
        """Write the records of topics that have none, ``CLAIMED_TOGETHER`` at most; all of them, or none. ``epoch``: this
        leader's, to claim for its own group; None to claim for another group, which must be placed."""
        keys = [self._topic(topic) for topic in topics]
        is_there = [Compare(self._keys.placed_of(group), Check.PRESENT)] if epoch is None else self._under(epoch)
        compares = [*is_there, *(Compare(key, Check.ABSENT) for key in keys)]
        return await self._commit(compares, *(Put(key, encode_record(group)) for key in keys))

    async def divide(self, stored: StoredPartitions, revision: int | None, group: str, epoch: int) -> Outcome:
        """Write the record of a partitioned topic, with its home group. ``revision``: that of the record to replace; None for a
        new one."""
        key = self._topic(stored.topic.name)
        unchanged = Compare(key, Check.ABSENT) if revision is None else Compare(key, Check.CHANGED_AT, revision)
        return await self._commit([*self._under(epoch), unchanged], Put(key, encode_record(group, stored)))

    async def claim_parts(self, places: Mapping[str, str], whole: str, revision: int, epoch: int) -> Outcome:
        """Write the records of partitions that have none, ``CLAIMED_TOGETHER`` at most, each with its group; all of them, or
        none, and only while the record of the topic has ``revision``."""
        compares = [*self._under(epoch), Compare(self._topic(whole), Check.CHANGED_AT, revision)]
        keys = {self._topic(name): group for name, group in places.items()}
        compares += (Compare(key, Check.ABSENT) for key in keys)
        return await self._commit(compares, *(Put(key, encode_record(group)) for key, group in keys.items()))

    async def release(self, topic: str, revision: int, epoch: int) -> Outcome:
        """Remove the record of a topic, if it still has ``revision``."""
        key = self._topic(topic)
        return await self._commit([*self._under(epoch), Compare(key, Check.CHANGED_AT, revision)], Delete(key))

    # -- moves. ADR 0194

    async def move(self, topic: str) -> Move | None:
        """The requested move of a topic, read linearizably."""
        key = self._move(topic)
        found = await self._store.get(KeyRange(key, key + "\0"))
        return next((decode_move(each) for each in found.keys), None)

    async def ask(self, topic: str, record: Record, to: str, before: Move | None) -> Outcome:
        """Request a move of a topic away from the group in ``record``. ``before``: the earlier request, which this replaces."""
        asked = Compare(self._move(topic), Check.ABSENT)
        if before is not None:
            asked = Compare(self._move(topic), Check.CHANGED_AT, before.revision)
        return await self._commit(
            [Compare(self._topic(topic), Check.CHANGED_AT, record.revision), asked], Put(self._move(topic), encode_move(to))
        )

    async def withdraw(self, topic: str, move: Move) -> Outcome:
        """Withdraw the request for a move."""
        return await self._commit([Compare(self._move(topic), Check.CHANGED_AT, move.revision)], Delete(self._move(topic)))

    async def attempt(self, topic: str, move: Move, epoch: int, refused: str | None = None) -> Outcome:
        """Begin an attempt to move a topic to this group. The outcome's revision is the attempt's number; from then on ``give``
        fails for earlier attempts. ``refused``: instead of an attempt, record why there will be none."""
        compares = [*self._under(epoch), Compare(self._move(topic), Check.CHANGED_AT, move.revision)]
        return await self._commit(compares, Put(self._move(topic), encode_move(move.to, refused)))

    async def give(self, topic: str, revision: int, epoch: int, to: str, epoch_there: int, attempt: int) -> Outcome:
        """Give a topic from this group to another, if its record still has ``revision``, both groups still have these leaders
        (``epoch``, ``epoch_there``), and no later attempt has begun."""
        compares = [
            *self._under(epoch),
            Compare(self._keys.leader_of(to), Check.CREATED_AT, epoch_there),
            Compare(self._topic(topic), Check.CHANGED_AT, revision),
            Compare(self._move(topic), Check.CHANGED_AT, attempt),
        ]
        return await self._commit(compares, Put(self._topic(topic), encode_record(to)), Delete(self._move(topic)))

    async def mark_placed(self, epoch: int) -> Outcome:
        """Mark this group as placed: each of its topics has a record."""
        return await self._commit(self._under(epoch), Put(self._keys.placed, b"{}"))

    async def close_group(self) -> Outcome:
        """Close this group, which has no leader: no topic is placed in it until a leader serves it again."""
        return await self._commit([Compare(self._keys.leader, Check.ABSENT)], Delete(self._keys.placed))

    async def remove_group(self) -> Outcome:
        """Remove the keys of this group, which must be closed, and of its nodes."""
        end = f"{self._keys.group[:-1]}0"  # "0" follows "/"
        found = await self._store.get(KeyRange(self._keys.group, end))
        compares = [Compare(self._keys.leader, Check.ABSENT), Compare(self._keys.placed, Check.ABSENT)]
        return await self._commit(compares, Delete(self._keys.config), *(
            Delete(each.key) for each in found.keys if each.key != self._keys.config
        ))  # fmt: skip

    async def weigh(self, load: float, lease: int) -> None:
        """Write the load of the group, for as long as the lease lives."""
        await self._commit([], Put(self._keys.weight, json.dumps({"messages_s": load}).encode(), lease))

    async def close(self) -> None:
        await self._store.close()

    def _topic(self, topic: str) -> str:
        return f"{self._keys.root}topics/{topic}"

    def _move(self, topic: str) -> str:
        return f"{self._keys.root}moves/{topic}"

    def _under(self, epoch: int | None) -> list[Compare]:
        return [] if epoch is None else [Compare(self._keys.leader, Check.CREATED_AT, epoch)]

    async def _commit(self, compares: Sequence[Compare], *changes: Put | Delete) -> Outcome:
        return await self._store.commit(Transaction(compares, changes))


def encode_record(group: str, whole: StoredPartitions | None = None) -> bytes:
    fields = {} if whole is None else fields_of(whole)
    return json.dumps({"group": group, **fields}, separators=(",", ":")).encode()


def encode_move(to: str, refused: str | None = None) -> bytes:
    fields = {"to": to} if refused is None else {"to": to, "refused": refused[:TEXT_CHARS_MAX]}
    return json.dumps(fields, separators=(",", ":")).encode()
