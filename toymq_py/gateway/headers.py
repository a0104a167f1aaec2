"""A message's headers: a block in the log, an object in JSON, ``X-Header-*`` over HTTP. Contract: protocol.md; gateway.md."""

from collections.abc import Iterable

from toymq_py.errors import BadArgument


def header_block(pairs: Iterable[tuple[str, str]]) -> bytes:
    """A message's header block (protocol.md, PUB). Raises: BadArgument for what would be read as something else."""
    lines = []
    for name, value in pairs:
        if not name or ":" in name or "\n" in name or "\n" in value:
            raise BadArgument("a header is a name without colon and a value, both without a line break")
        lines.append(f"{name}: {value}\n")
    try:
        return "".join(lines).encode()
    except UnicodeEncodeError:
        raise BadArgument("headers are UTF-8") from None


def parse_block(block: bytes) -> dict[str, str]:
    """A header block as a dict; a line of another form is left out."""
    headers = {}
    for line in block.decode("utf-8", "replace").split("\n"):
        name, colon, value = line.partition(":")
        if colon:
            headers[name] = value.removeprefix(" ")
    return headers


def headers_of(raw: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The message's headers among those of a request or a part: ``X-Header-<name>`` without its prefix, and ``traceparent``."""
    pairs = []
    for name, value in raw:
        if name.startswith(b"x-header-"):
            pairs.append((name[9:].decode("latin-1"), header_text(value)))
        elif name == b"traceparent":
            pairs.append(("traceparent", header_text(value)))
    return header_block(pairs) if pairs else b""


def header_text(value: bytes) -> str:
    """The value of a field that becomes a message's header. Raises: BadArgument."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise BadArgument("headers are UTF-8") from None
