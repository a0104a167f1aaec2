"""Where a webhook may push to: no address of this machine or its network, whatever name it hides behind.

Contract: gateway.md ("refusal of private addresses unless allowed"). A name is resolved for every push, every address it has is
checked, and the connection is made to a checked address, not to the name: an answer that changes in between changes nothing.
"""

import asyncio
import ipaddress
import socket

from toymq_py.errors import BadArgument, Forbidden
from toymq_py.webhook import Target

NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def is_public(address: str) -> bool:
    """Whether an IP address belongs to the Internet: not loopback, private, link-local, shared, multicast or reserved; nor an
    IPv6 form of an IPv4 address that does not."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour or (found.teredo[1] if found.teredo else None)
        if inner is None and found in NAT64:
            inner = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
        if found.is_site_local:
            return False
    return found.is_global and not found.is_multicast and not found.is_reserved


async def resolve(target: Target, *, private: bool) -> str:
    """An address of the target. ``private``: it may be of this machine or its network.

    Raises: Forbidden when any of its addresses may not be pushed to; OSError when the name has none; BadArgument when it can
    have none.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except UnicodeError:
        raise BadArgument(f"{target.host} is no name of a host") from None
    addresses = [str(entry[4][0]) for entry in found]
    if not private:
        for address in addresses:
            if not is_public(address):
                raise Forbidden(f"{target.host} is {address}, of this machine or its network (--private-webhooks allows it)")
    return addresses[0]
