"""An asyncio event loop with virtual time, a network in memory, and random choices from a seed.

The real server, sessions and broker run unchanged on it: ``add_reader`` and ``connect_accepted_socket`` use simulated
connections, and ``time`` jumps to the next timer when nothing is ready. The same seed gives the same run.

The network may cut a write into pieces, delay each piece (within a connection none overtakes another), stop taking bytes when
the other end does not read, and lose the connection with the bytes that are under way. It never reorders or changes bytes.
"""

import asyncio
import heapq
import random
import socket
from asyncio import base_events
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

SOCKET_BUFFER_BYTES = 32 * 1024
STEPS = 200_000
"""Turns and timers in a loop's life: above, it hangs. A world takes less than 10,000."""


class SimEventLoop(base_events.BaseEventLoop):
    """The event loop of the module's docstring. ``now`` is the virtual time in seconds."""

    def __init__(self, rng: random.Random, now: float = 1000.0) -> None:
        super().__init__()
        self.rng = rng
        self.now = now
        self.steps_left = STEPS
        self.slow_callback_duration = 1e9

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        """Run one turn of the loop. When nothing is ready, it moves the clock instead of waiting; there is no selector, debug
        mode or resolution."""
        self._step()
        ready, scheduled = self._ready, self._scheduled
        if not ready and not scheduled:
            raise RuntimeError("the simulation waits for something that never happens")
        if not ready:
            self.now = max(self.now, scheduled[0]._when)
        while scheduled and scheduled[0]._when <= self.now:
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            ready.append(handle)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        self._step()  # some set timers for ever within one turn
        return super().call_at(when, callback, *args, context=context)

    def _step(self) -> None:
        self.steps_left -= 1
        if self.steps_left < 0:
            raise RuntimeError(f"the simulation goes on and on at {self.now:.6f} s")

    def _write_to_self(self) -> None:
        pass

    # -- what the server calls

    def add_reader(self, fd: Any, callback: Any, *args: Any) -> None:
        fd.knocked = lambda: callback(*args)
        fd.knock()

    def remove_reader(self, fd: Any) -> bool:
        fd.knocked, knocked = None, fd.knocked
        return knocked is not None

    def add_writer(self, fd: Any, callback: Any, *args: Any) -> None:
        fd.writable = lambda: callback(*args)
        fd.can_write()

    def remove_writer(self, fd: Any) -> bool:
        fd.writable, writable = None, fd.writable
        return writable is not None

    async def connect_accepted_socket(self, protocol_factory: Any, sock: Any, **_: Any) -> tuple[Any, Any]:  # type: ignore[override]
        protocol = protocol_factory()
        transport = sock.attach(protocol)
        return transport, protocol


class SimListener:
    """A listening socket. ``connect`` makes a connection to it."""

    def __init__(self, loop: SimEventLoop) -> None:
        self._loop = loop
        self.knocked: Callable[[], None] | None = None
        self.closed = False
        self._waiting: deque[SimSocket] = deque()

    def listen(self, backlog: int) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    def accept(self) -> "tuple[SimSocket, Any]":
        """Accept a connection. Raises: BlockingIOError when none waits."""
        if not self._waiting:
            raise BlockingIOError
        return self._waiting.popleft(), ("sim", 0)

    def knock(self) -> None:
        """Call the reader, in each pass of the loop while a connection waits."""
        if self._waiting:
            self._loop.call_soon(self._tell)

    def _tell(self) -> None:
        if self.knocked is not None and self._waiting:
            self.knocked()
            self.knock()

    def connect(self, protocol: asyncio.Protocol) -> "SimTransport":
        """Connect a client's protocol. Raises: ConnectionRefusedError."""
        if self.closed:
            raise ConnectionRefusedError
        wire = Wire(self._loop)
        near = SimTransport(self._loop, wire, protocol)
        wire.ends[0] = near
        self._waiting.append(SimSocket(self._loop, wire))
        self.knock()
        protocol.connection_made(near)
        return near


class SimSocket:
    """An accepted connection before it has a transport."""

    family = socket.AF_INET

    def __init__(self, loop: SimEventLoop, wire: "Wire") -> None:
        self._loop = loop
        self._wire = wire

    def getpeername(self) -> tuple[str, int]:
        return "127.0.0.1", 1

    def setsockopt(self, *_: object) -> None:
        pass

    def close(self) -> None:
        self._wire.cut()

    def attach(self, protocol: asyncio.Protocol) -> "SimTransport":
        far = SimTransport(self._loop, self._wire, protocol)
        self._wire.ends[1] = far
        protocol.connection_made(far)
        if self._wire.lost:
            self._loop.call_soon(far.lose)
        for end in self._wire.ends:
            if end is not None:
                end.flush()
        return far


class Wire:
    """Both directions of a connection."""

    def __init__(self, loop: SimEventLoop) -> None:
        self.ends: list[SimTransport | None] = [None, None]
        self.lost = False
        self._loop = loop

    def other(self, end: "SimTransport") -> "SimTransport | None":
        return self.ends[1] if self.ends[0] is end else self.ends[0]

    def cut(self) -> None:
        """Cut the connection: all bytes under way are lost."""
        if not self.lost:
            self.lost = True
            for end in self.ends:
                if end is not None:
                    self._loop.call_soon(end.lose)


class SimTransport(asyncio.Transport):
    """One end of a connection. Bytes go from ``write`` to our buffer, then (delayed) to the other end's socket buffer, then to
    its protocol when that reads."""

    def __init__(self, loop: SimEventLoop, wire: Wire, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._loop = loop
        self._wire = wire
        self._protocol = protocol
        self._out = bytearray()  # not taken by the socket yet
        self._arrived: deque[bytes | None] = deque()  # of the other end; None is its end of stream
        self._on_the_way = 0
        self._arrives_at = 0.0
        self._reading = True
        self._paused = False
        self._high = 64 * 1024
        self._eof_written = self._eof_sent = False
        self._closing = False
        self._ended = False

    # -- what a protocol calls

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._ended or self._wire.lost or self._eof_written:
            return
        self._out += data
        self.flush()
        if len(self._out) > self._high and not self._paused:
            self._paused = True
            self._protocol.pause_writing()

    def write_eof(self) -> None:
        self._eof_written = True
        self.flush()

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._eof_written = True
            self.flush()
            if not self._out:
                self._wire_closed()

    def abort(self) -> None:
        self._wire.cut()

    def is_closing(self) -> bool:
        return self._closing or self._ended

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self._loop.call_soon(self._deliver)

    def get_write_buffer_size(self) -> int:
        return len(self._out)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 * 1024 if high is None else high

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    # -- the network

    def flush(self) -> None:
        """Send as much as the other end's socket buffer has room for, in pieces, each of which arrives later than the one
        before."""
        far = self._wire.other(self)
        if far is None or self._wire.lost:
            return
        rng = self._loop.rng
        while self._out and self._on_the_way < SOCKET_BUFFER_BYTES:
            size = min(len(self._out), SOCKET_BUFFER_BYTES - self._on_the_way)
            if rng.random() < 0.3:
                size = rng.randrange(1, size + 1)
            piece = bytes(self._out[:size])
            del self._out[:size]
            self._on_the_way += size
            self._send(far, piece)
        if not self._out:
            if self._eof_written and not self._eof_sent:
                self._eof_sent = True
                self._send(far, None)
            if self._paused and not self._ended:
                self._paused = False
                self._protocol.resume_writing()
            if self._closing and not self._ended:
                self._wire_closed()

    def _send(self, far: "SimTransport", piece: bytes | None) -> None:
        delay_s = self._loop.rng.choice((0.0, 0.0001, 0.0005, 0.003))
        self._arrives_at = max(self._arrives_at, self._loop.now + delay_s) + 1e-7
        self._loop.call_at(self._arrives_at, far._arrive, piece)

    def _arrive(self, piece: bytes | None) -> None:
        if self._ended and piece is not None:
            self._wire.cut()  # the peer is gone: a reset
        elif not self._ended and not self._wire.lost:
            self._arrived.append(piece)
            self._deliver()

    def _deliver(self) -> None:
        near = self._wire.other(self)
        while self._arrived and self._reading and not self._ended and not self._wire.lost:
            piece = self._arrived.popleft()
            if piece is None:
                if not self._protocol.eof_received():
                    self.close()
                return
            if near is not None:
                near._on_the_way -= len(piece)
            self._protocol.data_received(piece)
        if near is not None:
            near.flush()

    def _wire_closed(self) -> None:
        """Note that our side is closed for good: the other end sees the end of the stream, our protocol the end of the
        connection."""
        self._loop.call_soon(self.lose)

    def lose(self) -> None:
        """Tell the protocol that the connection is lost. Idempotent."""
        if not self._ended:
            self._ended = True
            self._protocol.connection_lost(None)


Connect = Callable[[asyncio.Protocol], SimTransport]


def run_simulated(scenario: Callable[[], Awaitable[None]], seed: int = 1) -> None:
    """Run a scenario on a simulated loop of its own. Tasks that it leaves are cancelled."""

    async def run() -> None:
        try:
            await scenario()
        finally:
            while others := asyncio.all_tasks() - {asyncio.current_task()}:  # one that ends may begin another
                for task in others:
                    task.cancel()
                await asyncio.gather(*others, return_exceptions=True)

    loop = SimEventLoop(random.Random(seed))
    try:
        loop.run_until_complete(run())
    finally:
        loop.close()
