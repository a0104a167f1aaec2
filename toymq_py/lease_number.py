"""Lease numbers: each tells the leases of one subscription or poll from others, so that a NACK meets no lease of another (ADR
0087)."""

from random import SystemRandom

_random = SystemRandom()


def new_lease_number() -> int:
    """Draw a number for the leases of one subscription or poll: 48 random bits, so that no two agree."""
    return _random.getrandbits(48) + 1
