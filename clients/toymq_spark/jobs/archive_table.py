"""Appends batches of ``archive`` to a table, and reads a table as records: executors write and read the files, the driver
commits."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType

from toymq_spark.schema import arrow_schema, source_schema
from toymq_spark.tables.table import Snapshot, Table, Target, Written, append
from toymq_spark.tables.writing import write

WRITTEN = pa.schema([("file", pa.string())])
TASKS_PER_CORE = 4
"""Tasks of a read: each opens the table, which takes as long as a small file does."""


def append_batch(table: Table, query: str, batch: DataFrame, number: int, planned: Callable[[], None]) -> None:
    """Append a batch to a table, unless the table has it. Raises: ArchiveMismatch, TableError, OSError."""

    def written(target: Target) -> list[Written]:
        rows = batch.mapInArrow(partial(_write, target), "file string").collect()
        return [Written.from_json(row.file) for row in rows]

    append(table, query, number, arrow_schema(batch.schema), written, planned)


def _write(target: Target, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    files = [file.to_json() for file in write(batches, target)]
    yield pa.RecordBatch.from_arrays([pa.array(files, pa.string())], schema=WRITTEN)


def columns_of(snapshot: Snapshot) -> StructType:
    """Return the columns of the source as the table has them: typed values are a struct, other values are bytes."""
    kind = snapshot.schema().field("value").type
    typed = pa.types.is_struct(kind)
    return StructType(
        [
            StructField("value", from_arrow_type(kind)) if typed and field.name == "value" else field
            for field in source_schema(include_headers=True)
        ]
    )


def read(
    spark: SparkSession,
    snapshot: Snapshot,
    columns: Sequence[str] | None = None,
    topic: str | None = None,
    start: int = 0,
    end: int | None = None,
) -> DataFrame:
    """Read a snapshot of a table as a DataFrame with the columns of the source, or with some of them.

    Args:
        topic: only records of this topic, with ids from ``start`` on, ``end`` excluded.

    Raises: TableError.
    """
    known = columns_of(snapshot)
    schema = known if columns is None else StructType([known[name] for name in columns])
    paths = [(path,) for path in snapshot.paths(topic, start, end)]
    if not paths:
        return spark.createDataFrame([], schema)
    tasks = min(len(paths), TASKS_PER_CORE * spark.sparkContext.defaultParallelism)
    files = spark.createDataFrame(paths, "path string").repartition(tasks)
    return files.mapInArrow(partial(_read, snapshot, arrow_schema(schema), topic, start, end), schema)


def _read(
    snapshot: Snapshot, schema: pa.Schema, topic: str | None, start: int, end: int | None, files: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    paths = [path for batch in files for path in batch.column("path").to_pylist()]
    for batch in snapshot.batches(paths, schema.names, topic, start, end):
        columns = [batch.column(field.name).cast(field.type) for field in schema]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
