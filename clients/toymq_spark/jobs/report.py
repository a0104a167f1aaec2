"""The job ``report``: statistics of topics or an archive by topic and time window: rates, sizes, keys, gaps, delays, dead
letters."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, MapType, StructType
from pyspark.sql.window import Window

from toymq_py.errors import ConfigError
from toymq_py.names import DEAD_LETTERS
from toymq_py.units import DURATION_MS_MAX
from toymq_spark.manifest import NULL_PARTITION, Archive, Manifest
from toymq_spark.values.letters import ATTEMPTS_HEADER, BAD_ROWS_TOPIC, ERROR_TYPE_HEADER, REASON_HEADER

SET = {"includeHeaders": "true", "failOnDataLoss": "false"}
"""Options of the source that this job sets: it reads headers, and finds gaps."""
TEXT_CHARS_MAX = 40
"""Of the least and the most text of a column."""
NO_GAPS = {"gap_ids": 0, "gaps": 0}
_UNITS_MS = {
    "microsecond": 0.001, "millisecond": 1, "second": 1000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000,
    "week": 604_800_000,
}  # fmt: skip
_PART = re.compile(rf"\s*(\d{{1,15}})\s+({'|'.join(_UNITS_MS)})s?\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Report:
    """The rows of a report. ``windows``: one for each topic and time window. ``topics``: one for each topic. Sizes in bytes,
    durations in seconds.

    A gap in the ids counts in the window of the record after it. ``reasons``: dead letters by reason and type of error, with
    their attempts. ``columns``: statistics on each column of typed values, by topic.
    """

    windows: list[dict[str, Any]]
    topics: list[dict[str, Any]]
    reasons: list[dict[str, Any]]
    columns: list[dict[str, Any]] = field(default_factory=list)


def check_window(window: str) -> None:
    """Check the width of windows, in which months and years are refused, since their lengths vary. Raises: ConfigError."""
    parts = _PART.findall(window)
    width_ms = sum(int(count) * _UNITS_MS[unit.lower()] for count, unit in parts)
    if _PART.sub("", window).strip() or not 0 < width_ms <= DURATION_MS_MAX:
        raise ConfigError(f"invalid window {window!r}: write 30 seconds, 1 minute, 1 hour or 7 days")


def report(records: DataFrame, window: str, archive: Path | None = None) -> Report:
    """Make a report.

    Args:
        records: columns of the source, with or without ``headers``.
        window: width of a time window, in Spark's words: "1 minute", "1 hour".
        archive: the archive of the records, if any: its manifests have the times of archiving.

    Raises: ConfigError for the window, DamagedData, OSError.
    """
    check_window(window)
    # Of typed values the size is that of their JSON: their bytes are gone.
    value = F.to_json("value") if isinstance(records.schema["value"].dataType, StructType) else F.col("value")
    columns: list[Column | str] = ["topic", "offset", "timestamp", "key", F.octet_length(value).alias("size")]
    if "headers" in records.columns:
        told = F.col("topic").endswith(DEAD_LETTERS) | F.col("topic").endswith(BAD_ROWS_TOPIC)
        columns.append(F.when(told, F.col("headers")).alias("headers"))
    sized = records.fillna(NULL_PARTITION, ["topic"]).select(*columns).cache()
    try:
        by_window = (
            sized.groupBy("topic", F.window("timestamp", window).alias("w")).agg(*_measures())
            .select("topic", F.col("w.start").alias("start"), F.col("w.end").alias("end"), *_names())
            .orderBy("topic", "start")
        )  # fmt: skip
        ordered = Window.partitionBy("topic").orderBy("offset")
        missing = (
            sized.withColumn("before", F.lag("offset").over(ordered)).where("offset > before + 1")
            .groupBy("topic", F.window("timestamp", window).start.alias("start"))
            .agg(F.sum(F.expr("offset - before - 1")).alias("gap_ids"), F.count("*").alias("gaps"))
        )  # fmt: skip
        by_topic = (
            sized.groupBy("topic").agg(
                *_measures(), F.min("offset").alias("first_id"), F.max("offset").alias("last_id"),
                F.min("timestamp").alias("oldest"), F.max("timestamp").alias("newest"),
            )
            .orderBy("topic")
        )  # fmt: skip
        windows = [_in_utc(row) for row in by_window.collect()]
        topics = [_in_utc(row) for row in by_topic.collect()]
        gaps = [_in_utc(row) for row in missing.collect()]
        reasons = _reasons(sized) if "headers" in records.columns else []
    finally:
        sized.unpersist()
    seconds = {row["start"]: (row["end"] - row["start"]).total_seconds() for row in windows}
    gaps_at = {(row["topic"], row["start"]): row for row in gaps}
    by_name = {row["topic"]: row | NO_GAPS for row in topics}
    for row in windows:
        row["per_s"] = row["records"] / seconds[row["start"]]
        for name in NO_GAPS:
            row[name] = gaps_at.get((row["topic"], row["start"]), NO_GAPS)[name]
            by_name[row["topic"]][name] += row[name]
    topics = list(by_name.values())
    if archive is not None:
        archived = archived_s(Archive(archive))
        for row in topics:
            at_s = archived.get(row["topic"])
            row["archive_delay_s"] = None if at_s is None else max(at_s - row["newest"].timestamp(), 0.0)
    kind = records.schema["value"].dataType
    return Report(windows, topics, reasons, _columns(records, kind) if isinstance(kind, StructType) else [])


def _columns(records: DataFrame, kind: StructType) -> list[dict[str, Any]]:
    """Return statistics on each column of typed values: the number of values, of different values, the least and the greatest.
    Of arrays and structs, which cannot be ordered, only the number."""
    measures = []
    for number, column in enumerate(kind):
        value = F.col("value").getField(column.name)
        ordered = not isinstance(column.dataType, (ArrayType, MapType, StructType))
        least, most = (F.min(value), F.max(value)) if ordered else (F.lit(None), F.lit(None))
        different = F.approx_count_distinct(value) if ordered else F.lit(None)
        ends = [F.substring(one.cast("string"), 1, TEXT_CHARS_MAX) for one in (least, most)]
        measures.append(F.struct(
            F.count(value).alias("filled"), different.alias("different"), ends[0].alias("least"), ends[1].alias("most"),
        ).alias(f"c{number}"))  # fmt: skip
    found = records.fillna(NULL_PARTITION, ["topic"]).groupBy("topic").agg(*measures).orderBy("topic").collect()
    return [
        {"topic": row["topic"], "column": column.name, **row[f"c{number}"].asDict()}
        for row in found for number, column in enumerate(kind)
    ]  # fmt: skip


def _in_utc(row: Row) -> dict[str, Any]:
    """Convert times to UTC: Spark returns local times without a zone."""
    return {name: value.astimezone(UTC) if isinstance(value, datetime) else value for name, value in row.asDict().items()}


def _measures() -> Sequence[Any]:
    return (
        F.count("*").alias("records"), F.sum("size").alias("bytes"), F.max("size").alias("largest"),
        F.percentile_approx("size", 0.5).alias("median"),
        F.least(F.approx_count_distinct("key"), F.count("key")).alias("keys"),
    )  # fmt: skip


def _names() -> Sequence[str]:
    return "records", "bytes", "largest", "median", "keys"


def _reasons(records: DataFrame) -> list[dict[str, Any]]:
    """Count dead letters by topic, reason and type of error, with their attempts."""
    dead = records.where("headers IS NOT NULL").select(
        "topic", _header(REASON_HEADER).alias("reason"), _header(ERROR_TYPE_HEADER).alias("error_type"),
        _header(ATTEMPTS_HEADER).try_cast("bigint").alias("attempts"),
    )
    by_reason = dead.where("reason IS NOT NULL").groupBy("topic", "reason", "error_type").agg(
        F.count("*").alias("count"), F.avg("attempts").alias("attempts_mean"), F.max("attempts").alias("attempts_max")
    )  # fmt: skip
    return [row.asDict() for row in by_reason.orderBy("topic", F.desc("count"), "reason", "error_type").collect()]


def _header(name: str) -> Column:
    """Return an expression for the value of the first header with this name, as text."""
    return F.get(F.filter("headers", lambda header: header.key == name), F.lit(0)).value.cast("string")


def archived_s(archive: Archive) -> dict[str, float]:
    """Return when the newest records of each topic were archived, in seconds since 1970: the time in the manifest of their
    batch, also after a compaction. Topics for which no time is known are left out.

    Raises: DamagedData, OSError.
    """
    manifests = {manifest.name: manifest for manifest in archive.manifests()}
    newest: dict[str, str] = {}
    for manifest in manifests.values():
        for path in (*(file.path for file in manifest.files), *manifest.replaces):
            place = dict(part.partition("=")[::2] for part in Path(path).parts)
            batch, topic = place["batch"].partition(".")[0], place["topic"]
            if batch.isdecimal():  # one of the archive job, whose batches are in the order of ids
                newest[topic] = max(newest.get(topic, ""), batch)
    found = {topic: _written_s(archive, manifests[batch]) for topic, batch in newest.items() if batch in manifests}
    return {topic: at_s for topic, at_s in found.items() if at_s is not None}


def _written_s(archive: Archive, manifest: Manifest) -> float | None:
    if manifest.written_ms:
        return manifest.written_ms / 1000
    # Of an older version; one without files may have been written again when they were removed.
    return (archive.path / "manifest" / f"{manifest.name}.json").stat().st_mtime if manifest.files else None
