"""Records as Arrow batches in the columns of Spark's Kafka connector.

Contract: spark.md, "Source". Knows the columns and their types, and what a record's key and headers are; nothing of Spark.

    key            binary         the dedupe key; null for none. See ``ATTRIBUTE_SEQUENCE`` below
    value          binary         the payload
    topic          string
    partition      int            0: a topic is one log
    offset         bigint         the msg_id
    timestamp      timestamp      when the broker appended it, microseconds
    timestampType  int            1: append time
    headers        array<struct<key: string, value: binary>>, null for none; only with includeHeaders

A record that was published with ``seq`` carries the name of its producer where others have a key (protocol.md). Such a record's
key, if it has one, travels in the header ``KEY_HEADER``; the sink puts it there and this file takes it out again (ADR 0016).
"""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from toymq_py.storage.reader import Run
from toymq_py.storage.record import ATTRIBUTE_HEADERS, ATTRIBUTE_SEQUENCE, parse_attributes

ROWS_MAX = 10_000
BYTES_MAX = 8 << 20
"""Of payloads in one batch, about: rows of 2 MiB must not come 10,000 at a time."""
KEY_HEADER = "toymq-key"
TIMESTAMP_TYPE_APPEND = 1

HEADERS_TYPE = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))

Headers = list[tuple[str, bytes]]


def record_batches(runs: Iterable[Run], topic: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """
    Args:
        runs: records in ascending order of id.
        schema: the columns wanted, any of those above, in any order.
    """
    pending = _Rows()
    for first_id, columns in runs:
        for row, block in columns.attributes.items():
            pending.attributes[len(pending.payloads) + row] = block
        pending.ids.extend(range(first_id, first_id + len(columns.positions)))
        pending.ts_ns += columns.ts_ns
        pending.keys += columns.plain_keys()
        pending.payloads += columns.payloads
        while len(pending.payloads) >= ROWS_MAX:
            yield pending.take(ROWS_MAX, topic, schema)
        if sum(map(len, pending.payloads)) >= BYTES_MAX:
            yield pending.take(len(pending.payloads), topic, schema)
    if pending.payloads:
        yield pending.take(len(pending.payloads), topic, schema)


class _Rows:
    """Rows that are still to become a batch, by columns."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.ts_ns: list[int] = []
        self.keys: list[bytes] = []
        self.payloads: list[bytes] = []
        self.attributes: dict[int, bytes] = {}

    def take(self, count: int, topic: str, schema: pa.Schema) -> pa.RecordBatch:
        """The first ``count`` rows as a batch; they are gone from here."""
        keys: list[bytes | None] = [key or None for key in self.keys[:count]]
        headers: list[Headers | None] = [None] * count
        for row, block in self.attributes.items():
            if row < count:
                keys[row], headers[row] = key_and_headers(self.keys[row], block)
        arrays = [
            self._column(field.name, count, topic, keys, headers).cast(field.type)
            for field in schema
        ]
        del self.ids[:count], self.ts_ns[:count], self.keys[:count], self.payloads[:count]
        self.attributes = {row - count: block for row, block in self.attributes.items() if row >= count}
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _column(
        self, name: str, count: int, topic: str, keys: Sequence[bytes | None], headers: Sequence[Headers | None]
    ) -> pa.Array:
        match name:
            case "key":
                return pa.array(keys, pa.binary())
            case "value":
                return pa.array(self.payloads[:count], pa.binary())
            case "topic":
                return pa.repeat(topic, count)
            case "partition":
                return pa.repeat(pa.scalar(0, pa.int32()), count)
            case "offset":
                return pa.array(self.ids[:count], pa.int64())
            case "timestamp":
                times_us = pc.divide(pa.array(self.ts_ns[:count], pa.int64()), 1000)
                return times_us.cast(pa.timestamp("us", "UTC"))
            case "timestampType":
                return pa.repeat(pa.scalar(TIMESTAMP_TYPE_APPEND, pa.int32()), count)
            case "headers":
                return pa.array(headers, HEADERS_TYPE)
            case _:
                raise AssertionError(f"no column {name}")


def key_and_headers(key: bytes, attributes: bytes) -> tuple[bytes | None, Headers | None]:
    """What a record with attributes shows as its key and its headers; None for none."""
    found = parse_attributes(attributes) or {}
    headers = parse_header_block(found.get(ATTRIBUTE_HEADERS, b""))
    if ATTRIBUTE_SEQUENCE not in found:
        return key or None, headers or None
    own_key = next((value for name, value in headers if name == KEY_HEADER), None)
    return own_key, [header for header in headers if header[0] != KEY_HEADER] or None


def parse_header_block(block: bytes) -> Headers:
    """``Name: value`` lines (protocol.md); a line of another form is left out."""
    headers = []
    for line in block.split(b"\n"):
        name, colon, value = line.partition(b":")
        if colon:
            headers.append((name.decode("utf-8", "replace"), value.removeprefix(b" ")))
    return headers
