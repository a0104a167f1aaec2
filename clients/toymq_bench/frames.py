"""Frames encoded before the run, and the interfaces of wire formats.

If the load generator did work per message in Python, it would be slower than the brokers. So a block of frames is one copy of
prepared bytes, in which each mark (``MARK``, a placeholder) is replaced by the send time, and deliveries are counted per chunk
of bytes. A mark makes a key unique and carries the send time to the consumer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

STAMP_BYTES = 12
"""Microseconds in hexadecimal: enough for nine years."""
MARK = b"~" * STAMP_BYTES
BLOCK = 256
"""Most frames of a template: larger ones would exceed the processor's cache, and evict the broker from it."""
FILLER = b"abcdefghijklmnopqrstuvwxyz"
"""Repeated in payloads; without newline or mark."""


def payload(size: int, *, marked: bool) -> bytes:
    """Make a payload of ``size`` bytes, which begins with a mark if ``marked``. Raises: ValueError when it is too short for a
    mark."""
    if marked and size < STAMP_BYTES:
        raise ValueError(f"a payload with its send time needs {STAMP_BYTES} bytes")
    body = (FILLER * (size // len(FILLER) + 1))[:size]
    return MARK + body[STAMP_BYTES:] if marked else body


class Template:
    """A prepared block of publish frames of equal length, with marks for the send time."""

    def __init__(self, frames: Sequence[bytes]) -> None:
        self.count = len(frames)
        """Frames of the longest block."""
        self._length = len(frames[0])
        if any(len(frame) != self._length for frame in frames):
            raise ValueError("the frames of a template need one length")
        self._all = b"".join(frames)

    def block(self, count: int, stamp_us: int) -> bytes:
        """Return the first ``count`` frames, with ``stamp_us`` in their marks."""
        block = self._all if count == self.count else self._all[: count * self._length]
        return block.replace(MARK, b"%012x" % stamp_us)


class Producing(Protocol):
    """The wire format of a publishing connection."""

    template: Template

    def replies(self, data: bytes) -> int:
        """Return how many publishes the received ``data`` confirms. Raises: WrongReply."""
        ...


@dataclass(frozen=True, slots=True)
class Chunk:
    """The deliveries in one read of a consuming connection.

    ``stamps``: send times of the deliveries to count. ``answer``: bytes to send back, such as acks.
    """

    stamps: Sequence[bytes]
    answer: bytes


class Consuming(Protocol):
    """The wire format of a consuming connection."""

    def deliveries(self, data: bytes) -> Chunk:
        """Parse received bytes, keeping an incomplete rest. Raises: WrongReply."""
        ...
