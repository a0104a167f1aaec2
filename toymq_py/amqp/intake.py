"""Limits the memory of message bodies that arrive: beyond it AMQP connections are not read, except one at a time.

Contract: amqp.md, "Limits"; ADR 0232, ADR 0279. Partly received bodies hold memory until they are complete. If every connection
paused, none would complete, so one at a time is read, up to a bound (``Room.turn_bytes``). Where all wait at the bound, one
that holds much is closed, whether it waits or not. Belongs to the event loop. Knows no method.
"""

import asyncio
from collections.abc import Callable

from toymq_py.amqp.blocking import Blocking
from toymq_py.amqp.deadline import Deadline
from toymq_py.amqp.errors import CONNECTION_FORCED, RESOURCE_ERROR, AmqpError
from toymq_py.amqp.methods import Index
from toymq_py.auth.holder import Holder
from toymq_py.auth.quotas import FLOOR_BYTES_MIN, Quotas, Seat
from toymq_py.clock import Clock
from toymq_py.net.hang_ups import hung_up

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
STUCK_S, STUCK_AGAIN_S = 5.0, 0.5
"""The time without room even for a turn until one that waits is closed, and until the next one is. What is on its way to the
disk is stored before that."""
HUNG_UP_S = 1.0
"""How often, while connections wait, it is checked which clients have hung up: one that is not read does not report it."""
TURN_PART = 16
"""The part of ``--max-held-bytes``, one in so many, that turns may bring beyond it, if that is more than a message: with the
default 32 MiB, twice a transaction. A token with a share of 50 % leaves room to others with that."""
LITTLE_PART = 2
"""A token that holds less than the one that holds most, one part in so many, keeps its connections."""
READ_BYTES_MIN = 4096
"""The least that a read brings: a TLS record byte by byte would take thousands. A connection without room for it waits."""


class Intake:
    """Decides whether bytes of one connection are read, and how many, and keeps the time when some arrived last."""

    def __init__(
        self, room: "Room", clock: Clock, blocking: Blocking, fail: Callable[[AmqpError], None], wake: Callable[[], None]
    ) -> None:
        """``fail`` closes the connection with an error; ``wake`` has it apply what it has received."""
        self.transport: asyncio.Transport
        self.seat: Seat | None = None
        self.fail = fail
        self.wake = wake
        self.reading = True
        self.last_read = clock.monotonic()
        self.idle_turns = 0
        """Turns in a row in which no bytes came."""
        self._room = room
        self._clock = clock
        self._blocking = blocking
        self._wanted = True
        self._small_bytes = FLOOR_BYTES_MIN
        """The bytes that may still arrive, whatever others hold."""
        self.arriving_bytes = self._storing_bytes = 0

    @property
    def memory(self) -> memoryview:
        return self._room.buffer.memory

    @property
    def room(self) -> memoryview:
        """The memory that one read may fill: of what the limits, or its turn, leave to this connection."""
        buffer = self._room.buffer
        if self.seat is None:
            return buffer.room
        size = max(self._room.left_bytes(self, self.seat), self._small_bytes, READ_BYTES_MIN)
        return buffer.room if size >= len(buffer.room) else buffer.memory[:size]

    def received(self) -> None:
        """Note that bytes have arrived."""
        self.last_read = self._clock.monotonic()
        self.idle_turns = 0

    def settle(self, held_bytes: int, arriving_bytes: int, storing_bytes: int = 0, *, wants: bool) -> None:
        """Account for what the connection holds, then pause or resume reading.

        Args:
            arriving_bytes: the part of them in unfinished messages and transactions, which only further input releases.
            storing_bytes: the part of them in messages that are on their way to the disk.
            wants: whether more input can be applied.
        """
        seat, self._wanted = self.seat, wants
        if storing_bytes or self._storing_bytes:
            self._room.disk.settle(self, storing_bytes, is_answered=storing_bytes < self._storing_bytes)
            self._storing_bytes = storing_bytes
        if seat is not None:
            floor_bytes = seat.floor_bytes
            has_room = seat.settle(held_bytes) if held_bytes > floor_bytes - READ_BYTES_MIN or seat.held_bytes else True
            # small messages still pass where channels, or what the client does not read, are all that it may always hold
            is_anonymous = self._room.is_anonymous(seat)
            always_bytes = floor_bytes // 2 if is_anonymous else floor_bytes - (held_bytes - arriving_bytes)
            always_bytes = max(always_bytes, FLOOR_BYTES_MIN)
            self.arriving_bytes, self._small_bytes = arriving_bytes, always_bytes - arriving_bytes
            self._room.register(self, seat if seat.held_bytes and arriving_bytes else None)
            if self._small_bytes >= READ_BYTES_MIN:
                self._room.leave(self)
            elif is_anonymous:
                self._wanted = False  # until what came is applied: the login is there
            elif not has_room:
                self._room.enter(self, seat)
        self.read_or_not()

    def check(self, channel_bytes: int, method: Index) -> None:
        """Check that memory has room for more channels. To wait would not help, since an idle channel does not free any.

        Raises: AmqpError.
        """
        seat = self.seat
        if seat is not None and channel_bytes + self.arriving_bytes > seat.floor_bytes and seat.crowded:
            raise AmqpError(RESOURCE_ERROR, str(seat.too_much()), method)

    def close(self) -> None:
        """Leave the queue for room, and drop what references the session: the connection is closing."""
        self.fail = self.wake = _ignore
        self._room.register(self, None)
        self._room.disk.settle(self, 0)
        self._room.leave(self)

    def wait(self, waits: bool, *, told: bool = False) -> None:
        """Wait for room, or stop waiting. ``told``: tell the client with connection.blocked, as the wait is long."""
        self._blocking.waits_for_room = waits and told
        self._blocking.publishes = self._blocking.publishes or waits
        self._blocking.tell()

    @property
    def may_apply(self) -> bool:
        """Whether to apply what adds to a transaction: a publish of a few bytes holds ten times those as a call of one."""
        return not self._room.holds(self)

    def go_on(self) -> None:
        """Read and apply again, as there may be room, or a turn."""
        self.wake()
        self.read_or_not()

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


def _ignore(*_: AmqpError) -> None:
    """Do nothing: the connection is closing."""


class Disk:
    """Whether the disk stands still: messages of AMQP connections are on their way to it, and none was stored for a while."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._storing: set[Intake] = set()
        self._since = 0.0
        """When a message was stored last, or the first was on its way."""

    def settle(self, intake: Intake, storing_bytes: int, *, is_answered: bool = False) -> None:
        """Note whether a connection has messages on their way. ``is_answered``: some of them were stored, or refused."""
        if is_answered or not self._storing:
            self._since = self._clock.monotonic()
        if storing_bytes:
            self._storing.add(intake)
        else:
            self._storing.discard(intake)

    @property
    def stands_still(self) -> bool:
        return bool(self._storing) and self._clock.monotonic() - self._since >= LOOK_S


class Room:
    """The connections that are not read until the broker holds fewer bytes, first in first out. The AMQP server has one.

    What those of a token, or all, hold is its limit, and ``turn_bytes`` beyond it. What one has brought in its turn counts
    against these also when the turn has passed on.
    """

    def __init__(self, quotas: Quotas, clock: Clock, loop: asyncio.AbstractEventLoop, message_bytes_max: int) -> None:
        self._quotas = quotas
        self._message_bytes_max = message_bytes_max
        self.buffer = quotas.read_buffer
        self._clock = clock
        self._deadline = Deadline(loop)
        self._waiting: dict[Intake, float] = {}  # since when, the oldest first
        self._holders: dict[Intake, Seat] = {}
        """The connections that have begun a message or a transaction that counts, whether they wait or not."""
        self.disk = Disk(clock)
        self._stuck_since: dict[Holder | None, float] = {}
        """Since when there is no turn for what a token holds; None: for what all hold."""
        self._ended_at: dict[Holder | None, float] = {}
        """When one of these was closed."""
        self._turn: Intake | None = None
        """The connection that is read although there is no room, until its message is complete."""
        self._turn_since = 0.0
        self._hung_up_at = 0.0
        """When it was checked last which clients have hung up."""

    def holds(self, intake: Intake) -> bool:
        """Whether a connection is not read, for want of room."""
        if intake is self._turn:
            return not self._may_have_turn(intake)
        return intake in self._waiting

    @property
    def turn_bytes(self) -> int:
        """How much turns may bring beyond the limits."""
        return max(self._message_bytes_max, self._quotas.max_held_bytes // TURN_PART)

    def is_anonymous(self, seat: Seat) -> bool:
        """Whether it is not known yet of which token's share the bytes are."""
        return self._quotas.guarded and seat.token is None

    def left_bytes(self, intake: Intake, seat: Seat) -> int:
        """How many bytes a connection may take; none if the result is negative."""
        if self._quotas.memory_high or self.is_anonymous(seat):
            return 0
        return self._quotas.left_bytes(seat) + (self.turn_bytes if intake is self._turn else 0)

    def register(self, intake: Intake, seat: Seat | None) -> None:
        """Note that a connection holds what counts and only further input, or its end, releases; None: it does not."""
        if seat is not None:
            self._holders[intake] = seat
        else:
            self._holders.pop(intake, None)

    def enter(self, intake: Intake, seat: Seat) -> None:
        """Make a connection that holds too much wait, unless it is its turn. Idempotent."""
        if intake is self._turn or intake in self._waiting:
            return
        if not self._waiting and self._turn is None:
            self._deadline.set(LOOK_S, self._look)
        seat.too_much()  # counts it
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
            intake.wake()
        elif self._turn is not None and not self._turn.reading:
            self._turn.go_on()  # there may be room: something was stored

    def close(self) -> None:
        """Stop watching. Idempotent."""
        self._deadline.cancel()

    def _look(self) -> None:
        now = self._clock.monotonic()
        if now - self._hung_up_at >= HUNG_UP_S:
            self._hung_up_at = now
            for intake in hung_up({each: each.transport for each in (*self._holders, *self._waiting)}):
                intake.fail(AmqpError(CONNECTION_FORCED, "the client has hung up, and others wait for the memory"))
        self._check_turn(now)
        self._let_in()
        self._end_one(now)
        if self._turn is not None:
            self._turn.go_on()
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
        quotas = self._quotas
        each_bytes = quotas.read_bytes + quotas.floor_bytes  # what did not count counts with the rest
        left_bytes, of_holders = quotas.max_held_bytes - quotas.held_bytes, dict[Holder, int]()
        for intake in () if left_bytes <= 0 or quotas.memory_high else list(self._waiting):
            if left_bytes <= 0:
                break
            seat = intake.seat
            if seat is not None and (of_holder := of_holders.get(seat.holder, quotas.left_bytes(seat))) > 0:
                of_holders[seat.holder] = of_holder - each_bytes
                left_bytes -= each_bytes
                self._go_on(intake)
        if self._turn is None:
            self._pass_turn()

    def _pass_turn(self) -> None:
        """Give the turn to the first that may have it, of the token that holds least: what is freed would else be taken by
        those that were in its way. Those within the shares of their tokens are before others."""
        chosen: Intake | None = None
        least: tuple[bool, int] | None = None
        for intake in self._waiting:
            if (seat := intake.seat) is not None and self._may_have_turn(intake):
                holds = seat.holder.exceeds(self._quotas.max_held_bytes), seat.holder.held_bytes
                if least is None or holds < least:
                    chosen, least = intake, holds
        if chosen is not None:
            self._turn = chosen
            self._turn_since = self._clock.monotonic()
            self._go_on(chosen)

    def _may_have_turn(self, intake: Intake) -> bool:
        """Whether a connection in its turn may bring more. One that may not keeps the turn meanwhile: what it began would be
        in the way of those behind it."""
        quotas, seat = self._quotas, intake.seat
        return seat is not None and not quotas.memory_high and quotas.left_bytes(seat) + self.turn_bytes > 0

    def _end_one(self, now: float) -> None:
        """Close a connection where for some time none of a token's, or of all, might have the turn. While the disk stands still
        time does not count: what is on its way there makes room. While memory is high, only where much of it is held here."""
        stuck: dict[Holder | None, Seat] = {}
        those = list(self._waiting) if self._turn is None else [self._turn, *self._waiting]
        elsewhere = self._quotas.memory_high and self._quotas.held_bytes <= self._quotas.max_held_bytes // 2
        for intake in () if elsewhere or self.disk.stands_still else those:
            if (seat := intake.seat) is not None and not self._may_have_turn(intake):
                stuck[seat.holder if seat.holder.exceeds(self._quotas.max_held_bytes) else None] = seat
        self._stuck_since = {whose: self._stuck_since.get(whose, now) for whose in stuck}
        self._ended_at = {whose: at for whose, at in self._ended_at.items() if now - at < STUCK_S}
        for whose, seat in stuck.items():
            patience_s = STUCK_AGAIN_S if whose in self._ended_at else STUCK_S
            if now - self._stuck_since[whose] < patience_s:
                continue
            chosen = self._in_the_way(whose, -self._quotas.left_bytes(seat) - self.turn_bytes)
            if chosen is None:
                continue
            del self._stuck_since[whose]
            self._ended_at[whose] = now
            text = f"the rest of what this connection began has no room: {seat.too_much()}"
            chosen.fail(AmqpError(RESOURCE_ERROR, text))

    def _in_the_way(self, whose: Holder | None, missing_bytes: int) -> Intake | None:
        """The connection to close, of those of a token, or of all: of the token or address that holds most, one that did not
        use its turn, else its largest. None where it would make no room, as others hold it, with replies that are not read or
        bodies over HTTP: those that hold little in comparison stay."""
        much_bytes = self._quotas.most_held_bytes // LITTLE_PART if whose is None else 0
        members = [
            (intake, seat.holder)
            for intake, seat in self._holders.items()
            if seat.holder is whose or (whose is None and seat.holder.held_bytes >= much_bytes)
        ]
        if sum(intake.arriving_bytes for intake, _ in members) <= missing_bytes:
            return None
        return max(members, key=lambda each: (each[1].held_bytes, each[0].idle_turns, each[0].arriving_bytes))[0]

    def _go_on(self, intake: Intake) -> None:
        del self._waiting[intake]
        intake.wait(False)
        intake.go_on()
