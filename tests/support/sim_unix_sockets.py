"""Listening sockets that several simulated processes share, and Unix sockets between these processes.

When a process dies, the connections that it has accepted or made are lost; connections that wait in a queue stay for the next
process, since the supervisor keeps the listener.
"""

import asyncio
import errno
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

from tests.support.sim_event_loop import SimEventLoop, SimSocket, SimTransport, Wire

READ_AHEAD_BYTES = 64 * 1024


class SharedListener:
    """A queue of connections; any of its ``entrances`` may take the next one."""

    def __init__(self, loop: SimEventLoop, family: socket.AddressFamily = socket.AF_INET) -> None:
        self._loop = loop
        self.family = family
        self.waiting: deque[tuple[SimSocket, Wire]] = deque()
        self.entrances: list[Entrance] = []

    def connect(self, protocol: asyncio.Protocol) -> Wire:
        """Connect a client. Raises: ConnectionRefusedError when no process listens, or will listen."""
        wire = Wire(self._loop)
        near = SimTransport(self._loop, wire, protocol)
        wire.ends[0] = near
        accepted = SimSocket(self._loop, wire)
        if self.family == socket.AF_UNIX:
            accepted.family = socket.AF_UNIX  # type: ignore[assignment, misc]
            accepted.getpeername = lambda: ""  # type: ignore[method-assign, assignment, return-value]
        self.waiting.append((accepted, wire))
        self.knock()
        protocol.connection_made(near)
        return wire

    def knock(self) -> None:
        if self.waiting:
            self._loop.call_soon(self._tell)

    def _tell(self) -> None:
        free = [entrance for entrance in self.entrances if entrance.knocked is not None]
        if free and self.waiting:
            knocked = self._loop.rng.choice(free).knocked
            assert knocked is not None
            knocked()
            self.knock()

    def cut_waiting(self) -> None:
        while self.waiting:
            self.waiting.popleft()[1].cut()


class Entrance:
    """A shared listener as one process has it. It takes one connection at a time, so that all processes get some."""

    def __init__(self, listener: SharedListener, process: "Connections") -> None:
        self._listener = listener
        self._process = process
        self.knocked: Callable[[], None] | None = None
        self._took = False
        listener.entrances.append(self)

    def listen(self, backlog: int) -> None:
        pass

    def knock(self) -> None:
        self._listener.knock()

    def accept(self) -> tuple[SimSocket, Any]:
        """Accept a connection. Raises: BlockingIOError when none waits."""
        if self._took or not self._listener.waiting:
            self._took = False
            raise BlockingIOError
        self._took = True
        accepted, wire = self._listener.waiting.popleft()
        self._process.wires.append(wire)
        return accepted, ("sim", 0)

    def close(self) -> None:
        self.knocked = None
        if self in self._listener.entrances:
            self._listener.entrances.remove(self)


class Connections:
    """The connections of one process."""

    def __init__(self) -> None:
        self.wires: list[Wire] = []
        self.entrances: list[Entrance] = []

    def die(self) -> None:
        for entrance in self.entrances:
            entrance.close()
        for wire in self.wires:
            wire.cut()


class SimUnixSocket(asyncio.Protocol):
    """The part of a non-blocking Unix socket that ``session.upstream`` uses, over a simulated wire."""

    def __init__(self, find: Callable[[str], tuple[SharedListener, Connections]]) -> None:
        """``find``: returns the listener at a path, and the connections of the process that has this socket."""
        self._find = find
        self._received = bytearray()
        self._ended = self._eof = self._full = False
        self._transport: SimTransport | None = None
        self.knocked: Callable[[], None] | None = None
        self.writable: Callable[[], None] | None = None

    # -- of a socket

    def setblocking(self, flag: bool) -> None:
        assert not flag

    def connect(self, path: str) -> None:
        listener, process = self._find(path)
        wire = listener.connect(self)
        process.wires.append(wire)

    def send(self, data: bytes | bytearray) -> int:
        assert self._transport is not None
        if self._ended:
            raise OSError(errno.EPIPE, "the other end has gone")
        if self._full:
            raise BlockingIOError
        self._transport.write(bytes(data))
        return len(data)

    def recv(self, size: int) -> bytes:
        if not self._received:
            if self._eof or self._ended:
                return b""
            raise BlockingIOError
        data = bytes(self._received[:size])
        del self._received[:size]
        if self._transport is not None and len(self._received) < READ_AHEAD_BYTES:
            self._transport.resume_reading()
        return data

    def shutdown(self, how: int) -> None:
        assert how == socket.SHUT_WR
        assert self._transport is not None
        self._transport.write_eof()

    def close(self) -> None:
        self._ended = True
        if self._transport is not None:
            self._transport.close()

    # -- of the loop

    def knock(self) -> None:
        """Call the reader, in each pass of the loop while there is something to read."""
        assert self._transport is not None
        if self._received or self._eof or self._ended:
            self._transport._loop.call_soon(self._tell)

    def _tell(self) -> None:
        if self.knocked is not None and (self._received or self._eof or self._ended):
            self.knocked()
            if self.knocked is not None:
                self.knock()

    def can_write(self) -> None:
        assert self._transport is not None
        if not self._full and self.writable is not None:
            self._transport._loop.call_soon(self._tell_writable)

    def _tell_writable(self) -> None:
        if self.writable is not None:
            self.writable()

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, SimTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) >= READ_AHEAD_BYTES and self._transport is not None:
            self._transport.pause_reading()
        self.knock()

    def eof_received(self) -> bool:
        self._eof = True
        self.knock()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        self.knock()

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self.can_write()


class UnixSockets:
    """Replaces the module ``socket`` in ``session.upstream``."""

    AF_UNIX, SOCK_STREAM, SHUT_WR = socket.AF_UNIX, socket.SOCK_STREAM, socket.SHUT_WR

    def __init__(self, find: Callable[[str], tuple[SharedListener, Connections]]) -> None:
        self._find = find

    def socket(self, family: int, kind: int) -> SimUnixSocket:
        assert (family, kind) == (self.AF_UNIX, self.SOCK_STREAM)
        return SimUnixSocket(self._find)
