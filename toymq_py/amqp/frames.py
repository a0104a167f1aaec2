"""AMQP 0-9-1 frames: bytes in, frames out, and back. Sans-IO; no clock.

Contract: the specification, 4.2.3. A frame is refused by its announced size before its payload is read.
"""

import struct
from collections.abc import Iterator

from toymq_py.amqp.errors import FRAME_ERROR, AmqpError

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
END = 0xCE
END_BYTE = b"\xce"
OVERHEAD = 8
"""Bytes of a frame in addition to its payload."""
FRAME_MIN = 4096
"""The frame size that every peer has to accept."""
LOGIN_FRAME_MAX = 8192
"""The largest frame of a client until connection.tune-ok, as in RabbitMQ 4: room for a name, a password of 4 KiB and 3 KiB of
properties, where client libraries send 0.7. Such a frame takes at most about 1.5 ms to decode, and anyone may send one."""
PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
HEARTBEAT_FRAME = b"\x08\x00\x00\x00\x00\x00\x00\xce"

_HEAD = struct.Struct(">BHI")
_KNOWN = frozenset((METHOD, HEADER, BODY, HEARTBEAT))

Frame = tuple[int, int, bytes]
"""Type, channel and payload of a frame."""


SMALL_BYTES = 1024
"""Smaller pieces are put together while they wait: an object has 33 bytes of its own, and its place in a list 8."""
CHUNKS_MAX = 64
"""Reads that wait as they came, before they are joined."""


class FrameReader:
    """Cuts the bytes of a connection into frames."""

    __slots__ = ("_chunks", "_have", "_need", "frame_max", "limit")

    def __init__(self, frame_max: int, limit: str = "frame_max") -> None:
        """
        Args:
            frame_max: the largest frame in bytes, its head and end included.
            limit: what this limit is called in errors.
        """
        self.frame_max = frame_max
        self.limit = limit
        self._chunks: list[bytes | bytearray] = []
        self._have = 0
        self._need = 1

    @property
    def held_bytes(self) -> int:
        """Bytes of an unfinished frame."""
        return self._have

    def received(self, data: bytes) -> None:
        self._have += len(data)
        if len(self._chunks) > CHUNKS_MAX and len(data) < SMALL_BYTES:
            last = self._chunks[-1]
            if isinstance(last, bytearray):
                last += data
                return
            self._chunks.append(bytearray(data))
            return
        self._chunks.append(data)

    def take(self, count: int) -> bytes | None:
        """Take bytes that are not a frame (the protocol header); None until all have arrived."""
        if self._have < count:
            return None
        data = b"".join(self._chunks)
        self._keep(data, count)
        self._need = _HEAD.size  # the size in the head of a frame behind it is not checked yet
        return data[:count]

    def frames(self) -> Iterator[Frame]:
        """Yield complete frames. Raises: AmqpError, after which nothing more can be read."""
        if self._have < self._need:
            return
        data = bytes(self._chunks[0]) if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        at, end = 0, len(data)
        try:
            while end - at >= _HEAD.size:
                kind, channel, size = _HEAD.unpack_from(data, at)
                if kind not in _KNOWN:
                    raise AmqpError(FRAME_ERROR, f"frame type {kind} is not known")
                if size > self.frame_max - OVERHEAD:
                    raise AmqpError(FRAME_ERROR, f"a frame of {size} bytes exceeds {self.limit} {self.frame_max}")
                stop = at + 7 + size
                if stop >= end:
                    break
                if data[stop] != END:
                    raise AmqpError(FRAME_ERROR, "a frame does not end with 206: its size is wrong")
                payload = data[at + 7 : stop]
                at = stop + 1
                yield kind, channel, payload
        finally:
            self._keep(data, at)

    def _keep(self, data: bytes, at: int) -> None:
        """Drop the bytes that were read; ``_need`` bytes must arrive before another look is worthwhile."""
        rest = data[at:] if at else data
        self._chunks = [rest] if rest else []
        self._have = len(rest)
        self._need = _HEAD.size
        if len(rest) >= _HEAD.size:
            self._need = OVERHEAD + min(_HEAD.unpack_from(rest)[2], self.frame_max)


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return _HEAD.pack(kind, channel, len(payload)) + payload + END_BYTE


def body_frames(channel: int, body: bytes, frame_max: int) -> list[bytes]:
    """The frames of a body, none for an empty one."""
    room = frame_max - OVERHEAD
    if len(body) <= room:
        return [frame(BODY, channel, body)] if body else []
    return [frame(BODY, channel, body[at : at + room]) for at in range(0, len(body), room)]
