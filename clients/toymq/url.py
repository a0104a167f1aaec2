"""Parses broker URLs: ``toymq://[token@]host[:port][,host[:port]…]``, ``toymqs://`` over TLS (protocol.md), ``unix:PATH``."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import quote, unquote, urlsplit

from toymq_py.errors import BadArgument, ConfigError
from toymq_py.names import check_host

DEFAULT_URL = "toymq://127.0.0.1:6789"
DEFAULT_PORT = 6789
UNIX = "unix:"


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int
    token: str | None = field(default=None, repr=False)
    tls: bool = False
    path: str | None = None
    """The path of a Unix socket; host and port are unused then."""

    def __str__(self) -> str:
        if self.path is not None:
            return UNIX + self.path
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """The URL that ``parse_url`` reads as this address, token included."""
        if self.path is not None:
            return str(self)
        token = f"{quote(self.token, safe='')}@" if self.token is not None else ""
        return f"toymq{'s' if self.tls else ''}://{token}{self}"


def parse_url(url: str) -> Address:
    """Parse a URL. Raises: ConfigError for an invalid URL; the token is never in the message."""
    if url.startswith(UNIX):
        return _parse_unix(url.removeprefix(UNIX))
    try:
        parts = urlsplit(url if "://" in url else f"toymq://{url}")
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"a broker's URL is toymq://host:port: {error}") from None
    known = parts.scheme in ("toymq", "toymqs") and len((parts.hostname or "").split()) == 1
    if not known or not parts.hostname or parts.path.strip("/") or parts.query or parts.fragment or parts.password is not None:
        raise ConfigError(f"a broker's URL is toymq://[token@]host[:port], or toymqs:// for TLS{_instead_of(parts.scheme)}")
    token = unquote(parts.username) if parts.username else None
    return Address(check_host(parts.hostname), port if port is not None else DEFAULT_PORT, token, parts.scheme == "toymqs")


def _instead_of(scheme: str) -> str:
    """Return the advice for a URL with another scheme, which never shows the rest of the URL: it may hold a token."""
    if scheme in ("toymq", "toymqs"):
        return ""
    return f", not {scheme}://" + (": that one is for AMQP clients" if scheme in ("amqp", "amqps") else "")


def _parse_unix(path: str) -> Address:
    """Make the address of a Unix socket. Its path is taken literally: no character is escaped."""
    if not path or "\0" in path:
        raise ConfigError("the URL of a Unix socket is unix:PATH, for example unix:/var/lib/queue/toymq.sock")
    return Address("", 0, path=path)


def parse_urls(urls: str | Sequence[str], token: str | None = None) -> tuple[Address, ...]:
    """Parse one URL or several, which are tried in turn.

    Args:
        token: used instead of the tokens in the URLs.

    Raises: TypeError, ConfigError, BadArgument; their texts do not show the URL, which may contain a token.
    """
    given: list[str] = [urls] if isinstance(urls, str) or not isinstance(urls, Iterable) else list(urls)
    if isinstance(urls, bytes | Mapping) or not all(isinstance(url, str) for url in given):
        kind = "None: is the environment variable set?" if urls is None else f"of type {type(urls).__name__}"
        if isinstance(urls, list | tuple | set | frozenset):
            kind = f"a {type(urls).__name__} of something else"
        raise TypeError(f'urls is "toymq://host:port", or a list of such, not {kind}')
    found = [each for url in given for each in split_url(url)]
    addresses = tuple(_parse_one(at, url, len(found)) for at, url in enumerate(found))
    if not addresses:
        raise ConfigError("urls is empty: a client needs at least one URL")
    if token is None:
        return addresses
    if not isinstance(token, str):
        raise TypeError(f"token is a str or None, not a {type(token).__name__}")
    if not is_token(token):
        raise BadArgument("invalid token: write one word of printable ASCII; if you read it from a file, strip() the newline")
    return tuple(replace(address, token=token) for address in addresses)


def split_url(url: str) -> list[str]:
    """Split a URL with several hosts, ``toymq://token@a:1,b:2``, into one URL for each host. They share everything else."""
    if url.startswith(UNIX):
        return [url]
    scheme, _, rest = url.rpartition("://")
    user, at, hosts = rest.rpartition("@")
    before = f"{scheme}://{user}{at}" if scheme else f"{user}{at}"
    return [before + host for host in hosts.split(",")]


def _parse_one(at: int, url: str, count: int) -> Address:
    """Parse the URL at index ``at`` of ``count`` URLs. Raises: ConfigError, which says which URL is invalid."""
    try:
        return parse_url(url)
    except ConfigError as error:
        raise ConfigError(f"urls[{at}]: {error}" if count > 1 else str(error)) from None


def address_with_token(url: str, token: str | None, token_file: str | None) -> Address:
    """Return the address of a URL. The token in ``token_file`` overrides ``token`` (from TOYMQ_TOKEN); both override the URL's
    token.

    Raises: ConfigError.
    """
    address = parse_url(url)
    if token_file is not None:
        from toymq_py.text_files import read_text  # here: applications have no use for it

        token = read_text(token_file, "the token in", errors="replace").strip()
        if not is_token(token):
            raise ConfigError(f"invalid token in {token_file}: write one word of printable ASCII")
    elif token is not None and not is_token(token):
        raise ConfigError("invalid token in TOYMQ_TOKEN: write one word of printable ASCII")
    return address if token is None else replace(address, token=token)


def is_token(text: str) -> bool:
    """Whether a text is one word of printable ASCII."""
    return bool(text) and text.isascii() and text.isprintable() and " " not in text
