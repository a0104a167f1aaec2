"""Errands: commands to all groups of a cluster that no client sent, for HTTP requests. ADR 0199.

An errand is a ``Passing`` of its own whose replies are kept. Its connections identify as those of a cluster node and have all
rights: the caller has checked what its client may do, and shows it only what it may see. Belongs to the loop.
"""

import asyncio
import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from toymq_py.broker import Broker
from toymq_py.clock import Clock
from toymq_py.consumer_options import Start
from toymq_py.errors import PlacementUnknown
from toymq_py.net.fair_queue import FairQueue, Runnable
from toymq_py.placement import Place, named
from toymq_py.protocol import Command, ErrReply, commands, encode_command
from toymq_py.session.deliveries import Deliveries
from toymq_py.session.gate import Gate
from toymq_py.session.passing import Passing
from toymq_py.session.refused_sequences import RefusedSequences
from toymq_py.session.replies import Replies
from toymq_py.session.stages import in_words, is_change, to_repeat


class Errands:
    """The errands of one broker, which leads a group."""

    def __init__(self, broker: Broker, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self._broker = broker
        self._clock = clock
        self._loop = loop
        self._queue = FairQueue(clock, loop)

    # -- of all topics

    async def topics(self, pattern: str | None) -> list[dict[str, Any]]:
        """The topics of all groups, by name. Raises: PlacementUnknown when one is away."""
        return list(json.loads(await self._document(commands.Topics(pattern))))

    async def stats(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The figures of all groups added up, and their topics by name. Raises: PlacementUnknown."""
        return _figures(await self._ask(commands.Stats()))

    async def stats_of(self, group: Place) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The figures and topics of one group. Raises: PlacementUnknown when it is away."""
        answer: asyncio.Future[bytes] = self._loop.create_future()

        def received(frames: list[bytes]) -> None:
            if not answer.done():
                answer.set_result(frames[0])

        def lost() -> None:
            if not answer.done():
                answer.set_result(b"")

        link = self._broker.placement.connected(group, received, lost, trusted=True)
        assert link is not None, "groups connect by themselves"
        try:
            link.send([encode_command(commands.Stats())])
            reply = await answer
        finally:
            link.close()
        if not reply:
            why = f"refuses this node: {link.refusal}" if link.refusal else "does not answer"
            raise PlacementUnknown(f"{named(group)} {why}")
        return _figures(_accepted(reply))

    # -- of a partitioned topic; each raises what the command may answer

    async def create(self, topic: str, settings: Mapping[str, str]) -> None:
        await self._number(commands.Create(topic, settings))

    async def configure(self, topic: str, settings: Mapping[str, str]) -> None:
        await self._document(commands.Config(topic, settings))

    async def describe(self, topic: str) -> dict[str, Any]:
        return dict(json.loads(await self._document(commands.Describe(topic))))

    async def delete(self, topic: str) -> int:
        return await self._number(commands.Delete(topic))

    async def purge(self, topic: str) -> int:
        return await self._number(commands.Purge(topic))

    async def redrive(self, letters: str) -> int:
        return await self._number(commands.Redrive(letters))

    async def seek(self, topic: str, consumer: str, start: Start, *, creates: bool) -> None:
        await self._number(commands.Seek(topic, consumer, start, creates))

    async def forget(self, topic: str, consumer: str) -> None:
        await self._number(commands.Forget(topic, consumer))

    # -- parts

    async def _document(self, command: Command) -> bytes:
        return (await self._ask(command)).partition(b"\n")[2]

    async def _number(self, command: Command) -> int:
        return int((await self._ask(command)).split()[1])

    async def _ask(self, command: Command) -> bytes:
        """Carry out a command at the groups that it concerns, and return its reply. Raises: RequestError."""
        answer: asyncio.Future[bytes] = self._loop.create_future()
        pieces: list[bytes] = []

        def turn(slice_end: float) -> bool:
            pieces.extend(replies.take_due(slice_end))
            if not replies and not answer.done():
                answer.set_result(b"".join(pieces))
            return replies.due

        def abort() -> None:
            if not answer.done():
                away = PlacementUnknown("a group does not answer: try again")
                answer.set_exception(in_words(away, partial(to_repeat, command)) if is_change(command) else away)

        runnable = Runnable(self._queue, turn)
        broker = self._broker
        replies = Replies(broker.metrics, runnable, self._clock)
        deliveries = Deliveries(replies, runnable, self._clock, self._loop.call_later)
        passing = Passing(
            broker.placement, broker.partitioned, replies, deliveries, self._loop, Gate(), lambda: False, abort, trusted=True
        )  # fmt: skip
        try:
            if not passing.take(command, RefusedSequences(broker.placement.again)):
                raise PlacementUnknown("the topic is just being made or deleted: try again")
            reply = await answer
        finally:
            passing.close()
            runnable.close()
        return _accepted(reply)


def _accepted(reply: bytes) -> bytes:
    """Return a reply that is no error. Raises: RequestError: what the reply says."""
    if reply.startswith(b"ERR "):
        _, code, text = reply.decode().rstrip("\n").split(" ", 2)
        raise ErrReply(code, text).to_exception()
    return reply


def _figures(reply: bytes) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    found: dict[str, Any] = json.loads(reply.partition(b"\n")[2])
    return found, found.pop("topics")
