"""Ports that a test's process has for itself, also after a restart."""

from collections.abc import Iterator
from contextlib import contextmanager

from toymq.sockets import reserved_port


class _Owner:
    pass


@contextmanager
def reserved(count: int = 1) -> Iterator[int]:
    """Yield the first of ``count`` consecutive ports on 127.0.0.1. Nothing listens there, and no other process is given
    them."""
    owner = _Owner()
    yield reserved_port(owner, count)
    del owner
