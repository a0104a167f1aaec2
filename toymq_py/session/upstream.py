"""One session's connection to another worker of its broker: commands go there as bytes, and come back as frames. ADR 0156."""

import asyncio
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress

from toymq_py.errors import ProtocolViolation
from toymq_py.protocol import ReplyFrames

READ_BYTES = 256 * 1024


class Upstream:
    """A Unix socket, without a task: it is read and written when the loop says that it can be. Belongs to one session."""

    __slots__ = ("_frames", "_loop", "_lost", "_out", "_reading", "_received", "_socket", "finishing")

    def __init__(
        self, path: str, loop: asyncio.AbstractEventLoop, received: Callable[[list[bytes]], None], lost: Callable[[], None]
    ) -> None:
        """
        Args:
            received: called with whole frames.
            lost: called once, when the connection has ended, but not by ``close``.

        Raises: OSError: the worker's socket is not there, or has too many that wait.
        """
        self._loop = loop
        self._received = received
        self._lost = lost
        self._frames = ReplyFrames()
        self._out = bytearray()
        self._reading = False
        self.finishing = False
        self._socket: socket.socket | None = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.setblocking(False)
            self._socket.connect(path)
        except OSError:
            self._socket.close()
            raise
        self.resume()

    def send(self, pieces: Sequence[bytes]) -> None:
        """Send all of it, now or as soon as the worker reads."""
        if self._socket is None:
            return
        waits = bool(self._out)
        for piece in pieces:
            self._out += piece
        if not waits:
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
        if self.finishing:
            with suppress(OSError):  # it has closed, which is read next
                self._socket.shutdown(socket.SHUT_WR)

    def finish(self) -> None:
        """No more commands: the worker ends what waits, answers, and closes."""
        if not self.finishing and self._socket is not None:
            self.finishing = True
            if not self._out:
                self._write()

    def pause(self) -> None:
        """Read no more until ``resume``: the client does not."""
        if self._reading and self._socket is not None:
            self._reading = False
            self._loop.remove_reader(self._socket)

    def resume(self) -> None:
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
        if frames:
            self._received(frames)
        if not data:
            self._end()

    def _end(self) -> None:
        if self._socket is not None:
            self.close()
            self._lost()

    def close(self) -> None:
        """Close at once. Idempotent."""
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket.close()
            self._socket = None
