"""Which AMQP connections are read while the broker holds too much. ADR 0232; tests/e2e/amqp/test_backpressure.py: clients."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.fake_clock import FakeClock
from toymq_py.amqp.errors import AmqpError
from toymq_py.amqp.intake import IDLE_S, LOOK_S, TOLD_S, TURN_S, Intake, Room
from toymq_py.auth.quotas import FLOOR_BYTES, Quotas
from toymq_py.config.options import BrokerOptions
from toymq_py.metrics import Metrics

MAX = 1 << 20
MUCH = 400_000
"""Of a body that has come in part: two have room."""


class World:
    """The clock, the loop's one timer, the limits, and connections."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.quotas = Quotas(BrokerOptions(max_held_bytes=MAX), Metrics())
        self.room = Room(self.quotas, self.clock, self)  # type: ignore[arg-type]  # of a loop it needs call_later
        self._due: tuple[float, Callable[[], None]] | None = None

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Any:
        self._due = self.clock.monotonic() + delay_s, call
        return SimpleNamespace(cancel=lambda: None)

    def advance(self, seconds: float) -> None:
        until = self.clock.monotonic() + seconds
        while self._due is not None and self._due[0] <= until:
            at, call = self._due
            self._due = None
            self.clock.advance(at - self.clock.monotonic())
            call()
        self.clock.advance(until - self.clock.monotonic())


class Connection:
    """One that holds part of a body."""

    def __init__(self, world: World) -> None:
        self.reads, self.told, self.errors = True, False, []
        blocking = SimpleNamespace(publishes=False, waits_for_room=False, tell=self._tell)
        self._blocking = blocking
        self.intake = Intake(world.room, world.clock, blocking, self._fail)  # type: ignore[arg-type]
        self.intake.transport = self  # type: ignore[assignment]
        self.intake.seat = self.seat = world.quotas.enter(None)
        self.errors: list[AmqpError]

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
        """So much of its body has come."""
        self.intake.received()
        self.intake.settle(held_bytes, held_bytes, wants=True)
        return self


@pytest.fixture
def world() -> World:
    return World()


def crowd(world: World, count: int) -> list[Connection]:
    return [Connection(world).has(MUCH) for _ in range(count)]


def reading(connections: list[Connection]) -> list[bool]:
    return [connection.reads for connection in connections]


def test_beyond_the_limit_one_goes_on_and_the_others_are_not_read(world: World) -> None:
    all_of_them = crowd(world, 6)
    assert reading(all_of_them) == [True, True, True, False, False, False], "two have room, the third goes on without"
    all_of_them[2].has(0)
    assert reading(all_of_them) == [True, True, True, True, False, False], "it is whole: the next"
    all_of_them[3].has(MUCH * 2)
    assert reading(all_of_them)[3], "until it is whole"
    assert Connection(world).has(FLOOR_BYTES).reads, "small messages always pass"


def test_as_many_are_let_in_as_have_room_for_a_read(world: World) -> None:
    """All at once would bring a read of each: a thousand fill a container."""
    all_of_them = crowd(world, 8)
    for connection in all_of_them[:3]:
        connection.has(0)
    assert sum(reading(all_of_them[3:])) == 1, "the turn has passed on"
    all_of_them[3].has(0)
    all_of_them[4].has(0)
    world.advance(LOOK_S)
    held = MUCH * 3
    assert sum(reading(all_of_them[5:])) == max(1, -((held - MAX) // world.quotas.read_bytes))


def test_what_others_let_go_is_found_at_the_next_look(world: World) -> None:
    other = world.quotas.enter(None)
    other.settle(MAX + 1)
    all_of_them = crowd(world, 3)
    assert reading(all_of_them) == [True, False, False]
    other.settle(0)
    world.quotas.max_held_bytes *= 2
    world.advance(LOOK_S)
    assert reading(all_of_them) == [True, True, True]


def test_a_turn_that_is_not_used_passes_on_and_the_second_ends_its_connection(world: World) -> None:
    """Four clients that sent half a body and nothing more kept all others waiting."""
    idle, first, second = crowd(world, 5)[2:]
    assert reading([idle, first, second]) == [True, False, False]
    world.advance(IDLE_S + 2 * LOOK_S)
    assert reading([idle, first, second]) == [False, True, False]
    first.has(0)
    second.has(0)
    assert idle.reads, "its turn again"
    first.has(MUCH)
    assert idle.errors == []
    world.advance(IDLE_S + 2 * LOOK_S)
    (error,) = idle.errors
    assert error.reply_text.startswith("RESOURCE_ERROR - others wait for memory")
    assert first.reads


def test_a_slow_one_has_its_turn_again_and_again(world: World) -> None:
    slow, other = crowd(world, 4)[2:]
    for _ in range(3):
        turn_s = 0.0
        while slow.reads:
            slow.has(MUCH)
            world.advance(IDLE_S / 2)
            turn_s += IDLE_S / 2
        assert turn_s <= TURN_S + 1
        assert other.reads
        other.has(0)
        other.has(MUCH)
        assert slow.reads
    assert slow.errors == []


def test_one_that_waits_alone_keeps_its_turn(world: World) -> None:
    alone = crowd(world, 3)[2]
    world.advance(10 * TURN_S)
    assert (alone.reads, alone.errors) == (True, [])


def test_a_wait_is_told_when_it_lasts(world: World) -> None:
    goes_on, first, second = crowd(world, 5)[2:]
    world.advance(TOLD_S - LOOK_S)
    goes_on.has(MUCH)
    assert not first.told, "most waits last for one message"
    world.advance(2 * LOOK_S)
    assert (goes_on.told, first.told, second.told) == (False, True, True)
    goes_on.has(0)
    assert (first.told, second.told) == (False, True)


def test_while_memory_is_high_none_goes_on(world: World) -> None:
    world.quotas.memory_high = True
    all_of_them = crowd(world, 2)
    world.advance(TURN_S)
    assert reading(all_of_them) == [False, False]
    world.quotas.memory_high = False
    world.advance(LOOK_S)
    assert reading(all_of_them) == [True, True]


def test_beyond_its_own_share_a_token_waits_while_others_go_on(world: World) -> None:
    limited = [Connection(world) for _ in range(3)]
    for connection in limited:
        connection.seat.identify("a", admin=False)
        connection.has(300_000)
    assert reading(limited) == [True, True, False]
    assert Connection(world).has(FLOOR_BYTES * 2).reads


def test_missed_heartbeats_do_not_count_while_the_broker_does_not_read(world: World) -> None:
    waits = crowd(world, 4)[3]
    world.advance(TOLD_S)
    before = waits.intake.last_read
    crowd(world, 0)
    world.quotas.max_held_bytes *= 10
    world.advance(LOOK_S)
    assert waits.reads
    assert waits.intake.last_read > before


def test_one_that_ends_while_it_waits_is_forgotten(world: World) -> None:
    goes_on, waits, last = crowd(world, 5)[2:]
    waits.intake.close()
    goes_on.intake.close()
    assert last.reads
    assert not world.room.holds(waits.intake)
