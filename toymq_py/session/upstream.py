"""One session's connection to another worker of its broker: bytes of commands go there, frames come back. ADR 0156, 0225.

The operating system accepts the connection while the worker is not up, and keeps sent bytes for its successor. So only a
greeting is sent until it is answered: a worker that has not answered has done nothing.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress

from toymq_py.errors import ProtocolViolation
from toymq_py.heartbeat import LOOK_AT_BEATS_S
from toymq_py.placement import REACH_S
from toymq_py.protocol import Ping, ReplyFrames, encode_command, encode_pong

READ_BYTES = 256 * 1024
PING, PONG = encode_command(Ping()), encode_pong()


class Upstream:
    """The Unix socket of one session to another worker, without a task: it is read and written when the loop says that it can
    be."""

    __slots__ = ("_frames", "_greeting", "_held", "_loop", "_lost", "_out", "_paused", "_reading", "_received", "_socket",
                 "_stands_still", "_timer", "_until", "finishing", "on_reached", "reached")  # fmt: skip

    refusal = ""

    def __init__(
        self, path: str, loop: asyncio.AbstractEventLoop, received: Callable[[list[bytes]], None], lost: Callable[[], None],
        greeting: bytes = PING, stands_still: Callable[[], object] = lambda: False,
    ) -> None:  # fmt: skip
        """
        Args:
            received: called with whole frames; if the ``greeting`` is HELLO, its answer is one of them.
            lost: called once, when the connection has ended without ``close``.
            stands_still: returns whether the worker is known to hang; then the connection is given up.

        Raises: OSError: the worker's socket does not exist, or its backlog of connections is full.
        """
        self._loop = loop
        self._received = received
        self._lost = lost
        self._frames = ReplyFrames()
        self._greeting = greeting
        self._out = bytearray(greeting)
        self._held = bytearray()  # what is sent behind the answer to the greeting
        self._reading = self._paused = False
        self.finishing = self.reached = False
        self.on_reached: Callable[[], None] = lambda: None
        self._socket: socket.socket | None = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.setblocking(False)
            self._socket.connect(path)
        except OSError:
            self._socket.close()
            raise
        self._stands_still = stands_still
        self._until = loop.time() + REACH_S
        self._timer = loop.call_later(min(REACH_S, LOOK_AT_BEATS_S), self._wait)
        loop.add_writer(self._socket, self._write)
        self.resume()

    def _wait(self) -> None:
        """Wait for the answer to the greeting."""
        left_s = self._until - self._loop.time()
        if left_s <= 0 or self._stands_still():
            self._end()
        else:
            self._timer = self._loop.call_later(min(left_s, LOOK_AT_BEATS_S), self._wait)

    def send(self, pieces: Sequence[bytes]) -> None:
        """Send some bytes, now or as soon as the worker reads."""
        if self._socket is None:
            return
        waits = bool(self._out)
        out = self._out if self.reached else self._held
        for piece in pieces:
            out += piece
        if self.reached and not waits:
            self._write()

    def _write(self) -> None:
        if self._socket is None:
            return
        try:
            sent = self._socket.send(self._out) if self._out else 0
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self._end()
            return
        del self._out[:sent]
        if self._out:
            self._loop.add_writer(self._socket, self._write)
            return
        self._loop.remove_writer(self._socket)
        if self.finishing and self.reached:
            with suppress(OSError):  # it has closed, which is read next
                self._socket.shutdown(socket.SHUT_WR)

    def finish(self) -> None:
        """Send no more commands: the worker ends its waits, answers, and closes."""
        if not self.finishing and self._socket is not None:
            self.finishing = True
            if self.reached and not self._out:
                self._write()

    def pause(self) -> None:
        """Stop reading until ``resume``, since the client does not read."""
        self._paused = True
        if self._reading and self.reached and self._socket is not None:
            self._reading = False
            self._loop.remove_reader(self._socket)

    def resume(self) -> None:
        self._paused = False
        if not self._reading and self._socket is not None:
            self._reading = True
            self._loop.add_reader(self._socket, self._read)

    def _read(self) -> None:
        if self._socket is None:
            return
        try:
            data = self._socket.recv(READ_BYTES)
            frames = self._frames.split(data)
        except (BlockingIOError, InterruptedError):
            return
        except (OSError, ProtocolViolation):
            self._end()
            return
        if frames and not self.reached:
            self._on_reached(frames)
        elif frames:
            self._received(frames)
        if not data:
            self._end()

    def _on_reached(self, frames: list[bytes]) -> None:
        """Handle the answer to the greeting, which may be a refusal."""
        self.reached = True
        self._timer.cancel()
        self._out, self._held = self._held, self._out
        self.on_reached()  # what it sends has the refusal, if this is one
        if self._paused:
            self.pause()
        if self._greeting == PING and frames[0] == PONG:
            del frames[0]
        if frames and self._socket is not None:
            self._received(frames)
        self._write()

    def _end(self) -> None:
        if self._socket is not None:
            self.close()
            self._lost()

    def close(self) -> None:
        """Close at once. Idempotent."""
        if self._socket is not None:
            self._timer.cancel()
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket.close()
            self._socket = None
