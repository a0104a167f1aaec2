"""Messages as layers pass them: their ids, limits, and runs of records, stored as columns."""

from collections.abc import Sequence
from typing import Any

IdRange = tuple[int, int]
"""First and last message id, both included. Ids are u64, dense in their topic, from 0."""

Shape = tuple[int, int]
"""Lengths of key and payload, in bytes, that all messages of a run have."""

KEY_BYTES_MAX = 512
PRODUCER_PREFIX = b"~seq~"
"""The beginning of the names under which clients number their publishes without a key; for a reader such a message has no
key."""
MSG_ID_MAX = 2**64 - 1
UNIX_MS_MAX = 2**63 // 1_000_000
"""The latest time in milliseconds that fits into the nanoseconds of a record."""

DEFAULT_MAX_PAYLOAD = 2 * 1024 * 1024
PAYLOAD_BYTES_LIMIT = 64 * 1024 * 1024
"""The largest value of ``--max-payload``; fixed by the record format (storage.md)."""


def shape_of(keys: Sequence[bytes], payloads: Sequence[bytes]) -> Shape | None:
    """The lengths of key and payload that all records of a run have; None when they differ, or there are no records."""
    if not keys:
        return None
    key_lens, payload_lens = list(map(len, keys)), list(map(len, payloads))
    key_len, payload_len, count = key_lens[0], payload_lens[0], len(key_lens)
    alike = key_lens.count(key_len) == count and payload_lens.count(payload_len) == count
    return (key_len, payload_len) if alike else None


class Records:
    """A run of committed records in ascending id order, as columns.

    Columns instead of objects: at several 100,000 messages a second an object per message would cost the most.
    Immutable by convention; slices share the columns' items. ``memo`` belongs to the encoder of the run: the session
    caches MSG frames there, shared by all subscribers.

    All columns have ``len(ids)`` items. ``keys[i]`` is b"" for none. ``headers`` is None when no record of the run has a
    header block, else b"" for a record without one. ``expires_at_ns`` (wall clock) is None when no record of the
    run expires, else 0 where one does not.
    """

    __slots__ = ("expires_at_ns", "headers", "ids", "keys", "memo", "payload_bytes", "payloads", "ts_ns")

    def __init__(
        self,
        ids: Sequence[int],
        ts_ns: Sequence[int],
        keys: Sequence[bytes],
        payloads: Sequence[bytes],
        headers: Sequence[bytes] | None = None,
        expires_at_ns: Sequence[int] | None = None,
    ) -> None:
        self.ids = ids
        self.ts_ns = ts_ns
        self.keys = keys
        self.payloads = payloads
        self.headers = headers
        self.expires_at_ns = expires_at_ns
        self.payload_bytes = sum(map(len, payloads)) + (sum(map(len, headers)) if headers else 0)
        self.memo: Any = None

    def __len__(self) -> int:
        return len(self.ids)
