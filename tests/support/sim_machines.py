"""Several processes in one thread: an event loop for each, one virtual time, and a network between them that may be cut.

A process is paused by not running its loop, and killed by never running it again: as with SIGSTOP and SIGKILL, its tasks do
nothing more. The same seed gives the same run.
"""

import asyncio
import heapq
import random
from asyncio import events
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any

from tests.support.sim_event_loop import SimEventLoop, SimListener, SimSocket, SimTransport, Wire

NEVER = float("inf")
STEPS = 400_000
"""Passes of all loops of a world: above, it hangs."""
RESET = b"\0reset"
"""On the way instead of data: the other end is gone."""


class SimTime:
    """The virtual time, in seconds, that all machines share."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now


_numbers = count()


class _Task(asyncio.Task):  # type: ignore[type-arg]
    """A task whose hash is its number, so that sets of tasks have the same order in each run."""

    number = -1

    def __hash__(self) -> int:
        if self.number < 0:
            self.number = next(_numbers)
        return self.number


class _Future(asyncio.Future):  # type: ignore[type-arg]
    """A future with a hash like that of ``_Task``."""

    number = -1

    def __hash__(self) -> int:
        if self.number < 0:
            self.number = next(_numbers)
        return self.number


def _new_task(loop: asyncio.AbstractEventLoop, coro: Any, context: Any = None) -> "asyncio.Task[Any]":
    return _Task(coro, loop=loop, context=context)


class MachineLoop(SimEventLoop):
    """The event loop of one process."""

    def __init__(self, time: SimTime, rng: random.Random, on_bug: Callable[[str], None]) -> None:
        self._time = time
        super().__init__(rng, time.now)
        self.steps_left = 10_000_000  # the world counts
        self.paused = self.is_over = False
        self.busy_until = 0.0
        """A call on the loop takes so long."""
        self.set_task_factory(_new_task)  # type: ignore[arg-type]
        self.set_exception_handler(lambda _, context: on_bug(f"{context.get('message')}: {context.get('exception')!r}"))

    @property
    def now(self) -> float:
        return self._time.now

    @now.setter
    def now(self, now: float) -> None:
        """Refuse to set the time: only ``Machines`` moves it."""

    def create_future(self) -> "asyncio.Future[Any]":
        return _Future(loop=self)

    def run_pass(self) -> None:
        """Run all that is due now."""
        ready, scheduled = self._ready, self._scheduled
        while scheduled and scheduled[0]._when <= self._time.now:
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            ready.append(handle)
        events._set_running_loop(self)
        try:
            for _ in range(len(ready)):
                if self.paused:
                    break  # it was killed or paused in the midst of this pass
                handle = ready.popleft()
                if not handle._cancelled:
                    handle._run()
        finally:
            events._set_running_loop(None)

    def end(self) -> None:
        """End the loop: nothing runs here any more, and its tasks are dropped silently."""
        events._set_running_loop(self)  # a task that is begun at the end of another one belongs here, too
        try:
            for task in asyncio.all_tasks(self):
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with suppress(BaseException):
                    task.get_coro().close()  # type: ignore[union-attr]
        finally:
            events._set_running_loop(None)
        for task in asyncio.all_tasks(self):  # begun by those, at their ends
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self._ready.clear()
        self._scheduled.clear()
        self.close()


class Machines:
    """Runs the loops of all processes, each pass at its virtual time."""

    def __init__(self, rng: random.Random, on_bug: Callable[[str], None]) -> None:
        self.time = SimTime()
        self._rng = rng
        self._on_bug = on_bug
        self._loops: list[MachineLoop] = []
        self._dead: list[MachineLoop] = []
        self._steps_left = STEPS
        self.after_pass: Callable[[], None] | None = None
        """Called between two passes."""

    def new_loop(self) -> MachineLoop:
        loop = MachineLoop(self.time, random.Random(self._rng.random()), self._on_bug)
        self._loops.append(loop)
        return loop

    def kill(self, loop: MachineLoop) -> None:
        """Never run a loop again. Its tasks stay as they are until ``end``."""
        self._loops.remove(loop)
        loop.paused = True
        self._dead.append(loop)

    def run_until(self, holds: Callable[[], bool]) -> None:
        """Run until a condition holds. Raises: RuntimeError when it never will."""
        while not holds():
            self._steps_left -= 1
            now, at, first = self.time.now, NEVER, []
            for loop in self._loops:
                if loop.paused:
                    continue
                due_at = loop.busy_until
                if loop._ready:
                    due_at = max(due_at, now)
                else:
                    scheduled = loop._scheduled
                    while scheduled and scheduled[0]._cancelled:
                        heapq.heappop(scheduled)._scheduled = False
                    if not scheduled:
                        continue
                    due_at = max(due_at, scheduled[0]._when)
                if due_at < at:
                    at, first = due_at, [loop]
                elif due_at == at:
                    first.append(loop)
            if at == NEVER or self._steps_left < 0:
                raise RuntimeError(f"the world hangs at {self.time.now:.3f} s")
            self.time.now = max(now, at)
            (first[0] if len(first) == 1 else self._rng.choice(first)).run_pass()
            if self.after_pass is not None:
                self.after_pass()

    def end(self) -> None:
        loops = (*self._dead, *self._loops)
        for loop in loops:
            loop.is_over = True
        for loop in loops:
            loop.end()


# -- the network


class Network:
    """Connections between hosts, by name. A direction that is cut holds back what is under way, as TCP does, until it heals."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.cut: set[tuple[str, str]] = set()
        """From host, to host."""
        self._held: list[tuple[HostTransport, HostTransport, bytes | None]] = []

    def passes(self, source: str, target: str) -> bool:
        return (source, target) not in self.cut

    def arrive(self, near: "HostTransport", far: "HostTransport", piece: bytes | None) -> None:
        if not self.passes(near.host, far.host) or any(each[0] is near for each in self._held):
            self._held.append((near, far, piece))
        else:
            far.take(piece)

    def heal(self) -> None:
        """Deliver what may arrive by now, in order. Called after ``cut`` has changed."""
        held, self._held = self._held, []
        for near, far, piece in held:
            if self.passes(near.host, far.host):
                far.loop.call_soon(far.take, piece)
            else:
                self._held.append((near, far, piece))

    def connect(
        self, near_loop: MachineLoop, host: str, protocol: asyncio.Protocol, far_loop: MachineLoop, far_host: str,
        far_protocol: asyncio.Protocol,
    ) -> "HostTransport":  # fmt: skip
        """Return both ends of a new connection. ``far_protocol`` is told of it a moment later."""
        wire = Wire(near_loop)
        near = HostTransport(self, near_loop, wire, protocol, host)
        far = HostTransport(self, far_loop, wire, far_protocol, far_host)
        wire.ends[:] = [near, far]
        protocol.connection_made(near)
        far_loop.call_later(self.rng.choice((0.0001, 0.001)), far_protocol.connection_made, far)
        return near


class HostTransport(SimTransport):
    """One end of a connection. What this end does reaches the other end through the network."""

    def __init__(self, network: Network, loop: MachineLoop, wire: Wire, protocol: asyncio.Protocol, host: str) -> None:
        super().__init__(loop, wire, protocol)
        self.loop = loop
        self.host = host
        self._network = network
        self._reset = False

    def abort(self) -> None:
        if not (self._ended or self._reset):
            self._reset = True
            self._loop.call_soon(self.lose)
            self._tell_reset()

    def is_closing(self) -> bool:
        return self.loop.is_over or super().is_closing()

    def process_died(self) -> None:
        """Close the connection, as the kernel does for a dead process."""
        self._ended = True
        self._tell_reset()

    def machine_died(self) -> None:
        """Drop this end without a word to the other end."""
        self._ended = True

    def _tell_reset(self) -> None:
        far = self._wire.other(self)
        if far is not None:
            self._send(far, RESET)

    def _send(self, far: SimTransport, piece: bytes | None) -> None:
        assert isinstance(far, HostTransport)
        loop = far.loop
        delay_s = self._network.rng.choice((0.0, 0.0001, 0.0005, 0.003))
        self._arrives_at = max(self._arrives_at, loop.now + delay_s) + 1e-7
        if not loop.is_closed():
            loop.call_at(self._arrives_at, self._network.arrive, self, far, piece)

    def take(self, piece: bytes | None) -> None:
        if piece == RESET:
            if not (self._ended or self._reset):
                self._reset = True
                self._arrived.clear()
                self.lose()
        else:
            self._arrive(piece)

    def _arrive(self, piece: bytes | None) -> None:
        if self._ended or self._reset:
            if piece is not None:
                self._tell_reset()
        else:
            super()._arrive(piece)

    def _deliver(self) -> None:
        near = self._wire.other(self)
        while self._arrived and self._reading and not self._ended:
            piece = self._arrived.popleft()
            if piece is None:
                if not self._protocol.eof_received():
                    self.close()
                return
            if near is not None:
                near._on_the_way -= len(piece)
            self._protocol.data_received(piece)
        if isinstance(near, HostTransport) and near._out and not near.loop.is_closed():
            near.loop.call_soon(near.flush)  # the other process learns of room when it runs

    def lose(self) -> None:
        if not self._ended:
            self._ended = True
            self._protocol.connection_lost(ConnectionResetError("reset") if self._reset else None)


class HostListener(SimListener):
    """A listening socket for clients, whose hosts no cut concerns."""

    def __init__(self, network: Network, loop: MachineLoop, host: str) -> None:
        super().__init__(loop)
        self.loop = loop
        self.host = host
        self.network = network
        self.accepted: list[HostTransport] = []
        self._waiting: deque[Any]

    def connect_from(self, near_loop: MachineLoop, protocol: asyncio.Protocol) -> HostTransport:
        """Connect a client. Raises: ConnectionRefusedError."""
        if self.closed:
            raise ConnectionRefusedError
        wire = Wire(near_loop)
        near = HostTransport(self.network, near_loop, wire, protocol, "client")
        wire.ends[0] = near
        self._waiting.append(_HostSocket(self, wire))
        self.knock()
        protocol.connection_made(near)
        return near


class _HostSocket(SimSocket):
    def __init__(self, listener: HostListener, wire: Wire) -> None:
        super().__init__(listener.loop, wire)
        self._listener = listener

    def close(self) -> None:
        near = self._wire.ends[0]
        if near is not None:
            near._loop.call_soon(near.take, RESET)  # type: ignore[attr-defined]

    def attach(self, protocol: asyncio.Protocol) -> SimTransport:
        far = HostTransport(self._listener.network, self._listener.loop, self._wire, protocol, self._listener.host)
        self._listener.accepted.append(far)
        self._wire.ends[1] = far
        protocol.connection_made(far)
        near = self._wire.ends[0]
        if near is None or near._ended:
            self._loop.call_soon(far.take, RESET)
        far.flush()
        if near is not None:
            near._loop.call_soon(near.flush)
        return far
