"""The numbers of a consumer's messages that wait, by what they wait for. Contract: protocol.md, "JSON shapes"; ADR 0054."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MessageCounts:
    """How many messages of a consumer wait. ``backlog`` is what is due: the sum of ``ready`` and ``inflight``.

    ``scheduled`` is not part of it: messages given back with a delay (NACK), or published with one. An expired message counts
    as ``ready`` until its turn to be delivered comes, or all of its segment has expired; then it counts as acked. A message on
    its way to the dead letters counts as ``inflight``: it was delivered and is not acked.
    """

    ready: int
    inflight: int
    scheduled: int
    backlog: int
