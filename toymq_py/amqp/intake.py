"""Limits the memory of message bodies that arrive: beyond it AMQP connections are not read, except one at a time.

Contract: amqp.md, "Limits"; ADR 0232. Partly received bodies hold memory until they are complete. If every connection paused,
none would complete, so one at a time is read. Belongs to the event loop. Knows no method.
"""

import asyncio
from collections.abc import Callable

from toymq_py.amqp.blocking import Blocking
from toymq_py.amqp.deadline import Deadline
from toymq_py.amqp.errors import RESOURCE_ERROR, AmqpError
from toymq_py.amqp.methods import Index
from toymq_py.auth.quotas import FLOOR_BYTES, Quotas, Seat
from toymq_py.clock import Clock
from toymq_py.net.bounded_reads import READ_BYTES

LOOK_S = 0.1
"""How often, while connections wait, it is checked whether there is room, and whether the one that has its turn goes on."""
TOLD_S = 0.5
"""A publisher that waits for longer gets connection.blocked: most waits last for one message of another publisher."""
IDLE_S = 1.0
"""The turn of a connection that sends nothing for so long passes on. It was not read before: bytes that it had sent wait in its
socket."""
TURN_S = 5.0
"""The longest turn, of a connection that sends slowly."""
IDLE_TURNS_MAX = 2
"""A connection that sends nothing in so many turns, while others wait, is closed."""


class Intake:
    """Decides whether bytes of one connection are read, and keeps the time when some arrived last."""

    def __init__(self, room: "Room", clock: Clock, blocking: Blocking, fail: Callable[[AmqpError], None]) -> None:
        """``fail`` closes the connection with an error."""
        self.transport: asyncio.Transport
        self.seat: Seat | None = None
        self.fail = fail
        self.reading = True
        self.last_read = clock.monotonic()
        self.idle_turns = 0
        """Turns in a row in which no bytes came."""
        self._room = room
        self._clock = clock
        self._blocking = blocking
        self._wanted = True

    def received(self) -> None:
        """Note that bytes have arrived."""
        self.last_read = self._clock.monotonic()
        self.idle_turns = 0

    def settle(self, held_bytes: int, arriving_bytes: int, *, wants: bool) -> None:
        """Account for what the connection holds, then pause or resume reading.

        Args:
            arriving_bytes: the part of them in unfinished messages and transactions, which only further input releases.
            wants: whether more input can be applied.
        """
        has_room, seat = True, self.seat
        if seat is not None and (held_bytes > seat.floor_bytes or seat.held_bytes):
            has_room = seat.settle(held_bytes)
        self._wanted = wants
        if seat is None or arriving_bytes <= seat.floor_bytes:
            self._room.leave(self)
        elif not has_room:
            self._room.enter(self)
        self.read_or_not()

    def check(self, channel_bytes: int, method: Index) -> None:
        """Check that memory has room for more channels. To wait would not help, since an idle channel does not free any.

        Raises: AmqpError.
        """
        if channel_bytes > FLOOR_BYTES + READ_BYTES and self.seat is not None and self.seat.crowded:
            raise AmqpError(RESOURCE_ERROR, str(self.seat.too_much()), method)

    def close(self) -> None:
        """Leave the queue for room: the connection is closing."""
        self._room.leave(self)

    def wait(self, waits: bool, *, told: bool = False) -> None:
        """Wait for room, or stop waiting. ``told``: tell the client with connection.blocked, as the wait is long."""
        self._blocking.waits_for_room = waits and told
        self._blocking.publishes = self._blocking.publishes or waits
        self._blocking.tell()

    def read_or_not(self) -> None:
        """Pause or resume reading. Time in which the broker did not read is not counted as missed heartbeats."""
        wants = self._wanted and not self._room.holds(self)
        if wants != self.reading and not self.transport.is_closing():
            self.reading = wants
            if wants:
                self.last_read = self._clock.monotonic()
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()


class Room:
    """The connections that are not read until the broker holds fewer bytes, first in first out. The AMQP server has one."""

    def __init__(self, quotas: Quotas, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self._quotas = quotas
        self.buffer = quotas.read_buffer
        self._clock = clock
        self._deadline = Deadline(loop)
        self._waiting: dict[Intake, float] = {}  # since when
        self._turn: Intake | None = None
        """The connection that is read although there is no room, until its message is complete."""
        self._turn_since = 0.0

    def holds(self, intake: Intake) -> bool:
        """Whether a connection is not read, for want of room."""
        return intake in self._waiting

    def enter(self, intake: Intake) -> None:
        """Make a connection that holds too much wait, unless it is its turn. Idempotent."""
        if intake is self._turn or intake in self._waiting:
            return
        if not self._waiting and self._turn is None:
            self._deadline.set(LOOK_S, self._look)
        self._waiting[intake] = self._clock.monotonic()
        if self._turn is None:
            self._pass_turn()

    def leave(self, intake: Intake) -> None:
        """Stop the wait of a connection that holds little or is closing. Idempotent."""
        if intake is self._turn:
            self._turn = None
            self._let_in()
        elif self._waiting.pop(intake, None) is not None:
            intake.wait(False)

    def close(self) -> None:
        """Stop watching. Idempotent."""
        self._deadline.cancel()

    def _look(self) -> None:
        now = self._clock.monotonic()
        self._check_turn(now)
        self._let_in()
        for intake, since in self._waiting.items():
            if now - since < TOLD_S:
                break
            intake.wait(True, told=True)
        if self._waiting or self._turn is not None:
            self._deadline.set(LOOK_S, self._look)

    def _check_turn(self, now: float) -> None:
        """Give the turn to the next connection, if the current one does not use it or has had it for long."""
        intake = self._turn
        if intake is None or not self._waiting:
            return
        is_idle = intake.reading and now - max(intake.last_read, self._turn_since) > IDLE_S
        if not is_idle and now - self._turn_since <= TURN_S:
            return
        self._turn = None
        intake.idle_turns += is_idle
        if intake.idle_turns >= IDLE_TURNS_MAX:
            text = "others wait for memory, and the rest of the message or transaction that this connection began did not come"
            intake.fail(AmqpError(RESOURCE_ERROR, text))
            return
        self._waiting[intake] = now
        intake.read_or_not()

    def _let_in(self) -> None:
        """Let in as many connections as there is room for one read of each, and at least one."""
        if self._quotas.memory_high:
            return
        left_bytes = self._quotas.max_held_bytes - self._quotas.held_bytes
        for intake in list(self._waiting):
            if left_bytes <= 0:
                break
            if intake.seat is None or not intake.seat.over_its_share:
                left_bytes -= self._quotas.read_bytes
                self._go_on(intake)
        if self._turn is None:
            self._pass_turn()

    def _pass_turn(self) -> None:
        if self._quotas.memory_high or not self._waiting:
            return
        self._turn = next(iter(self._waiting))
        self._turn_since = self._clock.monotonic()
        self._go_on(self._turn)

    def _go_on(self, intake: Intake) -> None:
        del self._waiting[intake]
        intake.wait(False)
        intake.read_or_not()
