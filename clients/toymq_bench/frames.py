"""Frames encoded before the clock starts, and the two ends of a wire that a load drives.

Per message in Python a client would be slower than the brokers it measures. So a block of frames is one copy of bytes in which
each mark is overwritten with the send time, and what arrives is counted by the chunk. A mark stands where it makes a key unique
or where the consumer finds it again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

STAMP_BYTES = 12
"""Microseconds in hexadecimal; enough for nine years."""
MARK = b"~" * STAMP_BYTES
BLOCK = 256
"""Frames of a template, at most: larger ones would fall out of the processor's cache, and push the broker out of it."""
FILLER = b"abcdefghijklmnopqrstuvwxyz"
"""Payloads repeat it: no newline, no mark."""


def payload(size: int, *, marked: bool) -> bytes:
    """``size`` bytes; with ``marked`` they begin with a mark. Raises: ValueError when it has no room for one."""
    if marked and size < STAMP_BYTES:
        raise ValueError(f"a payload with its send time needs {STAMP_BYTES} bytes")
    body = (FILLER * (size // len(FILLER) + 1))[:size]
    return MARK + body[STAMP_BYTES:] if marked else body


class Template:
    """Frames of one length."""

    def __init__(self, frames: Sequence[bytes]) -> None:
        self.count = len(frames)
        """Frames of the longest block."""
        self._length = len(frames[0])
        if any(len(frame) != self._length for frame in frames):
            raise ValueError("the frames of a template have one length")
        self._all = b"".join(frames)

    def block(self, count: int, stamp_us: int) -> bytes:
        """The first ``count`` frames, stamped."""
        block = self._all if count == self.count else self._all[: count * self._length]
        return block.replace(MARK, b"%012x" % stamp_us)


class Producing(Protocol):
    """Wire format of a publishing connection."""

    template: Template

    def replies(self, data: bytes) -> int:
        """How many publishes ``data`` completes. Raises: WrongReply."""
        ...


@dataclass(frozen=True, slots=True)
class Chunk:
    """Deliveries of one read of a consuming connection.

    ``stamps``: the mark of each delivery that counts, as sent. ``answer``: the acks, and what else the wire wants to be said.
    """

    stamps: Sequence[bytes]
    answer: bytes


class Consuming(Protocol):
    """Wire format of a consuming connection."""

    def deliveries(self, data: bytes) -> Chunk:
        """Parse what came, and keep what is not complete. Raises: WrongReply."""
        ...
