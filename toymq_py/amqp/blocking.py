"""A low disk, as AMQP's publishers learn of it: connection.blocked, and publishes that wait.

Contract: amqp.md, "Model" (connection.blocked); ADR 0163. With confirms or in a transaction a publish is refused, and its
client knows. Without, nothing would tell: it waits, and what follows on its connection waits behind it, as in RabbitMQ.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from toymq_py.amqp import methods
from toymq_py.amqp.connection import Content, Event
from toymq_py.amqp.deadline import Deadline
from toymq_py.broker import Broker

LOOK_S = 0.2
"""While the disk is low: how often it is asked whether space is back, where no publish asks."""
REASON = "low on disk"
"""RabbitMQ's word."""


class DiskAlarm:
    """Whether publishing is refused for the disk (``--min-free-bytes``). One for all connections."""

    def __init__(self, broker: Broker, loop: asyncio.AbstractEventLoop, on_change: Callable[[], None]) -> None:
        """``on_change`` is called in a turn of its own: the change may be found in the middle of a publish."""
        self.is_on = False
        self._loop = loop
        self._space = broker.space
        self._on_change = on_change
        self._deadline = Deadline(loop)
        self._hook = self._changed
        self._space.on_change.append(self._hook)

    def _changed(self) -> None:
        if self._space.low == self.is_on:
            return
        self.is_on = self._space.low
        if self.is_on:
            self._deadline.set(LOOK_S, self._look)
        else:
            self._deadline.cancel()
        self._loop.call_soon(self._on_change)

    def _look(self) -> None:
        if self._space.refuses():
            self._deadline.set(LOOK_S, self._look)

    def close(self) -> None:
        """Look no more. Idempotent."""
        self._deadline.cancel()
        if self._hook in self._space.on_change:
            self._space.on_change.remove(self._hook)


class Publisher(Protocol):
    """A channel."""

    @property
    def tells_refusals(self) -> bool:
        """Its client learns which publishes are refused."""


class Blocking:
    """What a low disk means for one connection."""

    def __init__(self, alarm: DiskAlarm, write: Callable[[bytes], None]) -> None:
        """``write`` sends a frame."""
        self.alarm = alarm
        self.is_known = False
        """The client's capability ``connection.blocked``."""
        self.publishes = False
        """It has published: another connection has nothing to be told."""
        self._told = False
        self._write = write

    def holds(self, event: Event, channel: Publisher | None) -> bool:
        """While the alarm is on: whether this is a publish that waits until it is over."""
        if channel is None or not isinstance(event[1], Content):
            return False
        self.publishes = True
        self.tell()
        return not channel.tells_refusals

    def tell(self) -> None:
        """Tell a client that publishes what has changed."""
        wanted = self.alarm.is_on and self.publishes
        if wanted == self._told or not self.is_known:
            return
        self._told = wanted
        if wanted:
            self._write(methods.encode(0, "connection.blocked", reason=REASON))
        else:
            self._write(methods.encode(0, "connection.unblocked"))
