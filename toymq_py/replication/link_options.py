"""The identity of a replica on a replication link, and the options of both ends."""

import hmac
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Identity:
    """A replica. ``replica``: its id, 32 hex digits; ``name``: the node's, for people."""

    cluster: str
    group: str
    replica: str
    name: str


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """Options of a link.

    Args:
        buffer_bytes: ``--replicate-buffer``.
        timeout_s: ``--replica-timeout``.
        resync_bytes_per_s: ``--resync-rate``.
        token: the secret that a follower shows; None if none is required.
    """

    buffer_bytes: int = 64 << 20
    timeout_s: float = 3.0
    resync_bytes_per_s: int = 50_000_000
    token: str | None = field(default=None, repr=False)


def secret_refusal(shown: str | None, expected: str | None) -> str | None:
    """Why a node is refused for the secret that it shows; None if it is accepted. ``expected``: None if no secret is
    required."""
    if expected is None or hmac.compare_digest((shown or "").encode(), expected.encode()):
        return None
    what = "no secret was shown" if shown is None else "the secret that was shown is another one"
    return f"{what}: give all nodes of all groups the same word in --replicate-token-file"
