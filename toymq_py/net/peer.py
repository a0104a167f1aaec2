"""The address of a connection's other end."""

import asyncio
import ipaddress
import socket
from typing import Any


def peer_address(connection: socket.socket) -> str | None:
    """The IP address of a socket's other end; None for a Unix socket, and when the connection is gone again."""
    try:
        return _address_of(connection.getpeername())
    except OSError:
        return None


def peer_of(transport: asyncio.BaseTransport) -> str | None:
    """The IP address of a transport's other end; None for a Unix socket, and when the connection is gone."""
    return _address_of(_name_of(transport))


def described_peer(transport: asyncio.BaseTransport) -> str:
    """The other end's address and port, for the log."""
    address = socket_address(transport)
    return "a Unix socket or a closed connection" if address is None else f"{address[0]}:{address[1]}"


def socket_address(transport: asyncio.BaseTransport) -> tuple[str, int] | None:
    """The other end's address and port; None for a Unix socket, and when the connection is gone."""
    name = _name_of(transport)
    return (name[0], name[1]) if isinstance(name, tuple) else None


def is_unix(transport: asyncio.BaseTransport) -> bool:
    """Whether a transport is a connection of a Unix socket; also known when the connection is gone."""
    found = transport.get_extra_info("socket")
    return found is not None and found.family == socket.AF_UNIX


def network_of(address: str | None) -> str | None:
    """The network that --address-percent limits: an IPv4 address, or the /64 of an IPv6 address; None for this machine."""
    if address is None:
        return None
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            ip = ip.ipv4_mapped
        elif not ip.is_loopback:
            return str(ipaddress.IPv6Network((int(ip) >> 64 << 64, 64)))
    return None if ip.is_loopback else str(ip)


def _name_of(transport: asyncio.BaseTransport) -> Any:
    try:
        return transport.get_extra_info("peername")
    except (OSError, ValueError):  # uvloop asks the system each time, and a closed transport has no descriptor
        return None


def _address_of(name: Any) -> str | None:
    return name[0] if isinstance(name, tuple) else None
