"""The session of one connection: its reader, handler and writer, which take turns.

Contract: delivery.md, "Sessions"; protocol.md, "Framing"; ADR 0005, 0011, 0076.

    received ──► Reader ──► runs of commands ──► Handler ──► Replies, in order ──┐
                 (sans-IO parser)                (broker)                         ├──► Writer ──► transport
                                                 Deliveries, while there is room ─┘

Nothing is awaited: whatever has work for the session wakes it, and it runs in its turn (``fair_queue.py``).
"""

import asyncio
import logging
from collections.abc import Callable
from enum import Enum
from typing import Final

from toymq_py.auth.quotas import Seat
from toymq_py.auth.tokens import Authority
from toymq_py.broker import Broker
from toymq_py.clock import Clock
from toymq_py.net.fair_queue import FairQueue, Runnable
from toymq_py.net.half_close import end_writing
from toymq_py.net.peer import described_peer
from toymq_py.session.authorization import GREETING_S, GuardedHandler
from toymq_py.session.deliveries import AnySubscription, Deliveries
from toymq_py.session.handler import Handler
from toymq_py.session.passing import Passing
from toymq_py.session.reader import COMMANDS_PER_RUN, INBOX_BYTES_MAX, Reader
from toymq_py.session.replies import Replies
from toymq_py.session.wire_log import WireLog
from toymq_py.session.writer import Writer

logger = logging.getLogger("toymq_py.session")

LINGER_S = 1.0
LINGER_BYTES = 1024 * 1024
"""Most input that is discarded after a fatal error, so that a reset does not lose the reply."""
READ_S = 0.1
"""After the deadline of HELLO: time to read the bytes that have arrived."""


class _Phase(Enum):
    SERVING = "commands are applied"
    LEAVING = "no more commands; replies are still written"
    LINGERING = "all is written; input is discarded"
    ENDED = "closed"


_SERVING: Final = _Phase.SERVING
_LEAVING: Final = _Phase.LEAVING
_LINGERING: Final = _Phase.LINGERING
_ENDED: Final = _Phase.ENDED
"""A constant, since an attribute of an ``Enum`` takes 170 ns on Python 3.11."""


class Session:
    """State of one connection. Belongs to the loop and works in its turns."""

    __slots__ = (
        "_clock",
        "_deliveries",
        "_ended",
        "_greeting_timer",
        "_guard",
        "_handler",
        "_linger_bytes",
        "_linger_timer",
        "_loop",
        "_lost",
        "_max_inflight_bytes",
        "_max_payload_bytes",
        "_owed",
        "_phase",
        "_reader",
        "_refused",
        "_replies",
        "_runnable",
        "_seat",
        "_wire",
        "_writer",
        "number",
        "since_ms",
        "transport",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        transport: asyncio.Transport,
        broker: Broker,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        queue: FairQueue,
        ended: Callable[["Session"], None],
        authority: Authority | None = None,
        seat: Seat | None = None,
        address: str | None = None,
    ) -> None:
        """
        Args:
            ended: called once, when the connection is gone, its leases are given back and its waits withdrawn.
            authority: checks tokens; None allows everything.
            seat: the connection's share of the limits.
            address: the client's, for the audit trail.
        """
        self.number = number
        self.since_ms = clock.wall_ns() // 1_000_000
        self.transport = transport
        self._clock = clock
        self._loop = loop
        self._ended = ended
        self._max_payload_bytes = broker.options.max_payload_bytes
        self._max_inflight_bytes = broker.options.max_inflight_bytes
        self._seat = seat
        self._runnable = Runnable(queue, self._turn, seat)
        self._replies = Replies(broker.metrics, self._runnable, clock)
        self._deliveries = Deliveries(self._replies, self._runnable, clock, loop.call_later, seat)
        if seat is not None:  # not a method of the deliveries, which know the replies: a cycle would outlive the session
            self._replies.room, self._replies.grow = seat.bytes_to_take, seat.grow
        self._writer = Writer(transport, self._replies, self._deliveries, clock)
        self._guard: GuardedHandler | None = None
        self._greeting_timer: asyncio.TimerHandle | None = None
        if authority is None:
            self._reader = Reader(transport, broker.metrics, self._max_payload_bytes, COMMANDS_PER_RUN)
            self._handler = Handler(number, broker, self._replies, self._deliveries, loop, address)
        else:
            self._reader = Reader(transport, broker.metrics, 0, 1)
            self._guard = self._handler = GuardedHandler(
                number, broker, self._replies, self._deliveries, loop, address, authority, described_peer(transport), seat,
                self._admitted,
            )  # fmt: skip
            self._greeting_timer = loop.call_later(GREETING_S, self._nearly_too_late)
        self._refused = self._handler.refused
        self._refused.seat = seat
        if broker.placement.is_divided and address is not None:
            self._handler.passing = Passing(
                broker.placement, broker.partitioned, self._replies, self._deliveries, loop, self._handler.gate,
                lambda: self._writer.paused, self.abort,
            )  # fmt: skip
        self._phase = _SERVING
        self._lost = False
        self._linger_bytes = 0
        self._linger_timer: asyncio.TimerHandle | None = None
        self._owed: list[Callable[[], bool]] | None = None
        self._wire: WireLog | None = None
        self.debug_wire()
        self._say("=", f"open, from {described_peer(transport)}")

    def debug_wire(self) -> None:
        """Apply a changed level of the logger ``toymq_py.wire``."""
        wire = WireLog.of(self.number)
        if self._wire is None or wire is None:
            self._wire = self._reader.wire = self._writer.wire = wire

    # -- from the transport

    def received(self, data: bytes) -> None:
        if self._phase is _LINGERING:
            self._linger_bytes += len(data)
            if self._linger_bytes > LINGER_BYTES:
                self.transport.abort()
            return
        reader, seat = self._reader, self._seat
        reader.received(data)
        if seat is not None and reader.bytes_max > seat.quotas.floor_bytes:  # at once: bounds what a pass reads
            self._settle(seat)
        self._runnable.wake()

    def received_eof(self) -> None:
        self._reader.eof = True
        self._runnable.wake_last()

    def pause_writing(self) -> None:
        self._writer.pause()

    def resume_writing(self) -> None:
        self._writer.resume()
        if self._handler.passing is not None:
            self._handler.passing.links.resume()
        self._runnable.wake()

    def connection_lost(self) -> None:
        self._writer.connection_lost()
        self._lost = True
        if self._phase is _ENDED:
            self._ended(self)
        else:
            self._runnable.wake_last()

    # -- its turn

    def _turn(self, slice_end: float) -> bool:
        """Run one turn. A bug is logged and ends this connection alone. Returns: whether there is more to do."""
        reader = self._reader
        try:
            if self._lost or reader.eof or self._phase is not _SERVING:
                return self._ending_turn(slice_end)
            more = False
            if reader.waiting:
                handler = self._handler
                # One command while there is no token: what stands behind HELLO has its turn as the token's.
                more = handler.step(reader, self._clock, slice_end if self._greeting_timer is None else 0.0)
                if handler.ended or reader.finished:
                    self._leave()
            if self._owed is not None:
                self._leave_when_done()
            if self._phase is not _SERVING:
                more = self._write(slice_end) or more
            elif self._replies.due or self._deliveries.by_name:
                more = self._writer.step(slice_end, deliver=True) or more
            seat = self._seat
            if seat is not None and (
                self._replies.held_bytes + reader.bytes_max + self._refused.held_bytes > seat.quotas.floor_bytes
                or seat.held_bytes
                or self._writer.paused
            ):
                more = self._settle(seat) or more
            return more or (not reader.caught_up and self._has_room_again()) or (reader.paused and self._makes_room())
        except Exception:
            logger.exception("session %d ended by a bug", self.number)
            self._say("!", "a bug")
            self.abort()
            return False

    def _settle(self, seat: Seat) -> bool:
        """Account for the bytes held here: unparsed, in replies, of refused producers, and written but unread. While the
        broker, the token or the address is over its limit, no commands are taken, little is read, and a body that is arriving
        is dropped.

        Returns: whether there is a command to handle.
        """
        held_bytes = self._replies.held_bytes + self._reader.count_bytes() + self._writer.unread_bytes
        held_bytes += self._refused.held_bytes
        floor_bytes = seat.floor_bytes
        if held_bytes <= floor_bytes and not seat.held_bytes:
            return False
        room = seat.settle(held_bytes)
        self._handler.max_held_bytes = self._max_inflight_bytes if room else floor_bytes
        self._reader.limit_inbox(INBOX_BYTES_MAX if room else floor_bytes)
        if room or not self._reader.has_body_above(floor_bytes) or seat.may_go_on():
            return False
        return self._reader.refuse_body(seat.too_much())

    def _ending_turn(self, slice_end: float) -> bool:
        eof = self._reader.eof
        if eof:
            self._handler.wait_no_more()
        if self._lost or (eof and self._phase is _LINGERING):
            self._end()
            return False
        if self._phase is _LINGERING:
            return False
        more = self._phase is _SERVING and self._handler.step(self._reader, self._clock, slice_end)
        if self._handler.ended or self._reader.finished:
            self._leave()
        if self._owed is not None:
            self._leave_when_done()
        return self._write(slice_end) or more or self._has_room_again()

    def _write(self, slice_end: float) -> bool:
        """Run the writer's step. Returns: whether there is more to write, and room."""
        more = self._writer.step(slice_end, deliver=self._phase is _SERVING)
        if not more and self._phase is _LEAVING and not self._replies and not self._writer.paused:
            self._linger()
        return more

    def _has_room_again(self) -> bool:
        """Whether commands wait that were held up by replies which are written now."""
        return not self._reader.caught_up and self._phase is _SERVING and self._handler.has_room

    def _makes_room(self) -> bool:
        """End waiting commands while the inbox is full behind them: nothing is read then, so the loss of the client would go
        unnoticed. Returns: whether any were ended."""
        return not (self._handler.has_room or self._writer.paused) and self._handler.end_waits()

    # -- tokens

    def _admitted(self) -> None:
        if self._greeting_timer is not None:
            self._greeting_timer.cancel()
            self._greeting_timer = None
            self._reader.accept_payloads(self._max_payload_bytes)

    def _nearly_too_late(self) -> None:
        """Read once more before HELLO is overdue: after a pause of the whole process, timers run before input."""
        self._greeting_timer = self._loop.call_later(READ_S, self._too_late)

    def _too_late(self) -> None:
        """End the session: the time for HELLO with a token is over."""
        self._greeting_timer = None
        if self._guard is not None and self._phase is _SERVING:
            self._guard.too_late()
            self._leave()

    def rights_changed(self) -> None:
        """Check the session's token against a new table of tokens."""
        if self._guard is not None and self._phase is _SERVING and self._guard.rights_changed():
            self._leave()

    # -- the end

    def _leave(self) -> None:
        """Take no more commands, end waits, and write the replies that are due."""
        if self._phase is _SERVING:
            self._phase = _LEAVING
            self._say("=", "leaving")
            self._handler.wait_no_more()
            if self._handler.passing is not None:
                self._handler.passing.finish()
            self._runnable.wake()

    def _linger(self) -> None:
        """Close the connection; while the client may still be sending, first discard its input for a moment."""
        if self._reader.eof:
            self._end()
            return
        self._phase = _LINGERING
        self._say("=", "lingering")
        self._say("%", f"end in {LINGER_S:g} s")
        self._reader.discard()
        end_writing(self.transport)
        self._linger_timer = self._loop.call_later(LINGER_S, self._end)

    def _end(self) -> None:
        """End the session. Idempotent."""
        if self._phase is _ENDED:
            return
        self._phase = _ENDED
        self._say("x", "the connection is gone" if self._lost else "closed")
        self._runnable.close()
        for timer in (self._linger_timer, self._greeting_timer):
            if timer is not None:
                timer.cancel()
        self._deliveries.close()
        self._handler.close()
        self.transport.close()
        if self._lost:
            self._ended(self)

    # -- for operators

    @property
    def client_name(self) -> str | None:
        """The client's ``name`` in its HELLO."""
        return self._handler.client_name

    @property
    def subscriptions(self) -> list[AnySubscription]:
        """The present subscriptions, to topics and patterns."""
        return list(self._deliveries.by_name.values())

    @property
    def lacks(self) -> list[str]:
        """The names of the workers or groups that are away, so that the session's subscriptions lack their messages."""
        return [] if self._handler.passing is None else self._handler.passing.links.lacks

    # -- shutdown

    def inflight(self) -> list[Callable[[], bool]]:
        """For each id range that the session has leased, a function that returns whether all of it is acked."""
        return self._deliveries.inflight()

    def shut_down(self, owed: list[Callable[[], bool]]) -> None:
        """Close when every reply is written and every call of ``owed`` returns True."""
        self._owed = owed
        if self._handler.passing is not None:
            self._handler.passing.links.shutting_down = True
        self._handler.wait_no_more()
        self._leave_when_done()

    def _leave_when_done(self) -> None:
        if self._owed is not None:
            self._owed = [is_acked for is_acked in self._owed if not is_acked()]
            if not self._owed and not self._reader.waiting:
                self._leave()

    def _say(self, mark: str, text: str) -> None:
        if self._wire is not None:
            self._wire.say(mark, text)

    def abort(self) -> None:
        """Close at once and drop the replies."""
        self.transport.abort()
        self._end()
