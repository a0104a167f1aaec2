"""Definitions in a cluster with groups: each leader applies those of the topics that its own group has, or gets. ADR 0200.

Every leader reads every topic of its file. A topic that no group has is placed, as by a CREATE; one that another group has is
left to the leader of that group, which has the same file. So each topic is made once, whichever leader comes first. One leader
makes a partitioned topic at all groups, once all have a leader: a group without one would get no partition (ADR 0231). Belongs
to the event loop.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Container, Mapping
from dataclasses import replace
from logging import ERROR, INFO

from toymq_py.broker import Broker
from toymq_py.config.definitions import Definitions
from toymq_py.config.topic_definitions import CreateTopic
from toymq_py.disk_errors import what_passes
from toymq_py.errors import ConfigError, Moved, NameBusy, NoSuchTopic, PlacementUnknown, RequestError
from toymq_py.names import DEAD_LETTERS, whole_name
from toymq_py.partitions import PARTITIONS
from toymq_py.runtime.definitions import apply_definitions, openable

logger = logging.getLogger("toymq_py.cluster")

AGAIN_S = 5.0
"""How often topics are tried again that could not be placed: etcd or a group was away."""

Divide = Callable[[str, Mapping[str, str]], Awaitable[None]]
"""Makes a partitioned topic at all groups. Raises: as CREATE; PlacementUnknown, too, while a group has no leader."""


def may_be_later(error: BaseException | None) -> bool:
    """Whether a retry may succeed later: a group has no leader, the disk is full, or another leader is making the topic."""
    if isinstance(error, OSError):
        return what_passes(error) is not None
    return isinstance(error, RequestError) and (error.retryable or isinstance(error, NoSuchTopic))


def _family(name: str) -> str:
    """The partitioned topic that a name belongs to, as a partition or as dead letters."""
    return whole_name(name).removesuffix(DEAD_LETTERS)


class GroupDefinitions:
    """Applies the definitions during one term of a leader: call ``apply``, then ``run``."""

    def __init__(self, wanted: Definitions, source: str | None, broker: Broker, divide: Divide | None) -> None:
        """
        Args:
            source: the file's name, for the log.
            divide: makes a partitioned topic; None where nodes of other groups do not trust this one.
        """
        self._wanted = wanted
        self._source = source
        self._broker = broker
        self._divide = divide
        self._left = list(wanted.topics)
        self._undivided = [name for name, topic in wanted.topics.items() if topic.partitions and divide is not None]

    async def apply(self) -> None:
        """Make the topics that belong to this group or can be placed in it now; the others are left to ``run``."""
        left, own = list[str](), list[str]()
        for name in self._left:
            try:
                if await self._is_own(name):
                    own.append(name)
                    if _family(name) in self._undivided:
                        left.append(name)  # its partitions may be known, and not be made here yet
            except RequestError as error:
                logger.info("%s: topic %s: %s", self._source, name, error)
                left.append(name)
        self._left = left
        try:
            await self._apply(own)
        except ConfigError:
            for name in own:  # one of them is at fault: the others are made all the same
                try:
                    await self._apply([name])
                except ConfigError as error:
                    logger.error("%s: %s", self._source, error)  # noqa: TRY400 (one line)
                    if may_be_later(error.__cause__) and name not in self._left:
                        self._left.append(name)

    async def run(self) -> None:
        """Make the remaining topics, until none is left. This leader must already serve, since other groups send it requests
        while partitions are made."""
        while self._left or self._undivided:
            await asyncio.sleep(AGAIN_S)
            await self._divide_what_is_left()
            await self.apply()

    async def _apply(self, names: Collection[str]) -> None:
        """Apply the definitions of the given topics. Raises: ConfigError."""
        families = {_family(name) for name in names}
        # A partition with settings of its own goes with the whole, which would give it those of all.
        some = {name: one for name, one in self._wanted.topics.items() if name in names or self._has_part(name, families)}
        for change in await apply_definitions(openable(replace(self._wanted, topics=some), self._broker), self._broker):
            logger.info("%s: %s", self._source, change)

    def _has_part(self, name: str, families: Container[str]) -> bool:
        return _family(name) in families and name in self._broker.topics

    async def _is_own(self, name: str) -> bool:
        """Whether this group has a topic; one that no group has is placed. Raises: RequestError when that is not known now."""
        broker = self._broker
        if number := self._wanted.topics[name].partitions:
            if name in self._undivided and name not in broker.partitioned.by_name:
                raise PlacementUnknown("its partitions are made when this leader serves")
            if self._divide is None and name not in broker.partitioned.by_name:
                remedy = f"give all nodes --replicate-token-file or certificates, or call `toymqctl create {name}"
                remedy += f" --partitions {number}`"
                logger.error("%s: topic %s: other groups do not know this for a node: %s", self._source, name, remedy)
            return name in broker.partitioned.by_name
        while name not in broker.topics and name not in broker.unopened:
            try:
                if (error := broker.partitioned.is_whole(name)) is not None:
                    logger.error("%s: topic %s: %s", self._source, name, error)
                    return False
                broker.placement.admit(name)
                break
            except NameBusy as busy:
                over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                busy.when_done(lambda over=over: None if over.done() else over.set_result(None))  # type: ignore[misc]
                await over
            except Moved:
                return False
            except PlacementUnknown as error:
                if error.moved is None:
                    raise
                return False  # its group is away
        return True

    async def _divide_what_is_left(self) -> None:
        """Make partitioned topics, or confirm them: a leader may have died during the CREATE of one."""
        left = list[str]()
        for name in self._undivided:
            topic = self._wanted.topics[name]
            change = CreateTopic(name, topic.settings, topic.partitions)
            known = name in self._broker.partitioned.by_name
            try:
                assert self._divide is not None
                await self._divide(name, {PARTITIONS: str(topic.partitions)} if known else change.words)
            except RequestError as error:
                logger.log(INFO if may_be_later(error) else ERROR, "%s: topic %s: %s", self._source, name, error)
                if may_be_later(error):
                    left.append(name)
            else:
                if not known:
                    logger.info("%s: %s", self._source, change)
        self._undivided = left
