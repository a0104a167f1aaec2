"""Which group of a cluster has which topic, as the leader of one of them sees it. ADR 0188. Belongs to the event loop.

Contract: groups.md, stage 3. Two tables, which never mix:

    own       topics whose record in etcd names this group. Always exact: only this leader changes such a record, and a
              replaced leader acknowledges nothing more. Read when the term begins, changed by answered transactions
    picture   all other topics, from etcd's watch: milliseconds late, or much later while etcd is away. It only says where
              to send a client: the group that it names decides by its own table

A topic in neither table is claimed in etcd before it is made; commands that would make it wait (``NameBusy``). While etcd does
not answer, known topics are served, and new ones are refused with PLACEMENT_UNKNOWN.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from toymq_py.callbacks import call_all
from toymq_py.cluster import group_views
from toymq_py.cluster.group_partitions import GroupPartitions
from toymq_py.cluster.held_topics import HeldTopics
from toymq_py.errors import (
    BeingMoved,
    BeingPlaced,
    EtcdError,
    PlacementUnknown,
    RequestError,
    TermEnded,
    TopicExists,
)
from toymq_py.names import DEAD_LETTERS, PARTITION_MARK, whole_name
from toymq_py.partitions import Partitioned
from toymq_py.placement import Place, PlaceLink, Placement, choose_group
from toymq_py.replication.agreement import LeaderKey, ReplicaId
from toymq_py.replication.kept_places import CLAIMED_TOGETHER, KeptPlaces, Move, Picture, Record
from toymq_py.storage.partitions_file import StoredPartitions

logger = logging.getLogger("toymq_py.cluster")

T = TypeVar("T")

RETRY_MIN_S, RETRY_MAX_S = 0.05, 1.0
"""The time between two requests to etcd without an answer."""
REFUSE_S = 0.2
"""How long requests for a topic whose claim failed are refused; a later request tries again."""
CLAIMS_MAX = 32
"""Requests to etcd at a time; more wait, and are refused when one of these had no answer."""
OPEN_S = 30.0
"""How long a leader that was elected waits for etcd, before it serves."""

Connect = Callable[[str, bool, Callable[[], LeaderKey | None], Callable[[list[bytes]], None], Callable[[], None]], PlaceLink]
"""Makes a session's connection to a group, see ``PassLink``; True: with all rights."""


class GroupPlacement(Placement):
    """The placement of topics as a leader sees it. Call ``open`` and ``settle``, then ``run`` for as long as the term lasts."""

    def __init__(
        self, kept: KeptPlaces, group: str, me: ReplicaId, loop: asyncio.AbstractEventLoop, connect: Connect,
    ) -> None:  # fmt: skip
        super().__init__()
        self.group = group
        self.epoch = 0
        self.cluster = ""
        """The UUID of this group's settings."""
        self.claims = 0
        """Records that were written, for this group or another."""
        self.done: Callable[[], int] = lambda: 0
        """Returns how many messages this broker has stored and delivered."""
        self.is_here: Callable[[str], bool] = lambda topic: False
        """Whether this broker has a topic."""
        self.kept = self._kept = kept
        self._me = me
        self._loop = loop
        self._connect = connect
        self._own: dict[str, int] = {}  # revision of the record, by topic
        self._picture = Picture("")
        self._absences = group_views.Absences(loop.time)
        self._busy: dict[str, list[Callable[[], None]]] = {}  # what waits, by topic
        self._failed: dict[str, PlacementUnknown] = {}
        self._turns = asyncio.Semaphore(CLAIMS_MAX)
        self._away_until = 0.0  # etcd had no answer a moment ago
        self._tasks: set[asyncio.Task[None]] = set()
        self._parts = GroupPartitions(kept, self)
        self.held = HeldTopics(kept, self)

    # -- the term

    async def open(self) -> None:
        """Read the present state, once this node is elected. Raises: TermEnded."""
        self._picture = await self._answered(self._kept.read)
        found = self._picture.groups.get(self.group)
        if found is None or found.leader is None or found.leader.member.replica != self._me:
            raise TermEnded(f"etcd has another leader of group {self.group}")
        self.epoch = found.leader.epoch
        for topic, record in list(self._picture.records.items()):
            if record.group == self.group:
                self._own[topic] = record.revision
                del self._picture.records[topic]
            self._parts.note(topic, record.whole)
        self._parts.is_complete = found.placed
        self._absences.look(self._picture.groups)

    async def settle(self, topics: Iterable[str], wholes: Iterable[Partitioned] = ()) -> None:
        """Write a record for each topic that is stored here, then mark the group as placed: other groups place topics only in
        such a group. A topic whose record names another group is left to that group. ``wholes``: the partitioned topics.
        Raises: TermEnded."""
        for whole in wholes:
            if whole.name not in self._parts:
                await self._answered(partial(self._settle_whole, whole))
        left = sorted({origin for origin in map(_origin, topics) if not self._is_known(origin)})
        for at in range(0, len(left), CLAIMED_TOGETHER):
            await self._answered(partial(self._settle, left[at : at + CLAIMED_TOGETHER]))
        if not self._picture.groups[self.group].placed:
            outcome = await self._answered(partial(self._kept.mark_placed, self.epoch))
            if not outcome.done:
                raise TermEnded(f"etcd has another leader of group {self.group}")
            self._picture.groups[self.group].placed = True

    async def _settle(self, topics: Sequence[str]) -> None:
        outcome = await self._kept.claim(topics, self.group, self.epoch)
        if outcome.done:
            self.claims += len(topics)
            self._own.update(dict.fromkeys(topics, outcome.revision))
            return
        for topic in topics:  # one of them has a record, maybe of an attempt without an answer
            if not self._is_known(topic):
                try:
                    await self._claim(topic, self.group)
                except PlacementUnknown as error:
                    raise TermEnded(str(error)) from error

    async def _settle_whole(self, whole: Partitioned) -> None:
        """Write the record of a partitioned topic that has none: etcd lost it, or the topic is older than such records. The
        first group that does so becomes its home."""
        if (await self._kept.divide(StoredPartitions(whole), None, self.group, self.epoch)).done:
            self.claims += 1
        self.learn(whole.name, await self._kept.record(whole.name))

    async def run(self, lease: int) -> None:
        """Watch etcd and publish the load until cancelled. ``lease``: the etcd lease of the term."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow())
            tasks.create_task(group_views.weigh(self._kept, lease, lambda: self.done()))

    async def _follow(self) -> None:
        delay_s = RETRY_MIN_S
        whole = False  # whether it has to be read anew
        while True:
            try:
                if whole:
                    self._take(await self._kept.read())
                    self.held.on_moves()
                    whole, delay_s = False, RETRY_MIN_S
                news = await self._kept.news(self._picture.revision)
                if news.changes:
                    self._note(self._picture.apply(news))
                    self.held.on_moves()
                else:
                    await self._kept.ping()
            except EtcdError as error:
                if not whole:
                    logger.warning("where topics are is not heard of: %s", error)
                whole = True
                await asyncio.sleep(delay_s)
                delay_s = min(delay_s * 2, RETRY_MAX_S)

    def _take(self, picture: Picture) -> None:
        """Replace the picture. The last known leader of each group is kept."""
        for name, group in picture.groups.items():
            if group.led is None and (before := self._picture.groups.get(name)) is not None:
                group.led = before.led
        for topic, record in self._picture.records.items():
            if record.revision > picture.revision:  # it was read since
                picture.records[topic] = record
        self._picture = picture
        self._note([*picture.records, *self._parts.known()])

    def _note(self, topics: Sequence[str]) -> None:
        """Apply changes of these topics' records in the picture."""
        self._absences.look(self._picture.groups)
        self._drop_own(topics)
        for topic in topics:
            if topic not in self._own:
                record = self._picture.records.get(topic)
                self._parts.note(topic, None if record is None else record.whole)

    def _drop_own(self, topics: Iterable[str]) -> None:
        """Remove records that name this group from the picture: the own table has them, and the watch may be late."""
        records = self._picture.records
        for topic in topics:
            if (record := records.get(topic)) is not None and (record.group == self.group or topic in self._own):
                del records[topic]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await self._kept.close()

    # -- as the ``Placement`` of a broker

    @property
    def is_divided(self) -> bool:
        return True

    @property
    def passes_on(self) -> bool:
        return False

    @property
    def table(self) -> GroupPartitions:
        return self._parts

    @property
    def here(self) -> Place:
        return self.group

    def has(self, partition: str) -> bool:
        return _origin(partition) in self._own

    @property
    def part(self) -> str | None:
        return f"group {self.group} of {len(self.places())}"

    def places(self) -> Sequence[Place]:
        return sorted({self.group, *(name for name, group in self._picture.groups.items() if group.placed)})

    def place_of(self, topic: str) -> Place:
        record = self._record(_origin(topic))
        return self.group if record is None else record.group

    def connected(
        self, place: Place, received: Callable[[list[bytes]], None], lost: Callable[[], None], *, trusted: bool = False
    ) -> PlaceLink:
        name = str(place)
        return self._connect(name, trusted, lambda: self.leader_of(name), received, lost)

    def leader_of(self, name: str) -> LeaderKey | None:
        """The leader of a group; None when it has none or none is known."""
        group = self._picture.groups.get(name)
        return None if group is None else group.leader

    def moved(self, topic: str, has: str = "has") -> RequestError | None:
        if (origin := _origin(topic)) in self.held:
            text = f"{topic} goes to another group: send it again in a moment"
            return self._failed.get(origin) or BeingMoved(text, partial(self._wait, origin))
        record = self._record(origin)
        return None if record is None else self.moved_to(record.group, topic, has)

    def again(self, topic: str) -> RequestError:
        return group_views.moved_to(self._picture, self.group, topic, 0.0)  # it is here

    def moved_to(self, name: str, topic: str, has: str = "has") -> RequestError:
        """The MOVED error for a topic of the group ``name``; ``has``: the verb that its text says of that group."""
        return group_views.moved_to(self._picture, name, topic, self._absences.seconds(name), has)

    def admit(self, topic: str, group: str | None = None) -> None:
        origin = _origin(topic)
        if group is not None:
            group_views.check_made(self._picture, group)
        if (failed := self._failed.get(origin)) is not None:
            raise failed
        if origin in self._busy:
            raise BeingPlaced(topic, partial(self._wait, origin))
        if origin in self._parts:
            raise PlacementUnknown(f"{origin} is partitioned, and is just being made or deleted: try again")
        if not self._is_known(origin):
            if PARTITION_MARK in origin:
                whole = whole_name(origin)
                raise PlacementUnknown(f"partition {origin} is not made yet: CREATE or DELETE {whole} again")
            group_views.check_placed(self._picture, origin, group, self._absences.seconds(group or ""))
            self._begin(origin, self._claim(origin, group))
            raise BeingPlaced(topic, partial(self._wait, origin))
        record = self._record(origin)
        if group is not None and group != (has := self.group if record is None else record.group):
            raise TopicExists(f"{topic} is in group {has}, not in {group}")
        if (error := self.moved(topic, "has" if group is None else "is to have")) is not None:  # it may have to make it still
            raise error

    def is_here_by_record(self, topic: str, cluster: str) -> bool | None:
        if self._is_known(topic):
            return topic in self._own
        return None if cluster != self.cluster else False  # it was moved, and deleted there

    def problem_of(self, place: Place) -> str:
        return group_views.problem_of(name := str(place), self._absences.seconds(name))

    def check_led(self, why: str, words: str) -> None:
        group_views.check_led(self._picture, why, words)

    def gone(self, topic: str) -> None:
        origin = _origin(topic)
        if self.has_topic(origin):
            return  # they have one place
        if origin in self._own and origin not in self._busy:
            self._begin(origin, self._release(origin, self._own[origin]))

    def described(self, sees: Callable[[str], bool] | None) -> dict[str, Any]:
        return group_views.described(self._picture, self.group, self._own, sees)

    def rows(self) -> dict[str, Mapping[tuple[str, ...], float]]:
        """The metrics of the groups."""
        own = [topic for topic in self._own if topic not in self._parts]
        return group_views.rows(self._picture, self.group, own, self.claims)

    # -- as ``Books`` of topics that are moved

    @property
    def moves(self) -> Mapping[str, Move]:
        """The moves that operators asked for, by topic, as far as they are known."""
        return self._picture.moves

    def revision(self, topic: str) -> int | None:
        """The etcd revision of the record of a topic of this group; None for others, and while a change of it is under way."""
        return None if topic in self._busy else self._own.get(topic)

    def occupy(self, topic: str) -> bool:
        """Let commands for a topic wait. Returns: False when another change of its record is under way."""
        if topic in self._busy:
            return False
        self._busy[topic] = []
        return True

    def vacate(self, topic: str) -> None:
        """End ``occupy``: waiting commands go on."""
        call_all(self._busy.pop(topic))

    def refuse_waiting(self, topic: str, error: PlacementUnknown) -> None:
        """Refuse the commands that wait for a topic (``held_topics.Books.refuse_waiting``)."""
        self._refuse(topic, error)
        waiting, self._busy[topic] = self._busy[topic], []
        call_all(waiting)

    # -- parts

    def _record(self, origin: str) -> Record | None:
        """The record of another group's topic from the picture; None when none is known."""
        return None if origin in self._own else self._picture.records.get(origin)

    def _is_known(self, origin: str) -> bool:
        return origin in self._own or origin in self._picture.records

    def _wait(self, origin: str, call: Callable[[], None]) -> None:
        """Call a function when the running change of a topic's record is done or has failed."""
        if origin in self._busy:
            self._busy[origin].append(call)
        else:
            call()

    def _begin(self, origin: str, work: Coroutine[Any, Any, None]) -> None:
        """Start a change of a topic's record, and let others wait until etcd has answered."""
        self._busy[origin] = []
        self.spawn(self._settled(origin, work))

    async def _settled(self, origin: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except PlacementUnknown as error:
            self._refuse(origin, error)
        except EtcdError as error:
            self._refuse(origin, PlacementUnknown(f"etcd does not say which group has {origin}: {error}"))
        except Exception:
            logger.exception("a bug in the placement of %s", origin)
            self._refuse(origin, PlacementUnknown(f"a bug: the log of the leader of group {self.group} has the details"))
        finally:
            call_all(self._busy.pop(origin))

    def _refuse(self, origin: str, error: PlacementUnknown) -> None:
        self._failed[origin] = error
        self._loop.call_later(REFUSE_S, self._failed.pop, origin, None)

    async def _claim(self, origin: str, wanted: str | None) -> None:
        """Write the record of a new topic, or learn that one exists. The group ``wanted`` must have a leader that answers:
        otherwise the record would name a topic that does not exist. Raises: EtcdError, PlacementUnknown."""
        group = self._chosen(origin) if wanted is None else wanted
        is_there = group != self.group and wanted is not None
        if is_there and not await group_views.answers(partial(self.connected, group, lambda frames: None)):
            raise PlacementUnknown(f"{origin} was not made: group {group} {self.problem_of(group) or 'does not answer'}")
        async with self._turns:
            if self._loop.time() < self._away_until:
                raise EtcdError("it had no answer a moment ago")
            try:
                outcome = await self._kept.claim([origin], group, self.epoch if group == self.group else None)
                record = Record(group, outcome.revision) if outcome.done else await self._kept.record(origin)
            except EtcdError:
                self._away_until = self._loop.time() + REFUSE_S
                raise
        self.claims += outcome.done
        if record is None:
            raise PlacementUnknown(f"{origin} was not placed: it was just deleted, or this node leads {self.group} no longer")
        self.learn(origin, record)

    def learn(self, topic: str, record: Record | None) -> None:
        """Apply a record that was read linearizably from etcd; None when the topic has none."""
        if record is None or record.group == self.group:
            self._picture.records.pop(topic, None)
        else:
            self._picture.records[topic] = record
        if record is not None and record.group == self.group:
            self._own[topic] = record.revision
        else:
            self._own.pop(topic, None)
        self._parts.note(topic, None if record is None else record.whole)

    # -- as ``Books``

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task that ends with the leader's term."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def alone(self, origin: str, work: Callable[[], Awaitable[T]]) -> T:
        """Run a change of a topic's record once no other change of it runs. Raises: PlacementUnknown."""
        await self.quiet([origin])
        self._busy[origin] = []
        try:
            return await work()
        finally:
            call_all(self._busy.pop(origin))

    async def quiet(self, topics: Iterable[str]) -> None:
        """Wait until no change of these topics' records is under way. Raises: PlacementUnknown."""
        for topic in topics:
            while topic in self._busy:
                await self._until_change_ends(topic)
                if (failed := self._failed.get(topic)) is not None:
                    raise failed

    async def _until_change_ends(self, origin: str) -> None:
        """Wait until the running change of a topic's record is done or has failed."""
        over: asyncio.Future[None] = self._loop.create_future()
        self._wait(origin, lambda: None if over.done() else over.set_result(None))
        await over

    def groups_for_parts(self, topic: str, wanted: str | None) -> list[str]:
        """The groups that get the partitions of a topic (``group_views.groups_for_parts``)."""
        return group_views.groups_for_parts(self._picture, topic, wanted)

    def has_topic(self, topic: str) -> bool:
        """Whether this broker has the topic or its dead letters."""
        return self.is_here(topic) or self.is_here(topic + DEAD_LETTERS)

    async def let_go(self, topics: Iterable[str]) -> None:
        """Remove this group's records of topics that do not exist any more. Raises: PlacementUnknown."""
        going = [topic for topic in topics if topic in self._own]
        for topic in going:
            self.gone(topic)
        for topic in going:
            if topic in self._busy:
                await self._until_change_ends(topic)
            if topic in self._own:
                raise self._failed.get(topic) or PlacementUnknown(f"{topic} is still there: repeat the command")

    # -- parts

    def _chosen(self, origin: str) -> str:
        """The group for a new topic."""
        group_views.check_placed(self._picture, origin)
        led = {name: group.load for name, group in self._picture.groups.items() if group.placed and group.leader is not None}
        return choose_group(origin, led or {self.group: 0.0})

    async def _release(self, origin: str, revision: int) -> None:
        """Remove the record of a topic that was deleted here. Until etcd has answered, requests that would make a topic of this
        name are refused."""
        delay_s = RETRY_MIN_S
        record: Record | None = None
        while True:
            try:
                async with self._turns:
                    outcome = await self._kept.release(origin, revision, self.epoch)
                    record = None if outcome.done else await self._kept.record(origin)
                break
            except EtcdError as error:
                self._refuse(origin, PlacementUnknown(f"etcd does not say whether {origin} has left the group: {error}"))
                waiting, self._busy[origin] = self._busy[origin], []
                call_all(waiting)
                await asyncio.sleep(delay_s)
                delay_s = min(delay_s * 2, RETRY_MAX_S)
        self.learn(origin, record)

    async def _answered(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Repeat a call until there is an answer. Raises: TermEnded after ``OPEN_S``."""
        delay_s, until = RETRY_MIN_S, self._loop.time() + OPEN_S
        while True:
            try:
                return await call()
            except EtcdError as error:
                logger.warning("which topics are whose is not known: %s", error)
                if self._loop.time() > until:
                    raise TermEnded(f"etcd does not say which topics are whose: {error}") from error
                await asyncio.sleep(delay_s)
                delay_s = min(delay_s * 2, RETRY_MAX_S)


def _origin(topic: str) -> str:
    return topic.removesuffix(DEAD_LETTERS)
