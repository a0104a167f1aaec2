"""The ``Host`` names that a listener answers to, against DNS rebinding. ADR 0057."""

import re
from collections.abc import Sequence
from functools import lru_cache
from ipaddress import ip_address

from toymq_py.errors import ConfigError

HOST_CHARS_MAX = 253 + len(":65535")
_NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*\Z", re.ASCII)


def check_host_name(text: str) -> str:
    """Return a host name without port. Raises: ConfigError."""
    if len(text) > HOST_CHARS_MAX or _NAME.match(text.lower()) is None:
        raise ConfigError(f"invalid host name {text[:HOST_CHARS_MAX]!a}: write toymq or queue.example, without port")
    return text


class AllowedHosts:
    """Allows addresses, ``localhost`` and configured names. With any name, a web page whose DNS name resolves to this machine
    would be same-origin with the broker (DNS rebinding)."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        self._names = frozenset(name.lower() for name in names)

    def allow(self, host: str) -> bool:
        """Whether a request with this ``Host`` is served; a request without one does not come from a browser."""
        if len(host) > HOST_CHARS_MAX:
            return False
        return is_address_or_localhost(host) or name_of(host) in self._names


def name_of(host: str) -> str:
    """The name or address of a ``Host`` header, in lower case, without port, brackets and trailing dot."""
    name = host.rpartition(":")[0] if ":" in host and not host.endswith("]") else host
    return name.strip("[]").lower().removesuffix(".")


@lru_cache(maxsize=64)
def is_address_or_localhost(host: str) -> bool:
    """Whether a ``Host`` header is an address or a name of the loopback, or there is none."""
    if not host:
        return True
    name = name_of(host)
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return "%" not in name  # a zone may be any text, and no zone belongs in a URL's host (RFC 6874)
