"""The three forms of a message's headers: a block in the log, an object in JSON, ``X-Header-*`` over HTTP.

Contract: protocol.md; gateway.md."""

from collections.abc import Iterable

from toymq_py.errors import BadArgument

_MEANT = {
    b"x-delay": "X-Delay-Ms", b"x-ttl": "X-Ttl-Ms", b"x-expir": "X-Ttl-Ms", b"x-dedup": "Idempotency-Key",
    b"x-idempoten": "Idempotency-Key", b"x-key": "Idempotency-Key", b"x-message-key": "Idempotency-Key",
    b"x-routing-key": "X-Route", b"x-partition": "X-Route", b"x-group": "X-Header-Toymq-Group",
    b"x-toymq-group": "X-Header-Toymq-Group",
}  # fmt: skip
"""The beginnings of misspelled headers of a publish, and the header that is meant. A proxy's own headers begin otherwise."""
_OURS = frozenset((b"x-delay-ms", b"x-ttl-ms"))


def header_block(pairs: Iterable[tuple[str, str]]) -> bytes:
    """Encode a message's header block (protocol.md, PUB). Raises: BadArgument for a header that could not be read back."""
    lines = []
    for name, value in pairs:
        if not name or ":" in name or "\n" in name or "\n" in value:
            raise BadArgument(f"invalid header {name[:50]!a}: write a name without colon; no line break in name or value")
        lines.append(f"{name}: {value}\n")
    try:
        return "".join(lines).encode()
    except UnicodeEncodeError:
        raise BadArgument("a header has half of a surrogate pair: headers must be UTF-8") from None


def parse_block(block: bytes) -> dict[str, str]:
    """Parse a header block; lines without a colon are skipped."""
    headers = {}
    for line in block.decode("utf-8", "replace").split("\n"):
        name, colon, value = line.partition(":")
        if colon:
            headers[name] = value.removeprefix(" ")
    return headers


def headers_of(raw: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The header block from the HTTP headers of a publish or multipart part: ``traceparent``, and ``<name>`` for
    ``X-Header-<name>``.

    Raises: BadArgument; also for a misspelled ``X-Delay-Ms``, which would deliver at once.
    """
    pairs = []
    for name, value in raw:
        if name.startswith(b"x-"):
            if name.startswith(b"x-header-"):
                pairs.append((name[9:].decode("latin-1"), header_text(value)))
            elif name not in _OURS:
                _refuse_misspelled(name)
        elif name == b"traceparent":
            pairs.append(("traceparent", header_text(value)))
    return header_block(pairs) if pairs else b""


_OF_ONE = {b"x-delay-ms": "delay_ms", b"x-ttl-ms": "ttl_ms", b"idempotency-key": "key", b"x-route": "route"}
"""Headers of a publish of one message, and the equal member of a JSON line."""


def refuse_headers_of_one(raw: Iterable[tuple[bytes, bytes]]) -> None:
    """Refuse a batch request with headers that apply to one message. If they were ignored, a batch meant to be delayed would be
    delivered at once.

    Raises: BadArgument.
    """
    for name, _ in raw:
        member = "headers" if name.startswith(b"x-header-") else _OF_ONE.get(name)
        if member is not None:
            shown = name[:50].decode("latin-1")
            raise BadArgument(f"{shown!a} is for one message: in a batch write {member!r} in a line, or the header in a part")
        _refuse_misspelled(name)


def _refuse_misspelled(name: bytes) -> None:
    """Refuse a header that is most likely a misspelled header of this API. Raises: BadArgument."""
    for start, meant in _MEANT.items():
        if name.startswith(start):
            shown = name[:50].decode("latin-1")
            raise BadArgument(f"unknown header {shown!a}: use {meant}, or X-Header-… for one of the message")


def header_text(value: bytes) -> str:
    """Decode the value of an HTTP header as a value of a message header. Raises: BadArgument."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise BadArgument(f"invalid header value {value[:50]!a}: headers must be UTF-8") from None
