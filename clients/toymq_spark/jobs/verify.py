"""The job ``verify``: compares ledgers of producers and consumers with the log, at any size.

Contract: reliability.md, ``history.jsonl`` and the checker's terms. A ledger is a ``history.jsonl`` file, in which clients
recorded what they did; only its lines with ``op`` "pub" and "deliver" count. A malformed line ends the job: it could be an
unchecked publish. The log is a broker or a data directory. Findings are rows:

    lost         a publish that was answered OK or DUP, without a record at its id
    unexpected   a record without a publish, or with refused attempts only; a delivery without a record
    changed      a record or a delivery with another payload or key than was published
    duplicated   a key with more than one record

Only topics with publishes in the ledgers are checked, and only ids that retention has kept. An archive may be checked in place
of the log.
"""

import contextlib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from toymq_py.errors import DamagedData, NoSuchTopic
from toymq_spark import ledgers
from toymq_spark.jobs import archive as archive_job
from toymq_spark.ledgers import CONFIRMED
from toymq_spark.options import parse_source
from toymq_spark.places import open_logs
from toymq_spark.tables.table import Table

LEDGER = "op string, result string, topic string, key string, digest string, id bigint, consumer string"
RECORD = "topic string, id bigint, key string, digest string"
DIGEST_BYTES = 8
KINDS = ("lost", "unexpected", "changed", "duplicated")


def ledger(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Read the lines of ledgers as a DataFrame; cache it, and call ``refuse_malformed`` first."""
    lines = spark.read.option("lineSep", "\n").text(list(paths)).select("value", F.col("_metadata.file_path").alias("file"))
    parsed = F.from_json(
        "value", f"{LEDGER}, broken string",
        {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "broken", "allowSingleQuotes": "false"},
    )  # fmt: skip
    said = lines.where(F.col("value").rlike(r"\S")).withColumn("said", parsed)
    suspect = ~F.coalesce(_well_formed(), F.lit(False))
    return said.select(
        F.expr("IF(said.broken IS NULL, said.op, NULL)").alias("op"),
        F.expr("coalesce(said.result, 'ok')").alias("result"),
        *(f"said.{name}" for name in ("topic", "key", "digest", "id", "consumer", "broken")),
        F.when(suspect, F.col("file")).alias("suspect"),  # a path for each of millions of lines would fill the cache
    )


def _well_formed() -> Column:
    """Return a condition for lines that Spark can tell to be well formed, which are nearly all. ``ledgers.torn`` checks the
    others.

    The condition is strict because Spark converts any value to text where it expects text, and ignores text after a JSON
    object.
    """
    alone = F.col("value").rlike(r"^\s*\{[^{}]*+\}\s*\z")
    texts = ~F.col("value").rlike(r'"(op|result|topic|key|digest|consumer)"\s*:\s*[^"n\s]')
    confirmed = F.col("said.result").isin(*CONFIRMED)
    located = F.col("said.id").isNotNull() | (F.expr("said.op = 'pub'") & ~confirmed)
    told = F.col("said.topic").rlike(r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,195}\z") & F.expr("said.digest IS NOT NULL") & located
    return (
        F.expr("said.broken IS NULL AND is_valid_utf8(value) AND (said.id IS NULL OR said.id >= 0)")
        & alone & texts & F.col("said.op").isin(*ledgers.OPS) & F.col("said.result").isin(*ledgers.RESULTS)
        & (~F.col("said.op").isin("pub", "deliver") | told)
    )  # fmt: skip


def refuse_malformed(events: DataFrame) -> list[str]:
    """Check that all lines of the ledgers are well formed.

    Args:
        events: of ``ledger``, cached.

    Returns: file and line number of each incomplete last line, whose writer was killed; these lines are ignored.
    Raises: DamagedData, with file and line, for any other malformed line; OSError.
    """
    suspects = events.where("suspect IS NOT NULL").groupBy(F.col("suspect").alias("file"))
    passed_over = []
    for row in suspects.agg(F.count_distinct("broken").alias("broken")).orderBy("file").collect():
        place = urlsplit(row.file)
        if place.scheme != "file":
            raise DamagedData(f"{row.file}: a line is not well formed; which one, is told of files that have a path")
        path = unquote(place.path)
        number = ledgers.torn(path)
        if number is not None:
            passed_over.append(f"{path}:{number}")
        if row.broken > (number is not None):
            raise DamagedData(f"{path}: Spark cannot read each of its lines")
    return passed_over


def log(spark: SparkSession, place: Mapping[str, str], topics: Sequence[str]) -> tuple[DataFrame, dict[str, int]]:
    """Read topics as a DataFrame of ``topic, id, key, digest``; also return the first retained id of each topic, 0 for an
    unknown topic.

    Raises: OSError, ToymqError.
    """
    first_ids = dict.fromkeys(topics, 0)
    present = []
    logs = open_logs(parse_source({**place, "subscribe": ",".join(topics)}).place)
    try:
        for topic in topics:
            with contextlib.suppress(NoSuchTopic):
                first_ids[topic] = logs.bounds(topic)[0]
                present.append(topic)
    finally:
        logs.close()
    if not present:
        return spark.createDataFrame([], RECORD), first_ids
    # What is missing is for this job to find, not a reason to stop.
    ids = {"startingOffsets": "earliest", "failOnDataLoss": "false", "partitions": "topics"}
    options = {**place, "subscribe": ",".join(present), **ids}
    columns = "key binary, value binary, topic string, offset bigint"
    return spark.read.format("toymq").schema(columns).options(**options).load().mapInArrow(_digests, RECORD), first_ids


def archived(spark: SparkSession, archive: Path | Table, topics: Sequence[str]) -> tuple[DataFrame, dict[str, int]]:
    """Return what ``log`` returns, from an archive: a message that is not archived yet counts as lost.

    Raises: NoArchive, DamagedData, TableError, OSError.
    """
    chosen = archive_job.records(spark, archive).where(F.col("topic").isin(*topics))
    found = chosen.select("key", "value", "topic", "offset").mapInArrow(_digests, RECORD)
    first_ids = dict.fromkeys(topics, 0)
    for row in found.groupBy("topic").agg(F.min("id").alias("first_id")).collect():
        first_ids[row.topic] = row.first_id
    return found, first_ids


def _digests(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        values = batch.column("value").to_pylist()
        digests = [hashlib.blake2b(value, digest_size=DIGEST_BYTES).hexdigest() for value in values]
        keys = [None if key is None else key.decode("latin-1") for key in batch.column("key").to_pylist()]
        columns = [batch.column("topic"), batch.column("offset"), pa.array(keys, pa.string()), pa.array(digests, pa.string())]
        yield pa.RecordBatch.from_arrays(columns, ["topic", "id", "key", "digest"])


def topics_of(events: DataFrame) -> list[str]:
    """Return the topics of all publishes, sorted."""
    rows = events.where("op = 'pub'").select("topic").distinct().collect()
    return sorted(row.topic for row in rows)


def findings(events: DataFrame, records: DataFrame, first_ids: Mapping[str, int]) -> DataFrame:
    """Compare publishes and deliveries with the records.

    Args:
        events: of ``ledger``.
        records: of ``log``.
        first_ids: topic to the first id that is retained.

    Returns: ``kind, topic, id, key, detail``, no rows when nothing is wrong.
    """
    spark = events.sparkSession
    first = spark.createDataFrame(sorted(first_ids.items()), "topic string, first_id bigint")
    # A record without a key is identified by its payload; no key begins with a newline.
    identity = F.coalesce("key", F.concat(F.lit("\n"), "digest"))
    pubs = events.where("op = 'pub'").withColumn("identity", identity)
    confirmed = (
        pubs.where(F.col("result").isin(*CONFIRMED)).join(F.broadcast(first), "topic").where("id >= first_id")
        .select("topic", "id", F.col("key").alias("said_key"), F.col("digest").alias("said_digest")).distinct()
    )  # fmt: skip
    attempts = (
        pubs.withColumn("tried", F.col("result") != "err").groupBy("topic", "identity").agg(
            F.max("tried").alias("tried"), F.collect_set("digest").alias("digests")
        )
    )  # fmt: skip
    both = confirmed.join(records, ["topic", "id"], "full_outer")
    # The two large joins are done once each: what is wrong about a row is decided on the row.
    suspects = both.where("said_digest IS NULL OR digest IS NULL OR said_digest != digest OR NOT said_key <=> key")
    unclaimed = suspects.withColumn("identity", F.when(F.col("said_digest").isNull(), identity))
    looked_up = unclaimed.join(attempts, ["topic", "identity"], "left")
    published = (
        F.when(F.expr("digest IS NULL"), _finding("lost", "answered OK, and there is no such record", "said_key"))
        .when(
            F.expr("said_digest IS NOT NULL"),
            _finding("changed", "published with another payload or key than the log has", "said_key"),
        )
        .when(
            F.expr("tried IS NULL OR NOT tried"),
            _finding("unexpected", "in the log, and not published, or each attempt was refused"),
        )
        .when(
            F.expr("NOT array_contains(digests, digest)"),
            _finding("changed", "in the log with a payload that was not published under this key"),
        )
    )
    twice = records.where("key IS NOT NULL").groupBy("topic", "key").agg(
        F.count("*").alias("count"), F.min("id").alias("id"), F.max("id").alias("last")
    ).where("count > 1")  # fmt: skip
    delivered = (
        events.where("op = 'deliver'").join(F.broadcast(first), "topic").where("id >= first_id")
        .select("topic", "id", F.col("key").alias("said_key"), F.col("digest").alias("said_digest"), "consumer").distinct()
    )  # fmt: skip
    seen = delivered.join(records, ["topic", "id"], "left")
    received = (
        F.when(F.expr("digest IS NULL"), _finding("unexpected", "delivered, and not in the log", "said_key"))
        .when(
            F.expr("said_digest != digest OR NOT said_key <=> key"),
            _finding("changed", "delivered with another payload or key than the log has", "said_key"),
        )
    )  # fmt: skip
    return (
        _rows(looked_up, published)
        .union(twice.select(F.lit("duplicated"), "topic", "id", "key", F.expr("concat(count, ' records, the last is ', last)")))
        .union(_rows(seen, received))
    )


def _finding(kind: str, detail: str, key: str = "key") -> Column:
    return F.struct(F.lit(kind).alias("kind"), F.col(key).alias("key"), F.lit(detail).alias("detail"))


def _rows(table: DataFrame, finding: Column) -> DataFrame:
    """Return the rows of a DataFrame for which the expression ``finding`` is not null."""
    found = table.withColumn("found", finding).where("found IS NOT NULL")
    return found.select("found.kind", "topic", "id", "found.key", "found.detail")
