"""Replies and pushes of the broker. Contract: protocol.md, "Replies and pushes".

Encoders are for the server, the values for clients.
"""

from array import array
from dataclasses import dataclass
from functools import lru_cache

from toymq_py.errors import REQUEST_ERRORS, CommandFailed, PayloadTooLarge, RequestError, ToymqError
from toymq_py.fixed_rows import LAYOUTS_CACHED_MAX, RowLayout
from toymq_py.protocol.frames import LINE_BYTES_MAX
from toymq_py.records import Records, shape_of

ALIKE_MIN = 16
"""The number of messages from which encoding them together is faster."""


@dataclass(slots=True)  # frozen ones take three times as long to make, and there is one a publish
class OkReply:
    """Done; the value is an id or a count."""

    value: int


@dataclass(frozen=True, slots=True)
class DupReply:
    """A publish that repeats a stored message."""

    msg_id: int


@dataclass(frozen=True, slots=True)
class PongReply:
    """The reply to PING."""


@dataclass(frozen=True, slots=True)
class HelloReply:
    """The reply to HELLO: the broker, its version and its limit on a body's size."""

    version: int
    server: str
    """One token, name/version."""
    max_payload: int
    tells_errors: bool = False
    """Whether NACK takes the error options and a reason of any text."""
    takes_uncounted: bool = False
    """Whether NACK and UNSUB take ``uncounted``."""
    numbers_leases: bool = False
    """Whether SUB, PULL, NACK and TOUCH take ``lease``."""
    has_workers: bool = False
    """Whether another process of this broker may have a topic; see ``Cluster``."""


@dataclass(frozen=True, slots=True)
class JsonReply:
    """A JSON document."""

    body: bytes


@dataclass(frozen=True, slots=True)
class BatchReply:
    """The reply to FETCH. ``frames``: WAL frames, byte for byte (storage.md)."""

    topic: str
    count: int
    next_id: int
    frames: bytes


@dataclass(frozen=True, slots=True)
class OffsetsReply:
    """The reply to OFFSETS: the first and the next id of a topic, and its incarnation, if asked for and known."""

    topic: str
    first_id: int
    next_id: int
    incarnation: str | None = None


@dataclass(frozen=True, slots=True)
class ErrReply:
    """The reply ERR: a refused command."""

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
    """A message that the broker delivers to a subscription."""

    topic: str
    msg_id: int
    attempt: int
    ts_ns: int
    key: bytes
    headers: bytes
    payload: bytes


@dataclass(frozen=True, slots=True)
class ClosedPush:
    """Notice that the broker ended a subscription."""

    topic: str
    consumer: str
    code: str


Reply = (
    OkReply | DupReply | PongReply | HelloReply | JsonReply | BatchReply | OffsetsReply | ErrReply
    | MessagePush | ClosedPush
)  # fmt: skip


def encode_ok(value: int) -> bytes:
    return b"OK %d\n" % value


def encode_held(count: int, first: tuple[str, int] | None) -> bytes:
    """The reply to HELD, with topic and id of the message that the application most likely has."""
    return encode_ok(count) if first is None else b"OK %d %b %d\n" % (count, first[0].encode(), first[1])


_ENDS = [b"%03d" % end for end in range(1000)]


def encode_ok_run(first_id: int, count: int) -> bytes:
    """One ``OK`` line for each of ``count`` consecutive ids."""
    if count == 1:
        return b"OK %d\n" % first_id
    if first_id < 1000:
        return b"".join([b"OK %d\n" % msg_id for msg_id in range(first_id, first_id + count)])
    pieces: list[bytes] = []
    end = first_id + count
    while first_id < end:  # ids with the same thousands differ only in their last three digits
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


def encode_hello(reply: HelloReply) -> bytes:
    words = " nack_error=1" * reply.tells_errors + " uncounted=1" * reply.takes_uncounted + " lease=1" * reply.numbers_leases
    words += " workers=1" * reply.has_workers
    return f"HELLO {reply.version} server={reply.server} max_payload={reply.max_payload}{words}\n".encode()


def encode_json(body: bytes) -> bytes:
    return b"JSON %d\n%b\n" % (len(body), body)


def encode_batch_header(topic: str, count: int, next_id: int, length: int) -> bytes:
    """The header line of a BATCH; ``length`` bytes of frames and a newline follow."""
    return b"BATCH %b %d %d %d\n" % (topic.encode(), count, next_id, length)


def encode_offsets(topic: str, first_id: int, next_id: int, incarnation: str | None = None) -> bytes:
    told = b"" if incarnation is None else b" incarnation=%b" % incarnation.encode()
    return b"OFFSETS %b %d %d%b\n" % (topic.encode(), first_id, next_id, told)


def encode_closed(name: str, consumer: str, code: str) -> bytes:
    return f"CLOSED {name} {consumer} {code}\n".encode()


def encode_error(error: RequestError) -> bytes:
    """``ERR <code> <text>``: one line of printable ASCII, whatever the text holds."""
    text = str(error).encode("ascii", "backslashreplace").decode()
    text = "".join(char if char.isprintable() else " " for char in text)
    return f"ERR {error.code} {text}"[: LINE_BYTES_MAX - 1].rstrip().encode() + b"\n"


class Frames:
    """Encoded MSG frames of a run of messages."""

    __slots__ = ("_stride", "pieces")

    def __init__(self, pieces: list[bytes], stride: int = 0) -> None:
        """``pieces``: one encoded frame each; with a ``stride``, one piece in which each frame has ``stride`` bytes."""
        self.pieces = pieces
        self._stride = stride

    def sizes(self) -> "array[int]":
        """The size of each frame in bytes."""
        if self._stride:
            return array("L", [self._stride]) * (len(self.pieces[0]) // self._stride)
        return array("L", map(len, self.pieces))

    def part(self, start: int, stop: int) -> "Frames":
        """The frames ``start`` to below ``stop``."""
        if self._stride:
            return Frames([self.pieces[0][start * self._stride : stop * self._stride]], self._stride)
        return Frames(self.pieces[start:stop])


def encode_messages(topic: str, records: Records, attempt: int) -> Frames:
    """Encode one MSG frame for each record. A frame does not depend on the session, so one encoding serves every subscriber."""
    head = b"MSG %b " % topic.encode()
    if records.headers is None:
        if len(records) >= ALIKE_MIN and (alike := _encode_alike(head, records, attempt)) is not None:
            return alike
        plain = head + b"%d " + b"%d " % attempt + b"%d %b %d\n%b\n"
        return Frames([
            plain % (msg_id, ts_ns, key or b"-", len(payload), payload)
            for msg_id, ts_ns, key, payload in zip(
                records.ids, records.ts_ns, records.keys, records.payloads, strict=True
            )
        ])  # fmt: skip
    frames = []
    columns = zip(records.ids, records.ts_ns, records.keys, records.payloads, records.headers, strict=True)
    for msg_id, ts_ns, key, payload, headers in columns:
        option = b" hdr=%d" % len(headers) if headers else b""
        length = len(headers) + len(payload)
        line = b"%b%d %d %d %b %d%b\n" % (head, msg_id, attempt, ts_ns, key or b"-", length, option)
        frames.append(b"%b%b%b\n" % (line, headers, payload))
    return Frames(frames)


def _encode_alike(head: bytes, records: Records, attempt: int) -> Frames | None:
    """Encode frames that all have one length, in a fifth of the time. Returns: None if they do not."""
    shape = shape_of(records.keys, records.payloads)
    if shape is None:
        return None
    ids = records.ids
    rows, low, high = len(ids), ids[0] // 1000, ids[-1] // 1000
    texts = {ts_ns: b" %d %d " % (attempt, ts_ns) for ts_ns in set(records.ts_ns)}
    width = len(b"%d" % low)
    middle = len(texts[records.ts_ns[0]])
    if not low or width != len(b"%d" % high) or any(len(text) != middle for text in texts.values()):
        return None
    if ids[-1] - ids[0] + 1 == rows:
        openings: list[bytes] = []
        ends: list[bytes] = []
        for thousands in range(low, high + 1):
            part = _ENDS[max(ids[0] - 1000 * thousands, 0) : ids[-1] - 1000 * thousands + 1]
            openings += [b"%b%d" % (head, thousands)] * len(part)
            ends += part
    else:
        openings = [b"%b%d" % (head, msg_id // 1000) for msg_id in ids]
        ends = [_ENDS[msg_id % 1000] for msg_id in ids]
    key_len, payload_len = shape
    tail = b" %d\n" % payload_len
    layout = _message_layout(len(head) + width, middle, key_len or 1, len(tail), payload_len)
    values: list[bytes] = [b"\n"] * (7 * rows)
    values[::7] = openings
    values[1::7] = ends
    values[2::7] = map(texts.__getitem__, records.ts_ns) if len(texts) > 1 else [texts[records.ts_ns[0]]] * rows
    values[3::7] = records.keys if key_len else [b"-"] * rows
    values[4::7] = [tail] * rows
    values[5::7] = records.payloads
    return Frames([b"".join(layout.pack(values, rows))], layout.size)


@lru_cache(LAYOUTS_CACHED_MAX)
def _message_layout(opening: int, middle: int, key: int, tail: int, payload: int) -> RowLayout:
    """The fixed-width layout of a MSG frame whose parts have these lengths in bytes."""
    return RowLayout(f"{opening}s3s{middle}s{key}s{tail}s{payload}ss")
