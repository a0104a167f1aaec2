"""One connection: reader, handler and writer task, passing chunks.

Contract: delivery.md, "Sessions"; protocol.md, "Framing"; ADR 0005.

    received ──► inbox ──► reader ──► runs of commands ──► handler ──► replies, in order ─┐
                           (sans-IO parser)                (broker)                        ├──► writer ──► transport
                                                deliveries, while there is room ───────────┘

Nothing is awaited per message.
"""

import asyncio
from collections import deque
from enum import Enum

from toymq_py.broker import Broker
from toymq_py.clock import Clock
from toymq_py.protocol import Command, ServerConnection
from toymq_py.session.deliveries import Deliveries
from toymq_py.session.handler import Handler
from toymq_py.session.replies import WRITE_BYTES, Replies
from toymq_py.session.signal import Signal
from toymq_py.session.turns import FEW, Turns
from toymq_py.topic import Subscription

COMMANDS_PER_RUN = 512
"""Commands that are parsed and handled in one piece."""
COMMANDS_PER_RUN_CROWDED = 64
RUNS_QUEUED_MAX = 4
"""Runs between reader and handler; at the bound the reader waits, and the socket fills up."""
INBOX_BYTES_MAX = 1024 * 1024
"""Unparsed bytes at which reading from the socket is paused."""
LINGER_S = 1.0
LINGER_BYTES = 1024 * 1024
"""After a fatal error: how long and how much is discarded before the socket closes, so that a reset does not eat the reason."""


class _Phase(Enum):
    SERVING = "commands are taken"
    LEAVING = "no more commands; what is due is still written"
    LINGERING = "all is written; what arrives is discarded"


class Session:
    """State of one connection. Touched only by its tasks and by the callbacks it hands to the broker, all on the loop."""

    def __init__(
        self,
        number: int,
        transport: asyncio.Transport,
        broker: Broker,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        turns: Turns,
    ) -> None:
        self.number = number
        self.transport = transport
        self.write_paused = False
        self.writable = Signal(loop)
        self.finished = asyncio.Event()
        self._clock = clock
        self._turns = turns
        self._metrics = broker.metrics
        self._parser = ServerConnection(broker.options.max_payload_bytes)
        self._inbox: deque[bytes] = deque()
        self._inbox_bytes = 0
        self._reading_paused = False
        self._arrived = Signal(loop)
        self._gone = Signal(loop)  # the other end; the reader may still be waiting for the one above
        self._runs: deque[list[Command]] = deque()
        self._run_ready = Signal(loop)
        self._run_room = Signal(loop)
        self._handled_all = False
        self._written = Signal(loop)
        self._replies = Replies(broker.metrics, self.writable, self._written, clock, turns)
        self._max_held_bytes = broker.options.max_inflight_bytes
        self._deliveries = Deliveries(self._replies, self.writable, clock, loop.call_later)
        self._handler = Handler(number, broker, self._replies, self._deliveries, loop)
        self._last_write_bytes = 0
        self._phase = _Phase.SERVING
        self._eof = False
        self._lost = False
        self._linger_bytes = 0
        self._owed: list[Subscription] | None = None

    # -- from the transport

    def received(self, data: bytes) -> None:
        if self._phase is _Phase.LINGERING:
            self._linger_bytes += len(data)
            if self._linger_bytes > LINGER_BYTES:
                self.transport.abort()
            return
        self._inbox.append(data)
        self._inbox_bytes += len(data)
        if self._inbox_bytes > INBOX_BYTES_MAX and not self._reading_paused:
            self._reading_paused = True
            self.transport.pause_reading()
        self._arrived.set()

    def received_eof(self) -> None:
        self._turns.leave(self._take_eof)

    def _take_eof(self) -> None:
        self._eof = True
        self._gone.set()
        self._handler.end_waits()
        self._arrived.set()

    def connection_lost(self) -> None:
        if self.write_paused:
            # How much of the last write the socket took, the transport may not know any more; then nothing of it counts.
            unsent = self.transport.get_write_buffer_size() or self._last_write_bytes
            self._deliveries.give_back(self._last_write_bytes - unsent)
        self._lost = True
        self._turns.leave(self._end_tasks)

    def _end_tasks(self) -> None:
        self._lost = True
        for signal in (self._arrived, self._gone, self._run_ready, self._run_room, self._written, self.writable):
            signal.set()

    # -- the tasks

    async def run(self) -> None:
        """Serve until the connection ends. Leaves nothing behind: leases are given back, waits withdrawn."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._read())
                tasks.create_task(self._write())
                await self._handle()
        finally:
            self._deliveries.close()
            self._handler.end_waits()
            self.transport.close()
            self.finished.set()

    async def _read(self) -> None:
        """Parse what arrives; hand over runs of commands. Nothing of them is held while more is awaited: what ten thousand
        idle readers hold adds up."""
        parser, turns, inbox, runs = self._parser, self._turns, self._inbox, self._runs
        while not self._lost and self._phase is _Phase.SERVING:
            await self._arrived.wait()
            turns.busy += 1
            try:
                while inbox:
                    self._inbox_bytes -= len(inbox[0])
                    parser.receive_data(inbox.popleft())
                    while self._parse():
                        while len(runs) >= (1 if turns.busy > FEW else RUNS_QUEUED_MAX) and not self._lost:
                            await self._run_room.wait()
                        if self._lost:
                            return
            finally:
                turns.busy -= 1
            if self._reading_paused and self._inbox_bytes <= INBOX_BYTES_MAX:
                self._reading_paused = False
                if not self.transport.is_closing():
                    self.transport.resume_reading()
            if self._eof and not self._inbox:
                parser.receive_eof()
                while self._parse():
                    pass
                if parser.ended_torn:
                    self._metrics.torn_total += 1
                break
        self._handled_all = True
        self._run_ready.set()

    def _parse(self) -> bool:
        """Hand over one run of commands. Returns: whether there was one."""
        commands = self._parser.next_commands(COMMANDS_PER_RUN if self._turns.busy <= FEW else COMMANDS_PER_RUN_CROWDED)
        if commands:
            self._runs.append(commands)
            self._run_ready.set()
            return True
        return False

    async def _handle(self) -> None:
        """Apply commands in order; never waits for an effect, only for room for replies."""
        handler, replies, turns = self._handler, self._replies, self._turns
        monotonic = self._clock.monotonic
        slice_end = turns.slice_end()
        while not self._lost and not handler.ended:
            if not self._runs:
                if self._handled_all:
                    break
                await self._run_ready.wait()
                slice_end = turns.slice_end()
                continue
            commands = self._runs.popleft()
            self._run_room.set()
            for command in commands:
                handler.apply(command)
                if handler.ended:
                    self._stop_taking()
                    break
                if monotonic() > slice_end:
                    self.writable.set()
                    await asyncio.sleep(0)
                    slice_end = turns.slice_end()
            del commands, command  # nothing is held while more is awaited
            self.writable.set()
            if self._owed is not None:
                self._leave_when_done()
            while replies.held_bytes > self._max_held_bytes and not self._lost:
                await self._written.wait()
        if self._eof:
            self._leave()
        self.writable.set()

    def _stop_taking(self) -> None:
        """QUIT, or a fatal error: nothing behind it is executed."""
        self._phase = _Phase.LEAVING
        self._runs.clear()
        self._handled_all = True
        self._handler.end_waits()
        self._arrived.set()

    async def _write(self) -> None:
        """Write what is due, and deliveries while there is room."""
        replies, deliveries, turns = self._replies, self._deliveries, self._turns
        monotonic = self._clock.monotonic
        while not self._lost:
            await self.writable.wait()
            turns.busy += 1
            try:
                slice_end = turns.slice_end()
                while not self.write_paused and not self._lost:
                    out = replies.take_due(slice_end)
                    deliveries.begin_write()
                    if deliveries.hungry and self._phase is _Phase.SERVING:
                        deliveries.take(out, slice_end, turns.share(WRITE_BYTES))
                    if not out:
                        break
                    size = self._last_write_bytes = self._send(out)
                    if size >= WRITE_BYTES // 2 or deliveries.hungry or monotonic() > slice_end:
                        await asyncio.sleep(0)  # others first
                        slice_end = turns.slice_end()
            finally:
                turns.busy -= 1
            if self._phase is _Phase.LEAVING and not replies and not self.write_paused:
                await self._end()
                return

    def _send(self, out: list[bytes]) -> int:
        """One write; ``out`` is emptied, since who waits must not hold what was written. Returns: how many bytes."""
        data = b"".join(out) if len(out) > 1 else out[0]
        out.clear()
        self.transport.write(data)
        return len(data)

    async def _end(self) -> None:
        """Everything due is written: close, after a moment of discarding when the client may still be sending."""
        if not self._eof and not self._lost:
            self._phase = _Phase.LINGERING
            if self._reading_paused:
                self.transport.resume_reading()
            if self.transport.can_write_eof():
                self.transport.write_eof()
            try:
                async with asyncio.timeout(LINGER_S):
                    while not self._eof and not self._lost:
                        await self._gone.wait()
            except TimeoutError:
                pass
        self.transport.close()
        self._end_tasks()

    def _leave(self) -> None:
        """The stream ended, or the broker ends it: waits are cut short, what is due is still written."""
        if self._phase is _Phase.SERVING:
            self._phase = _Phase.LEAVING
            self._handler.end_waits()
            for signal in (self.writable, self._arrived, self._run_ready):
                signal.set()

    # -- shutdown

    def inflight(self) -> list[Subscription]:
        """Subscriptions of which something is inflight to this session."""
        return [s for s in self._deliveries.by_topic.values() if s.consumer.inflight_of(s)]

    def shut_down(self, owed: list[Subscription]) -> None:
        """The broker shuts down: close as soon as every reply is written and what was inflight is acked."""
        self._owed = owed
        self._leave_when_done()

    def _leave_when_done(self) -> None:
        if self._owed is not None:
            self._owed = [s for s in self._owed if s.consumer.floor <= s.last_sent]
            if not self._owed and not self._runs and not self._inbox:
                self._leave()

    def abort(self) -> None:
        """The deadline is over: the tasks end, whether or not the transport says that it is gone."""
        self.transport.abort()
        self._end_tasks()
