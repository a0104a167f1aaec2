"""The interface to etcd that replication needs: keys with revisions, transactions that compare them, leases, a watch.

Contract: replication.md, section 3. ``etcd_client`` implements it with etcd, tests in memory.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from toymq_py.replication.agreement import Outcome


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The keys from ``start`` on, up to but not including ``end``."""

    start: str
    end: str


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key and its value. ``created``, ``changed``: the revisions that created it and wrote it last; ``lease``: 0 for none."""

    key: str
    value: bytes
    created: int
    changed: int
    lease: int


@dataclass(frozen=True, slots=True)
class Found:
    """The keys of a range, in order, at a revision."""

    keys: tuple[KeyValue, ...]
    revision: int


@dataclass(frozen=True, slots=True)
class News:
    """Changes of a range, in order: written keys, and the names of removed ones with the revision of the removal. ``revision``:
    the highest revision among them; without changes, the one since which nothing changed."""

    changes: "tuple[KeyValue | tuple[str, int], ...]"
    revision: int


class Check(enum.Enum):
    """The property of a key that a compare of a transaction checks."""

    ABSENT = enum.auto()
    PRESENT = enum.auto()
    CREATED_AT = enum.auto()
    CHANGED_AT = enum.auto()


@dataclass(frozen=True, slots=True)
class Compare:
    """A condition of a transaction: a key passes a check. ``revision``: the one to equal, for CREATED_AT and CHANGED_AT."""

    key: str
    check: Check
    revision: int = 0


@dataclass(frozen=True, slots=True)
class Put:
    """Write a key. ``lease``: the lease with which the key ends; 0 for none."""

    key: str
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a key, if it is there."""

    key: str


@dataclass(frozen=True, slots=True)
class Transaction:
    """Changes that are made all together when all compares hold, or not at all."""

    compares: Sequence[Compare]
    changes: Sequence[Put | Delete]


class KeyValues(Protocol):
    """The interface of an etcd client. Errors and time limits are those of ``Agreement``."""

    def bound(self, ttl_s: float) -> None:
        """Set the time limits: calls end within a third of ``ttl_s``, and watches return after ``ttl_s``."""

    async def get(self, keys: KeyRange) -> Found:
        """Read a range of keys, linearizably."""

    async def commit(self, transaction: Transaction) -> Outcome:
        """Try a transaction, once. Raises: LeaseLost when a lease that it names is gone; EtcdError: the outcome is unknown."""

    async def grant(self, ttl_s: float) -> int:
        """Get a new lease. Returns: its id."""

    async def renew(self, lease: int) -> None:
        """Renew a lease. Raises: LeaseLost."""

    async def revoke(self, lease: int) -> None:
        """End a lease. No error when it is gone."""

    async def changed(self, keys: KeyRange, since: int) -> None:
        """Return when a key of the range has changed after the revision ``since``. May return early."""

    async def news(self, keys: KeyRange, since: int) -> News:
        """Wait for changes of the range after the revision ``since``, and return all of them; none after one TTL. One call at a
        time, and not together with ``changed`` of the same client. Raises: EtcdError when the changes are no longer
        available, or etcd does not answer: then read the range again."""

    async def close(self) -> None:
        """End the connections."""
