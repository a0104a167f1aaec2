"""The broker's end of a connection as pure state: bytes in, commands out; no clock, no socket.

Contract: protocol.md, "Framing" and "Errors". Any split of a byte stream gives the same commands. A length is checked before
anything is allocated for it, and bytes that arrive one at a time cost linear time.
"""

from enum import Enum
from typing import Final

from toymq_py.errors import (
    BadFraming,
    LineTooLong,
    NotTcp,
    PayloadTooLarge,
    RequestError,
)
from toymq_py.protocol.batch_parser import BatchParser
from toymq_py.protocol.buffer import Buffer
from toymq_py.protocol.commands import Command, Publish, Rejected
from toymq_py.protocol.frames import DRAIN_BYTES_MAX, LENGTH_DIGITS_MAX, LINE_BYTES_MAX, NEWLINE, NO_KEY, is_key
from toymq_py.protocol.header_lines import build_publish, invalid_key, is_http, parse_line, refused_publish, topic_name
from toymq_py.records import DEFAULT_MAX_PAYLOAD

LINE_COST = 4
"""How many PUBs or ACKs of a batch a line counts for that is parsed alone: it takes as long as they do."""
LINE_COST_BYTES = 16
"""A line counts for one more for each 16 bytes of its length: a list of a thousand ids takes as long as a hundred PINGs."""
TLS_HANDSHAKE = b"\x16\x03"
AMQP_HEADER = b"AMQP\0"
"""The first bytes of an AMQP client, which waits for an answer to them."""
OTHER_PROTOCOLS = (TLS_HANDSHAKE, AMQP_HEADER)
"""The beginnings of other protocols, whose peers may never send a newline."""


class _State(Enum):
    LINE = "a header line is next"
    BODY = "the body of an accepted PUB is next"
    DRAIN = "the body of a refused command is dropped"
    FAILED = "a fatal error was reported; the rest is dropped"


_LINE: Final = _State.LINE
_BODY: Final = _State.BODY
_DRAIN: Final = _State.DRAIN
_FAILED: Final = _State.FAILED
"""A constant, since an attribute of an ``Enum`` takes 170 ns on Python 3.11."""


class ServerConnection:
    """The broker's end: command bytes in, ``Command`` values out."""

    def __init__(self, max_payload: int = DEFAULT_MAX_PAYLOAD) -> None:
        """``max_payload`` in bytes, headers included; at most 64 MiB."""
        self._buffer = Buffer()
        self._batches = BatchParser(self._buffer, max_payload)
        self._state = _LINE
        self._pending: Publish | None = None  # its body comes next
        self._body_len = 0
        self._drain_left = 0
        self._refused: Rejected | None = None  # a PUB whose body is dropped as it comes; the next command
        self._ended = False
        self.starved = True
        """Whether ``next_commands`` returns nothing before more bytes are there."""

    def limit_payloads(self, max_payload: int) -> None:
        """Limit bodies whose headers arrive from now on to ``max_payload`` bytes."""
        self._batches.max_payload = max_payload

    @property
    def buffered_bytes(self) -> int:
        return len(self._buffer)

    @property
    def failed(self) -> bool:
        """Whether a fatal error was reported."""
        return self._state is _FAILED

    @property
    def ended_torn(self) -> bool | None:
        """Whether the stream ended inside a frame. None before its end."""
        if not self._ended:
            return None
        return self._state in (_BODY, _DRAIN) or (self._state is _LINE and len(self._buffer) > 0)

    def receive_data(self, data: bytes) -> None:
        """Take more bytes of the stream. After a fatal error they are dropped."""
        if self._state is _DRAIN:
            # Drop it without buffering, except for the newline that is checked later.
            taken = min(self._drain_left - 1, len(data)) if not len(self._buffer) else 0
            if taken > 0:
                self._drain_left -= taken
                data = data[taken:]
        if self._state is not _FAILED and data:
            self._buffer.add(data)
            self.starved = False

    def receive_eof(self) -> None:
        """Note that the stream has ended. An incomplete command is never executed."""
        self._ended = True

    @property
    def body_arrives(self) -> bool:
        """Whether the next command is a PUB of which a part of the body is missing."""
        return self._state is _BODY and self._pending is not None and len(self._buffer) <= self._body_len

    def refuse_body(self, error: RequestError) -> bool:
        """Drop the body that is arriving: its PUB becomes ``Rejected``. Returns: False when no body is arriving."""
        here, pending = len(self._buffer), self._pending
        if not self.body_arrives or pending is None:
            return False
        publish = None if pending.seqs is None else (pending.topic, pending.keys[0], pending.seqs[0])
        self._refused = Rejected(error, publish)
        self._pending = None
        self._buffer.clear()
        self._state = _DRAIN
        self._drain_left = self._body_len + 1 - here
        self.starved = False
        return True

    def next_commands(self, max_commands: int = 512) -> list[Command]:
        """Parse up to ``max_commands`` commands; each PUB of a batch counts as one, and a long line as more.

        Returns: [] when more bytes are needed.
        """
        commands: list[Command] = []
        if self._refused is not None:
            commands.append(self._refused)
            self._refused = None
        buffer = self._buffer
        left = max_commands
        while left > 0 and buffer.data:
            if self._state is _LINE:
                left -= self._batches.parse_publishes(commands, left)
                if buffer.pos == len(buffer.data):
                    break
                left -= self._batches.parse_acks(commands, left)
                left -= self._batches.parse_sequenced(commands, left)
                if left <= 0 or buffer.pos == len(buffer.data):
                    break
                if buffer.data.startswith(b"PUB ", buffer.pos) and (timed := self._batches.parse_timed(commands, left)):
                    left -= timed
                    continue
                began = buffer.pos
                if not self._parse_one(commands):
                    break
                left -= LINE_COST + (buffer.pos - began) // LINE_COST_BYTES
                if left > 0 and buffer.pos < len(buffer.data):
                    left -= self._batches.parse_alike(commands, began, left)
            elif self._state is _BODY:
                if not self._parse_body(commands):
                    break
                left -= 1
            elif self._state is _DRAIN:
                if not self._drain(commands):
                    break
            else:
                break
        if buffer.pos and buffer.pos == len(buffer.data):  # an idle connection holds no parsed bytes
            buffer.data, buffer.pos = b"", 0
            self.starved = True
        else:
            self.starved = left > 0 or not buffer.data
        return commands

    # -- what the batch parser leaves, a command at a time

    def _parse_one(self, commands: list[Command]) -> bool:
        """Parse one header line. Returns: False when more bytes are needed, and after a fatal error."""
        buffer = self._buffer
        if buffer.data.startswith(OTHER_PROTOCOLS, buffer.pos):
            self._fail(commands, _other_protocol(buffer.data[buffer.pos]), other_protocol=True)
            return False
        at = buffer.data.find(b"\n", buffer.pos, buffer.pos + LINE_BYTES_MAX)
        if at < 0:
            if len(buffer.data) - buffer.pos >= LINE_BYTES_MAX:
                self._fail(commands, LineTooLong(f"the header line has more than {LINE_BYTES_MAX} bytes"))
            return False
        line = buffer.data[buffer.pos : at]
        buffer.pos = at + 1
        if line.endswith(b"\r"):
            line = line[:-1]
        if is_http(line):
            http = NotTcp("this port speaks the toymq protocol, not HTTP: use the port of --http")
            self._fail(commands, http, other_protocol=True)
            return False
        if line == b"PUB" or line.startswith(b"PUB "):
            return self._begin_publish(line, commands)
        try:
            commands.append(parse_line(line))
        except RequestError as error:
            commands.append(Rejected(error.with_traceback(None)))  # a traceback would hold our frames, in a circle
        return True

    def _begin_publish(self, line: bytes, commands: list[Command]) -> bool:
        """Parse a PUB's header, the length first, since the body follows even if the rest is invalid."""
        tokens = line.split(b" ")
        length = tokens[3] if len(tokens) > 3 else b""
        if not length.isdigit():
            self._fail(commands, BadFraming("invalid PUB, its body has no end: write PUB <topic> <key> <length>"))
            return False
        size = int(length) if len(length) <= LENGTH_DIGITS_MAX else 1 << 64
        error: RequestError | None = None
        max_payload = self._batches.max_payload
        if size > max_payload:
            error = PayloadTooLarge(
                f"the body has {size} bytes, the limit is {max_payload} (--max-payload)", fatal=size > DRAIN_BYTES_MAX
            )
            if error.fatal:
                self._fail(commands, error)
                return False
        else:
            try:
                self._pending = self._publish_head(tokens, size)
                self._body_len = size
            except RequestError as refused:
                error = refused.with_traceback(None)
        if error is None:
            self._state = _BODY
            return self._parse_body(commands)
        commands.append(Rejected(error, refused_publish(tokens)))
        self._state = _DRAIN
        self._drain_left = size + 1
        return True

    @staticmethod
    def _publish_head(tokens: list[bytes], size: int) -> Publish:
        topic = topic_name(tokens[1].decode("latin-1"))
        key = tokens[2]
        if key != NO_KEY and not is_key(key):
            raise invalid_key(key)
        options = [token.decode("latin-1") for token in tokens[4:]]
        return build_publish(topic, b"" if key == NO_KEY else key, options, size)

    def _parse_body(self, commands: list[Command]) -> bool:
        buffer = self._buffer
        stop = buffer.pos + self._body_len
        if stop >= len(buffer.data):
            buffer.want(self._body_len + 1)
            return False
        if buffer.data[stop] != NEWLINE:
            self._fail(commands, BadFraming("the body is longer than its length: it must end with a newline"))
            return False
        assert self._pending is not None
        self._pending.bodies.append(buffer.data[buffer.pos : stop])
        commands.append(self._pending)
        self._pending = None
        buffer.pos = stop + 1
        self._state = _LINE
        return True

    def _drain(self, commands: list[Command]) -> bool:
        buffer = self._buffer
        taken = min(self._drain_left - 1, len(buffer.data) - buffer.pos)
        buffer.pos += taken
        self._drain_left -= taken
        if buffer.pos == len(buffer.data):
            return False
        if buffer.data[buffer.pos] != NEWLINE:
            self._fail(commands, BadFraming("the body of a refused PUB is longer than its length: it must end with a newline"))
            return False
        buffer.pos += 1
        self._state = _LINE
        return True

    def _fail(self, commands: list[Command], error: RequestError, *, other_protocol: bool = False) -> None:
        commands.append(Rejected(error, other_protocol=other_protocol))
        self._state = _FAILED
        self._buffer.clear()


def _other_protocol(first: int) -> BadFraming:
    """The error for a peer that speaks one of ``OTHER_PROTOCOLS``, recognised by its first byte."""
    if first == AMQP_HEADER[0]:
        return BadFraming("this port speaks the text protocol of toymq, not AMQP: use the port of --amqp or --amqps")
    return BadFraming("this port does not speak TLS: use toymq://, or the port of --tls-listen")
