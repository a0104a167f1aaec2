"""The job ``archive``: copies topics to Parquet files or to a table, each record once, continuously or up to now.

If Spark repeats a batch after a crash, the batch is skipped if the archive has it, and written again if not.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import DateType, StringType, StructField, StructType

from toymq_py.errors import ConfigError, DamagedData
from toymq_spark.jobs import archive_table
from toymq_spark.manifest import (
    COMPACTION,
    NAME_DIGITS,
    NULL_PARTITION,
    Archive,
    ArchiveMismatch,
    Manifest,
    check_query,
    describe,
    sync,
    united,
    value_type,
)
from toymq_spark.schema import arrow_schema, source_schema
from toymq_spark.sink import QUERY_ID
from toymq_spark.tables.table import CHECKPOINT, Table

GLOB = re.compile(r"[{}\[\]*?\\]")
"""Characters of a pattern in a path that Spark reads."""


def start(
    spark: SparkSession,
    source: Mapping[str, str],
    to: Path | Table,
    checkpoint: Path,
    *,
    once: bool,
    trigger: str = "10 seconds",
) -> StreamingQuery:
    """Start the streaming query that archives.

    Args:
        source: options of ``format("toymq")``: broker or directory, topics, size of a batch.
        to: directory of an archive of Parquet files, or a table.
        checkpoint: Spark's checkpoint directory, for this archive alone.
        once: end when everything up to now is archived.
        trigger: interval between batches, in Spark's words.

    Raises: ConfigError, DamagedData, TableError, OSError.
    """
    checkpoint = checkpoint.absolute()  # in a relative path Spark takes the text before a colon for a scheme
    options = {"startingOffsets": "earliest", **source, "includeHeaders": "true", "partitions": "topics"}
    records = spark.readStream.format("toymq").options(**options).load()
    write: Callable[[DataFrame, int], None]
    if isinstance(to, Path):
        archive = Archive(to.absolute())
        check_checkpoint(archive, checkpoint)
        check_values(archive, records.schema)
        write = partial(write_batch, archive, checkpoint)
    else:
        state = to.state()
        check_progress(to.place, {} if state is None else dict.fromkeys(range(state.batch + 1), state.query), checkpoint)
        write = partial(append_batch, to, checkpoint)
    writer = (
        (dated(records) if isinstance(to, Path) else records)
        .writeStream.queryName("toymq-archive")
        .option("checkpointLocation", str(checkpoint))
        .foreachBatch(write)
    )
    return (writer.trigger(availableNow=True) if once else writer.trigger(processingTime=trigger)).start()


def checkpoint_of(to: Path | Table) -> Path:
    """Return the default checkpoint directory of an archive. Raises: ConfigError for a table in an object store."""
    if isinstance(to, Path):
        return to / "checkpoint"
    if to.directory is None:
        raise ConfigError(f"{to.place} is not a directory: give --checkpoint, a directory that all nodes share")
    return to.directory / CHECKPOINT


def dated(records: DataFrame) -> DataFrame:
    """Add the column ``date``, the day in UTC, by which the archive is partitioned."""
    return records.withColumn("date", F.to_date("timestamp"))


def write_batch(archive: Archive, checkpoint: Path, batch: DataFrame, number: int) -> None:
    """Write a batch to an archive of Parquet files, unless the archive has it. Raises: ArchiveMismatch."""
    query = query_of(batch)
    name = f"{number:0{NAME_DIGITS}d}"
    if archive.find(name) is None:
        place = archive.attempt(name)
        ordered = batch.sortWithinPartitions("date", "topic", "offset")
        try:
            ordered.write.partitionBy("date", "topic").parquet(str(place))
            sync_plan(checkpoint, number)
            archive.commit(Manifest(name, query, tuple(describe(archive.path, place))))
        except Exception:
            # Another attempt at the batch may have been faster, and removed these files.
            if archive.find(name) is None:
                raise
    archive.discard_attempts(name)
    written = archive.find(name)
    if written is not None:
        check_query(archive.path, number, written.query, query)


def append_batch(table: Table, checkpoint: Path, batch: DataFrame, number: int) -> None:
    """Append a batch to a table, unless the table has it. Raises: ArchiveMismatch, TableError, OSError."""
    archive_table.append_batch(table, query_of(batch), batch, number, lambda: sync_plan(checkpoint, number))


def query_of(batch: DataFrame) -> str:
    """Return the id of the streaming query that hands a batch over."""
    return str(batch.sparkSession.sparkContext.getLocalProperty(QUERY_ID))


def sync_plan(checkpoint: Path, number: int) -> None:
    """Sync the file with the offsets of a batch, which Spark does not: after a power cut it would choose other records for this
    batch."""
    for file in (checkpoint / "offsets" / str(number), checkpoint / "offsets"):
        sync(file)


def check_checkpoint(archive: Archive, checkpoint: Path) -> None:
    """Refuse a checkpoint of another archive: its finished batches would be missing in this one.

    Raises: ArchiveMismatch, DamagedData, OSError.
    """
    batches = [manifest for manifest in archive.manifests() if not manifest.name.startswith(COMPACTION)]
    check_progress(archive.path, {int(manifest.name): manifest.query for manifest in batches}, checkpoint)


def check_progress(place: str | Path, batches: Mapping[int, str], checkpoint: Path) -> None:
    """Check that an archive and a checkpoint have the same batches.

    Args:
        batches: the query that wrote each batch of an archive.

    Raises: ArchiveMismatch, DamagedData, OSError.
    """
    metadata = checkpoint / "metadata"
    query = str(load_json(metadata).get("id")) if metadata.exists() else "none yet"
    for number, found in batches.items():
        check_query(place, number, found, query)
    planned, done = _last_batch(checkpoint / "offsets"), _last_batch(checkpoint / "commits")
    archived = max(batches, default=-1)
    if archived > planned:
        raise ArchiveMismatch(
            f"{place} has a batch {archived}, and the checkpoint {checkpoint} none after {planned}: it is older than "
            "the archive, and its next batches would be skipped. Use the checkpoint that this archive was written with last, "
            "or archive to another place"
        )
    for number in range(done + 1):
        if number not in batches:
            raise ArchiveMismatch(
                f"{place} has no batch {number}, and in the checkpoint {checkpoint} all up to {done} are archived: the "
                "checkpoint belongs to another archive. Give this archive its own checkpoint"
            )


def check_values(archive: Archive, schema: StructType) -> None:
    """Refuse values whose type cannot be combined with that of the archive's values. Raises: ArchiveMismatch, OSError."""
    paths = archive.paths() if archive.manifests() else []
    if paths:
        united(value_type(paths), arrow_schema(schema).field("value").type)


def _last_batch(log: Path) -> int:
    """Return the number of the last batch in one of a checkpoint's logs; -1 for none."""
    return max((int(file.name) for file in log.glob("*") if file.name.isdecimal()), default=-1)


def records(spark: SparkSession, archive: Path | Table) -> DataFrame:
    """Return all records of an archive in the columns of the source. Raises: NoArchive, DamagedData, TableError, OSError."""
    if isinstance(archive, Path):
        return read(spark, archive).drop("date")
    return archive_table.read(spark, archive.snapshot())


def read(spark: SparkSession, archive: Path, paths: Sequence[str] | None = None) -> DataFrame:
    """Read an archive of Parquet files as a DataFrame with the columns of the source, and ``date``.

    Args:
        paths: files to read, relative to the archive; None: all files that the manifests name.

    Raises: NoArchive, DamagedData, OSError.
    """
    archive = archive.absolute()  # in a relative path Spark takes the text before a colon for a scheme
    found = Archive(archive).paths() if paths is None else [str(archive / path) for path in paths]
    value = StructField("value", from_arrow_type(value_type(found)))
    fields = [value if field.name == "value" else field for field in source_schema(include_headers=True)]
    columns = StructType([*fields, StructField("date", DateType())])
    if not found:
        return spark.createDataFrame([], columns)
    with_batch = StructType([*columns.fields, StructField("batch", StringType())])
    literal = [GLOB.sub(r"\\\g<0>", path) for path in found]
    files = spark.read.schema(with_batch).option("basePath", str(archive / "data")).parquet(*literal)
    return files.withColumn("topic", F.coalesce("topic", F.lit(NULL_PARTITION))).select(*columns.fieldNames())


def load_json(file: Path) -> dict[str, Any]:
    """Read a JSON object from a file. Raises: DamagedData, OSError."""
    try:
        found = json.loads(file.read_text())
    except ValueError:
        raise DamagedData(f"{file}: invalid JSON") from None
    return dict(found)
