"""The input of ``toymqctl pub``, in bursts: lines of a file or of stdin, or copies of a payload. Ctrl-C loses no line that was
read."""

import os
import select
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import BinaryIO

from toymq.message import Item
from toymq_py.records import PAYLOAD_BYTES_LIMIT

BLOCK_BYTES = 65536
"""Read at a time: what a pipe holds."""


class Input(ABC):
    """The messages to publish, in bursts. Ctrl-C ends the input between two messages."""

    called = "lines"
    """What is counted."""

    def __init__(self) -> None:
        self._waiting = self._interrupted = False
        self.count = 0
        """Those that were taken."""

    @property
    def incomplete_bytes(self) -> int:
        """The number of bytes of a last line whose end was not read."""
        return 0

    def wait(self) -> bool:
        """Wait for input. Returns: False at its end. Raises: KeyboardInterrupt, only when every line that was read has been
        yielded."""
        self._waiting = True
        try:
            if self._interrupted:
                raise KeyboardInterrupt
            return self._has_more()
        finally:
            self._waiting = False

    @abstractmethod
    def burst(self) -> Iterator[Item]:
        """Yield the messages that are there without waiting, but no more after Ctrl-C."""

    @abstractmethod
    def _has_more(self) -> bool:
        """Wait until a message can be read. Returns: False at the end of the input."""

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


class Copies(Input):
    """Yields the same message a number of times."""

    called = "messages"

    def __init__(self, item: Item, total: int) -> None:
        super().__init__()
        self._item = item
        self._total = total

    def burst(self) -> Iterator[Item]:
        while self._has_more() and not self._interrupted:
            self.count += 1
            yield self._item

    def _has_more(self) -> bool:
        return self.count < self._total


class InputLines(Input):
    """Yields lines without their newline, in bursts: a burst is what can be read without waiting. The last line may lack its
    newline.

    It bypasses the stream's buffer, so nothing else may have read from the stream.
    """

    def __init__(self, stream: BinaryIO, on_read: Callable[[int], None] = lambda _: None) -> None:
        """``on_read``: called with the number of bytes of each read."""
        super().__init__()
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
        self._ended = False

    @property
    def incomplete_bytes(self) -> int:
        return self._rest_bytes

    def _has_more(self) -> bool:
        if not self._ended:
            self._is_readable(None)
        return not self._ended

    def burst(self) -> Iterator[bytes]:
        """Yield lines until reading has to wait, the stream ends, or Ctrl-C: then, too, all complete lines that were read."""
        while not self._ended and not self._interrupted and self._is_readable(0):
            yield from self._next_lines()

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
    """Return a function that reads at most so many of the bytes at hand, and the descriptor that is readable when there are
    some."""
    try:
        descriptor = stream.fileno()
    except OSError:
        return stream.read, None
    return partial(os.read, descriptor), descriptor
