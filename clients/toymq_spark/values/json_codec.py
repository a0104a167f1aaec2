"""Converts JSON objects to columns with Arrow's reader: many values are joined into one text, so that no row becomes a Python
object.

A value that is not exactly one JSON object could shift all rows after it: ``{} {}`` is two objects, and ``{"a":`` would go on
in the next value. So every value must begin with a brace, and a separator ``{}`` stands before and after each. An unclosed
value would contain the separator after it, and then the brace of the next value would follow, which is not valid there: Arrow
refuses the text. Otherwise each value is one object or more, and the total is right only if each is one. If Arrow refuses the
text or the total is wrong, each half of the values is read separately, down to the bad rows.

Arrow decides what is valid: neither ``1.0`` nor ``"1"`` is an int, a name that appears twice is refused, unknown names are
ignored. An empty value, a tombstone, becomes null.
"""

import io
import json
import re
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyarrow import json as arrow_json
from pyspark.sql.pandas.types import from_arrow_type

from toymq_spark.values.codec import Decoded, reason_of, rows_encoded

NOT_ONE = "not one JSON object"
SEPARATOR = b"\n{}\n"
_SPACE = b" \t\r\n"
_CHANGED = re.compile(r"Column\(/(?P<path>.+)\) changed from \w+ to (?P<has>\w+)")
_ROW = re.compile(r"^JSON parse error: | in row \d+$")


class JsonCodec:
    """Encodes and decodes values that are JSON objects in UTF-8. Dates and times are ISO 8601; decimals may be strings."""

    def decode(self, values: Sequence[bytes], kind: pa.DataType) -> Decoded:
        bad: dict[int, str] = {}
        parts = _decode(values, 0, kind, bad)
        return Decoded(pa.concat_arrays(parts) if parts else pa.array([], kind), bad)

    def encode(self, values: pa.Array) -> list[bytes | None]:
        return rows_encoded(values, _dump)


def _decode(values: Sequence[bytes], first: int, kind: pa.DataType, bad: dict[int, str]) -> list[pa.Array]:
    if not values:
        return []
    try:
        return [_together(values, kind)]
    except (pa.ArrowException, ValueError) as error:
        if len(values) == 1:
            bad[first] = _in_our_words(_ROW.sub("", reason_of(error)), kind)
            return [pa.nulls(1, kind)]
    half = len(values) // 2
    return [*_decode(values[:half], first, kind, bad), *_decode(values[half:], first + half, kind, bad)]


def _in_our_words(text: str, kind: pa.DataType) -> str:
    """Reword Arrow's ``Column(/a/[]/b) changed from number to string``, in which the first type is the column's and the second
    the value's."""
    found = _CHANGED.fullmatch(text)
    if found is None:
        return text
    path = found["path"].split("/")
    for name in path:
        kind = kind.value_type if name == "[]" else kind.field(name).type
    return f"column {'.'.join(path)} is {from_arrow_type(kind).simpleString()}, and the value has a JSON {found['has']}"


def _together(values: Sequence[bytes], kind: pa.DataType) -> pa.Array:
    """Decode many values at once. Raises: ArrowException or ValueError when any value is bad."""
    if not all(value[:1] in (b"{", b"") or value.lstrip(_SPACE)[:1] == b"{" for value in values):
        raise ValueError(NOT_ONE)
    # Before the first, too: Arrow crashes on a text that begins with null.
    text = SEPARATOR.join([b"", *(value or b"{}" for value in values), b""])
    text.decode()  # Arrow does not check it
    fields = list(_as_read(kind))
    table = arrow_json.read_json(
        io.BytesIO(text),
        arrow_json.ReadOptions(use_threads=False, block_size=len(text) + 1),
        arrow_json.ParseOptions(explicit_schema=pa.schema(fields), unexpected_field_behavior="ignore"),
    )
    if table.num_rows != 2 * len(values) + 1:
        raise ValueError(NOT_ONE)
    rows = table.take(pa.array(range(1, 2 * len(values), 2)))
    column = pa.StructArray.from_arrays(
        [rows.column(field.name).combine_chunks() for field in fields], fields=fields,
        mask=pa.array([not value for value in values]),
    )  # fmt: skip
    column = column.cast(kind)
    column.validate(full=True)  # Arrow reads 1e20 as a decimal of four digits
    return column


def _as_read(kind: pa.DataType) -> pa.DataType:
    """Return the type as which Arrow reads a JSON value: a date is first read as a string."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_as_read(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_as_read(kind.value_type)))
    return pa.string() if pa.types.is_date32(kind) else kind


def _dump(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain).encode()


def _plain(value: object) -> str:
    match value:
        case datetime() | date():
            return value.isoformat()
        case Decimal():
            return format(value, "f")
        case _:
            raise TypeError(f"{type(value).__name__} has no form in JSON")
