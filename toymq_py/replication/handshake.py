"""The handshake of a link between replicas: its lines as values and bytes. Bytes in, messages out; no I/O.

Contract: replication.md, section 4; ADR 0106. Each line is ASCII, ends with LF, and has at most 1,024 bytes:

    > FOLLOW 1 cluster=<uuid> group=<g> replica=<32 hex> name=<n> promised=<epoch> [auth=<token, percent-encoded>]
    < LEAD <epoch> <stream-id, 16 hex>         or    ERR <CODE> <text>, and the end
    > MANIFEST <bytes>, LF, JSON               the follower's files (``manifest``)
    < STREAM <seq>                             binary from here on: the operations after ``seq``
    both: WAIT                                 at any time before, while files are read or another copy has its turn

After MANIFEST the follower's side is binary, too: reports.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote

from toymq_py.errors import BadOperation
from toymq_py.replication.operations import COMPARED_BYTES_MAX

VERSION: Final = 1
LINE_BYTES_MAX: Final = 1024
"""Longer than any line: a token has at most 256 characters, each at most 3 bytes."""
TEXT_CHARS_MAX: Final = 300


@dataclass(frozen=True, slots=True)
class Follow:
    """A replica asks to join. ``version``: that of this protocol and of the files; ``token``: kept out of ``repr``."""

    version: int
    cluster: str
    group: str
    replica: str
    name: str
    promised: int
    token: str | None

    def __repr__(self) -> str:
        return f"Follow({self.version}, {self.cluster}, {self.group}, {self.replica}, {self.name}, {self.promised})"


@dataclass(frozen=True, slots=True)
class Lead:
    """The leader accepts the link. ``stream_id`` identifies this join."""

    epoch: int
    stream_id: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The leader refuses the link. ``code``: FENCED, NOT_LEADER, NOT_READY, WRONG_CLUSTER, BAD_VERSION, AUTH_FAILED,
    SAME_REPLICA."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class ManifestBytes:
    """The manifest of a follower's files, as JSON."""

    data: bytes


@dataclass(frozen=True, slots=True)
class StreamFrom:
    """The stream begins: the operations after ``seq`` follow."""

    seq: int


@dataclass(frozen=True, slots=True)
class Wait:
    """The other end is alive, but not ready."""


Message = Follow | Lead | Refused | ManifestBytes | StreamFrom | Wait

_NUMBER = re.compile(r"0|[1-9][0-9]{0,19}")
_CODE = re.compile(r"[A-Z_]{1,32}")
_STREAM_ID = re.compile(r"[0-9a-f]{16}")
_VALUES = {
    "cluster": re.compile(r"[A-Za-z0-9-]{1,64}"),
    "group": re.compile(r"[A-Za-z0-9-]{1,32}"),
    "replica": re.compile(r"[0-9a-f]{32}"),
    "name": re.compile(r"[A-Za-z0-9._-]{1,64}"),
    "promised": _NUMBER,
    "auth": re.compile(r"[A-Za-z0-9._~%-]{1,800}"),
}
_OTHER_PEER = "is the peer a node of toymq, and of this version?"


def encode(message: Message) -> bytes:
    """Encode a message. Assumes that its values are within their limits."""
    line: str
    match message:
        case Follow(version, cluster, group, replica, name, promised, token):
            auth = "" if token is None else f" auth={quote(token, safe='')}"
            line = f"FOLLOW {version} cluster={cluster} group={group} replica={replica} name={name} promised={promised}{auth}"
        case Lead(epoch, stream_id):
            line = f"LEAD {epoch} {stream_id}"
        case Refused(code, text):
            line = f"ERR {code} {_plain(text)}"
        case ManifestBytes(data):
            return b"MANIFEST %d\n%b" % (len(data), data)
        case StreamFrom(seq):
            line = f"STREAM {seq}"
        case Wait():
            line = "WAIT"
    return f"{line}\n".encode("ascii")


def _plain(text: str) -> str:
    """Make a text fit for a line: printable ASCII only."""
    return re.sub(r"[^ -~]", "?", text)[:TEXT_CHARS_MAX]


class HandshakeReader:
    """Parses messages from bytes in pieces of any size. Holds at most a line, or a manifest where one is expected.

    After the first ``BadOperation`` every call raises it again.
    """

    def __init__(self) -> None:
        self.manifest_allowed = False
        """Whether the peer has sent its name and token; only then are a manifest's bytes collected."""
        self._buffer = bytearray()
        self._body: int | None = None  # bytes of the manifest that is being collected
        self._bad: BadOperation | None = None

    def receive(self, data: bytes) -> None:
        """Take the next bytes."""
        self._buffer += data

    def take_rest(self) -> bytes:
        """The bytes after the last message, where the binary part begins."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        return rest

    def next_message(self) -> Message | None:
        """The next complete message; None until more bytes come. Raises: BadOperation."""
        if self._bad is not None:
            raise self._bad
        try:
            return self._next()
        except BadOperation as error:
            self._bad = error
            self._buffer.clear()
            raise

    def _next(self) -> Message | None:
        if self._body is not None:
            return self._next_manifest(self._body)
        end = self._buffer.find(b"\n", 0, LINE_BYTES_MAX)
        if end < 0:
            if len(self._buffer) >= LINE_BYTES_MAX:
                raise BadOperation(f"a line has more than {LINE_BYTES_MAX} bytes")
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        message = _parse(line)
        if isinstance(message, int):
            if not self.manifest_allowed:
                raise BadOperation("a manifest where none is expected")
            self._body = message
            return self._next_manifest(message)
        return message

    def _next_manifest(self, length: int) -> ManifestBytes | None:
        if len(self._buffer) < length:
            return None
        data = bytes(self._buffer[:length])
        del self._buffer[:length]
        self._body = None
        self.manifest_allowed = False
        return ManifestBytes(data)


def _parse(line: bytes) -> Message | int:
    """Parse a line to a message, or to the length of the manifest that follows it. Raises: BadOperation."""
    try:
        text = line.decode("ascii")
    except UnicodeDecodeError:
        raise BadOperation(f"a line is not ASCII: {line[:60]!a}") from None
    word, _, rest = text.partition(" ")
    parser = _PARSERS.get(word)
    if parser is None:
        raise BadOperation(f"unknown line {text[:60]!a}")
    return parser(rest)


def _follow(rest: str) -> Follow:
    number, *pairs = rest.split(" ")
    version = _number("FOLLOW", number)
    found: dict[str, str] = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if name in found:
            raise BadOperation(f"FOLLOW has {name!a:.40} twice")
        pattern = _VALUES.get(name)
        if pattern is None:
            continue  # of a later version, which the leader refuses by its number or understands without it
        if pattern.fullmatch(value) is None:
            shown = "" if name == "auth" else f" {value!a:.40}"  # never a secret
            raise BadOperation(f"FOLLOW has an invalid {name}{shown}: {_OTHER_PEER}")
        found[name] = value
    missing = [name for name in _VALUES if name not in found and name != "auth"]
    if missing:
        raise BadOperation(f"FOLLOW lacks {', '.join(missing)}")
    token = found.get("auth")
    return Follow(
        version, found["cluster"], found["group"], found["replica"], found["name"], _number("promised", found["promised"]),
        None if token is None else unquote(token),
    )  # fmt: skip


def _lead(rest: str) -> Lead:
    epoch, _, stream_id = rest.partition(" ")
    if _STREAM_ID.fullmatch(stream_id) is None:
        raise BadOperation(f"LEAD has an invalid stream id {stream_id!a:.40}: {_OTHER_PEER}")
    return Lead(_number("LEAD", epoch), stream_id)


def _refused(rest: str) -> Refused:
    code, _, text = rest.partition(" ")
    if _CODE.fullmatch(code) is None:
        raise BadOperation(f"ERR has an invalid code {code!a:.40}: {_OTHER_PEER}")
    return Refused(code, _plain(text))


def _manifest(rest: str) -> int:
    length = _number("MANIFEST", rest)
    if length > COMPARED_BYTES_MAX:
        raise BadOperation(f"a manifest of {length} bytes, at most {COMPARED_BYTES_MAX} are allowed")
    return length


def _stream(rest: str) -> StreamFrom:
    return StreamFrom(_number("STREAM", rest))


def _wait(rest: str) -> Wait:
    if rest:
        raise BadOperation("WAIT has an argument")
    return Wait()


def _number(what: str, text: str) -> int:
    if _NUMBER.fullmatch(text) is None or (number := int(text)) >= 2**64:
        raise BadOperation(f"{what} has an invalid number {text!a:.40}: {_OTHER_PEER}")
    return number


_PARSERS: dict[str, Callable[[str], Message | int]] = {
    "FOLLOW": _follow, "LEAD": _lead, "ERR": _refused, "MANIFEST": _manifest, "STREAM": _stream, "WAIT": _wait,
}  # fmt: skip
