"""How AMQP publishers are held back while the disk is low or memory is high: connection.blocked, and publishes that wait.

Contract: amqp.md, "Model" (connection.blocked); ADR 0163, ADR 0232. While the disk is low, a publish with confirms or in a
transaction is refused, and the client learns of it. A publish without either cannot be answered: it waits, and frames behind it
on the connection wait, too, as in RabbitMQ. While memory is high every publish waits, and each tx.commit.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from toymq_py.amqp import methods
from toymq_py.amqp.connection import Content, Event
from toymq_py.amqp.deadline import Deadline
from toymq_py.amqp.methods import Method
from toymq_py.broker import Broker

LOOK_S = 0.2
"""How often waiting publishes check whether disk space or memory is available again."""
DISK, MEMORY = "low on disk", "low on memory"
"""RabbitMQ's words for the reason why publishers are blocked."""


class Alarm:
    """The alarm that holds publishes back: the disk is low (``--min-free-bytes``) or memory is high (``--memory-max``). One
    object for all connections."""

    def __init__(self, broker: Broker, loop: asyncio.AbstractEventLoop, on_change: Callable[[], None]) -> None:
        """``on_change``: called when the alarm changes, in a later callback of the event loop, not in the middle of a
        publish."""
        self.is_on = False
        """Whether the disk is low."""
        self._loop = loop
        self._space = broker.space
        self._quotas = broker.quotas
        self._on_change = on_change
        self._deadline = Deadline(loop)
        self._watches_memory = False
        self._hook = self._changed
        self._space.on_change.append(self._hook)

    def _changed(self) -> None:
        if self._space.low == self.is_on:
            return
        self.is_on = self._space.low
        if self.is_on:
            self._deadline.set(LOOK_S, self._look)
        self._loop.call_soon(self._on_change)

    @property
    def memory_is_high(self) -> bool:
        return self._quotas.memory_high

    def watch_memory(self) -> None:
        """Watch until memory is available again, for a publish that waits for it."""
        if not self._watches_memory:
            self._watches_memory = True
            self._deadline.set(LOOK_S, self._look)

    def _look(self) -> None:
        if self._watches_memory and not self._quotas.memory_high:
            self._watches_memory = False
            self._loop.call_soon(self._on_change)
        if (self.is_on and self._space.refuses()) or self._watches_memory:
            self._deadline.set(LOOK_S, self._look)

    def close(self) -> None:
        """Stop watching. Idempotent."""
        self._deadline.cancel()
        if self._hook in self._space.on_change:
            self._space.on_change.remove(self._hook)


class Publisher(Protocol):
    """What ``Blocking`` needs of a channel."""

    @property
    def tells_refusals(self) -> bool:
        """Whether the client learns which of its publishes are refused."""


class Blocking:
    """Holds back the publishes of one connection while the alarm is on, and tells its client with connection.blocked."""

    def __init__(self, alarm: Alarm, write: Callable[[bytes], None]) -> None:
        """``write`` sends a frame."""
        self.alarm = alarm
        self.is_known = False
        """Whether the client has the capability ``connection.blocked``."""
        self.publishes = False
        """Whether the connection has published; only then the client is told."""
        self.waits_for_room = False
        """Whether the connection is not read, since it holds too much (``Room``)."""
        self._told = False
        self._write = write

    def close(self) -> None:
        """Tell the client nothing more, and drop ``write``, which references the session."""
        self._write = _drop

    def holds(self, event: Event, channel: Publisher | None) -> bool:
        """Whether an event is a publish that has to wait for the alarm to end."""
        what, by_memory = event[1], self.alarm.memory_is_high
        commits = by_memory and isinstance(what, Method) and what.name == "tx.commit"
        if channel is None or not (commits or isinstance(what, Content)):
            return False
        self.publishes = True
        self.tell()
        if by_memory:
            self.alarm.watch_memory()
        return by_memory or not channel.tells_refusals

    def tell(self) -> None:
        """Send connection.blocked or unblocked to a client that publishes, if the state has changed."""
        by_memory = self.waits_for_room or self.alarm.memory_is_high
        wanted = self.publishes and (by_memory or self.alarm.is_on)
        if wanted == self._told or not self.is_known:
            return
        self._told = wanted
        if wanted:
            self._write(methods.encode(0, "connection.blocked", reason=MEMORY if by_memory else DISK))
        else:
            self._write(methods.encode(0, "connection.unblocked"))


def _drop(_: bytes) -> None:
    """Send nothing: the connection is gone."""
