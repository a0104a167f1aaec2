"""Checks the ``Host`` of a request against the names that a listener answers to; prevents DNS rebinding. ADR 0057.

One rule for the gateway and for ``--metrics``, docs/security.md, "Host"; it needs no optional dependency.
"""

import re
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from ipaddress import IPv6Address, ip_address

from toymq_py.errors import BadFraming, ConfigError

HTTP_VERSIONS = ("1.0", "1.1")
"""Accepted on a request line; others get 505."""
HOST_CHARS_MAX = 253 + len(":65535")
PORT_MAX = 65_535
_NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*\Z", re.ASCII)
_HOST = re.compile(
    r"(?:[a-z0-9_-]+(?:\.[a-z0-9_-]+)*\.?|\[(?P<address>[0-9a-f:.]+)\])(?::(?P<port>[0-9]{1,5}))?", re.IGNORECASE | re.ASCII
)


def check_host_name(text: str) -> str:
    """Return a host name without port. Raises: ConfigError."""
    if len(text) > HOST_CHARS_MAX or _NAME.match(text.lower()) is None:
        raise ConfigError(f"invalid host name {text[:HOST_CHARS_MAX]!a}: write toymq or queue.example, without port")
    return text


def check_hosts(version: str, hosts: Sequence[str]) -> str | None:
    """Check the ``Host`` headers of a request (RFC 9112, 3.2): HTTP/1.1 has one, HTTP/1.0 may have none.

    Returns: the header, None where there is none. Raises: BadFraming.
    """
    if not hosts and version == "1.0":
        return None
    if len(hosts) != 1 or not is_host(hosts[0]):
        raise BadFraming("invalid Host: send one Host header, a name or an address with an optional port")
    return hosts[0]


@lru_cache(maxsize=64)
def _is_host(text: str) -> bool:
    found = _HOST.fullmatch(text)
    if found is None or int(found["port"] or 0) > PORT_MAX:
        return False
    try:
        IPv6Address(found["address"] or "::")
    except ValueError:
        return False
    return True


def is_host(text: str) -> bool:
    """Whether a text is a host name, an IPv4 address, or an IPv6 address in brackets, with or without a port. An address with a
    zone is refused: a zone may be any text, and belongs in no URL (RFC 6874)."""
    return len(text) <= HOST_CHARS_MAX and _is_host(text)


class AllowedHosts:
    """Allows addresses, ``localhost``, names below it, configured names and those of the certificate. With any name, a web page
    whose DNS name resolves to this machine would be same-origin with the broker (DNS rebinding). Names below ``localhost`` are
    in no DNS: they lead to the machine that looks them up (RFC 6761, 6.3)."""

    def __init__(self, names: Sequence[str] = (), certified: Callable[[], Collection[str]] = tuple) -> None:
        """``certified``: returns the names of the broker's certificate, in lower case; they lead to its owner, too."""
        self._names = frozenset(name.lower() for name in names)
        self._certified = certified

    def allow(self, host: str | None) -> bool:
        """Whether a request with this ``Host`` is served; one without (HTTP/1.0) does not come from a browser."""
        if host is None:
            return True
        if not is_host(host):
            return False
        return is_address_or_localhost(host) or (name := name_of(host)) in self._names or self._is_certified(name)

    def _is_certified(self, name: str) -> bool:
        certified = self._certified()
        return name in certified or f"*.{name.partition('.')[2]}" in certified


def name_of(host: str) -> str:
    """The name or address of a ``Host`` header, in lower case, without port, brackets and trailing dot."""
    name = host.rpartition(":")[0] if ":" in host and not host.endswith("]") else host
    return name.strip("[]").lower().removesuffix(".")


@lru_cache(maxsize=64)
def is_address_or_localhost(host: str) -> bool:
    """Whether a ``Host`` is an address or a name of the loopback. Assumes that ``is_host`` holds."""
    name = name_of(host)
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
