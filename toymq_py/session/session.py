"""One connection: what arrives is parsed and applied, what is due is written, a turn at a time.

Contract: delivery.md, "Sessions"; protocol.md, "Framing"; ADR 0005, 0011.

    received ──► inbox ──► parser ──► runs of commands ──► handler ──► replies, in order ─┐
                           (sans-IO)                       (broker)                        ├──► one write ──► transport
                                                deliveries, while there is room ───────────┘

Nothing is awaited: whatever may have something to do for the session wakes it, and it has its turn (``fair_queue.py``).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum

from toymq_py.auth.quotas import FLOOR_BYTES, Seat, peer_of
from toymq_py.auth.tokens import Authority
from toymq_py.broker import Broker
from toymq_py.clock import Clock
from toymq_py.consumer import Consumer
from toymq_py.model import IdRange
from toymq_py.protocol import Command, ServerConnection
from toymq_py.session.authorization import GREETING_S, GuardedHandler
from toymq_py.session.deliveries import Deliveries
from toymq_py.session.fair_queue import Place, Turns
from toymq_py.session.handler import Handler
from toymq_py.session.replies import WRITE_BYTES, Replies
from toymq_py.session.wire_log import Wire

logger = logging.getLogger("toymq_py.session")

COMMANDS_PER_RUN = 512
"""Commands that are parsed and handled in one piece."""
INBOX_BYTES_MAX = 1024 * 1024
"""Unparsed bytes at which reading from the socket is paused."""
LINGER_S = 1.0
LINGER_BYTES = 1024 * 1024
"""After a fatal error: how long and how much is discarded before the socket closes, so that a reset does not eat the reason."""

READ_S = 0.1
"""After the deadline of HELLO: what has arrived is read in that time."""


class _Phase(Enum):
    SERVING = "commands are taken"
    LEAVING = "no more commands; what is due is still written"
    LINGERING = "all is written; what arrives is discarded"
    ENDED = "nothing is left of it"


class Session:
    """State of one connection. On the loop only; its work is done in its turns."""

    __slots__ = (
        "_caught_up", "_clock", "_commands", "_deliveries", "_ended", "_eof", "_greeting_timer", "_guard", "_handler", "_inbox",
        "_inbox_bytes", "_last_write_bytes", "_linger_bytes", "_linger_timer", "_loop", "_lost", "_max_held_bytes",
        "_max_inflight_bytes", "_max_payload_bytes", "_metrics", "_owed", "_parser", "_parsing_bytes", "_phase", "_place",
        "_reading_paused", "_replies", "_run_max", "_seat", "_wire", "_write_paused", "number", "transport",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        transport: asyncio.Transport,
        broker: Broker,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        turns: Turns,
        ended: Callable[["Session"], None],
        authority: Authority | None = None,
        seat: Seat | None = None,
    ) -> None:
        """
        Args:
            ended: called once, when the connection is gone and nothing is left of the session: leases are given back, waits
                withdrawn.
            authority: who decides what the client may do; None lets it do everything.
            seat: of the connection among all.
        """
        self.number = number
        self.transport = transport
        self._clock = clock
        self._loop = loop
        self._metrics = broker.metrics
        self._ended = ended
        self._max_payload_bytes = broker.options.max_payload_bytes
        self._parser = ServerConnection(self._max_payload_bytes if authority is None else 0)
        self._run_max = COMMANDS_PER_RUN if authority is None else 1
        self._inbox: deque[bytes] | None = None  # an empty one has 760 bytes, and most sessions are idle
        self._inbox_bytes = 0
        self._parsing_bytes = 0  # at most so many wait in the parser: counted anew when it matters, not in every turn
        self._reading_paused = False
        self._write_paused = False
        self._commands: Iterator[Command] = iter(())
        self._caught_up = True  # everything that arrived was applied, but for a part of a command
        self._place = Place(turns, self._turn)
        self._replies = Replies(broker.metrics, self._place, clock)
        self._max_held_bytes = self._max_inflight_bytes = broker.options.max_inflight_bytes
        self._seat = seat
        self._deliveries = Deliveries(self._replies, self._place, clock, loop.call_later)
        self._guard: GuardedHandler | None = None
        self._greeting_timer: asyncio.TimerHandle | None = None
        if authority is None:
            self._handler = Handler(number, broker, self._replies, self._deliveries, loop, self._peer_address)
        else:
            self._guard = self._handler = GuardedHandler(
                number, broker, self._replies, self._deliveries, loop, self._peer_address, authority, _peer(transport), seat
            )
            self._greeting_timer = loop.call_later(GREETING_S, self._nearly_too_late)
        self._last_write_bytes = 0
        self._phase = _Phase.SERVING
        self._eof = False
        self._lost = False
        self._linger_bytes = 0
        self._linger_timer: asyncio.TimerHandle | None = None
        self._owed: list[tuple[Consumer, IdRange]] | None = None
        self._wire = Wire.of(number)
        if self._wire is not None:
            self._wire.say("=", f"open, from {_peer(transport)}")

    def _peer_address(self) -> str | None:
        return peer_of(self.transport)

    def debug_wire(self) -> None:
        """Somebody may have begun, or ceased, to listen."""
        wire = Wire.of(self.number)
        if self._wire is None or wire is None:
            self._wire = wire

    # -- from the transport

    def received(self, data: bytes) -> None:
        if self._phase is _Phase.LINGERING:
            self._linger_bytes += len(data)
            if self._linger_bytes > LINGER_BYTES:
                self.transport.abort()
            return
        if self._inbox is None:
            self._inbox = deque()
        self._inbox.append(data)
        self._inbox_bytes += len(data)
        if self._inbox_bytes > INBOX_BYTES_MAX and not self._reading_paused:
            self._reading_paused = True
            self.transport.pause_reading()
        self._place.wake()

    def received_eof(self) -> None:
        self._eof = True
        self._place.wake_last()

    def pause_writing(self) -> None:
        self._write_paused = True
        self._deliveries.stall(True)

    def resume_writing(self) -> None:
        self._write_paused = False
        self._deliveries.stall(False)
        self._place.wake()

    def connection_lost(self) -> None:
        if self._write_paused:
            # How much of the last write the socket took, the transport may not know any more; then nothing of it counts.
            unsent = self.transport.get_write_buffer_size() or self._last_write_bytes
            self._deliveries.give_back(self._last_write_bytes - unsent)
        self._lost = True
        if self._phase is _Phase.ENDED:
            self._ended(self)
        else:
            self._place.wake_last()

    # -- its turn

    def _turn(self, slice_end: float) -> bool:
        """A session's own failure is its own: it is logged and its connection closed, nobody else notices."""
        try:
            if self._lost or self._eof or self._phase is not _Phase.SERVING:
                return self._ending_turn(slice_end)
            more = False
            if self._inbox or not self._caught_up:
                more = self._apply(slice_end)
            if self._owed is not None:
                self._leave_when_done()
            if self._replies.due or self._deliveries.by_name or self._handler.ended or self._owed is not None:
                more = self._write(slice_end) or more
            seat = self._seat
            if seat is not None and (
                self._replies.held_bytes + self._parsing_bytes + self._inbox_bytes > FLOOR_BYTES or seat.held_bytes
            ):
                more = self._settle(seat) or more
            return more or (not self._caught_up and self._has_room_again())
        except Exception:
            logger.exception("session %d ended by a bug", self.number)
            self._say("!", "a bug")
            self.abort()
            return False

    def _settle(self, seat: Seat) -> bool:
        """Account for what is held, if it is more than every connection may hold or was. While that is too much, together with
        others, no more is taken, and a body that is arriving is dropped. Returns: whether there is something to apply."""
        self._parsing_bytes = self._parser.buffered_bytes
        held_bytes = self._replies.held_bytes + self._parsing_bytes + self._inbox_bytes
        if held_bytes <= FLOOR_BYTES and not seat.held_bytes:
            return False
        room = seat.settle(held_bytes)
        self._max_held_bytes = self._max_inflight_bytes if room else FLOOR_BYTES
        if room or not self._caught_up or self._parser.buffered_bytes <= FLOOR_BYTES:
            return False
        if self._parser.refuse_body(seat.too_much()):
            self._caught_up = False
            return True
        return False

    def _ending_turn(self, slice_end: float) -> bool:
        if self._eof:
            self._handler.end_waits()
        if self._lost or (self._eof and self._phase is _Phase.LINGERING):
            self._end()
            return False
        if self._phase is _Phase.LINGERING:
            return False
        more = self._apply(slice_end)
        if self._owed is not None:
            self._leave_when_done()
        return self._write(slice_end) or more or self._has_room_again()

    def _apply(self, slice_end: float) -> bool:
        """Apply what arrived, in order, while there is room for the replies. Never waits for an effect.

        Returns: whether there is more to apply, and room.
        """
        handler, replies, monotonic = self._handler, self._replies, self._clock.monotonic
        while self._phase is _Phase.SERVING:
            for command in self._commands:
                handler.apply(command)
                if handler.ended:  # QUIT, or a fatal error: nothing behind it is executed
                    self._commands = iter(())
                    self._leave()
                    return False
                if monotonic() > slice_end:
                    return True
            if self._greeting_timer is not None:
                self._admit_when_greeted()
            if replies.held_bytes > self._max_held_bytes:
                return False
            commands = self._next_run()
            if not commands:
                break
            self._commands = iter(commands)
        return False

    def _next_run(self) -> list[Command]:
        """Commands that are to be applied next; [] when more bytes are needed. Nothing of them is held while these are awaited:
        what ten thousand idle connections hold adds up."""
        parser, inbox = self._parser, self._inbox
        self._caught_up = False
        while True:
            if not parser.starved and (commands := parser.next_commands(self._run_max)):
                if self._wire is not None:
                    self._wire.received(commands)
                return commands
            if inbox:
                data = inbox.popleft()
                length = len(data)
                self._inbox_bytes -= length
                self._parsing_bytes += length
                parser.receive_data(data)
                if self._reading_paused and self._inbox_bytes <= INBOX_BYTES_MAX:
                    self._reading_paused = False
                    if not self.transport.is_closing():
                        self.transport.resume_reading()
            elif self._eof and parser.ended_torn is None:
                parser.receive_eof()
            else:
                self._caught_up = True
                self._commands = iter(())
                self._inbox = None
                if self._eof:
                    self._metrics.connections_torn_total += bool(parser.ended_torn)
                    self._leave()
                return []

    def _admit_when_greeted(self) -> None:
        """Until then commands are parsed one by one, and no body is taken: those whom nobody knows hold a line at most."""
        assert self._guard is not None
        if self._guard.admitted and self._greeting_timer is not None:
            self._greeting_timer.cancel()
            self._greeting_timer = None
            self._parser.max_payload = self._max_payload_bytes
            self._run_max = COMMANDS_PER_RUN

    def _nearly_too_late(self) -> None:
        """Where the whole process stood still, timers come before what arrived meanwhile: that is read first."""
        self._greeting_timer = self._loop.call_later(READ_S, self._too_late)

    def _too_late(self) -> None:
        """Nobody has said HELLO with a token."""
        self._greeting_timer = None
        if self._guard is not None and self._phase is _Phase.SERVING:
            self._guard.too_late()
            self._leave()

    def rights_changed(self) -> None:
        """There is another table of tokens."""
        if self._guard is not None and self._phase is _Phase.SERVING and self._guard.rights_changed():
            self._leave()

    def _has_room_again(self) -> bool:
        """Whether commands were left because too much was held, and that was written."""
        return (
            not self._caught_up
            and self._phase is _Phase.SERVING
            and self._replies.held_bytes <= self._max_held_bytes
        )

    def _write(self, slice_end: float) -> bool:
        """Write what is due, and deliveries while there is room. Returns: whether there is more, and room."""
        replies, deliveries = self._replies, self._deliveries
        while not self._write_paused:
            deliveries.begin_write()
            out = replies.take_due(slice_end)
            hungry = deliveries.hungry
            if hungry and self._phase is _Phase.SERVING:
                deliveries.take(out, slice_end)
            if not out:
                if replies.unfinished:
                    return True
                break
            data = b"".join(out) if len(out) > 1 else out[0]
            self._last_write_bytes = len(data)
            self.transport.write(data)
            if self._wire is not None:
                self._wire.written(data)
            if not replies.due and not (hungry and deliveries.hungry):
                break
            if (
                len(data) >= WRITE_BYTES // 2
                or deliveries.hungry
                or replies.unfinished
                or self._clock.monotonic() > slice_end
            ):
                return True
        if self._phase is _Phase.LEAVING and not replies and not self._write_paused:
            self._linger()
        return False

    # -- the end

    def _leave(self) -> None:
        """The stream ended, or the broker ends it: waits are cut short, what is due is still written."""
        if self._phase is _Phase.SERVING:
            self._phase = _Phase.LEAVING
            self._say("=", "leaving")
            self._handler.end_waits()
            self._place.wake()

    def _linger(self) -> None:
        """Everything due is written: close, after a moment of discarding when the client may still be sending."""
        if self._eof:
            self._end()
            return
        self._phase = _Phase.LINGERING
        self._say("=", "lingering")
        self._say("%", f"end in {LINGER_S:g} s")
        self._inbox = None
        if self._reading_paused:
            self.transport.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._linger_timer = self._loop.call_later(LINGER_S, self._end)

    def _end(self) -> None:
        """Idempotent."""
        if self._phase is _Phase.ENDED:
            return
        self._phase = _Phase.ENDED
        self._say("x", "the connection is gone" if self._lost else "closed")
        self._place.close()
        for timer in (self._linger_timer, self._greeting_timer):
            if timer is not None:
                timer.cancel()
        self._deliveries.close()
        self._handler.close()
        self.transport.close()
        if self._lost:
            self._ended(self)

    # -- shutdown

    def inflight(self) -> list[tuple[Consumer, IdRange]]:
        """What is inflight to this session."""
        return self._deliveries.inflight()

    def shut_down(self, owed: list[tuple[Consumer, IdRange]]) -> None:
        """The broker shuts down: close as soon as every reply is written and what was inflight, ``owed``, is acked."""
        self._owed = owed
        self._leave_when_done()

    def _leave_when_done(self) -> None:
        if self._owed is not None:
            self._owed = [(consumer, ids) for consumer, ids in self._owed if not consumer.has_acked_all(*ids)]
            if not self._owed and self._caught_up and not self._inbox:
                self._leave()

    def _say(self, mark: str, text: str) -> None:
        if self._wire is not None:
            self._wire.say(mark, text)

    def abort(self) -> None:
        """Now, whatever is due."""
        self.transport.abort()
        self._end()


def _peer(transport: asyncio.Transport) -> str:
    """The other end's address, for the log."""
    name = transport.get_extra_info("peername")
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "a Unix socket"
