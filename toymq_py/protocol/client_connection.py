"""A client's end of a connection as pure state: bytes in, replies out; no clock, no socket.

Contract: protocol.md, "Framing". Any split of a byte stream gives the same replies. What the other end sends is checked.
"""

import re

from toymq_py.errors import ProtocolViolation
from toymq_py.protocol import replies
from toymq_py.protocol.buffer import Buffer
from toymq_py.protocol.frames import LINE_BYTES_MAX, NEWLINE, NO_KEY, PROTOCOL_VERSION
from toymq_py.protocol.replies import MessagePush, OkReply, Reply

NOT_A_BROKER = "this is not a toymq broker, it sent %r: check host and port"
ANOTHER_VERSION = (
    f"the broker speaks version %d of the protocol, this client {PROTOCOL_VERSION}: use a client of the broker's release"
)
_MESSAGE = re.compile(rb"MSG ([!-~]+) (\d{1,20}) (\d{1,20}) (\d{1,20}) ([!-~]+) (\d{1,20})\n")
_OKS = re.compile(rb"(?:OK \d{1,20}\n)+")


class ClientConnection:
    """A client's end: reply bytes in, ``Reply`` values out."""

    BODY_BYTES_MAX = 256 * 1024 * 1024
    """Most bytes of a body; a longer one is a protocol violation."""

    def __init__(self) -> None:
        self._buffer = Buffer()
        self._topic = b"", ""  # of the last delivery, and as text
        self._head: list[bytes] = []  # of the frame whose body comes next
        self._body_len = -1

    @property
    def idle(self) -> bool:
        """Whether no frame is incomplete."""
        return self._body_len < 0 and not len(self._buffer)

    def receive_data(self, data: bytes) -> None:
        self._buffer.add(data)

    def next_replies(self) -> list[Reply]:
        """Every complete reply and push, in order.

        Raises: ProtocolViolation: the other end does not speak this version of the protocol.
        """
        found: list[Reply] = []
        add = found.append
        buffer = self._buffer
        while True:
            if self._body_len < 0:
                data = buffer.data
                if data.startswith(b"MSG ", buffer.pos):
                    self._messages(found)
                oks = _OKS.match(data, buffer.pos)
                if oks is not None:  # as _line, many at once
                    buffer.pos = oks.end()
                    found.extend([OkReply(int(value)) for value in oks[0][3:-1].split(b"\nOK ")])
                    continue
                at = data.find(b"\n", buffer.pos, buffer.pos + LINE_BYTES_MAX)
                if at < 0:
                    if len(data) - buffer.pos >= LINE_BYTES_MAX:
                        raise ProtocolViolation(f"the broker sent a header line of more than {LINE_BYTES_MAX} bytes")
                    return found
                line = data[buffer.pos : at]
                buffer.pos = at + 1
                reply = self._line(line)
                if reply is not None:
                    add(reply)
                continue
            stop = buffer.pos + self._body_len
            if stop >= len(buffer.data):
                buffer.want(self._body_len + 1)
                return found
            if buffer.data[stop] != NEWLINE:
                raise ProtocolViolation("the broker sent a body that does not end with a newline")
            add(self._with_body(buffer.data[buffer.pos : stop]))
            buffer.pos = stop + 1
            self._body_len = -1

    def _messages(self, found: list[Reply]) -> None:
        """Parse deliveries without options whose bodies have arrived. Leaves anything else to ``_line`` and ``_with_body``."""
        buffer = self._buffer
        data, pos = buffer.data, buffer.pos
        end = len(data)
        match, add = _MESSAGE.match, found.append
        name, topic = self._topic
        while (head := match(data, pos)) is not None:
            at = head.end()
            named, msg_id, attempt, ts_ns, key, length = head.groups()
            stop = at + int(length)
            if stop >= end or data[stop] != NEWLINE or at - pos > LINE_BYTES_MAX:
                break
            if named != name:
                name, topic = self._topic = named, named.decode("ascii")
            add(MessagePush(topic, int(msg_id), int(attempt), int(ts_ns), b"" if key == NO_KEY else key, b"", data[at:stop]))
            pos = stop + 1
        buffer.pos = pos

    def _line(self, line: bytes) -> Reply | None:
        """Parse a header line. Returns: the reply, None when its body follows."""
        tokens = line.rstrip(b"\r").split(b" ")
        try:
            match tokens:
                case [b"OK", value]:
                    return OkReply(_number(value))
                case [b"DUP", value]:
                    return replies.DupReply(_number(value))
                case [b"MSG", _, _, _, _, _, length, *_]:
                    self._expect(tokens, length)
                    return None
                case [b"ERR", code, *text]:
                    return replies.ErrReply(code.decode("ascii"), b" ".join(text).decode("ascii", "replace"))
                case [b"PONG"]:
                    return replies.PongReply()
                case [b"JSON", length] | [b"BATCH", _, _, _, length]:
                    self._expect(tokens, length)
                    return None
                case [b"CLOSED", topic, consumer, code]:
                    return replies.ClosedPush(topic.decode("ascii"), consumer.decode("ascii"), code.decode("ascii"))
                case [b"OFFSETS", topic, first_id, next_id, *options]:
                    found = dict(option.decode("ascii").split("=", 1) for option in options)
                    return replies.OffsetsReply(
                        topic.decode("ascii"), _number(first_id), _number(next_id), found.get("incarnation")
                    )
                case [b"HELLO", version, *options]:
                    if _number(version) != PROTOCOL_VERSION:
                        raise ProtocolViolation(ANOTHER_VERSION % _number(version))
                    found = dict(option.decode("ascii").split("=", 1) for option in options)
                    words = (found.get(word) == "1" for word in ("nack_error", "uncounted", "lease", "workers"))
                    return replies.HelloReply(PROTOCOL_VERSION, found["server"], _number(found["max_payload"].encode()), *words)
                case _:
                    pass
        except (ValueError, KeyError):
            pass
        if line.startswith(b"HTTP/"):
            raise ProtocolViolation("this port speaks HTTP: connect to the port of --listen or --tls-listen")
        raise ProtocolViolation(NOT_A_BROKER % line[:60])

    def _expect(self, tokens: list[bytes], length: bytes) -> None:
        self._head = tokens
        self._body_len = _number(length)
        if self._body_len > self.BODY_BYTES_MAX:
            raise ProtocolViolation(f"the broker sent a body of {self._body_len} bytes, the limit is {self.BODY_BYTES_MAX}")

    def _with_body(self, body: bytes) -> Reply:
        head = self._head
        try:
            if head[0] == b"MSG":
                hdr = 0
                for option in head[7:]:
                    name, _, value = option.partition(b"=")
                    if name == b"hdr":
                        hdr = _number(value)
                if hdr > len(body):
                    raise ProtocolViolation(f"the broker sent a message of {len(body)} bytes with hdr={hdr}")
                key = b"" if head[5] == NO_KEY else head[5]
                return MessagePush(
                    head[1].decode("ascii"), _number(head[2]), _number(head[3]), _number(head[4]), key,
                    body[:hdr], body[hdr:],
                )  # fmt: skip
            if head[0] == b"JSON":
                return replies.JsonReply(body)
            return replies.BatchReply(head[1].decode("ascii"), _number(head[2]), _number(head[3]), body)
        except ValueError:
            raise ProtocolViolation(NOT_A_BROKER % b" ".join(head)[:60]) from None


def _number(token: bytes) -> int:
    if not token.isdigit():
        raise ValueError(token)
    return int(token)
