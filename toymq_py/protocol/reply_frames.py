"""Split the byte stream of a broker into whole frames, for another broker that passes them on. Contract: protocol.md,
"Framing"."""

from toymq_py.errors import ProtocolViolation
from toymq_py.protocol.frames import LINE_BYTES_MAX

_LENGTH_AT = {b"MSG": 6, b"JSON": 1, b"BATCH": 4}
"""The index of the length among the tokens of the header line, for frames with a body, by their first word."""


class ReplyFrames:
    """Collects the bytes of a stream, and returns whole frames."""

    def __init__(self) -> None:
        self._data = b""

    def split(self, data: bytes) -> list[bytes]:
        """Every frame that is whole now, in order. Raises: ProtocolViolation."""
        data = self._data + data if self._data else data
        frames: list[bytes] = []
        at = 0
        while (end := data.find(b"\n", at)) >= 0:
            end += 1
            place = _LENGTH_AT.get(data[at : data.find(b" ", at, end)])
            if place is not None:
                try:
                    end += int(data[at : end - 1].split(b" ")[place]) + 1
                except (IndexError, ValueError):
                    raise ProtocolViolation(f"a worker sent {data[at : at + 60]!r}") from None
                if end > len(data):
                    break
            frames.append(data[at:end])
            at = end
        self._data = data[at:]
        if end < 0 and len(self._data) > LINE_BYTES_MAX:
            raise ProtocolViolation(f"a worker sent {self._data[:60]!r}")
        return frames


def first_word(frame: bytes) -> bytes:
    """The first word of a frame, which tells what it is: ``OK``, ``ERR``, ``MSG``, …"""
    return frame[: frame.find(b" ")] if b" " in frame[:16] else frame.rstrip(b"\n")
