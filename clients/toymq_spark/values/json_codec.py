"""JSON objects as columns, by Arrow's reader: many values are one text, and no row is a Python object.

A value that is not one JSON object could shift all rows after it: ``{} {}`` is two, an empty one none, and ``{"a":`` goes on in
the next value. So a separator stands around each value, an object whose only field has a random name and counts. No value can
forge it, and the result is taken only if exactly one object stands between each two. If not, or if Arrow refuses the text, both
halves are read anew, down to the bad rows themselves.

Arrow decides what is valid: ``1.0`` is not an int, ``"1"`` neither, a name that appears twice is refused, unknown names are
ignored. An empty value is null: it is a tombstone.
"""

import io
import json
import re
import secrets
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyarrow import json as arrow_json

from toymq_spark.values.codec import Decoded, reason_of, rows_encoded

NOT_ONE = "not one JSON object"
_SPACE = b" \t\r\n"
_ROW = re.compile(r"^JSON parse error: | in row \d+$")


class JsonCodec:
    """A value is a JSON object in UTF-8. Dates and times are ISO 8601; decimals may be strings."""

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
            bad[first] = _ROW.sub("", reason_of(error))
            return [pa.nulls(1, kind)]
    half = len(values) // 2
    return [*_decode(values[:half], first, kind, bad), *_decode(values[half:], first + half, kind, bad)]


def _together(values: Sequence[bytes], kind: pa.DataType) -> pa.Array:
    """Raises: ArrowException, ValueError when any value is bad."""
    if not all(value[:1] in (b"{", b"") or value.lstrip(_SPACE)[:1] == b"{" for value in values):
        raise ValueError(NOT_ONE)
    name = f"_{secrets.token_hex(8)}"
    separator = b'\n{"%b":%%d}\n' % name.encode()
    count = len(values)
    # Before the first, too: Arrow crashes on a text that begins with null.
    lines = [separator % 0]
    for number, value in enumerate(values, 1):
        lines += (value or b"{}", separator % number)
    text = b"".join(lines)
    text.decode()  # Arrow does not check it
    read = pa.schema([*_as_read(kind), pa.field(name, pa.int64())])
    table = arrow_json.read_json(
        io.BytesIO(text),
        arrow_json.ReadOptions(use_threads=False, block_size=len(text) + 1),
        arrow_json.ParseOptions(explicit_schema=read, unexpected_field_behavior="ignore"),
    )
    expected: list[int | None] = [None] * (2 * count + 1)
    expected[::2] = range(count + 1)
    if table.column(name).combine_chunks() != pa.array(expected, pa.int64()):
        raise ValueError(NOT_ONE)
    rows = table.drop_columns([name]).take(pa.array(range(1, 2 * count, 2)))
    fields = list(_as_read(kind))
    column = pa.StructArray.from_arrays(
        [rows.column(field.name).combine_chunks() for field in fields], fields=fields,
        mask=pa.array([not value for value in values]),
    )  # fmt: skip
    return column.cast(kind)


def _as_read(kind: pa.DataType) -> pa.DataType:
    """The type in which Arrow reads JSON: a date is a string first."""
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
