"""Rows of a table as messages: which columns a sink takes, and how a row becomes a body with headers.

Knows Arrow and the wire's header block; nothing of Spark's sinks or of brokers. A published record carries its producer's name
where others have a key, so a row's key travels in a header (``batches.KEY_HEADER``).
"""

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import pyarrow as pa

from toymq_py.errors import BadName
from toymq_py.names import check_name
from toymq_py.units import DURATION_MS_MAX
from toymq_spark.batches import KEY_HEADER
from toymq_spark.errors import OptionError

CLAIMS_TOPIC = "toymq-spark.claims"
"""Where tasks say what they are about to publish (``publishing``)."""

TYPES: Mapping[str, tuple[str, ...]] = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "topic": ("string",),
    "headers": ("array<struct<key:string,value:binary>>",),
    "delayMs": ("int", "bigint"),
    "ttlMs": ("int", "bigint"),
    # What a source adds, so that its rows may be written as they are. Partition and offset say where a row came from.
    "partition": ("int",),
    "offset": ("bigint",),
    "timestamp": ("timestamp",),
    "timestampType": ("int",),
}
"""Columns and their Spark types."""


class Row(NamedTuple):
    """One message to be published. Rows compare by all their fields; the order of equal rows does not matter."""

    topic: str
    source: tuple[str, int]
    """Topic and offset it came from; ("", 0) for none. Comes first when rows are put in order, as it costs least."""
    body: bytes
    hdr: int
    delay_ms: int | None
    ttl_ms: int | None

    def order(self) -> tuple[Any, ...]:
        return (self.topic, self.source, self.body, self.hdr, self.delay_ms or 0, self.ttl_ms or 0)


def check_columns(columns: Mapping[str, str], topic: str | None) -> None:
    """
    Args:
        columns: name to Spark type.
        topic: what the option says.

    Raises: OptionError.
    """
    for name, kind in columns.items():
        if name not in TYPES:
            raise OptionError(f"column {name} is not known to the sink; known are {', '.join(TYPES)}")
        if kind not in TYPES[name]:
            raise OptionError(f"column {name} is {kind}; it has to be {' or '.join(TYPES[name])}")
    if "value" not in columns:
        raise OptionError("column value is missing: it is what is published")
    if topic is None and "topic" not in columns:
        raise OptionError("neither the option topic nor a column topic says where to publish")


def rows_of(batches: Iterable[pa.RecordBatch], topic: str | None) -> list[Row]:
    """Rows in their total order: that of the source where it is known, and the same for the same rows in any order.

    Raises: OptionError for a row that cannot be published, with its place.
    """
    rows = [row for batch in batches for row in _rows(batch, topic)]
    rows.sort(key=Row.order)
    return rows


def checksum(rows: Sequence[Row]) -> int:
    """CRC-32 of rows and their order."""
    crc = 0
    for row in rows:
        head = repr((row.topic, row.source, len(row.body), row.hdr, row.delay_ms, row.ttl_ms)).encode()
        crc = zlib.crc32(row.body, zlib.crc32(head, crc))
    return crc


def place_of(row: Row) -> str:
    """Describe where a row came from, for an error message; "" where it does not say."""
    topic, offset = row.source
    return _place(topic or None, offset)


def _rows(batch: pa.RecordBatch, option: str | None) -> Iterator[Row]:
    count = batch.num_rows
    columns: dict[str, list[Any]] = {name: batch.column(name).to_pylist() for name in batch.schema.names if name in TYPES}
    nothing: list[Any] = [None] * count
    topics = columns.get("topic", nothing)
    from_source = "offset" in columns and "partition" in columns and "topic" in columns
    offsets = columns["offset"] if from_source else nothing
    keys, headers = columns.get("key", nothing), columns.get("headers", nothing)
    delays, ttls = columns.get("delayMs", nothing), columns.get("ttlMs", nothing)
    for at, value in enumerate(columns["value"]):
        if value is None:
            _fail("value", "is null", topics[at], offsets[at])
        target = topics[at] if option is None else option
        if target is None:
            _fail("topic", "is null, and there is no option topic", topics[at], offsets[at])
        known = topics[at] is not None and offsets[at] is not None
        source: tuple[str, int] = (topics[at], offsets[at]) if from_source and known else ("", 0)
        if target == CLAIMS_TOPIC:
            _fail("topic", f"is {CLAIMS_TOPIC}, where the sink keeps its claims", topics[at], offsets[at])
        if option is None:
            try:
                check_name("topic", target)
            except BadName as error:
                _fail("topic", str(error), topics[at], offsets[at])
        block = b"" if keys[at] is None and headers[at] is None else _header_block(keys[at], headers[at], source)
        body = value.encode() if isinstance(value, str) else value
        for name, number, least in (("delayMs", delays[at], 0), ("ttlMs", ttls[at], 1)):
            if number is not None and not least <= number <= DURATION_MS_MAX:
                _fail(name, f"is {number}; it has to be {least} to {DURATION_MS_MAX} (ten years)", *source)
        yield Row(target, source, block + body if block else body, len(block), delays[at], ttls[at])


def _header_block(key: bytes | str | None, headers: list[dict[str, Any]] | None, source: tuple[str, int]) -> bytes:
    """Every header that a source has read can be published again, odd lines included: ``batches.parse_header_block``."""
    lines = []
    for header in headers or ():
        name, value = (header or {}).get("key"), (header or {}).get("value")
        if name == KEY_HEADER:
            _fail("headers", f"has a header named {name!r}: that is where the column key goes; say it there", *source)
        if name is None or ":" in name or "\n" in name or (name == "" and value is None):
            _fail("headers", f"has a header named {name!r}, which a line cannot carry: leave it out of the array", *source)
        if value is not None and b"\n" in value:
            _fail("headers", f"has a line break in {name!r}, which a line cannot carry: {value[:40]!r}", *source)
        lines.append(name.encode() + (b"\n" if value is None else b": %b\n" % value))
    if key is not None:
        value = key.encode() if isinstance(key, str) else key
        if b"\n" in value:
            _fail("key", f"has a line break, which a header line cannot carry: {value[:40]!r}", *source)
        lines.append(b"%b: %b\n" % (KEY_HEADER.encode(), value))
    return b"".join(lines)


def _fail(column: str, why: str, topic: str | None, offset: int | None) -> NoReturn:
    raise OptionError(f"column {column} {why}{_place(topic, offset)}")


def _place(topic: str | None, offset: int | None) -> str:
    return f" (in the row of topic {topic}, offset {offset})" if topic and offset is not None else ""
