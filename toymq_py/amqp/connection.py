"""One AMQP 0-9-1 connection as bytes and events. Sans-IO, for either end; no clock.

Contract: amqp.md, "Shape"; the specification, 4.2. A frame goes to its channel; a method with content is an event when its body
is whole. A body is refused by the size that its header announces, before a byte of it is kept.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from toymq_py.amqp import frames, methods
from toymq_py.amqp.errors import (
    CHANNEL_ERROR,
    COMMAND_INVALID,
    FRAME_ERROR,
    PRECONDITION_FAILED,
    SYNTAX_ERROR,
    UNEXPECTED_FRAME,
    AmqpError,
)
from toymq_py.amqp.fields import Reader
from toymq_py.amqp.methods import Index, Method

PUBLISH, DELIVER, RETURN, GET_OK = (60, 40), (60, 60), (60, 50), (60, 71)
WITH_CONTENT = frozenset((PUBLISH, DELIVER, RETURN, GET_OK))
CLOSE, CLOSE_OK = (20, 40), (20, 41)
CONNECTION_ENDS = frozenset(((10, 50), (10, 51)))
CONTENT_HEAD_BYTES = 12
BASIC = 60
FRAMES_AT_ONCE = 64
"""Frames that ``events`` reads at most before it yields, with an event or without: their reader looks at the clock."""


class NotAmqp(Exception):
    """The first bytes are not the protocol header of AMQP 0-9-1: send that header as the answer, and close."""


@dataclass(slots=True)
class Content:
    """A method with its content. ``properties``: the encoded properties as received, flags first."""

    method: Method
    properties: bytes
    body: bytes


class Signal(Enum):
    """An event of the connection, not of a channel."""

    GREETING = "the protocol header came"
    HEARTBEAT = "a heartbeat came"
    NOTHING = "many frames came that complete nothing"


Event = tuple[int, Method | Content | AmqpError | Signal]
"""A channel, and what came on it. An error closes the channel, not the connection."""


@dataclass(slots=True)
class _Incoming:
    """A method whose content is incomplete. ``missing``: bytes of the body still to come; None before the header."""

    method: Method
    properties: bytes = b""
    missing: int | None = None
    parts: list[bytes | bytearray] = field(default_factory=list)
    """The parts of the body that have come; small ones are put together."""


class AmqpConnection:
    """Reads one direction of a connection."""

    def __init__(self, *, frame_max: int, body_bytes_max: int, channel_max: int, expects_header: bool = True) -> None:
        """
        Args:
            frame_max: the largest frame in bytes, until ``limit_frames``.
            body_bytes_max: the largest body; a larger one is refused on its channel.
            channel_max: the highest channel number; 0 until connection.tune-ok, so that no content is kept before the login.
            expects_header: True on a server, which receives the protocol header first.
        """
        self._reader = frames.FrameReader(frame_max, "the limit before connection.tune-ok," if expects_header else "frame_max")
        self._body_bytes_max = body_bytes_max
        self.channel_max = channel_max
        self._expects_header = expects_header
        self._incoming: dict[int, _Incoming] = {}
        self._discarded: set[int] = set()
        self._content_bytes = 0
        self._back: Event | None = None
        self._ending = False

    @property
    def held_bytes(self) -> int:
        """Bytes of unfinished frames and contents, and of an event that ``give_back`` returned."""
        return self._reader.held_bytes + self._content_bytes

    @property
    def unread_bytes(self) -> int:
        """Bytes that ``events`` has not looked at yet, or that are an unfinished frame."""
        return self._reader.held_bytes

    @property
    def has_waiting(self) -> bool:
        """Whether ``give_back`` returned an event, which ``events`` will yield first."""
        return self._back is not None

    def give_back(self, event: Event) -> None:
        """Return the last event, which cannot be applied yet: ``events`` yields it again. Assumes that none was read since."""
        self._back = event
        self._content_bytes += _content_size(event)

    def limit_frames(self, frame_max: int) -> None:
        """Set the frame size that the peers have agreed on."""
        self._reader.frame_max, self._reader.limit = frame_max, "frame_max"

    def end(self) -> None:
        """Close the connection from this side: drop complete and partial frames from the peer, except its close-ok."""
        self._ending = True
        self._incoming.clear()
        self._back = None
        self._content_bytes = 0

    def discard(self, channel: int) -> None:
        """Close a channel from this side: drop its frames until the peer has confirmed."""
        self._discarded.add(channel)
        self._drop(channel)

    def reopen(self, channel: int) -> None:
        """Allow frames of a channel again: the peer has confirmed the close, or has closed the channel itself."""
        self._discarded.discard(channel)
        self._drop(channel)

    def _drop(self, channel: int) -> None:
        incoming = self._incoming.pop(channel, None)
        if incoming is not None:
            self._content_bytes -= len(incoming.properties) + sum(map(len, incoming.parts))
        if (back := self._back) is not None and back[0] == channel:
            self._back = None
            self._content_bytes -= _content_size(back)

    def received(self, data: bytes) -> None:
        self._reader.received(data)

    def events(self) -> Iterator[Event]:
        """Yield complete events. Close the generator if it is not read to its end.

        Raises: AmqpError, which ends the connection; NotAmqp.
        """
        if self._expects_header:
            header = self._reader.take(len(frames.PROTOCOL_HEADER))
            if header is None:
                return
            if header != frames.PROTOCOL_HEADER:
                raise NotAmqp
            self._expects_header = False
            yield 0, Signal.GREETING
        if (back := self._back) is not None:
            self._back = None
            self._content_bytes -= _content_size(back)
            yield back
        incoming = self._reader.frames()
        try:
            without_event = 0
            for kind, channel, payload in incoming:
                event = self._event(kind, channel, payload)
                if event is None:
                    without_event += 1
                    if without_event < FRAMES_AT_ONCE:
                        continue
                    event = 0, Signal.NOTHING
                without_event = 0
                yield event
        finally:
            incoming.close()  # type: ignore[attr-defined]  # it keeps what was not read

    def _event(self, kind: int, channel: int, payload: bytes) -> Event | None:
        """Return the event of a frame; None while its content is incomplete. Raises: AmqpError."""
        if channel > self.channel_max:
            why = f"is above the limit, {self.channel_max}" if self.channel_max else "before connection.tune-ok"
            raise AmqpError(CHANNEL_ERROR, f"channel {channel} {why}")
        if kind == frames.HEARTBEAT:
            if channel:
                raise AmqpError(FRAME_ERROR, f"a heartbeat on channel {channel}: they are of the connection, on 0")
            return 0, Signal.HEARTBEAT
        if self._ending and (channel or kind != frames.METHOD or _index(payload) not in CONNECTION_ENDS):
            return None
        if channel in self._discarded:
            if kind != frames.METHOD or _index(payload) not in (CLOSE, CLOSE_OK):
                return None
            return channel, methods.decode(payload)
        if kind == frames.METHOD:
            return self._method(channel, payload)
        if kind == frames.HEADER:
            return self._header(channel, payload)
        return self._body(channel, payload)

    def _method(self, channel: int, payload: bytes) -> Event | None:
        method = methods.decode(payload)
        if channel in self._incoming:
            raise AmqpError(UNEXPECTED_FRAME, f"{method.name} in the middle of a content", method.index)
        if method.index in WITH_CONTENT:
            self._incoming[channel] = _Incoming(method)
            return None
        if (channel == 0) != (method.index[0] == 10):
            raise AmqpError(COMMAND_INVALID, f"{method.name} on channel {channel}", method.index)
        return channel, method

    def _header(self, channel: int, payload: bytes) -> Event | None:
        incoming = self._incoming.get(channel)
        if incoming is None or incoming.missing is not None:
            raise AmqpError(UNEXPECTED_FRAME, "a content header without a method that has content")
        reader = Reader(payload)
        class_id, _, size = reader.short(), reader.short(), reader.longlong()
        method = incoming.method
        if class_id != BASIC:
            raise AmqpError(FRAME_ERROR, f"a content header of class {class_id}, of {method.name}", method.index)
        if reader.at == len(payload):
            raise AmqpError(SYNTAX_ERROR, "a content header without flags", method.index)
        if size > self._body_bytes_max:
            self._drop(channel)
            text = f"message size {size} is larger than max size {self._body_bytes_max} (--max-payload)"
            return channel, AmqpError(PRECONDITION_FAILED, text, method.index)
        incoming.properties, incoming.missing = payload[CONTENT_HEAD_BYTES:], size
        self._content_bytes += len(incoming.properties)
        if size:
            return None
        self._drop(channel)
        return channel, Content(method, incoming.properties, b"")

    def _body(self, channel: int, payload: bytes) -> Event | None:
        incoming = self._incoming.get(channel)
        if incoming is None or incoming.missing is None:
            raise AmqpError(UNEXPECTED_FRAME, "a body without a content header")
        incoming.missing -= len(payload)
        if incoming.missing < 0:
            raise AmqpError(UNEXPECTED_FRAME, "a body longer than its header says", incoming.method.index)
        parts = incoming.parts
        if not incoming.missing:
            self._drop(channel)
            body = payload if not parts else b"".join((*parts, payload))
            return channel, Content(incoming.method, incoming.properties, body)
        self._content_bytes += len(payload)
        if len(payload) >= frames.SMALL_BYTES:
            parts.append(payload)
        elif parts and isinstance(last := parts[-1], bytearray):
            last += payload
        else:
            parts.append(bytearray(payload))
        return None


def _content_size(event: Event) -> int:
    what = event[1]
    return len(what.properties) + len(what.body) if isinstance(what, Content) else 0


def _index(payload: bytes) -> Index:
    reader = Reader(payload)
    return reader.short(), reader.short()
