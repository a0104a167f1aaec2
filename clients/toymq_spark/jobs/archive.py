"""``archive``: topics to Parquet, each record once, continuously or until what is there now is done.

A batch that Spark runs again after a crash is either there with its manifest, and is passed over, or not, and is written anew.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
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
)
from toymq_spark.schema import source_schema
from toymq_spark.sink import QUERY_ID

GLOB = re.compile(r"[{}\[\]*?\\]")
"""What Spark takes for a pattern in a path that it reads."""


def start(
    spark: SparkSession,
    source: Mapping[str, str],
    to: Path,
    *,
    once: bool,
    trigger: str = "10 seconds",
    checkpoint: Path | None = None,
) -> StreamingQuery:
    """
    Args:
        source: options of ``format("toymq")``: where, which topics, how much a batch.
        to: the archive.
        once: end when everything that is there now is archived.
        trigger: how often a batch begins, as Spark says it.
        checkpoint: ``<to>/checkpoint`` unless given. It and the archive belong together.

    Raises: ArchiveMismatch, DamagedData, OSError.
    """
    to = to.absolute()  # what is before a colon in a relative path is a scheme
    checkpoint = (checkpoint or to / "checkpoint").absolute()
    check_checkpoint(Archive(to), checkpoint)
    options = {"startingOffsets": "earliest", **source, "includeHeaders": "true"}
    records = spark.readStream.format("toymq").options(**options).load()
    writer = (
        dated(records)
        .writeStream.queryName("toymq-archive")
        .option("checkpointLocation", str(checkpoint))
        .foreachBatch(partial(write_batch, Archive(to), checkpoint))
    )
    return (writer.trigger(availableNow=True) if once else writer.trigger(processingTime=trigger)).start()


def dated(records: DataFrame) -> DataFrame:
    """With the day, in UTC, that the archive is partitioned by."""
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
            # Spark does not: after a power cut it would take other records for the batch that is archived.
            for file in (checkpoint / "offsets" / str(number), checkpoint / "offsets"):
                sync(file)
            archive.commit(Manifest(name, query, tuple(describe(archive.path, place))))
        except Exception:
            # Another attempt at the same batch may have been faster, and may have removed what this one wrote.
            if archive.find(name) is None:
                raise
    archive.discard_attempts(name)
    _check_query(archive, archive.find(name), query)


def check_checkpoint(archive: Archive, checkpoint: Path) -> None:
    """Refuse a checkpoint of another archive: the batches that it counts as archived would be missing in this one.

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
            "the archive, and what it would take for that batch would be left out. Give the checkpoint that this archive was "
            "written with last, or archive to another place"
        )
    for number in range(done + 1):
        if f"{number:0{NAME_DIGITS}d}" not in batches:
            raise ArchiveMismatch(
                f"{archive.path} has no batch {number}, and the checkpoint {checkpoint} says that all up to {done} are "
                "archived: it is of another archive. Give this one a checkpoint of its own"
            )


def _last_batch(log: Path) -> int:
    """Of one of the two logs of a checkpoint; -1 for none."""
    return max((int(file.name) for file in log.glob("*") if file.name.isdecimal()), default=-1)


def _check_query(archive: Archive, manifest: Manifest | None, query: str) -> None:
    """Raises: ArchiveMismatch."""
    if manifest is not None and manifest.query != query:
        raise ArchiveMismatch(
            f"{archive.path} has a batch {int(manifest.name)} of another query: the checkpoint is not the one that this "
            "archive was made with. Give the right checkpoint, or archive to another place"
        )


def read(spark: SparkSession, archive: Path, paths: Sequence[str] | None = None) -> DataFrame:
    """An archive as a table: the columns of the source, and ``date``.

    Args:
        paths: of files, relative to the archive; None for what the manifests name now.

    Raises: NoArchive, DamagedData, OSError.
    """
    columns = source_schema(include_headers=True)
    columns = StructType([*columns.fields, StructField("date", DateType())])
    archive = archive.absolute()  # what is before a colon in a relative path is a scheme
    found = Archive(archive).paths() if paths is None else [str(archive / path) for path in paths]
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
