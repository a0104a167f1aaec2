"""One AMQP connection: handshake, channels, heartbeats, the end.

Contract: amqp.md; the specification, 2.2.4 and 4.2. Received frames are applied when it is the connection's turn
(``FairQueue``) and memory has room; messages are taken when the socket has room. Belongs to the event loop.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import closing, suppress
from functools import partial
from typing import Any, cast

from toymq_py.amqp import frames, methods
from toymq_py.amqp.blocking import Alarm, Blocking
from toymq_py.amqp.channel import Channel
from toymq_py.amqp.connection import AmqpConnection, Content, Event, NotAmqp, Signal
from toymq_py.amqp.deadline import Deadline
from toymq_py.amqp.deliveries import Consumer
from toymq_py.amqp.errors import (
    ACCESS_REFUSED,
    CHANNEL_ERROR,
    COMMAND_INVALID,
    CONNECTION_FORCED,
    INTERNAL_ERROR,
    NOT_ALLOWED,
    PRECONDITION_FAILED,
    AmqpError,
    amqp_error,
)
from toymq_py.amqp.handshake import Handshake
from toymq_py.amqp.heartbeats import Heartbeats
from toymq_py.amqp.intake import Intake, Room
from toymq_py.amqp.login import Login, OpenRights
from toymq_py.amqp.methods import Method
from toymq_py.amqp.outbox import Outbox
from toymq_py.amqp.publishing import Held
from toymq_py.amqp.vhosts import Vhosts
from toymq_py.auth import audit
from toymq_py.auth.holder import acting_token
from toymq_py.auth.quotas import Seat
from toymq_py.broker_waits import stored
from toymq_py.clock import Clock
from toymq_py.errors import RequestError, TooManyConnections
from toymq_py.net.bounded_reads import BoundedProtocol
from toymq_py.net.fair_queue import FairQueue, Runnable
from toymq_py.net.peer import described_peer

logger = logging.getLogger("toymq_py.amqp")

LOGIN_S = 10.0
"""The time from the first byte to connection.open."""
CHANNEL_BYTES = 6 * 1024
"""Memory of an open channel that does nothing, measured."""
CLOSE_S = 5.0
"""The time for the peer to answer connection.close."""
READ_AHEAD_BYTES = 256 * 1024
"""With so many bytes that came and cannot be applied yet, the socket is not read."""
RETRY_S = 0.5
SHUTDOWN = AmqpError(CONNECTION_FORCED, "broker forced connection closure with reason 'shutdown'")
"""Not logged for each connection: the broker says that it stops."""


class Session(BoundedProtocol):
    """One AMQP connection, and the asyncio protocol of its transport."""

    def __init__(
        self, vhosts: Vhosts, clock: Clock, loop: asyncio.AbstractEventLoop, fair: FairQueue, login: Login,
        alarm: Alarm, room: Room, address: str | None, enter: Callable[["Session"], Seat], ended: Callable[["Session"], None],
    ) -> None:  # fmt: skip
        """
        Args:
            address: the client's, for the audit trail.
            enter: admits the connection, and returns its share of the limits. Raises: TooManyConnections.
            ended: called once, when the connection is gone.
        """
        options = vhosts.broker.options
        self.body_bytes_max, self._inflight_bytes_max = options.max_payload_bytes, options.max_inflight_bytes
        self.address = address
        self._subscriptions_max = options.max_subscriptions
        self._clock, self._loop = clock, loop
        self.handshake = Handshake(login, address, vhosts)
        self._enter = enter
        self._ended = ended
        self._runnable = Runnable(fair, self._turn)
        self._connection = AmqpConnection(
            frame_max=frames.LOGIN_FRAME_MAX, body_bytes_max=self.body_bytes_max, channel_max=0
        )
        self.transport: asyncio.Transport
        self.seat: Seat | None = None
        self.channels: dict[int, Channel] = {}
        self.held = Held()
        self._touched: dict[Channel, None] = {}  # since they were flushed
        self._ready: dict[Consumer, None] = {}
        self._work: asyncio.Task[None] | None = None
        self._outbox = Outbox(clock)
        self.blocking = Blocking(alarm, self.write)
        self.buffer = self._intake = Intake(room, clock, self.blocking, self.close_with, self._runnable.wake)
        self._closing = self._gone = self._blocked_by_publishes = False
        self._deadline = Deadline(loop)
        self._heartbeats = Heartbeats(clock, self._deadline, self._intake, self._outbox, self.abort)

    # -- the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is not a subclass
        self._outbox.transport = self._intake.transport = self.transport
        self.transport.set_write_buffer_limits(high=0)  # so that "not stalled" means "the socket took everything"
        try:
            self.seat = self._intake.seat = self._runnable.seat = self._enter(self)
        except TooManyConnections as error:
            self.write(methods.closing(0, "connection.close", AmqpError(CONNECTION_FORCED, str(error))))
            self._log(str(error))
            self._close_transport()
            return
        self._deadline.set(LOGIN_S, partial(self.abort, f"no login within {LOGIN_S:g} s"))

    def data_received(self, data: bytes) -> None:
        self._intake.received()
        if self._gone:
            return
        self._connection.received(data)
        self._runnable.wake()
        self._settle()

    def eof_received(self) -> bool:
        return False  # AMQP has no half-closed connections

    def pause_writing(self) -> None:
        self._outbox.stall(True)
        for consumer in self._ready:
            consumer.wake_others()

    def resume_writing(self) -> None:
        self._outbox.stall(False)
        self._runnable.wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        self._deadline.cancel()
        if self.seat is not None:
            self.seat.leave()
        self._ended(self)

    # -- turns

    def _turn(self, slice_end: float) -> bool:
        """Apply received frames, then deliver. A bug is logged and ends only this session. Returns: whether there is more."""
        if self._gone:
            return False
        try:
            more = self._apply(slice_end)
            touched, self._touched = self._touched, {}
            for channel in touched:
                channel.flush()
            more = self._deliver(slice_end) or more
            self._flush()
            self._settle()
        except AmqpError as error:
            self._fail(error)
        except Exception:
            logger.exception("an AMQP connection ended by a bug")
            self._fail(AmqpError(INTERNAL_ERROR, "a bug of the broker; its log has it"))
        else:
            return more
        self._flush()
        self._settle()
        return False

    @property
    def _is_busy(self) -> bool:
        """Whether a method waits for the disk. (A property, since mypyc would take the attribute for None after one check.)"""
        return self._work is not None

    def _has_room(self) -> bool:
        """Whether the next method may be applied."""
        seat = self.seat
        most = seat.floor_bytes if seat is not None and seat.crowded else self._inflight_bytes_max
        self._blocked_by_publishes = self.held.published > most
        if self.held.in_transactions:
            self._settle()
            if not self._intake.may_apply:
                return False
        return not (self._blocked_by_publishes or self._outbox.full or self.held.refused)

    def _apply(self, slice_end: float) -> bool:
        if self._is_busy or not self._has_room():
            return self._outbox.full and not self._outbox.stalled
        monotonic = self._clock.monotonic
        alarm = self.blocking.alarm
        try:
            with closing(self._connection.events()) as events:  # type: ignore[type-var]
                for count, event in enumerate(events, 1):
                    if (alarm.is_on or alarm.memory_is_high) and self.blocking.holds(event, self.channels.get(event[0])):
                        self._connection.give_back(event)
                        return False
                    self._event(event)
                    if self._is_busy or self._gone or self.held.refused:
                        return False
                    if self._outbox.full:
                        return not self._outbox.stalled
                    if monotonic() > slice_end or not (count % 16 or self._has_room()):  # a table may cost milliseconds
                        return self._has_room()
        except NotAmqp:
            self._log("its first bytes are not the protocol header of AMQP 0-9-1")
            self.write(frames.PROTOCOL_HEADER)
            self._close_transport()
            return False
        return False

    def alarm_changed(self) -> None:
        """Handle a change of the alarm: publishing begins or ceases to be refused for want of disk space."""
        if not self.handshake.is_over or self._closing or self._gone:
            return
        self.blocking.tell()
        if not self.blocking.alarm.is_on:
            self.held.again()
        self._runnable.wake()

    def _event(self, event: Event) -> None:
        """Handle one event. Raises: AmqpError, which ends the connection."""
        number, what = event
        if what is Signal.HEARTBEAT or what is Signal.NOTHING:
            return
        if what is Signal.GREETING:
            self.write(self.handshake.begin(self.transport))
            return
        if self._closing:
            if isinstance(what, Method) and what.name in ("connection.close-ok", "connection.close"):
                self._close_transport()
            return
        try:
            if isinstance(what, AmqpError):
                raise what
            if number == 0:
                self._on_connection(cast("Method", what))
            else:
                self._on_channel(number, what)
        except (AmqpError, RequestError, OSError) as error:
            self._refuse(number, amqp_error(error), what)

    def _refuse(self, number: int, error: AmqpError, what: Any) -> None:
        if error.method == (0, 0) and isinstance(what, Method | Content):
            error.method = (what.method if isinstance(what, Content) else what).index
        self.fail(number, error)

    def _deliver(self, slice_end: float) -> bool:
        if self._closing:
            return False
        while self._ready and not self._outbox.stalled:
            consumer = next(iter(self._ready))
            del self._ready[consumer]
            channel = self.channels.get(consumer.channel)
            if channel is None:
                continue
            try:
                more = channel.consumers.deliver(consumer)
            except OSError as error:
                logger.error("cannot read %s, trying again: %s", consumer.queue, error)  # noqa: TRY400 (one line)
                self._loop.call_later(RETRY_S, self.wake, consumer)
                continue
            if more:
                self._ready[consumer] = None
            self._flush()
            if self._clock.monotonic() > slice_end:
                break
        return bool(self._ready) and not self._outbox.stalled

    # -- what channels ask for

    def write(self, *pieces: bytes) -> None:
        self._outbox.add(*pieces)
        self._runnable.wake()

    def wake(self, consumer: Consumer) -> bool:
        """Schedule deliveries to a consumer. Returns: whether they happen soon."""
        self._ready[consumer] = None
        self._runnable.wake()
        return not self._outbox.stalled

    def check_subscriptions(self) -> None:
        """Check that the connection has not reached its limit of subscriptions, as for TCP sessions. Raises: AmqpError."""
        limit = self._subscriptions_max
        if sum(len(channel.consumers) for channel in self.channels.values()) >= limit:
            text = f"the connection has {limit} consumers and queues to get from, the limit (--max-subscriptions)"
            raise AmqpError(PRECONDITION_FAILED, text)

    def progress(self) -> None:
        """Called when publishes were answered."""
        self._runnable.wake()

    def when_taken(self, call: Callable[[None], object]) -> None:
        """Call ``call(None)`` once the socket has taken what was written."""
        self._outbox.when_taken(call)

    def fail(self, number: int, error: AmqpError) -> None:
        """Close a channel, or the whole connection, with an error."""
        if number == 0 or error.closes_connection:
            self._fail(error)
            return
        channel = self.channels.pop(number, None)
        if channel is None:
            return
        channel.close()
        self._connection.discard(number)
        self.write(methods.closing(number, "channel.close", error))

    def _flush(self) -> None:
        """Hand over the waiting frames to the socket, if it has room."""
        if not self._gone:
            self._outbox.flush()

    def _settle(self) -> None:
        """Account for the bytes that the connection holds, and pause reading when nothing more can be applied."""
        if self._gone:
            return
        unapplied = self._connection.held_bytes + self.held.in_transactions
        held = unapplied + len(self.channels) * CHANNEL_BYTES + self.held.published + self._outbox.held_bytes
        waits = self._blocked_by_publishes or self._connection.has_waiting or bool(self.held.refused)
        busy = self._is_busy or waits or (self._outbox.stalled and bool(self._outbox))
        wants = (unapplied if busy else self._connection.unread_bytes) <= READ_AHEAD_BYTES
        self._intake.settle(held, 0 if self._closing else unapplied, self.held.published, wants=wants)

    # -- methods of the connection

    def _on_connection(self, method: Method) -> None:
        """Handle a method of channel 0. Raises: AmqpError."""
        if method.name == "connection.close":
            self.write(methods.encode(0, "connection.close-ok"))
            self._close_transport()
            return
        handshake = self.handshake
        self.write(handshake.apply(method))
        if method.name == "connection.tune-ok":
            self._connection.limit_frames(handshake.frame_max)
            self._connection.channel_max = handshake.channel_max
        elif method.name == "connection.open":
            self.blocking.is_known = handshake.knows_blocked
            self._deadline.cancel()
            self._heartbeats.begin(handshake.heartbeat_s)
        elif (rights := handshake.rights).name is not None and self.seat is not None:
            try:
                self.seat.identify(rights.name, admin=rights.is_admin)
            except TooManyConnections as error:
                raise AmqpError(NOT_ALLOWED, str(error), method.index) from None

    @property
    def rights(self) -> OpenRights:
        return self.handshake.rights

    @property
    def is_told_of_cancels(self) -> bool:
        """Whether the client has said that it understands a basic.cancel from the broker."""
        return self.handshake.knows_cancels

    @property
    def is_crowded(self) -> bool:
        """Whether so many bytes wait for the client that direct replies are dropped."""
        return self._outbox.full

    @property
    def frame_max(self) -> int:
        """The largest frame that the peer takes."""
        return self.handshake.frame_max

    def audit(self, action: str, about: Mapping[str, str], result: str = audit.OK) -> None:
        """Record in the audit trail that something was made, changed, removed or refused."""
        audit.record(action, result, token=self.rights.name, address=self.address, via="amqp", about=about)

    # -- channels

    def _on_channel(self, number: int, what: Method | Content) -> None:
        """Handle a method or content of a channel. Raises: AmqpError, RequestError, OSError."""
        if not self.handshake.is_over:
            raise AmqpError(COMMAND_INVALID, f"channel {number} before connection.open-ok")
        channel = self.channels.get(number)
        if isinstance(what, Method) and what.index[0] == 20 and what.name != "channel.flow":
            self._open_or_close(number, channel, what)
            return
        if channel is None:
            raise AmqpError(CHANNEL_ERROR, f"channel {number} is not open")
        self._touched[channel] = None
        whose = acting_token.set(None if self.seat is None else self.seat.token)
        try:
            self.rights.check()
            if isinstance(what, Content):
                self.blocking.publishes = True
                channel.publish(what)
                return
            later = channel.apply(what)
            if later is not None:
                self._work = self._loop.create_task(self._do(number, what, later), name=f"amqp {what.name}")
        finally:
            acting_token.reset(whose)

    async def _do(self, number: int, method: Method, later: Coroutine[Any, Any, None]) -> None:
        """Wait for a method that needs the disk; nothing else is applied meanwhile."""
        try:
            await later
        except (AmqpError, RequestError, OSError) as error:
            self._refuse(number, amqp_error(error), method)
        except Exception:
            logger.exception("an AMQP connection ended by a bug")
            self._fail(AmqpError(INTERNAL_ERROR, "a bug of the broker; its log has it"))
        finally:
            self._work = None
            if self._gone:
                self.handshake.queues.owner_gone(self)  # it may have made a queue of its own meanwhile
            self._runnable.wake()

    def _open_or_close(self, number: int, channel: Channel | None, method: Method) -> None:
        """Open or close a channel. Raises: AmqpError."""
        if method.name == "channel.open":
            if channel is not None:
                raise AmqpError(COMMAND_INVALID, "second 'channel.open' seen", method.index)
            self._settle()
            self._intake.check((len(self.channels) + 1) * CHANNEL_BYTES, method.index)
            self.channels[number] = Channel(number, self, self.handshake.queues)
            self.write(methods.encode(number, "channel.open-ok"))
        elif method.name == "channel.close":
            if channel is not None:
                del self.channels[number]
                channel.close()
            self._connection.reopen(number)
            self.write(methods.encode(number, "channel.close-ok"))
        elif method.name == "channel.close-ok":
            self._connection.reopen(number)
        else:
            raise AmqpError(COMMAND_INVALID, f"{method.name} is not a client's", method.index)

    # -- the end

    def rights_changed(self) -> None:
        """Apply a changed table of tokens."""
        error = self.rights.renew()
        if error is not None and not self._closing:
            self.close_with(AmqpError(ACCESS_REFUSED, f"the token was changed: {error}"))

    async def shut_down(self) -> None:
        """Tell the client that the broker stops, once the waiting publishes are answered."""
        for channel in self.channels.values():
            channel.consumers.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S / 2):
                for channel in list(self.channels.values()):
                    if channel.publishes.waiting:
                        await stored(channel.publishes.when_answered)
        self.close_with(SHUTDOWN)

    def close_with(self, error: AmqpError) -> None:
        """Send an error as the reason, and close once the client has read it."""
        self._fail(error)
        self._flush()

    def _fail(self, error: AmqpError) -> None:
        """Close the connection with an error, or in an orderly way."""
        if self._closing or self._gone:
            return
        self._closing = True
        self._intake.close()
        if error is not SHUTDOWN:
            self._log(error.reply_text)
        self._close_channels()
        self.write(methods.closing(0, "connection.close", error))
        self._deadline.set(CLOSE_S, self.abort)

    def _close_channels(self) -> None:
        channels, self.channels = list(self.channels.values()), {}
        self._connection.end()
        self._ready.clear()
        for channel in channels:
            channel.close()
        self.handshake.queues.owner_gone(self)

    def _close_transport(self) -> None:
        """Close once the client has read the written frames, or after a time if it does not read."""
        self._outbox.write_all()
        self._end()
        self.transport.close()
        self._deadline.set(CLOSE_S, self.abort)

    def _end(self) -> None:
        """End the session. Idempotent."""
        if self._gone:
            return
        self._gone = True
        for part in (self._intake, self._heartbeats, self.blocking, self._runnable):
            part.close()
        self._deadline.cancel()
        self._close_channels()

    def abort(self, reason: str = "") -> None:
        """Close the connection at once. ``reason``: for the log, unless it is there already."""
        if reason:
            self._log(reason)
        self.transport.abort()

    def _log(self, reason: str) -> None:
        """Say why the broker ends the connection."""
        logger.info("%s: %s", described_peer(self.transport), reason)
