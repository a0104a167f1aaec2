"""A connection of the asyncio client: reconnects by itself and carries the bytes of its conversation."""

import asyncio
import itertools
import logging
import socket
from collections.abc import Sequence
from functools import partial
from typing import TypeVar, cast

from toymq import sockets
from toymq.connect_failure import as_failure, is_hopeless, of_a_round
from toymq.conversation import Conversation
from toymq.delivery_window import Feed
from toymq.errors import ClientClosed, ConnectFailed, RequestTimeout
from toymq.first_connection import FirstConnection
from toymq.options import GOODBYE_S, OUTSTANDING_BYTES_MAX, SILENCE_LOOK_S, UNANSWERED_MAX, Options
from toymq.outages import Outages
from toymq.pending_publishes import Batch
from toymq.pending_replies import CallSlot, PingSlot, check_greeting
from toymq.route import Route
from toymq.silence import Silence, judge
from toymq.url import Address
from toymq.wire_log import log_wait
from toymq_py.errors import ConfigError, ConnectionLost, LocalError, ProtocolViolation, ToymqError
from toymq_py.protocol import HelloReply, OkReply, Quit

logger = logging.getLogger("toymq")

T = TypeVar("T")

WRITE_HIGH_WATER_BYTES = 1024 * 1024
"""Unsent bytes in the transport beyond which publishes wait."""
FULL_READ_BYTES = 64 * 1024
"""A read of so many bytes is full: there may be more behind it."""
SUSPICION_S = 0.1
"""Time to read what has arrived, before a broker counts as silent."""
CLOSED = "this client is closed: connect again"
OTHER_LOOP = (
    "this client belongs to the event loop in which it was connected, and this call runs in another: connect again here (each"
    " asyncio.run() has a loop of its own), or pass the call to its loop with asyncio.run_coroutine_threadsafe()"
)


def settle(future: "asyncio.Future[T]", value: T) -> None:
    """Set a future's result, unless the waiting task was cancelled."""
    if not future.done():
        future.set_result(value)


class _Wire(asyncio.Protocol):
    """One transport (socket) of a link. Late callbacks of an old transport have no effect."""

    def __init__(self, link: "Link", loop: asyncio.AbstractEventLoop) -> None:
        self._link = link
        self.transport: asyncio.Transport | None = None
        self.reason: ToymqError | None = None
        self.ended: asyncio.Future[ToymqError] = loop.create_future()
        self.writable = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(WRITE_HIGH_WATER_BYTES)

    def data_received(self, data: bytes) -> None:
        self._link.received(self, data)

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        self._link.writable()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(self.reason or ConnectionLost(f"the connection was lost: {exc}" if exc else
                                                                "the broker closed the connection"))  # fmt: skip

    def abort(self, reason: ToymqError) -> None:
        self.reason = self.reason or reason
        if self.transport is not None:
            self.transport.abort()


class Link:
    """A connection that reconnects by itself. It sends the output of its conversation once per pass of the event loop.

    Owns one task, which ends with ``close``.
    """

    def __init__(
        self, options: Options, outages: Outages, home: Address | None = None, nodes: Sequence[Address] = ()
    ) -> None:
        """
        Args:
            home: the address of the worker or group to connect to; None: the addresses in ``options``.
            nodes: all addresses of that worker or group.
        """
        self.options = options
        self.home = home
        self.address: Address | None = None
        """The address that it is connected to, or was last."""
        self._outages = outages
        self._route = Route(options.addresses if home is None else nodes or (home,))
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time
        """Returns the seconds of its clock."""
        self._reads_on = False
        """Whether more is about to be read."""
        self.conversation = Conversation(options.producer(), self._flush_soon)
        self._wire: _Wire | None = None
        self._task: asyncio.Task[None] | None = None
        self._first: asyncio.Future[None] = self._loop.create_future()
        self._turn = asyncio.Lock()
        self._room: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._silence: asyncio.TimerHandle | None = None
        self._closing = False
        self._quiet: asyncio.Future[None] | None = None
        self._trouble = ""
        self._answered_at = 0.0

    def check_loop(self) -> None:
        """Check that the caller runs in this link's event loop. Raises: ConfigError in another loop, which can neither wait for
        this link nor wake it."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # ``sub`` needs none
            return
        if loop is not self._loop:
            raise ConfigError(OTHER_LOOP)

    # -- the connection

    def start(self) -> None:
        """Connect in the background, without a time limit."""
        self._first.set_result(None)
        self._task = self._loop.create_task(self._run(None), name="toymq link")  # ended by close

    async def open(self) -> None:
        """Connect; retry for ``wait_s`` seconds.

        Raises: ConnectFailed, RequestError, ProtocolViolation.
        """
        first = FirstConnection(self.options.wait_s, self._loop.time())
        self._task = self._loop.create_task(self._run(first), name="toymq link")  # ended by close
        await self._first

    async def _run(self, first: FirstConnection | None) -> None:
        try:
            await self._stay_connected(first)
        except Exception as error:
            logger.exception("a bug in the client ended its connection")
            self._end(LocalError(f"a bug in the client: {error!r}"))

    async def _stay_connected(self, first: FirstConnection | None) -> None:
        backoff = self.options.backoff()
        for round_number in itertools.count():
            if round_number:
                delay_s = backoff.next_s(self._route.wait_max_s)
                log_wait(delay_s)
                await asyncio.sleep(delay_s)
            failures: list[ToymqError] = []
            self._route.begin()
            while (address := self._route.next()) is not None:
                try:
                    wire = await self._attempt(address)
                except (OSError, ToymqError) as error:
                    self._route.failed(address, error)
                    failures.append(as_failure(address, error))
                    if not self._tries_again(address, failures, first):
                        return
                    continue
                self._route.up(address)
                first, began = None, self.now()
                self._answered_at = began
                if not self._first.done():
                    self._first.set_result(None)
                self._outages.up(self, address)
                if self._route.several:
                    self._silence = self._loop.call_later(SILENCE_LOOK_S, self._look_silent, wire)
                reason = await wire.ended
                if self.conversation.progress or self.now() - began > self.options.backoff_max_s:
                    backoff.reset()  # not where each connection breaks at once
                self._lose(address, reason)
                if self._closing:
                    return
                break

    def _tries_again(self, address: Address, failures: list[ToymqError], first: FirstConnection | None) -> bool:
        """Whether the client tries another address, or another round, after an attempt of this round failed."""
        error, round_over = failures[-1], self._route.exhausted
        reason = of_a_round(failures)
        hopeless = is_hopeless(reason) and (round_over or not isinstance(reason, ConnectFailed))
        logger.debug("%s: no connection: %s", address, error)
        self._trouble = f" (no connection to {address}: {error})"
        if self.home is not None and round_over:
            self._outages.left(self)
            self.conversation.hand_back()
        if not hopeless and (first is None or not round_over or first.goes_on(reason, self._route, self._loop.time())):
            return True
        if self._first.done():
            logger.error("%s: this client gives up: %s", address, reason)
        self._end(reason)
        return False

    def _end(self, reason: ToymqError) -> None:
        if not self._first.done():
            self._first.set_exception(reason)
        self.conversation.close(reason)
        self._wake()

    async def _attempt(self, address: Address) -> _Wire:
        """Try once to connect to an address. Raises: OSError, ConnectFailed, RequestError, ProtocolViolation."""
        wire = _Wire(self, self._loop)
        greeted: asyncio.Future[HelloReply | ToymqError] = self._loop.create_future()
        timeout_s = self._route.timeout_s(address, self.options.connect_timeout_s)
        try:
            self.options.check_not_lost()
            async with asyncio.timeout(timeout_s):
                if address.path is not None:
                    await self._loop.create_unix_connection(lambda: wire, sock=sockets.connect_unix(address.path))
                else:
                    await self._loop.create_connection(
                        lambda: wire, address.host, address.port, ssl=self.options.tls_of(address)
                    )
                assert wire.transport is not None
                sockets.set_up(cast(socket.socket, wire.transport.get_extra_info("socket")), quick=self._route.several)
                self._wire, self.address = wire, address
                self.conversation.connected(
                    self.options.hello(address), lambda answer: settle(greeted, answer)
                )
                await asyncio.wait((greeted, wire.ended), return_when=asyncio.FIRST_COMPLETED)
            check_greeting(greeted.result() if greeted.done() else wire.ended.result())
        except BaseException as error:
            wire.abort(ConnectFailed(str(error)))
            self._wire = None
            self.conversation.lost(ConnectionLost("the connection was not made"))
            if isinstance(error, TimeoutError) and not isinstance(error, ToymqError):
                self._route.silent(address)
                raise ConnectFailed(f"no answer from {address} within {timeout_s:g} s") from None
            raise
        return wire

    def _lose(self, address: Address, reason: ToymqError) -> None:
        self._wire = None
        reason = self.conversation.farewell or reason
        self._route.lost(address, reason)
        self._trouble = f" (the connection to {address} was lost: {reason})"
        error = ClientClosed(CLOSED) if self._closing else ConnectionLost(f"the outcome is unknown: {reason}")
        error.__cause__ = reason
        self.conversation.lost(error)
        self._wake()
        if not self._closing:
            self._outages.down(self, address, reason)

    def received(self, wire: _Wire, data: bytes) -> None:
        if wire is not self._wire:
            return
        conversation = self.conversation
        conversation.received_at = received_at = self.now()
        self._reads_on = len(data) >= FULL_READ_BYTES
        progress = conversation.progress
        try:
            conversation.receive(data)
        except ProtocolViolation as error:
            wire.abort(error)
        if not self._reads_on:
            conversation.looked_at = received_at
        if conversation.progress != progress:
            self._answered_at = received_at
        if self._room is not None or self._quiet is not None:
            self._wake()

    def look(self) -> None:
        """Note the time at which all data in the socket has been read: two passes of the event loop from now, since the next
        pass may run callbacks before it reads.

        Deliveries after that time did not wait in the socket, however long a handler held the loop before.
        """
        self._loop.call_soon(self._loop.call_soon, self._looked)

    def _looked(self) -> None:
        if not self._reads_on:
            self.conversation.looked_at = self.now()

    def writable(self) -> None:
        """Wake waiting publishes: the transport takes bytes again."""
        self._wake()

    def _flush_soon(self) -> None:
        self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send the conversation's output. A transport that has failed gets no more: asyncio would log each write (``lost``
        follows)."""
        wire = self._wire
        if wire is None or wire.transport is None:
            return
        data = self.conversation.take_output()
        if data and not wire.transport.is_closing():
            wire.transport.write(data)

    async def close(self) -> None:
        """Send QUIT and wait up to a second for the broker to read everything; then close."""
        self._closing = True
        try:
            if self.conversation.online and self._wire is not None:
                wire = self._wire
                self.conversation.send_last(CallSlot(Quit(), OkReply))
                self.flush()
                await asyncio.wait((wire.ended,), timeout=GOODBYE_S)
        finally:
            self.abort()
        if self._task is not None:
            await asyncio.wait((self._task,))

    def abort(self) -> None:
        """Close at once, without QUIT. All waiting calls raise ``ClientClosed``."""
        closed = ClientClosed(CLOSED)
        if self._task is not None:
            self._task.cancel()
        if self._wire is not None:
            self._wire.abort(closed)
            self._wire = None
        for timer in (self._timer, self._silence):
            if timer is not None:
                timer.cancel()
        self._timer = self._silence = None
        self.conversation.close(closed)
        self._wake()

    @property
    def descriptor(self) -> int | None:
        """The socket's file descriptor; None without a connection."""
        wire = self._wire
        if wire is None or wire.transport is None:
            return None
        return cast(socket.socket, wire.transport.get_extra_info("socket")).fileno()

    # -- requests

    @property
    def trouble(self) -> str:
        """Why there is no connection, as the end of an error's text; "" when there is one."""
        return "" if self.conversation.online else self._trouble

    def deadline(self, extra_s: float = 0.0) -> float:
        """Return the deadline of a request that begins now: ``timeout_s`` and ``extra_s`` from now."""
        at = self._loop.time() + self.options.timeout_s + extra_s
        self._expire_at(at)
        return at

    def _expire_at(self, at: float) -> None:
        if self._timer is None or at < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(at, self._expire)

    def _expire(self) -> None:
        self._timer = None  # it has fired: a later deadline starts another
        # The loop's clock may be early by its resolution.
        earliest = self.conversation.expire(self._loop.time() + 0.001, self.options.timeout_s, self.trouble)
        if earliest is not None:
            self._timer = self._loop.call_at(earliest, self._expire)
        self._leave_if_silent()
        self._wake()

    def _leave_if_silent(self) -> None:
        """Drop a connection that owes an answer and has brought none for the time-out of a call: another connection may
        work."""
        now = self.now() + 0.001
        if self._wire is not None and self.conversation.is_overdue(now) and now - self._answered_at >= self.options.timeout_s:
            self._wire.abort(ConnectionLost(f"no answer came for {self.options.timeout_s:g} s"))

    def _look_silent(self, wire: _Wire, *, suspected: bool = False) -> None:
        """Drop the connection when the broker owes an answer and has been silent for ``SILENT_S``; when it owes none, send a
        PING.

        ``suspected``: a check a moment ago found the same silence. One check is not enough: after a pause of this event loop,
        timers run before input is read.
        """
        if wire is not self._wire:
            return
        now, conversation = self.now(), self.conversation
        silent_s = now - max(self._answered_at, conversation.received_at)
        silence = judge(conversation, silent_s, now, self.options.timeout_s)
        if silence is Silence.LEAVE:
            if suspected:
                wire.abort(ConnectionLost(f"no answer came for {silent_s:.0f} s"))
            else:
                again = partial(self._look_silent, wire, suspected=True)
                self._silence = self._loop.call_later(SUSPICION_S, again)
            return
        if silence is Silence.ASK:
            conversation.send_now(PingSlot(self.deadline()))
        self._silence = self._loop.call_later(SILENCE_LOOK_S, self._look_silent, wire)

    async def ask(self, slot: CallSlot, *, extra_s: float = 0.0) -> None:
        """Send a request and wait for its answer or failure. The reply to a cancelled request is dropped. A request that was
        refused on another connection keeps its deadline."""
        if slot.deadline is None:
            slot.deadline = self.deadline(extra_s)
        else:
            self._expire_at(slot.deadline)
        done: asyncio.Future[None] = self._loop.create_future()
        slot.when_done(lambda: settle(done, None))
        self.conversation.send(slot)
        try:
            await done
        except asyncio.CancelledError:
            slot.abandon()
            raise

    async def ack_synced(self, feed: Feed, topic: str, msg_id: int) -> None:
        """Ack a message, and wait until the ack is on stable storage. Raises: RequestError, ClientClosed, RequestTimeout."""
        told: asyncio.Future[ToymqError | None] = self._loop.create_future()
        self.conversation.ack_synced(feed, topic, msg_id, lambda error: settle(told, error))
        try:
            async with asyncio.timeout(self.options.timeout_s):
                error = await told
        except TimeoutError:
            text = f"no answer within {self.options.timeout_s:g} s: waited for the synced ack of {topic} {msg_id}"
            raise RequestTimeout(text + self.trouble) from None
        if error is not None:
            raise error

    @property
    def crowded(self) -> bool:
        """Whether a publish has to wait for its turn."""
        return self._turn.locked() or self._crowded

    @property
    def _crowded(self) -> bool:
        conversation, wire = self.conversation, self._wire
        return (
            conversation.outstanding.bytes >= OUTSTANDING_BYTES_MAX
            or conversation.unanswered_count >= UNANSWERED_MAX
            or (wire is not None and not wire.writable)
        )

    async def room(self, topic: str) -> float:
        """Wait for room to publish, first come first served. Returns: the deadline of the publish, which counts from before
        this wait. Raises: RequestTimeout."""
        deadline = self._loop.time() + self.options.timeout_s
        try:
            async with asyncio.timeout_at(deadline), self._turn:
                while self._crowded and not self.conversation.is_closed:
                    self._room = self._loop.create_future()
                    try:
                        await self._room
                    finally:
                        self._room = None
        except TimeoutError:
            waited = f"no room within {self.options.timeout_s:g} s: waited to publish to {topic}"
            raise RequestTimeout(waited + self.trouble) from None
        return deadline

    def _wake(self) -> None:
        """Wake the tasks in ``room`` and ``quiet`` to check again."""
        for waiter in (self._room, self._quiet):
            if waiter is not None:
                settle(waiter, None)

    async def quiet(self, deadline: float) -> bool:
        """Wait until nothing is left to send or to receive. Returns: False at the deadline."""
        try:
            async with asyncio.timeout_at(deadline):
                while not self.conversation.idle:
                    self._quiet = self._loop.create_future()
                    await self._quiet
        except TimeoutError:
            return False
        finally:
            self._quiet = None
        return True

    def batch(self, count: int, deadline: float | None) -> tuple[Batch, asyncio.Future[None]]:
        """Make a batch of publishes that begin now, and a future that is done with its last outcome. ``deadline``: what
        ``room`` returned."""
        done: asyncio.Future[None] = self._loop.create_future()
        if deadline is None:
            deadline = self.deadline()
        else:
            self._expire_at(deadline)
        return Batch(count, deadline, lambda: settle(done, None)), done


async def close_all(links: list[Link]) -> None:
    """Close links concurrently."""
    async with asyncio.TaskGroup() as tasks:
        for link in links:
            tasks.create_task(link.close())
