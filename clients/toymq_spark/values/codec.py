"""What a format of values does: bytes to an Arrow column and back, and which rows it cannot."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

REASON_CHARS_MAX = 300
"""Of a text that may quote the value."""
COLUMNS_MAX = 10_000
"""Of a schema, at any depth: thirty types with two fields of the next one each would make a billion."""


@dataclass(slots=True)
class Decoded:
    """A column of structs, and the reasons of the rows that are not of the format: those are null."""

    column: pa.Array
    bad: dict[int, str] = field(default_factory=dict)


class Unencodable(ValueError):
    """A row's value cannot be written in the format."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row


class Codec(Protocol):
    """A format. Pickled to executors, so it holds no connection until it is used."""

    def decode(self, values: Sequence[bytes], kind: pa.DataType) -> Decoded:
        """Decode values to structs of a type; whatever their bytes are, it raises nothing for them."""

    def encode(self, values: pa.Array) -> list[bytes | None]:
        """The inverse; None for null. Raises: Unencodable."""


def columns_of(rows: Sequence[dict[str, Any] | None], kind: pa.DataType, bad: dict[int, str]) -> Decoded:
    """Decoded rows as a column; those that do not fit its type are bad, too."""
    try:
        return Decoded(pa.array(rows, kind), bad)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        pass
    parts = []
    for row, value in enumerate(rows):
        try:
            parts.append(pa.array([value], kind))
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            parts.append(pa.nulls(1, kind))
            bad[row] = reason_of(error)
    return Decoded(pa.concat_arrays(parts), bad)


def rows_encoded(values: pa.Array, encode: Callable[[dict[str, Any]], bytes]) -> list[bytes | None]:
    """Encode row by row. Raises: Unencodable."""
    found: list[bytes | None] = []
    for row, value in enumerate(python_rows(values)):
        try:
            found.append(None if value is None else encode(value))
        except (ValueError, TypeError, OverflowError, LookupError) as error:
            raise Unencodable(row, reason_of(error)) from None
    return found


def python_rows(values: pa.Array) -> list[Any]:
    """``to_pylist``, by columns: a third of its time for structs."""
    if not pa.types.is_struct(values.type):
        return values.to_pylist(maps_as_pydicts="strict")  # type: ignore[no-any-return]
    names = values.type.names
    rows: list[Any] = [dict(zip(names, row, strict=True)) for row in zip(*map(python_rows, values.flatten()), strict=True)]
    if values.null_count:
        rows = [row if valid else None for row, valid in zip(rows, values.is_valid().to_pylist(), strict=True)]
    return rows


def reason_of(error: BaseException) -> str:
    """One line for a person: the text of an error, or its class where it has none."""
    text = " ".join(str(error).split())
    return (text or type(error).__name__)[:REASON_CHARS_MAX]
