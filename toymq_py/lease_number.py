"""Lease numbers: each identifies the leases of one subscription or poll, so that a NACK affects no lease of another one (ADR
0087)."""

from random import SystemRandom

_random = SystemRandom()


def new_lease_number() -> int:
    """Draw a number for the leases of one subscription or poll: 48 random bits, so that two are practically never equal."""
    return _random.getrandbits(48) + 1
