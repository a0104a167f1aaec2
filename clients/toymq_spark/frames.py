"""Converts frames (records as bytes in the log) to Arrow batches, by numpy where many frames have the same lengths.

Records of a topic often have keys and payloads of equal length. Their frames form a table with a fixed stride, of which numpy
cuts out the columns without a Python object per row, in a tenth of the time. Other frames go through ``storage.record.scan``
and lists. Both ways give the same rows (tests/unit/spark/test_batches.py).
"""

from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from toymq_py.storage.record import (
    ALIKE_ROWS_MAX,
    ATTRIBUTE_DELIVER_AT,
    ATTRIBUTE_EXPIRES_AT,
    ATTRIBUTE_SEQUENCE,
    FRAME_OVERHEAD,
    HEADER,
    NUMBER_BYTES,
    Columns,
    Stop,
    crc32,
    run_residue,
    scan,
)
from toymq_spark.batches import TIMESTAMP_TYPE, columns_batch, constant

ALIKE_MIN = 64
"""Below this count the set-up costs more than it saves."""
UNLIKE_ROWS = 1024
"""Rows that are scanned one by one before the next try."""
_KEYED_NUMBERS = (ATTRIBUTE_DELIVER_AT, ATTRIBUTE_EXPIRES_AT)
"""Attributes that are one number and keep the key; with a sequence the key is a producer's name."""


class RowWalk:
    """A ``storage.reader.Walk`` that converts the frames of a topic to Arrow batches."""

    def __init__(self, topic: str, schema: pa.Schema, partition: int = 0) -> None:
        """``schema``: the wanted columns of the source, in any order."""
        self._topic = topic
        self._partition = partition
        self._schema = schema

    def __call__(self, data: bytes, pos: int, expected_id: int, max_count: int) -> tuple[int, int, Stop, list[pa.RecordBatch]]:
        batches: list[pa.RecordBatch] = []
        last_id = expected_id + max_count
        while True:
            rows = _alike(data, pos, expected_id, last_id - expected_id)
            if rows is not None:
                batches.append(self._cut(rows, expected_id))
                pos += rows.nbytes
                expected_id += len(rows)
            columns = Columns()
            count = min(last_id - expected_id, UNLIKE_ROWS)
            pos, next_id, stop = scan(data, pos, expected_id, columns, with_payloads=True, max_count=count)
            if next_id > expected_id:
                batches.append(columns_batch(expected_id, columns, self._topic, self._schema, self._partition))
                expected_id = next_id
            if stop is not Stop.COUNT or expected_id == last_id:
                return pos, expected_id, stop, batches

    def _cut(self, rows: Any, first_id: int) -> pa.RecordBatch:
        count = len(rows)

        def make(name: str) -> pa.Array:
            match name:
                case "key":
                    keyed = "key" in rows.dtype.names and _tag(rows) != ATTRIBUTE_SEQUENCE
                    return _binary(rows, "key") if keyed else pa.nulls(count, pa.binary())
                case "value":
                    return _binary(rows, "payload")
                case "offset":
                    return pa.array(np.arange(first_id, first_id + count, dtype=np.int64))
                case "timestamp":
                    return pa.array(rows["ts_ns"] // 1000).cast(TIMESTAMP_TYPE)
                case "headers":
                    return pa.nulls(count, self._schema.field(name).type)
                case _:
                    return constant(name, self._topic, count, self._partition)

        arrays = [make(field.name).cast(field.type) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _alike(data: bytes, pos: int, first_id: int, max_count: int) -> Any:
    """Return the valid frames from ``pos`` on that have the lengths of the first one, as a numpy table; None when they are
    few."""
    if pos + FRAME_OVERHEAD > len(data):
        return None
    length, _, _, key_len = HEADER.unpack_from(data, pos)
    stride = length + 4
    room = min((len(data) - pos) // stride, max_count)
    if room < ALIKE_MIN or stride < FRAME_OVERHEAD + key_len or data[pos + stride : pos + stride + 4] != data[pos : pos + 4]:
        return None
    payload_len = int.from_bytes(data[pos + 22 + key_len : pos + 26 + key_len], "little")
    rest = stride - FRAME_OVERHEAD - key_len - payload_len
    if rest not in (0, NUMBER_BYTES):
        return None
    rows: Any = np.frombuffer(data, _layout(key_len, payload_len, rest), room, pos)
    ids = np.arange(first_id, first_id + room, dtype=np.uint64)
    alike = (rows["length"] == length) & (rows["msg_id"] == ids) & (rows["key_len"] == key_len)
    alike &= rows["payload_len"] == payload_len
    if rest:
        tag = _tag(rows)
        if tag != ATTRIBUTE_SEQUENCE and tag not in _KEYED_NUMBERS:
            return None
        alike &= (rows["tag"] == tag) & (rows["number_len"] == 8)
    count = room if alike.all() else int(alike.argmin())
    valid, view = 0, memoryview(data)
    while valid < count:
        step = min(ALIKE_ROWS_MAX, count - valid)
        begin = pos + valid * stride
        if crc32(view[begin : begin + step * stride]) != run_residue(stride, step):
            break
        valid += step
    return rows[:valid] if valid >= ALIKE_MIN else None


def _tag(rows: Any) -> int | None:
    """Return the code of the attribute that each row has; None for rows without attributes."""
    return int(rows["tag"][0]) if "tag" in rows.dtype.names else None


@lru_cache(maxsize=1024)  # bounded: sizes may be random
def _layout(key_len: int, payload_len: int, rest: int) -> Any:
    """Return the layout of a frame (storage.record) as a numpy type, without fields of length zero."""
    fields = [("length", "<u4"), ("msg_id", "<u8"), ("ts_ns", "<i8"), ("key_len", "<u2"), ("key", f"V{key_len}")]
    fields += [("payload_len", "<u4"), ("payload", f"V{payload_len}")]
    if rest:
        fields += [("tag", "u1"), ("number_len", "<u4"), ("number", "<u8")]
    return np.dtype([field for field in [*fields, ("crc32", "<u4")] if field[1] != "V0"])


def _binary(rows: Any, name: str) -> pa.Array:
    """Make a column of equally long byte strings with a single copy."""
    count = len(rows)
    size = rows.dtype[name].itemsize if name in rows.dtype.names else 0
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(size)
    values = pa.py_buffer(np.ascontiguousarray(rows[name])) if size else pa.py_buffer(b"")
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), values])
