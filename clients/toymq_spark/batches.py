"""Converts records to Arrow batches with the columns of Spark's Kafka connector.

Contract: spark.md, "Source". Knows columns, types, and a record's key and headers; does not know Spark.

    key            binary         the dedupe key; null for none. See ``ATTRIBUTE_SEQUENCE`` below
    value          binary         the payload
    topic          string
    partition      int            0: a topic is one log
    offset         bigint         the msg_id
    timestamp      timestamp      when the broker appended it, microseconds
    timestampType  int            1: append time
    headers        array<struct<key: string, value: binary>>, null for none; only with includeHeaders

A record published with ``seq`` has its producer's name in place of a key (protocol.md); a dead letter or redriven message has a
key of the broker's. The key of a row that Spark wrote is in the header ``KEY_HEADER`` (ADR 0016): that header becomes the key.
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa

from toymq_py.storage.record import ATTRIBUTE_HEADERS, ATTRIBUTE_SEQUENCE, Columns, parse_attributes

ROWS_MAX = 16_384
BYTES_MAX = 8 << 20
"""About the most bytes of a batch: 16,384 rows of 2 MiB would be too many."""
BYTES_SMALL = 1 << 20
"""A batch below this, and below a quarter of ``ROWS_MAX``, is joined with the next."""
KEY_HEADER = "toymq-key"
GROUP_HEADER = "toymq-group"
"""Names the group of a message for ``mode=keyed`` (delivery.md), before its key does; without a value it has none."""
TIMESTAMP_TYPE_APPEND = 1
TIMESTAMP_TYPE = pa.timestamp("us", "UTC")

HEADERS_TYPE = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))

Headers = list[tuple[str, bytes | None]]


def columns_batch(first_id: int, columns: Columns, topic: str, schema: pa.Schema, partition: int = 0) -> pa.RecordBatch:
    """
    Args:
        first_id: the id of the first record; the others have consecutive ids.
        columns: the records' fields, payloads included.
        schema: the wanted columns, any of those in the module's docstring, in any order.
    """
    count = len(columns.positions)
    keys: list[bytes | None] = [key or None for key in columns.plain_keys()]
    headers: list[Headers | None] = [None] * count
    for row, block in columns.attributes.items():
        keys[row], headers[row] = key_and_headers(columns.keys[row], block)

    def make(name: str) -> pa.Array:
        match name:
            case "key":
                return pa.array(keys, pa.binary())
            case "value":
                return pa.array(columns.payloads, pa.binary())
            case "offset":
                return pa.array(range(first_id, first_id + count), pa.int64())
            case "timestamp":
                return pa.array([ts_ns // 1000 for ts_ns in columns.ts_ns], TIMESTAMP_TYPE)
            case "headers":
                return pa.array(headers, HEADERS_TYPE)
            case _:
                return constant(name, topic, count, partition)

    return pa.RecordBatch.from_arrays([make(field.name).cast(field.type) for field in schema], schema=schema)


def constant(name: str, topic: str, count: int, partition: int = 0) -> pa.Array:
    """Make a column that has the same value in every row of a topic, such as ``topic``."""
    match name:
        case "topic":
            return pa.repeat(topic, count)
        case "partition":
            return pa.repeat(pa.scalar(partition, pa.int32()), count)
        case "timestampType":
            return pa.repeat(pa.scalar(TIMESTAMP_TYPE_APPEND, pa.int32()), count)
        case _:
            raise AssertionError(f"no column {name}")


def joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join small batches, up to about ``ROWS_MAX`` rows and ``BYTES_MAX`` bytes, since a batch costs Spark more than its rows.
    Large batches are only cut, since to join them would copy them."""
    pending: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        is_small = 4 * batch.num_rows < ROWS_MAX and batch.nbytes < BYTES_SMALL
        if rows and (not is_small or rows + batch.num_rows > ROWS_MAX or size >= BYTES_MAX):
            yield pa.concat_batches(pending)
            pending, rows, size = [], 0, 0
        if is_small:
            pending.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
            continue
        step = min(ROWS_MAX, max(BYTES_MAX * batch.num_rows // batch.nbytes, 1))
        for start in range(0, batch.num_rows, step):
            yield batch.slice(start, step)
    if rows:
        yield pa.concat_batches(pending)


def key_and_headers(key: bytes, attributes: bytes) -> tuple[bytes | None, Headers | None]:
    """Decode key and headers of a record with attributes; None for a missing one."""
    found = parse_attributes(attributes) or {}
    headers = parse_header_block(found.get(ATTRIBUTE_HEADERS, b""))
    own_key = next((value or b"" for name, value in headers if name == KEY_HEADER), None)
    if own_key is not None:
        return own_key, [header for header in headers if header[0] != KEY_HEADER] or None
    return None if ATTRIBUTE_SEQUENCE in found else key or None, headers or None


def parse_header_block(block: bytes) -> Headers:
    """Parse ``Name: value`` lines (protocol.md). A line without a colon becomes a name without a value, which a sink can write
    again."""
    headers: Headers = []
    for line in block.split(b"\n"):
        if line:
            name, colon, value = line.partition(b":")
            headers.append((name.decode("utf-8", "replace"), value.removeprefix(b" ") if colon else None))
    return headers
