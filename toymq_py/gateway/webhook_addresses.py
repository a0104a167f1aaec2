"""Checks the addresses that a webhook may push to: none of this machine or its network, whatever name resolves to them.

Contract: gateway.md ("refusal of private addresses unless allowed"); ADR 0056. A name is resolved for every push, all
its addresses are checked, and the connection goes to a checked address, so DNS rebinding has no effect. Redirects are not
followed.
"""

import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from toymq_py.config.webhooks import Target
from toymq_py.errors import Forbidden

SPECIAL = tuple(map(IPv4Network, (
    "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
    "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16", "192.175.48.0/24",
    "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
)))  # fmt: skip
"""IANA's special-purpose registry, multicast and reserved networks."""
CLOUD = (IPv4Network("168.63.129.16/32"),)
"""Public addresses that serve a cloud's own machines (Azure); other clouds use special-purpose ones."""
GLOBAL = IPv6Network("2000::/3")
"""Global unicast addresses of IPv6; all others are local or unassigned."""
SPECIAL_6 = tuple(map(IPv6Network, ("2001::/23", "2001:db8::/32", "2620:4f:8000::/48", "3fff::/20")))
NAT64 = IPv6Network("64:ff9b::/96")


def is_public(address: str) -> bool:
    """Whether an IP address is public; for an IPv6 form of an IPv4 address, whether the IPv4 address is public."""
    found = ip_address(address.partition("%")[0])
    if isinstance(found, IPv4Address):
        return not any(found in network for network in SPECIAL + CLOUD)
    inner = _inner(found)
    if inner is not None:
        return is_public(str(inner))
    return found in GLOBAL and not any(found in network for network in SPECIAL_6)


def _inner(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address to which a translator (NAT64) or a tunnel would map an IPv6 address; None without one."""
    if address in NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour


def is_own(address: str) -> bool:
    """Whether an address is this machine's: a UDP socket connected to it then has it as its source, too. Sends nothing."""
    found = ip_address(address)
    if isinstance(found, IPv6Address) and (inner := _inner(found)) is not None:
        found = inner
    family = socket.AF_INET if found.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(found), 9))
            return ip_address(probe.getsockname()[0].partition("%")[0]) == found
    except OSError:
        return False  # no route; an own address always has one


def allowed_address(target: Target, addresses: Sequence[str], *, private: bool) -> str:
    """Choose one of the addresses of a target's host. ``private``: addresses of this machine and its network are allowed.

    Raises: Forbidden when any of them is not public.
    """
    if not private:
        for address in addresses:
            if not is_public(address) or is_own(address):
                named = address if target.host == address else f"{target.host} is {address}, and"
                raise Forbidden(f"{named} is of this machine or its network (toymq serve --private-webhooks allows it)")
    return addresses[0]
