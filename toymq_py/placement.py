"""Which worker has a topic: rendezvous hashing of its name. Contract: groups.md, stage 2; ADR 0128. Pure.

A change of the function loses sight of stored topics: the tests pin its values.
"""

from hashlib import blake2b

from toymq_py.names import DEAD_LETTERS


def worker_of(topic: str, workers: int) -> int:
    """The number of a topic's worker, below ``workers``. A dead-letter topic is with its origin."""
    origin = topic.removesuffix(DEAD_LETTERS).encode()
    return max(range(workers), key=lambda worker: blake2b(b"%d/%b" % (worker, origin), digest_size=8).digest())
