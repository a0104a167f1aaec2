"""Replies and pushes: what the broker says, and what a client hears.

Contract: protocol.md, "Replies and pushes". Encoders are for the server, the frozen values for clients.
"""

from dataclasses import dataclass

from toymq_py.errors import REQUEST_ERRORS, CommandFailed, PayloadTooLarge, RequestError, ToymqError
from toymq_py.model import Records
from toymq_py.protocol.frames import LINE_BYTES_MAX


@dataclass(slots=True)  # frozen ones take three times as long to make, and there is one a publish
class OkReply:
    value: int


@dataclass(frozen=True, slots=True)
class DupReply:
    msg_id: int


@dataclass(frozen=True, slots=True)
class PongReply:
    pass


@dataclass(frozen=True, slots=True)
class HelloReply:
    version: int
    server: str
    max_payload: int


@dataclass(frozen=True, slots=True)
class JsonReply:
    body: bytes


@dataclass(frozen=True, slots=True)
class BatchReply:
    """``frames``: WAL frames, byte for byte (storage.md)."""

    topic: str
    count: int
    next_id: int
    frames: bytes


@dataclass(frozen=True, slots=True)
class OffsetsReply:
    topic: str
    first_id: int
    next_id: int


@dataclass(frozen=True, slots=True)
class ErrReply:
    code: str
    text: str

    def to_exception(self) -> ToymqError:
        """The error as an exception; ``CommandFailed`` for a code that this version does not know."""
        cls = REQUEST_ERRORS.get(self.code)
        if cls is None:
            return CommandFailed(self.code, self.text)
        error = cls.__new__(cls)
        Exception.__init__(error, self.text)
        if isinstance(error, PayloadTooLarge):
            error.fatal = False
        if self.code == "OUT_OF_RANGE":
            first = self.text.partition(" ")[0]
            error.first_id = int(first) if first.isdigit() else 0  # type: ignore[attr-defined]
        return error


@dataclass(slots=True)  # as OkReply: one a delivery
class MessagePush:
    topic: str
    msg_id: int
    attempt: int
    ts_ns: int
    key: bytes
    headers: bytes
    payload: bytes


@dataclass(frozen=True, slots=True)
class ClosedPush:
    topic: str
    consumer: str
    code: str


Reply = (
    OkReply | DupReply | PongReply | HelloReply | JsonReply | BatchReply | OffsetsReply | ErrReply
    | MessagePush | ClosedPush
)  # fmt: skip


def encode_ok(value: int) -> bytes:
    return b"OK %d\n" % value


_ENDS = [b"%03d" % end for end in range(1000)]


def encode_ok_run(first_id: int, count: int) -> bytes:
    """``OK`` for each of ``count`` consecutive ids."""
    if count == 1:
        return b"OK %d\n" % first_id
    if first_id < 1000:
        return b"".join([b"OK %d\n" % msg_id for msg_id in range(first_id, first_id + count)])
    pieces: list[bytes] = []
    end = first_id + count
    while first_id < end:  # ids with the same thousands: only the ends differ, and those are there already
        thousands, low = divmod(first_id, 1000)
        high = min(1000, low + end - first_id)
        opening = b"OK %d" % thousands
        pieces += opening, (b"\n" + opening).join(_ENDS[low:high]), b"\n"
        first_id += high - low
    return b"".join(pieces)


def encode_dup(msg_id: int) -> bytes:
    return b"DUP %d\n" % msg_id


def encode_pong() -> bytes:
    return b"PONG\n"


def encode_hello(server: str, max_payload: int) -> bytes:
    """``server`` is name/version, one token."""
    return f"HELLO 1 server={server} max_payload={max_payload}\n".encode()


def encode_json(body: bytes) -> bytes:
    return b"JSON %d\n%b\n" % (len(body), body)


def encode_batch_header(topic: str, count: int, next_id: int, length: int) -> bytes:
    """The header line of a BATCH; ``length`` bytes of frames and a newline follow."""
    return b"BATCH %b %d %d %d\n" % (topic.encode(), count, next_id, length)


def encode_offsets(topic: str, first_id: int, next_id: int) -> bytes:
    return b"OFFSETS %b %d %d\n" % (topic.encode(), first_id, next_id)


def encode_closed(name: str, consumer: str, code: str) -> bytes:
    return f"CLOSED {name} {consumer} {code}\n".encode()


def encode_error(error: RequestError) -> bytes:
    """``ERR <code> <text>``: one line of printable ASCII, whatever the text holds."""
    text = str(error).encode("ascii", "backslashreplace").decode()
    text = "".join(char if char.isprintable() else " " for char in text)
    return f"ERR {error.code} {text}"[: LINE_BYTES_MAX - 1].rstrip().encode() + b"\n"


def encode_messages(topic: str, records: Records, attempt: int) -> list[bytes]:
    """One MSG frame a record. Carries nothing of a session, so one encoding serves every subscriber."""
    head = b"MSG %b " % topic.encode()
    if records.headers is None:
        plain = head + b"%d " + b"%d " % attempt + b"%d %b %d\n%b\n"
        return [
            plain % (msg_id, ts_ns, key or b"-", len(payload), payload)
            for msg_id, ts_ns, key, payload in zip(
                records.ids, records.ts_ns, records.keys, records.payloads, strict=True
            )
        ]
    frames = []
    columns = zip(records.ids, records.ts_ns, records.keys, records.payloads, records.headers, strict=True)
    for msg_id, ts_ns, key, payload, headers in columns:
        option = b" hdr=%d" % len(headers) if headers else b""
        length = len(headers) + len(payload)
        line = b"%b%d %d %d %b %d%b\n" % (head, msg_id, attempt, ts_ns, key or b"-", length, option)
        frames.append(b"%b%b%b\n" % (line, headers, payload))
    return frames
