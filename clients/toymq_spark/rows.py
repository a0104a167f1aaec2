"""Converts rows of a DataFrame to messages: the columns of a sink, and a row's body with its headers.

Knows Arrow and the wire's header block, but neither Spark's sinks nor brokers. A published record has its producer's name in
place of a key, so a row's key is sent as a header (``batches.KEY_HEADER``).
"""

import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import pyarrow as pa

from toymq_py.errors import BadName
from toymq_py.names import check_name
from toymq_py.units import DURATION_MS_MAX
from toymq_spark.batches import GROUP_HEADER, KEY_HEADER
from toymq_spark.errors import OptionError

CLAIMS_TOPIC = "toymq-spark.claims"
"""Topic of the claims (``claims``)."""

_ROUTE = re.compile(rb"[!-~]{1,512}")

TYPES: Mapping[str, tuple[str, ...]] = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "topic": ("string",),
    "route": ("binary", "string"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "delayMs": ("int", "bigint"),
    "ttlMs": ("int", "bigint"),
    # Columns of a source, so that its rows can be written unchanged. Partition and offset are a row's origin.
    "partition": ("int",),
    "offset": ("bigint",),
    "timestamp": ("timestamp",),
    "timestampType": ("int",),
}
"""Columns and their Spark types."""


class Row(NamedTuple):
    """A message to publish. Rows are ordered by all fields; the order of equal rows does not matter."""

    topic: str
    source: tuple[str, int]
    """Topic and offset of origin; ("", 0) for none. Compared early, since it is cheap."""
    body: bytes
    hdr: int
    delay_ms: int | None
    ttl_ms: int | None
    route: bytes = b""
    """Chooses the partition, where the topic has some."""

    def order(self) -> tuple[Any, ...]:
        return (self.topic, self.source, self.body, self.hdr, self.delay_ms or 0, self.ttl_ms or 0, self.route)


def check_columns(columns: Mapping[str, str], topic: str | None) -> None:
    """Check that a sink can publish a DataFrame with these columns.

    Args:
        columns: Spark types by name.
        topic: the value of the option ``topic``.

    Raises: OptionError.
    """
    for name, kind in columns.items():
        if name not in TYPES:
            raise OptionError(f"unknown column {name}: the sink takes {', '.join(TYPES)}")
        if kind not in TYPES[name]:
            raise OptionError(f"column {name} is {kind}: make it {' or '.join(TYPES[name])}")
    if "value" not in columns:
        raise OptionError("column value is missing: it has the payloads")
    if topic is None and "topic" not in columns:
        raise OptionError("no topic: set the option topic, or add a column topic")


def rows_of(batches: Iterable[pa.RecordBatch], topic: str | None) -> list[Row]:
    """Return the rows in a total order, which is the same in whatever order they come: by their source position, if known.

    Raises: OptionError for a row that cannot be published, with its source position.
    """
    rows = [row for batch in batches for row in _rows(batch, topic)]
    rows.sort(key=Row.order)
    return rows


def checksum(rows: Sequence[Row]) -> int:
    """Return a CRC-32 of rows and their order."""
    crc = 0
    for row in rows:
        head = repr((row.topic, row.source, len(row.body), row.hdr, row.delay_ms, row.ttl_ms)).encode()
        crc = zlib.crc32(row.body, zlib.crc32(head, crc))
    return crc


def place_of(row: Row) -> str:
    """Return the source position of a row, for an error message; "" if unknown."""
    topic, offset = row.source
    return place(topic or None, offset)


def _rows(batch: pa.RecordBatch, option: str | None) -> Iterator[Row]:
    count = batch.num_rows
    columns: dict[str, list[Any]] = {name: batch.column(name).to_pylist() for name in batch.schema.names if name in TYPES}
    nothing: list[Any] = [None] * count
    topics = columns.get("topic", nothing)
    from_source = "offset" in columns and "partition" in columns and "topic" in columns
    offsets = columns["offset"] if from_source else nothing
    keys, headers = columns.get("key", nothing), columns.get("headers", nothing)
    delays, ttls = columns.get("delayMs", nothing), columns.get("ttlMs", nothing)
    partitions, routes = columns.get("partition", nothing), columns.get("route", nothing)
    for at, value in enumerate(columns["value"]):
        if value is None:
            remedy = "is null, and a message has bytes: leave such rows out, or write COALESCE(value, '')"
            _fail("value", remedy, topics[at], offsets[at])
        if partitions[at] and not from_source:
            remedy = f"is {partitions[at]}, and the route or the key chooses the partition: leave the column out"
            _fail("partition", remedy, topics[at], offsets[at])
        target = topics[at] if option is None else option
        if target is None:
            _fail("topic", "is null: set it, or the option topic", topics[at], offsets[at])
        known = topics[at] is not None and offsets[at] is not None
        source: tuple[str, int] = (topics[at], offsets[at]) if from_source and known else ("", 0)
        if target == CLAIMS_TOPIC:
            _fail("topic", f"is {CLAIMS_TOPIC}, which has the sink's claims: choose another topic", topics[at], offsets[at])
        if option is None:
            try:
                check_name("topic", target)
            except BadName as error:
                _fail("topic", str(error), topics[at], offsets[at])
        block = b"" if keys[at] is None and headers[at] is None else _header_block(keys[at], headers[at], source)
        body = value.encode() if isinstance(value, str) else value
        for name, number, least in (("delayMs", delays[at], 0), ("ttlMs", ttls[at], 1)):
            if number is not None and not least <= number <= DURATION_MS_MAX:
                _fail(name, f"is {number}: write {least} to {DURATION_MS_MAX} (ten years)", *source)
        route = _route(routes[at], keys[at], headers[at], source)
        yield Row(target, source, block + body if block else body, len(block), delays[at], ttls[at], route)


def _route(
    route: bytes | str | None, key: bytes | str | None, headers: list[dict[str, Any]] | None, source: tuple[str, int]
) -> bytes:
    """Return the route of a row: the column ``route``, else b"" if there is a header ``toymq-group``, which the broker reads
    itself, else the key; b"" for none. A route or key that is not printable ASCII is replaced by a digest."""
    if route is None and any((header or {}).get("key") == GROUP_HEADER for header in headers or ()):
        return b""
    given = key if route is None else route
    found = given.encode() if isinstance(given, str) else given or b""
    if route is not None and not found:
        _fail("route", "is empty: write null for none", *source)
    if not found or (_ROUTE.fullmatch(found) and found != b"-"):
        return found
    return b"crc32-%08x" % zlib.crc32(found)


def _header_block(key: bytes | str | None, headers: list[dict[str, Any]] | None, source: tuple[str, int]) -> bytes:
    """Encode key and headers. All headers that ``batches.parse_header_block`` can read can be written."""
    lines = []
    for header in headers or ():
        name, value = (header or {}).get("key"), (header or {}).get("value")
        if name == KEY_HEADER:
            _fail("headers", f"has a header named {name!r}: use the column key instead", *source)
        if name is None or ":" in name or "\n" in name or (name == "" and value is None):
            _fail("headers", f"has a header named {name!r}, which a header line cannot carry: leave it out", *source)
        if value is not None and b"\n" in value:
            _fail("headers", f"has a line break in {name!r}, which a header line cannot carry: {value[:40]!r}", *source)
        lines.append(name.encode() + (b"\n" if value is None else b": %b\n" % value))
    if key is not None:
        value = key.encode() if isinstance(key, str) else key
        if b"\n" in value:
            _fail("key", f"has a line break, which a header line cannot carry: {value[:40]!r}", *source)
        lines.append(b"%b: %b\n" % (KEY_HEADER.encode(), value))
    return b"".join(lines)


def _fail(column: str, why: str, topic: str | None, offset: int | None) -> NoReturn:
    raise OptionError(f"column {column} {why}{place(topic, offset)}")


def place(topic: str | None, offset: int | None) -> str:
    """Format the source position of a row, for an error message; "" if unknown."""
    return f" (in the row of topic {topic}, offset {offset})" if topic and offset is not None else ""
