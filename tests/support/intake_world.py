"""Connections of AMQP at the limits of memory, on a fake clock, without sockets."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tests.support.fake_clock import FakeClock
from toymq_py.amqp.errors import AmqpError
from toymq_py.amqp.intake import Intake, Room
from toymq_py.auth.quotas import Quotas
from toymq_py.config.options import BrokerOptions
from toymq_py.metrics import Metrics

MAX, MESSAGE = 1 << 20, 2 << 20
MUCH = 400_000
"""Of a body that has come in part: two have room."""


class World:
    """The clock, the loop's one timer, the limits, and connections."""

    def __init__(self, max_bytes: int = MAX) -> None:
        self.clock = FakeClock()
        self.metrics = Metrics()
        self.quotas = Quotas(BrokerOptions(max_held_bytes=max_bytes), self.metrics)
        self.room = Room(self.quotas, self.clock, self, MESSAGE)  # type: ignore[arg-type]  # of a loop it needs call_later
        self._due: tuple[float, Callable[[], None]] | None = None

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Any:
        self._due = self.clock.monotonic() + delay_s, call
        return SimpleNamespace(cancel=lambda: None)

    def advance(self, seconds: float) -> None:
        until = self.clock.monotonic() + seconds
        while self._due is not None and self._due[0] <= until:
            at, call = self._due
            self._due = None
            self.clock.advance(max(at - self.clock.monotonic(), 0))
            call()
        self.clock.advance(max(until - self.clock.monotonic(), 0))


class Connection:
    """A connection that holds part of a body."""

    def __init__(self, world: World, token: str | None = None) -> None:
        self.reads, self.told, self.errors = True, False, []
        blocking = SimpleNamespace(publishes=False, waits_for_room=False, tell=self._tell)
        self._blocking = blocking
        self.woken = 0
        self.intake = Intake(world.room, world.clock, blocking, self._fail, self._wake)  # type: ignore[arg-type]
        self.intake.transport = self  # type: ignore[assignment]
        self.intake.seat = self.seat = world.quotas.enter(None)
        self.errors: list[AmqpError]
        self.held_bytes = self.in_socket_bytes = 0
        if token is not None:
            self.seat.identify(token, admin=False)

    def get_extra_info(self, _: str) -> Any:
        return SimpleNamespace(fileno=lambda: -1)

    def _wake(self) -> None:
        self.woken += 1

    def _fail(self, error: AmqpError) -> None:
        self.errors.append(error)
        self.intake.close()
        self.seat.leave()

    def _tell(self) -> None:
        self.told = self._blocking.waits_for_room and self._blocking.publishes

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def has(self, held_bytes: int) -> "Connection":
        """Note that so much of its body has arrived."""
        self.intake.received()
        self.intake.settle(held_bytes, held_bytes, wants=True)
        return self

    def read(self) -> None:
        """What one call of ``recv`` brings of the sent bytes, unless the connection is not read."""
        if self.reads and self.in_socket_bytes and not self.errors:
            count = min(self.in_socket_bytes, len(self.intake.room))
            self.in_socket_bytes -= count
            self.held_bytes += count
            self.has(self.held_bytes)
