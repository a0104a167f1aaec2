"""``archive``: topics to Parquet, each record once, continuously or up to now.

A batch that Spark repeats after a crash either has its manifest, and is skipped, or is written anew.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import DateType, StringType, StructField, StructType

from toymq_py.errors import DamagedData
from toymq_spark.manifest import (
    COMPACTION,
    NAME_DIGITS,
    NULL_PARTITION,
    Archive,
    ArchiveMismatch,
    Manifest,
    describe,
    sync,
    united,
    value_type,
)
from toymq_spark.schema import arrow_schema, source_schema
from toymq_spark.sink import QUERY_ID

GLOB = re.compile(r"[{}\[\]*?\\]")
"""Characters of a pattern in a path that Spark reads."""


def start(
    spark: SparkSession,
    source: Mapping[str, str],
    to: Path,
    *,
    once: bool,
    trigger: str = "10 seconds",
    checkpoint: Path | None = None,
) -> StreamingQuery:
    """Start the query that archives.

    Args:
        source: options of ``format("toymq")``: place, topics, size of a batch.
        to: the archive.
        once: end when everything up to now is archived.
        trigger: interval between batches, in Spark's words.
        checkpoint: default ``<to>/checkpoint``; belongs to this archive alone.

    Raises: ArchiveMismatch, DamagedData, OSError.
    """
    to = to.absolute()  # in a relative path Spark takes the text before a colon for a scheme
    checkpoint = (checkpoint or to / "checkpoint").absolute()
    check_checkpoint(Archive(to), checkpoint)
    options = {"startingOffsets": "earliest", **source, "includeHeaders": "true"}
    records = spark.readStream.format("toymq").options(**options).load()
    check_values(Archive(to), records.schema)
    writer = (
        dated(records)
        .writeStream.queryName("toymq-archive")
        .option("checkpointLocation", str(checkpoint))
        .foreachBatch(partial(write_batch, Archive(to), checkpoint))
    )
    return (writer.trigger(availableNow=True) if once else writer.trigger(processingTime=trigger)).start()


def dated(records: DataFrame) -> DataFrame:
    """Add the day in UTC, which partitions the archive."""
    return records.withColumn("date", F.to_date("timestamp"))


def write_batch(archive: Archive, checkpoint: Path, batch: DataFrame, number: int) -> None:
    """Raises: ArchiveMismatch."""
    query = str(batch.sparkSession.sparkContext.getLocalProperty(QUERY_ID))
    name = f"{number:0{NAME_DIGITS}d}"
    if archive.find(name) is None:
        place = archive.attempt(name)
        ordered = batch.sortWithinPartitions("date", "topic", "offset")
        try:
            ordered.write.partitionBy("date", "topic").parquet(str(place))
            # Spark does not sync: after a power cut it would take other records for this batch.
            for file in (checkpoint / "offsets" / str(number), checkpoint / "offsets"):
                sync(file)
            archive.commit(Manifest(name, query, tuple(describe(archive.path, place))))
        except Exception:
            # Another attempt at the batch may have been faster, and removed these files.
            if archive.find(name) is None:
                raise
    archive.discard_attempts(name)
    _check_query(archive, archive.find(name), query)


def check_checkpoint(archive: Archive, checkpoint: Path) -> None:
    """Refuse a checkpoint of another archive: its finished batches would be missing in this one.

    Raises: ArchiveMismatch, DamagedData, OSError.
    """
    metadata = checkpoint / "metadata"
    query = str(load_json(metadata).get("id")) if metadata.exists() else "none yet"
    batches = {manifest.name: manifest for manifest in archive.manifests() if not manifest.name.startswith(COMPACTION)}
    for manifest in batches.values():
        _check_query(archive, manifest, query)
    planned, done = _last_batch(checkpoint / "offsets"), _last_batch(checkpoint / "commits")
    archived = max(map(int, batches), default=-1)
    if archived > planned:
        raise ArchiveMismatch(
            f"{archive.path} has a batch {archived}, and the checkpoint {checkpoint} none after {planned}: it is older than "
            "the archive, and its next batches would be skipped. Use the checkpoint that this archive was written with last, "
            "or archive to another place"
        )
    for number in range(done + 1):
        if f"{number:0{NAME_DIGITS}d}" not in batches:
            raise ArchiveMismatch(
                f"{archive.path} has no batch {number}, and in the checkpoint {checkpoint} all up to {done} are archived: it "
                "belongs to another archive. Give this archive its own checkpoint"
            )


def check_values(archive: Archive, schema: StructType) -> None:
    """Refuse values of another type than the archive's, which no table could have. Raises: ArchiveMismatch, OSError."""
    paths = archive.paths() if archive.manifests() else []
    if paths:
        united(value_type(paths), arrow_schema(schema).field("value").type)


def _last_batch(log: Path) -> int:
    """Last batch in a log of a checkpoint; -1 for none."""
    return max((int(file.name) for file in log.glob("*") if file.name.isdecimal()), default=-1)


def _check_query(archive: Archive, manifest: Manifest | None, query: str) -> None:
    """Raises: ArchiveMismatch."""
    if manifest is not None and manifest.query != query:
        raise ArchiveMismatch(
            f"{archive.path} has a batch {int(manifest.name)} of another query: it was written with another checkpoint. Use "
            "that checkpoint, or archive to another place"
        )


def read(spark: SparkSession, archive: Path, paths: Sequence[str] | None = None) -> DataFrame:
    """Read an archive as a table: the columns of the source, and ``date``.

    Args:
        paths: files to read, relative to the archive; None: all of the manifests.

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
    """Raises: DamagedData, OSError."""
    try:
        found = json.loads(file.read_text())
    except ValueError:
        raise DamagedData(f"{file}: invalid JSON") from None
    return dict(found)
