"""Frames become rows: each record once, with all its fields, however the bytes are split."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.frames import encode_attributes, encode_frame
from toymq_py.errors import DamagedData
from toymq_py.storage.reader import RecordRun
from toymq_spark import batches
from toymq_spark.frames import RowWalk
from toymq_spark.record_sources import runs_of
from toymq_spark.schema import arrow_schema, source_schema

SCHEMA = arrow_schema(source_schema(include_headers=True))
TS_NS = 1_781_767_800_123_456_789


def rows_of(runs: list[RecordRun[list[pa.RecordBatch]]], schema: pa.Schema = SCHEMA) -> list[dict[str, object]]:
    found = list(batches.joined(batch for run in runs for batch in run.seen))
    for batch in found:
        batch.validate(full=True)
        assert batch.schema.equals(schema)
        assert batch.num_rows <= batches.ROWS_MAX
    return [row for batch in found for row in batch.to_pylist()]


def runs(*frames: bytes, to_id: int = 1 << 63, schema: pa.Schema = SCHEMA) -> list[RecordRun[list[pa.RecordBatch]]]:
    return list(runs_of(b"".join(frames), to_id, RowWalk("t", schema)))


def test_the_columns_of_a_record() -> None:
    block = encode_attributes(headers="Trace: 0-1: 2\nName:wörld\nno colon\n".encode())
    (row, bare) = rows_of(runs(encode_frame(7, TS_NS, b"k", b"v\0", block), encode_frame(8, TS_NS, b"", b"")))
    at = row.pop("timestamp")
    assert at.isoformat() == "2026-06-18T07:30:00.123456+00:00"  # type: ignore[attr-defined]
    assert row == {
        "key": b"k", "value": b"v\0", "topic": "t", "partition": 0, "offset": 7, "timestampType": 1,
        "headers": [
            {"key": "Trace", "value": b"0-1: 2"}, {"key": "Name", "value": "wörld".encode()},
            {"key": "no colon", "value": None},
        ],
    }  # fmt: skip
    assert (bare["key"], bare["value"], bare["headers"]) == (None, b"", None)


def test_a_producers_name_is_no_key() -> None:
    sequence = encode_attributes(sequence=5)
    keyed = encode_attributes(headers=b"toymq-key: order-7\nA: b\n", sequence=6)
    empty = encode_attributes(headers=b"toymq-key: \n", sequence=7)
    first, second, third = rows_of(
        runs(*(encode_frame(n, TS_NS, b"producer", b"", block) for n, block in enumerate((sequence, keyed, empty))))
    )
    assert (first["key"], first["headers"]) == (None, None)
    assert (second["key"], second["headers"]) == (b"order-7", [{"key": "A", "value": b"b"}])
    assert (third["key"], third["headers"]) == (b"", None)


def test_the_key_of_a_row_that_was_written_stays_its_key() -> None:
    """Also for a dead letter and for a redriven message, whose records have a key of the broker's."""
    for key, ours in ((b"dlq:c:0", b"toymq-origin-key: spark.q.t.0\n"), (b"redrive:t.dlq:0:1", b"toymq-redrives: 1\n")):
        (row,) = rows_of(runs(encode_frame(0, TS_NS, key, b"", encode_attributes(headers=b"toymq-key: k1\n" + ours))))
        name, value = ours.rstrip().split(b": ")
        assert (row["key"], row["headers"]) == (b"k1", [{"key": name.decode(), "value": value}])
    origin = encode_attributes(headers=b"toymq-origin-key: k\n")
    (plain,) = rows_of(runs(encode_frame(0, TS_NS, b"redrive:t.dlq:0:1", b"", origin)))
    assert plain["key"] == b"redrive:t.dlq:0:1", "as other clients see it"


def test_columns_left_out_and_turned_round() -> None:
    schema = pa.schema([pa.field("offset", pa.int64(), nullable=False), pa.field("value", pa.binary())])
    assert rows_of(runs(encode_frame(7, TS_NS, b"", b"v"), schema=schema), schema) == [{"offset": 7, "value": b"v"}]


records = st.lists(st.tuples(st.binary(max_size=5), st.binary(max_size=9), st.booleans(), st.integers(1, 3)), max_size=60)


@given(records, st.integers(1, 7), st.integers(0, 200))
def test_any_records_any_gaps_any_batch_size(
    given_records: list[tuple[bytes, bytes, bool, int]], rows_max: int, to_id: int
) -> None:
    frames, expected, msg_id = [], [], 0
    for key, value, headers, step in given_records:
        block = encode_attributes(headers=b"n: %d\n" % msg_id) if headers else b""
        frames.append(encode_frame(msg_id, TS_NS + msg_id * 1000, key, value, block))
        if msg_id < to_id:
            shown = [{"key": "n", "value": b"%d" % msg_id}] if headers else None
            expected.append((msg_id, key or None, value, shown))
        msg_id += step
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "ROWS_MAX", rows_max)
        found = rows_of(runs(*frames, to_id=to_id))
    assert [(row["offset"], row["key"], row["value"], row["headers"]) for row in found] == expected


def test_large_payloads_do_not_come_ten_thousand_at_a_time() -> None:
    frames = [encode_frame(n, TS_NS, b"", b"x" * (3 << 20)) for n in range(6)]
    found = list(batches.joined(batch for run in runs(*frames) for batch in run.seen))
    assert [batch.num_rows for batch in found] == [2, 2, 2]


def test_small_batches_are_joined_and_large_ones_are_cut_without_a_copy() -> None:
    def batch(count: int) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"n": pa.array(range(count), pa.int64())})

    large = batches.ROWS_MAX // 4
    counts = [2, 3, large, 0, 4, 2 * batches.ROWS_MAX + 1, 5]
    given = [batch(count) for count in counts]
    found = list(batches.joined(given))
    assert [each.num_rows for each in found] == [5, large, 4, batches.ROWS_MAX, batches.ROWS_MAX, 1, 5]
    assert [n for each in found for n in each["n"].to_pylist()] == [n for count in counts for n in range(count)]
    assert found[1]["n"].buffers()[1].address == given[2]["n"].buffers()[1].address


def test_bytes_that_are_no_records_are_an_error() -> None:
    with pytest.raises(DamagedData, match="at byte 31"):
        runs(encode_frame(0, 1, b"", b"x"), b"\1" * 40)
    frame = encode_frame(0, 1, b"", b"x")
    with pytest.raises(DamagedData):
        runs(frame[:-1])
