"""Accepting connections: in bursts, and without descriptors."""

import errno
import logging
import random
import socket
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, cast

import pytest

from tests.support.sim_event_loop import SimEventLoop
from toymq_py.net.acceptor import ACCEPTS_PER_PASS, Acceptor


class Listener:
    """A listening socket that hands out waiting connections; ``refusals`` come first."""

    def __init__(self) -> None:
        self.waiting = 0
        self.refusals: list[int] = []
        self.knocked: Any = None
        self.closed = False

    def listen(self, backlog: int) -> None:
        assert backlog >= 1024

    def accept(self) -> tuple[str, str]:
        if self.refusals:
            code = self.refusals.pop(0)
            raise OSError(code, errno.errorcode[code])
        if not self.waiting:
            raise BlockingIOError
        self.waiting -= 1
        return "connection", "address"

    def knock(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


class Door:
    """An acceptor, its listener and its loop."""

    def __init__(self) -> None:
        self.loop = SimEventLoop(random.Random(1))
        self.listener = Listener()
        self.taken = 0
        self.evictable = 0
        """Connections that would make room."""
        self.acceptor = Acceptor(cast("socket.socket", self.listener), self.loop, self._take, self._make_room)
        self.acceptor.start()

    def _take(self, connection: object) -> None:
        self.taken += 1

    def _make_room(self) -> bool:
        self.evictable -= 1
        return self.evictable >= 0

    def until(self, seconds: float) -> None:
        """Let the loop run for so long."""
        self.loop.call_later(seconds, self.loop.stop)
        self.loop.run_forever()


@pytest.fixture
def door() -> Iterator[Door]:
    door = Door()
    yield door
    door.loop.close()


def test_a_burst_is_taken_many_at_a_time(door: Door) -> None:
    door.listener.waiting = 2 * ACCEPTS_PER_PASS + 3
    taken = []
    for _ in range(4):
        door.listener.knocked()
        taken.append(door.taken)
    assert taken == [ACCEPTS_PER_PASS, 2 * ACCEPTS_PER_PASS, 2 * ACCEPTS_PER_PASS + 3, 2 * ACCEPTS_PER_PASS + 3]


def test_without_descriptors_it_waits_longer_each_time_and_says_so_once(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    listener = door.listener
    listener.waiting = 3
    listener.refusals = [errno.EMFILE] * 4
    attempts = []
    with caplog.at_level(logging.WARNING):
        listener.knocked()
        assert listener.knocked is None, "the loop is not woken for nothing"
        while listener.waiting:
            door.until(0.001)
            if listener.knocked is not None:
                attempts.append(door.loop.time())
                listener.knocked()
    gaps = [b - a for a, b in zip([1000.0, *attempts], attempts, strict=False)]
    assert gaps[:4] == pytest.approx([0.01, 0.02, 0.04, 0.08], abs=0.003)
    assert door.taken == 3
    assert caplog.text.count("no descriptors left") == 1


def test_without_descriptors_connections_make_room_for_those_that_wait(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    """Found: when files had taken the last descriptor, an admin waited 10 s until anonymous connections timed out."""
    listener = door.listener
    listener.waiting, door.evictable = 1, 8
    listener.refusals = [errno.EMFILE] * 8
    attempts = [door.loop.time()]
    with caplog.at_level(logging.WARNING):
        listener.knocked()
        while listener.waiting:
            door.until(0.001)
            if listener.knocked is not None:
                attempts.append(door.loop.time())
                listener.knocked()
    assert [b - a for a, b in pairwise(attempts)] == pytest.approx([0.01] * 8, abs=0.003), "it takes a moment to close one"
    assert (door.evictable, door.taken) == (0, 1)
    assert caplog.text.count("no descriptors left") == 1


@pytest.mark.parametrize("waiting", [False, True])
def test_stop_closes_the_listener_and_wakes_nobody(door: Door, waiting: bool) -> None:
    if waiting:
        door.listener.refusals = [errno.ENFILE]
        door.listener.knocked()
    door.acceptor.stop()
    assert door.listener.closed
    door.until(5)
    assert door.listener.knocked is None
