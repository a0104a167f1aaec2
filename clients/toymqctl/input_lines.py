"""Lines of a file or of stdin, for publishing. What was read is not lost by Ctrl-C."""

import os
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import BinaryIO

from toymq_py.records import PAYLOAD_BYTES_LIMIT

BLOCK_BYTES = 65536
"""Read at a time: what a pipe holds."""


class InputLines:
    """Lines without their newline, in bursts: a burst is what can be read without waiting. The last line may lack its newline.

    Reads past the stream's buffer, so nothing else may have read from it.
    """

    def __init__(self, stream: BinaryIO, on_read: Callable[[int], None] = lambda _: None) -> None:
        """``on_read``: called with the number of bytes of each read."""
        self._read, descriptor = _reader(stream)
        self._poll: select.poll | None = None
        """None for a stream in memory, which never waits."""
        if descriptor is not None:
            self._poll = select.poll()
            self._poll.register(descriptor, select.POLLIN)
        self._on_read = on_read
        self._rest: list[bytes] = []
        """Parts of the line that is not complete yet."""
        self._rest_bytes = 0
        self._ended = self._waiting = self._interrupted = False
        self.count = 0
        """Lines that were read."""

    @property
    def incomplete_bytes(self) -> int:
        """Bytes of a line whose end was not read."""
        return self._rest_bytes

    def wait(self) -> bool:
        """Wait for input. Returns: False at the end of the stream. Raises: KeyboardInterrupt, with nothing read and untaken."""
        self._waiting = True
        try:
            if self._interrupted:
                raise KeyboardInterrupt
            if not self._ended:
                self._is_readable(None)
        finally:
            self._waiting = False
        return not self._ended

    def burst(self) -> Iterator[bytes]:
        """Yield lines until reading has to wait, the stream ends, or Ctrl-C: then, too, all complete lines that were read."""
        while not self._ended and not self._interrupted and self._is_readable(0):
            yield from self._next_lines()

    @contextmanager
    def kept_on_interrupt(self) -> Iterator[None]:
        """Make Ctrl-C raise KeyboardInterrupt in ``wait`` only. A second one raises it at once."""
        previous = signal.getsignal(signal.SIGINT)
        if previous is not signal.default_int_handler:  # ignored, in a background job of a shell
            yield
            return
        signal.signal(signal.SIGINT, self._interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, previous)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._waiting or self._interrupted:
            raise KeyboardInterrupt
        self._interrupted = True

    def _is_readable(self, timeout_ms: int | None) -> bool:
        return self._poll is None or bool(self._poll.poll(timeout_ms))

    def _next_lines(self) -> list[bytes]:
        block = self._read(BLOCK_BYTES)
        self._on_read(len(block))
        lines = block.split(b"\n")
        if len(lines) > 1:
            lines[0] = b"".join((*self._rest, lines[0]))
            self._rest, self._rest_bytes = [], 0
        self._rest.append(lines.pop())
        self._rest_bytes += len(self._rest[-1])
        self._ended = not block
        if (self._ended and self._rest_bytes) or self._rest_bytes > PAYLOAD_BYTES_LIMIT:  # which every broker refuses
            lines.append(b"".join(self._rest))
            self._rest, self._rest_bytes = [], 0
        self.count += len(lines)
        return lines


def _reader(stream: BinaryIO) -> tuple[Callable[[int], bytes], int | None]:
    """What reads the bytes at hand, at most so many, and the descriptor that tells when there are some."""
    try:
        descriptor = stream.fileno()
    except OSError:
        return stream.read, None
    return partial(os.read, descriptor), descriptor
