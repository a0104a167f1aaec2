"""The open connections of a listener."""

from collections.abc import Iterator
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Roster(dict[K, V], Generic[K, V]):
    """A dict of connections, whose ``walk`` may take seconds and keeps none alive that has left meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self._most = 0  # since the memory was given back
        self._left_in_walks: list[dict[K, V]] = []

    def join(self, key: K, value: V) -> None:
        self[key] = value
        self._most = max(self._most, len(self))

    def leave(self, key: K) -> V | None:
        """Remove a connection. Returns: its value; None when it was not there."""
        for left in self._left_in_walks:
            left.pop(key, None)
        value = self.pop(key, None)
        if len(self) < self._most // 4:  # a dict does not shrink by itself
            stay = dict(self)
            self.clear()
            self.update(stay)
            self._most = len(self)
        return value

    def walk(self) -> Iterator[tuple[K, V]]:
        """The connections that are there now, the newest first, without those that leave before their turn."""
        left = dict(self)
        self._left_in_walks.append(left)
        try:
            while left:
                yield left.popitem()
        finally:
            self._left_in_walks = [each for each in self._left_in_walks if each is not left]
