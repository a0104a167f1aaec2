"""Routing of publishes to partitions: by route, by group key, or round robin. Contract: groups.md, stage 4; ADR 0184.
Pure."""

from collections.abc import Sequence
from zlib import crc32

from toymq_py.group_key import group_key
from toymq_py.partitions import Partitioned, partition_of_route
from toymq_py.records import PRODUCER_PREFIX


class Router:
    """Chooses a partition for each publish of one connection."""

    __slots__ = ("_first", "_turns")

    def __init__(self, first: int = 0) -> None:
        """``first``: where round robin begins, different for each connection: connections that publish one message each would
        otherwise all choose partition 0."""
        self._first = first
        self._turns: dict[str, int] = {}

    def numbers(
        self, whole: Partitioned, keys: Sequence[bytes], *, routes: Sequence[bytes] | None = None,
        blocks: Sequence[bytes] | None = None, sequences: Sequence[int] | None = None,
    ) -> list[int]:  # fmt: skip
        """The partition of each publish.

        The route is the one that the publisher gave, else the group key, so that the messages of a group stay in one
        partition, in order. A key with a sequence names a producer and is not a route: its publishes go round robin by
        sequence, so that a repeated publish goes to the same partition. Others without a route go round robin.

        Args:
            keys: the key of each publish; b"" for none.
            routes: the route that the publisher gave for each; b"" for none.
            blocks: the header block of each.
        """
        count = whole.count
        if routes is None and blocks is None:
            if sequences is not None:
                return [(crc32(key) + sequence) % count for key, sequence in zip(keys, sequences, strict=True)]
            return [
                crc32(key) % count if key and not key.startswith(PRODUCER_PREFIX) else self._next(whole) for key in keys
            ]
        found = []
        for row, key in enumerate(keys):
            route = routes[row] if routes is not None else b""
            if not route:
                route = group_key(whole.name, b"" if sequences is not None else key, b"" if blocks is None else blocks[row])
            if route:
                found.append(partition_of_route(route, count))
            else:
                found.append(self._next(whole) if sequences is None else (crc32(key) + sequences[row]) % count)
        return found

    def _next(self, whole: Partitioned) -> int:
        turn = self._turns.get(whole.name, self._first % whole.count)
        self._turns[whole.name] = (turn + 1) % whole.count
        return turn
