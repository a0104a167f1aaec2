"""Reads only the newest record of each key of a topic (``startingOffsets=latestByKey``), or of each group (``latestByGroup``).

The log is read twice. The first pass keeps only keys, each with the id of its newest record; the second reads the records with
these ids. So memory grows with the keys, not with the values. An empty value is a tombstone: its key gives no row. Records
without a key give none either. Does not know Spark.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from toymq_spark.batches import GROUP_HEADER, HEADERS_TYPE
from toymq_spark.errors import TooManyKeys

LATEST_BY = "startingOffsets=latestByKey or latestByGroup"
KEYS_MAX = 5_000_000
"""Of a topic. A key of 16 bytes takes 140 bytes of the task's memory: 0.7 GB."""
SKIP_IDS = 10_000
"""Fewer ids between two wanted ones are read: another request costs more."""
COLUMNS = pa.schema([
    pa.field("key", pa.binary()), pa.field("value", pa.binary(), nullable=False),
    pa.field("offset", pa.int64(), nullable=False),
])  # fmt: skip
GROUP_COLUMNS = COLUMNS.append(pa.field("headers", HEADERS_TYPE))
"""With them the header ``toymq-group`` of a record stands for its key, where it has one."""
_GONE = -1


def newest(topic: str, batches: Iterable[pa.RecordBatch], keys_max: int = KEYS_MAX) -> "array[int]":
    """Return the id of each key's newest record, ascending.

    Args:
        batches: with the columns ``COLUMNS`` or ``GROUP_COLUMNS``, in the order of ids.

    Raises: TooManyKeys.
    """
    found: dict[bytes | None, int] = {}
    for batch in batches:
        tombstones = pc.equal(pc.binary_length(batch.column("value")), 0)
        ids = pc.if_else(tombstones, _GONE, batch.column("offset"))
        found.update(zip(_keys(batch), ids.to_pylist(), strict=True))
        if len(found) > keys_max:
            found = {key: msg_id for key, msg_id in found.items() if msg_id != _GONE}
        if len(found) > keys_max:
            raise TooManyKeys(
                f"topic {topic} has more than {keys_max:,} keys, which {LATEST_BY} holds in memory: read all rows, "
                " and let Spark find the newest: groupBy(\"key\").agg(max_by(struct(\"*\"), \"offset\"))"
            )
    found.pop(None, None)
    return array("q", sorted(msg_id for msg_id in found.values() if msg_id != _GONE))


def _keys(batch: pa.RecordBatch) -> list[bytes | None]:
    keys: list[bytes | None] = batch.column("key").to_pylist()
    if "headers" in batch.schema.names and (headers := batch.column("headers")).null_count < len(keys):
        for row, found in enumerate(headers.to_pylist()):
            for header in found or ():
                if header["key"] == GROUP_HEADER and header["value"] is not None:
                    keys[row] = header["value"] or None
                    break
    return keys


def ranges(ids: "array[int]") -> Iterator[tuple[int, int]]:
    """Yield id ranges, ends excluded, that contain all of the given ids and few others."""
    start = at = None
    for msg_id in ids:
        if start is None or at is None:
            start = msg_id
        elif msg_id - at > SKIP_IDS:
            yield start, at + 1
            start = msg_id
        at = msg_id
    if start is not None and at is not None:
        yield start, at + 1


def only(batches: Iterable[pa.RecordBatch], ids: "array[int]") -> Iterator[pa.RecordBatch]:
    """Yield the rows with the given ids from batches with a column ``offset``, in the order of ids."""
    for batch in batches:
        offsets = batch.column("offset")
        begin = bisect_left(ids, offsets[0].as_py())
        end = bisect_left(ids, offsets[-1].as_py() + 1)
        if begin < end:
            yield batch.filter(pc.is_in(offsets, value_set=pa.array(ids[begin:end], pa.int64())))
