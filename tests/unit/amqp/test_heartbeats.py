"""When a heartbeat is sent, and when a silent peer is given up. Contract: the specification, 4.2.7."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.fake_clock import FakeClock
from toymq_py.amqp.frames import HEARTBEAT_FRAME
from toymq_py.amqp.heartbeats import Heartbeats
from toymq_py.amqp.outbox import Outbox


class Rig:
    """The deadline, the intake and the transport of a connection."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.last_read, self.reading = self.clock.monotonic(), True
        self.outbox = Outbox(self.clock)
        self.outbox.transport = self  # type: ignore[assignment]
        self.written: list[bytes] = []
        self.ends: list[str] = []
        self._due: tuple[float, Callable[[], None]] | None = None
        self.heartbeats = Heartbeats(self.clock, self, self, self.outbox, self.ends.append)  # type: ignore[arg-type]

    def set(self, delay_s: float, call: Callable[[], None]) -> None:
        self._due = delay_s, call

    def write(self, data: Any) -> None:
        self.written.append(data)

    def advance(self) -> None:
        """Go on to the next time that something is due."""
        assert self._due is not None
        (delay_s, call), self._due = self._due, None
        self.clock.advance(delay_s)
        call()


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_heartbeat_is_sent_where_nothing_else_was(rig: Rig) -> None:
    rig.heartbeats.begin(10)
    rig.advance()
    assert rig.written == [HEARTBEAT_FRAME]
    rig.clock.advance(1)
    rig.outbox.add(b"x")
    rig.outbox.flush()
    assert rig._due is not None
    rig._due = 4, rig._due[1]
    rig.advance()
    assert rig.written == [HEARTBEAT_FRAME, b"x"]
    rig.outbox.stall(True)
    rig.advance()
    assert rig.written == [HEARTBEAT_FRAME, b"x"], "the socket is full"


def test_a_peer_that_is_silent_for_two_intervals_is_given_up(rig: Rig) -> None:
    rig.heartbeats.begin(10)
    for _ in range(4):
        rig.advance()
    assert rig.ends == []
    rig.reading = False
    rig.advance()
    assert rig.ends == [], "the broker did not read"
    rig.reading = True
    rig.advance()
    assert rig.ends == ["missed heartbeats, 10 s"]
    assert rig._due is None


def test_without_an_interval_there_are_none(rig: Rig) -> None:
    rig.heartbeats.begin(0)
    assert rig._due is None
