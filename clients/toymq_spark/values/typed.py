"""Decodes the values in a source's batches and encodes those of a sink; handles bad rows as ``badRows`` says."""

from collections.abc import Callable, Iterable, Iterator
from typing import Literal

import pyarrow as pa

from toymq_spark.batches import HEADERS_TYPE
from toymq_spark.errors import BadValue, OptionError
from toymq_spark.rows import place
from toymq_spark.values.codec import Codec, Unencodable
from toymq_spark.values.letters import Letter

BadRows = Literal["fail", "null", "deadletter"]
_RAW = {
    "value": pa.field("value", pa.binary(), nullable=False),
    "offset": pa.field("offset", pa.int64(), nullable=False),
    "key": pa.field("key", pa.binary()),
    "headers": pa.field("headers", HEADERS_TYPE),
}
LETTER_COLUMNS = ("offset", "key", "headers")
REASON = "value does not fit valueSchema"
"""``toymq-reason`` of a bad row; ``toymq-error`` says why."""


class TypedRows:
    """Decodes the values of one topic's batches.

    Attributes:
        raw: the columns that the input batches need: the wanted ones, with values as bytes, and those that identify a bad row.
    """

    def __init__(
        self, codec: Codec, wanted: pa.Schema, topic: str, bad_rows: str,
        send: Callable[[list[Letter]], None] | None = None,
    ) -> None:  # fmt: skip
        """``send``: publishes bad rows; needed when ``bad_rows`` is ``deadletter``."""
        self._codec = codec
        self._wanted = wanted
        self._topic = topic
        self._bad_rows = bad_rows
        self._send = send
        more = LETTER_COLUMNS if bad_rows == "deadletter" else ("offset",)
        fields = [_RAW["value"] if field.name == "value" else field for field in wanted]
        self.raw = pa.schema([*fields, *(_RAW[name] for name in more if name not in wanted.names)])

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches with decoded values. Raises: BadValue; errors of ``send``."""
        for batch in batches:
            decoded = self._codec.decode(batch.column("value").to_pylist(), self._wanted.field("value").type)
            arrays = [decoded.column if name == "value" else batch.column(name) for name in self._wanted.names]
            typed = pa.RecordBatch.from_arrays(arrays, schema=self._wanted)
            if decoded.bad:
                typed = self._without_bad(batch, typed, decoded.bad)
            if typed.num_rows:
                yield typed

    def _without_bad(self, batch: pa.RecordBatch, typed: pa.RecordBatch, bad: dict[int, str]) -> pa.RecordBatch:
        if self._bad_rows == "null":
            return typed
        if self._bad_rows == "fail" or self._send is None:
            row, reason = min(bad.items())
            raise BadValue(
                f"topic {self._topic}, offset {batch.column('offset')[row].as_py()}: {REASON}: {reason}. "
                "badRows=null reads such values as null, badRows=deadletter copies such rows to a topic of their own"
            )
        rows = batch.take(pa.array(sorted(bad))).select([*LETTER_COLUMNS, "value"]).to_pylist()
        self._send([
            Letter(row["offset"], row["key"], row["value"], _pairs(row["headers"]), REASON, bad[at])
            for at, row in zip(sorted(bad), rows, strict=True)
        ])  # fmt: skip
        return typed.filter(pa.array([at not in bad for at in range(typed.num_rows)]))


def encoded(batches: Iterable[pa.RecordBatch], codec: Codec) -> Iterator[pa.RecordBatch]:
    """Yield a sink's batches with the values encoded as bytes. Raises: OptionError, with the source position of a row that
    cannot be encoded."""
    for batch in batches:
        at = batch.schema.get_field_index("value")
        try:
            values = codec.encode(batch.column(at))
        except Unencodable as error:
            topic, offset = (
                batch.column(name)[error.row].as_py() if name in batch.schema.names else None for name in ("topic", "offset")
            )
            raise OptionError(f"column value cannot be written: {error}{place(topic, offset)}") from None
        yield batch.set_column(at, "value", pa.array(values, pa.binary()))


def _pairs(headers: list[dict[str, bytes | None]] | None) -> list[tuple[str, bytes | None]] | None:
    return None if headers is None else [(str(header["key"]), header["value"]) for header in headers]
