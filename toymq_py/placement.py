"""Which worker has a topic: rendezvous hashing of its name. Contract: groups.md, stage 2; ADR 0128. Pure.

A change of the function loses sight of stored topics: the tests pin its values.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, TypeVar

from toymq_py.errors import Moved
from toymq_py.names import DEAD_LETTERS, is_pattern

T = TypeVar("T")


def worker_of(topic: str, workers: int) -> int:
    """The number of a topic's worker, below ``workers``. A dead-letter topic is with its origin."""
    origin = topic.removesuffix(DEAD_LETTERS).encode()
    return max(range(workers), key=lambda worker: blake2b(b"%d/%b" % (worker, origin), digest_size=8).digest())


@dataclass(frozen=True, slots=True)
class Placement:
    """The workers of a broker as one of them sees them. Without ``addresses`` it is the only process."""

    worker: int = 0
    addresses: Sequence[str] = ()
    """Of each worker: ``host:port``, and its other addresses behind it."""
    sockets: Sequence[str] = ()
    """Of each worker: the path of the Unix socket on which the others reach it."""

    http_sockets: Sequence[str] = ()
    """The same for HTTP."""

    def worker_of(self, topic: str) -> int:
        return worker_of(topic, len(self.addresses)) if self.addresses else self.worker

    def moved(self, topic: str) -> Moved | None:
        """The error for a topic that another worker has."""
        if not self.addresses:
            return None
        worker = self.worker_of(topic)
        return None if worker == self.worker else Moved(f"{self.addresses[worker]} (worker {worker}) has the topic {topic}")

    def check(self, topic: str) -> None:
        """Raises: Moved: another worker has the topic. A pattern may have topics of each."""
        if not is_pattern(topic) and (error := self.moved(topic)) is not None:
            raise error

    def others(self) -> list[int]:
        """The numbers of the other workers."""
        return [worker for worker in range(len(self.addresses)) if worker != self.worker]

    def in_order(self, ours: T, of_others: Sequence[T]) -> list[T]:
        """This worker's in its place among those of the others."""
        return [*of_others[: self.worker], ours, *of_others[self.worker :]]

    def described(self) -> dict[str, Any]:
        """The JSON of CLUSTER."""
        return {"worker": self.worker, "workers": [addresses.split() for addresses in self.addresses]}
