"""The executors' work for a table, without Spark: they write a batch's files, and read a snapshot's."""

from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.tables import KINDS, QUERY, ROWS, SCHEMA, archive, batch_of, ids
from toymq_spark.jobs.archive_table import _read, _write, columns_of
from toymq_spark.manifest import ArchiveMismatch
from toymq_spark.schema import arrow_schema, source_schema
from toymq_spark.tables.opening import open_table
from toymq_spark.tables.table import Written, append
from toymq_spark.tables.writing import write


@pytest.mark.parametrize("kind", KINDS)
def test_files_travel_as_text_and_records_as_the_source_has_them(kind: str, tmp_path: Path) -> None:
    table = open_table(str(tmp_path / "a"), kind)
    wider = SCHEMA.append(pa.field("price", pa.int64()))
    archive(table, 0, schema=wider)
    rows = batch_of(range(ROWS, 2 * ROWS))
    append(
        table, QUERY, 1, SCHEMA,
        lambda target: [
            Written.from_json(text) for batch in _write(target, iter([rows])) for text in batch.column("file").to_pylist()
        ],
    )  # fmt: skip
    assert ids(kind, tmp_path / "a") == list(range(2 * ROWS))
    schema = arrow_schema(source_schema(include_headers=True))
    snapshot = table.snapshot()
    paths = [pa.record_batch([pa.array([path])], ["path"]) for path in snapshot.paths()]
    found = pa.Table.from_batches(_read(snapshot, schema, "orders", 5, ROWS + 5, iter(paths)), schema).sort_by("offset")
    expected = pa.Table.from_batches([batch_of(range(2 * ROWS))]).slice(5, ROWS).select(schema.names).cast(schema)
    assert found == expected


@pytest.mark.parametrize("kind", KINDS)
def test_typed_values_keep_their_type(kind: str, tmp_path: Path) -> None:
    table = open_table(str(tmp_path / "a"), kind)
    its = pa.struct([("name", pa.string()), ("price", pa.float64())])
    values = pa.array([{"name": f"n{n}", "price": n / 2} for n in range(ROWS)], its)
    at = SCHEMA.get_field_index("value")
    rows = batch_of(range(ROWS)).set_column(at, pa.field("value", values.type), values)
    append(table, QUERY, 0, rows.schema, lambda target: write([rows], target))
    snapshot = table.snapshot()
    schema = arrow_schema(columns_of(snapshot))
    paths = [pa.record_batch([pa.array(snapshot.paths())], ["path"])]
    found = pa.Table.from_batches(_read(snapshot, schema, None, 0, None, iter(paths)), schema).sort_by("offset")
    assert found["value"].to_pylist() == values.to_pylist()
    with pytest.raises(ArchiveMismatch, match=r"has a column value of type struct<.*>, and the archive's is binary"):
        archive(table, 1)
