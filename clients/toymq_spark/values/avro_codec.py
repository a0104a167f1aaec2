"""Converts Avro records to columns with fastavro, in C but row by row, since Arrow cannot read Avro.

With a schema registry a value begins with a zero byte and the id of the writer's schema; the columns are those of the reader's
schema, by Avro's rules of schema resolution. Without a registry a value is only the record.
"""

import struct
from collections.abc import Sequence
from functools import cached_property
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa
from fastavro.read import SchemaResolutionError

from toymq_spark.values.avro_schema import Schema, parsed
from toymq_spark.values.codec import Decoded, columns_of, reason_of, rows_encoded
from toymq_spark.values.registry import PREFIX_BYTES, SCHEMAS_MAX, Registry

_BAD = (
    ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, RuntimeError, SchemaResolutionError, TypeError,
    ValueError, struct.error,
)  # fmt: skip
"""What fastavro raises for bytes that are not of a schema."""


class AvroCodec:
    """Encodes and decodes Avro records.

    Args:
        schema: the schema to read with, or that a sink writes with.
        registry: has the schemas that values were written with; None for values without a prefix.
        schema_id: the id of ``schema`` in the registry, which a sink writes.
    """

    def __init__(self, schema: str, registry: Registry | None = None, schema_id: int = 0) -> None:
        self._schema = schema
        self._registry = registry
        self._schema_id = schema_id
        self._writers: dict[int, Schema | str] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"_schema": self._schema, "_registry": self._registry, "_schema_id": self._schema_id, "_writers": {}}

    @cached_property
    def _reader(self) -> Schema:
        return parsed(self._schema)[0]

    def decode(self, values: Sequence[bytes], kind: pa.DataType) -> Decoded:
        """Decode values to a column of structs; see ``Codec``. Raises: RegistryFailed."""
        rows: list[dict[str, Any] | None] = []
        bad: dict[int, str] = {}
        for row, value in enumerate(values):
            try:
                rows.append(self._decoded(value) if value else None)
            except _BAD as error:
                rows.append(None)
                bad[row] = reason_of(error)
        return columns_of(rows, kind, bad)

    def encode(self, values: pa.Array) -> list[bytes | None]:
        prefix = b"" if self._registry is None else b"\0%b" % self._schema_id.to_bytes(4, "big")

        def write(value: dict[str, Any]) -> bytes:
            out = BytesIO()
            out.write(prefix)
            try:
                fastavro.schemaless_writer(out, self._reader, value)
            except (AttributeError, struct.error) as error:  # None for what is never null
                raise ValueError(str(error)) from None
            return out.getvalue()

        return rows_encoded(values, write)

    def _decoded(self, value: bytes) -> dict[str, Any]:
        data = BytesIO(value)
        writer = self._reader
        if self._registry is not None:
            if len(value) < PREFIX_BYTES or value[0]:
                raise ValueError("it does not begin with a zero and the id of a schema")
            writer = self._writer(int.from_bytes(value[1:PREFIX_BYTES], "big"), self._registry)
            data.seek(PREFIX_BYTES)
        same = writer is self._reader
        found: Any = fastavro.schemaless_reader(data, writer, None if same else self._reader)
        if data.tell() != len(value):
            raise ValueError(f"{len(value) - data.tell()} bytes follow the record")
        return dict(found)

    def _writer(self, schema_id: int, registry: Registry) -> Schema:
        """Return the writer's schema with an id. Raises: ValueError when it cannot be used, RegistryFailed."""
        found = self._writers.get(schema_id)
        if found is None:
            if len(self._writers) >= SCHEMAS_MAX:
                self._writers.clear()
            known = registry.schema(schema_id)
            if known is None:
                found = f"the registry has no schema {schema_id}"
            elif known.kind != "AVRO":
                found = f"schema {schema_id} is {known.kind}"
            elif known.text == self._schema:
                found = self._reader
            else:
                found = _record(schema_id, known.text)
            self._writers[schema_id] = found
        if isinstance(found, str):
            raise ValueError(found)  # noqa: TRY004 (the schema is wrong, not a type)
        return found


def _record(schema_id: int, text: str) -> Schema | str:
    """Parse a writer's schema. Returns: a text that says why, if it is not usable."""
    try:
        found = parsed(text)[0]
    except ValueError as error:
        return f"schema {schema_id}: {reason_of(error)}"
    return found if isinstance(found, dict) else f"schema {schema_id} is not a record"
