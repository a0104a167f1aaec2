"""connection.blocked and unblocked, and which publishes wait. ADR 0163, 0232; ``tests/e2e/amqp/test_blocked.py``: the disk."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.fake_clock import FakeClock
from toymq_py.amqp import blocking, methods
from toymq_py.amqp.blocking import Alarm, Blocking
from toymq_py.amqp.connection import Content
from toymq_py.amqp.methods import Method
from toymq_py.storage.commit.space_guard import SpaceGuard

PUBLISH = 1, Content(Method((60, 40), "basic.publish", {}), b"\0\0", b"x")
ACK = 1, Method((60, 80), "basic.ack", {})
COMMIT = 1, Method((90, 20), "tx.commit", {})


class Disk:
    """A file system whose free space a test sets, its space guard, and quotas that may say that memory is high."""

    def __init__(self) -> None:
        self.free = 1000
        self.clock = FakeClock()
        self.quotas = SimpleNamespace(memory_high=False)
        self.space = SpaceGuard(self, "/data", 100, self.clock)  # type: ignore[arg-type]

    def free_bytes(self, path: str) -> int:
        return self.free

    def set(self, free: int) -> None:
        self.free = free
        self.clock.advance(1.0)
        self.space.is_low()


async def turns() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def alarm_of(disk: Any) -> tuple[Alarm, list[bool]]:
    changes: list[bool] = []
    alarm = Alarm(disk, asyncio.get_running_loop(), lambda: changes.append(alarm.is_on))
    return alarm, changes


async def test_the_alarm_is_on_while_publishing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking, "LOOK_S", 0.0)
    disk = Disk()
    alarm, changes = await alarm_of(disk)
    disk.set(50)
    assert alarm.is_on, "at once"
    assert changes == [], "in the middle of a publish nothing else happens"
    await turns()
    assert changes == [True]
    disk.free = 500
    disk.clock.advance(1.0)
    async with asyncio.timeout(10):
        while changes != [True, False]:  # noqa: ASYNC110 (the alarm has no event, and takes a few passes)
            await asyncio.sleep(0)
    alarm.close()
    alarm.close()
    disk.set(50)
    assert not alarm.is_on


async def test_a_client_that_publishes_is_told_once() -> None:
    disk, sent = Disk(), []
    alarm, _ = await alarm_of(disk)
    of_connection = Blocking(alarm, sent.append)
    of_connection.is_known = True
    disk.set(50)
    of_connection.tell()
    assert sent == [], "it has not published"
    unconfirmed, confirmed = SimpleNamespace(tells_refusals=False), SimpleNamespace(tells_refusals=True)
    assert not of_connection.holds(ACK, unconfirmed)
    assert not of_connection.holds(PUBLISH, None), "its channel is closed"
    assert sent == []
    assert of_connection.holds(PUBLISH, unconfirmed)
    assert not of_connection.holds(PUBLISH, confirmed), "it is nacked"
    disk.set(500)
    of_connection.tell()
    of_connection.tell()
    names = [methods.decode(frame[7:-1]).name for frame in sent]
    assert names == ["connection.blocked", "connection.unblocked"]
    ignorant = Blocking(alarm, sent.append)
    disk.set(50)
    assert ignorant.holds(PUBLISH, unconfirmed)
    assert len(sent) == 2
    alarm.close()


async def test_while_memory_is_high_publishes_and_commits_wait_with_confirms_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: publishes were refused: a channel without confirms was closed, and its client lost what it had sent after them."""
    monkeypatch.setattr(blocking, "LOOK_S", 0.0)
    disk, sent = Disk(), []
    changes: list[bool] = []
    alarm = Alarm(disk, asyncio.get_running_loop(), lambda: changes.append(alarm.memory_is_high))  # type: ignore[arg-type]
    of_connection = Blocking(alarm, sent.append)
    of_connection.is_known = True
    disk.quotas.memory_high = True
    confirmed = SimpleNamespace(tells_refusals=True)
    assert not of_connection.holds(ACK, confirmed), "reading and acking free memory"
    assert sent == []
    assert of_connection.holds(PUBLISH, confirmed)
    assert of_connection.holds(COMMIT, confirmed)
    (frame,) = sent
    assert methods.decode(frame[7:-1])["reason"] == "low on memory"
    await turns()
    assert changes == []
    disk.quotas.memory_high = False
    async with asyncio.timeout(10):
        while changes != [False]:  # noqa: ASYNC110 (the alarm has no event, and takes a few passes)
            await asyncio.sleep(0)
    of_connection.tell()
    assert methods.decode(sent[-1][7:-1]).name == "connection.unblocked"
    assert not of_connection.holds(COMMIT, confirmed)
    alarm.close()
