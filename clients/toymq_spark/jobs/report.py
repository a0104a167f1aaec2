"""``report``: what a topic or an archive holds, by topic and window of time: rates, sizes, keys, gaps, delay, dead letters."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from toymq_spark.manifest import Archive

DEAD_LETTERS = ".dlq"
REASON_HEADER = "toymq-reason"
"""Of a dead letter (delivery.md)."""


@dataclass(frozen=True, slots=True)
class Report:
    """``windows``: a row for each topic and window. ``topics``: a row for each topic. Sizes in bytes, durations in seconds."""

    windows: list[dict[str, Any]]
    topics: list[dict[str, Any]]
    reasons: list[dict[str, Any]]


def report(records: DataFrame, window: str, archive: Path | None = None) -> Report:
    """
    Args:
        records: the source's columns; ``headers`` where there are some.
        window: as Spark says it: "1 minute", "1 hour".
        archive: where the records are from, if from there: its manifests say when they were archived.
    """
    sized = records.withColumn("size", F.length("value")).cache()
    try:
        by_window = (
            sized.groupBy("topic", F.window("timestamp", window).alias("w")).agg(*_measures())
            .select("topic", F.col("w.start").alias("start"), F.col("w.end").alias("end"), *_names())
            .orderBy("topic", "start")
        )  # fmt: skip
        ordered = Window.partitionBy("topic").orderBy("offset")
        missing = (
            sized.withColumn("before", F.lag("offset").over(ordered)).where("offset > before + 1").groupBy("topic")
            .agg(F.sum(F.expr("offset - before - 1")).alias("gap_ids"), F.count("*").alias("gaps"))
        )  # fmt: skip
        by_topic = (
            sized.groupBy("topic").agg(
                *_measures(), F.min("offset").alias("first_id"), F.max("offset").alias("last_id"),
                F.min("timestamp").alias("oldest"), F.max("timestamp").alias("newest"),
            )
            .join(missing, "topic", "left").fillna(0, ["gap_ids", "gaps"]).orderBy("topic")
        )  # fmt: skip
        windows = [_in_utc(row) for row in by_window.collect()]
        topics = [_in_utc(row) for row in by_topic.collect()]
        reasons = _reasons(sized) if "headers" in records.columns else []
    finally:
        sized.unpersist()
    seconds = {row["start"]: (row["end"] - row["start"]).total_seconds() for row in windows}
    for row in windows:
        row["per_s"] = row["records"] / seconds[row["start"]]
    if archive is not None:
        for row in topics:
            row["archive_delay_s"] = _delay_s(archive, row["topic"], row["newest"].timestamp())
    return Report(windows, topics, reasons)


def _in_utc(row: Row) -> dict[str, Any]:
    """Spark hands over local times without a zone, whatever the session's zone is."""
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
    """Why messages became dead letters, by topic."""
    dead = records.where(F.col("topic").endswith(DEAD_LETTERS))
    headers = dead.select("topic", F.explode_outer("headers").alias("header"))
    named = headers.where(F.col("header.key") == REASON_HEADER)
    by_reason = named.groupBy("topic", F.col("header.value").cast("string").alias("reason")).count()
    return [row.asDict() for row in by_reason.orderBy("topic", F.desc("count")).collect()]


def _delay_s(archive: Path, topic: str, newest_s: float) -> float | None:
    """From a topic's newest record to the manifest that has it."""
    store = Archive(archive)
    found = [manifest for manifest in store.manifests() if any(file.topic == topic for file in manifest.files)]
    if not found:
        return None
    written_s = (archive / "manifest" / f"{found[-1].name}.json").stat().st_mtime
    return max(written_s - newest_s, 0.0)
