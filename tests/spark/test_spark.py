"""The data source within Spark: what only a JVM can show. Readers and writers without Spark are in tests/unit/spark."""


import json
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.spark.conftest import WAIT_S
from tests.support.broker_process import BrokerProcess
from tests.support.requirements import require
from toymq import sync
from toymq_py.storage.record import Frame, iter_frames
from toymq_spark.metrics import BehindLatest, Progress
from toymq_spark.rows import CLAIMS_TOPIC

pytestmark = require("java")
ROWS = 1000


@pytest.fixture(scope="module")
def numbers(broker: BrokerProcess) -> str:
    """Make a topic of a thousand records; every third one has no key."""
    with sync.connect(f"toymq://127.0.0.1:{broker.port}") as client:
        list(client.pub_many("numbers", ((f"k{n}" if n % 3 else None, b"%d" % n) for n in range(ROWS))))
    return "numbers"


def records(client: sync.Client, topic: str) -> list[Frame]:
    frames, at = [], 0
    while True:
        batch = client.fetch(topic, at, 10_000)
        frames += iter_frames(batch.frames)
        if batch.next_id == at:
            return frames
        at = batch.next_id


def read(spark: SparkSession, url: str, topic: str, **options: Any) -> DataFrame:
    return spark.read.format("toymq").options(url=url, subscribe=topic, **options).load()


def test_a_kafka_query_with_another_format_and_address(
    spark: SparkSession, url: str, numbers: str, tmp_path: Path
) -> None:
    """A typical query of the Kafka connector, in which only format and address were changed."""
    kafka = {"subscribe": numbers, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "600"}
    stream = spark.readStream.format("toymq").option("toymq.bootstrap.servers", url.removeprefix("toymq://"))
    lines = stream.options(**kafka).load().selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)", "offset")
    told: list[Progress] = []
    listener = BehindLatest(told.append)
    spark.streams.addListener(listener)
    try:
        query = (
            lines.writeStream.format("parquet").option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination(WAIT_S)
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()  # type: ignore[attr-defined]
    finally:
        spark.streams.removeListener(listener)
    assert [(progress.rows, progress.behind) for progress in told] == [(600, {numbers: 400}), (400, {numbers: 0})]
    assert listener.queries == {}, "a query that has ended is behind nothing"
    assert [progress["numInputRows"] for progress in query.recentProgress] == [600, 400]
    assert json.loads(query.recentProgress[-1]["sources"][0]["latestOffset"])[numbers]["0"] == ROWS
    found = spark.read.parquet(str(tmp_path / "out")).orderBy("offset").collect()
    assert [(row.offset, row.key, row.value) for row in found] == [
        (n, f"k{n}" if n % 3 else None, str(n)) for n in range(ROWS)
    ]


def test_a_batch_with_filters_and_a_directory(
    spark: SparkSession, url: str, broker: BrokerProcess, numbers: str
) -> None:
    over_the_wire = read(spark, url, numbers, minPartitions="3")
    assert over_the_wire.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    chosen = over_the_wire.where("offset >= 990 AND key IS NOT NULL AND timestamp > '2020-01-01'")
    assert [row.offset for row in chosen.orderBy("offset").collect()] == [n for n in range(990, 1000) if n % 3]
    from_files = spark.read.format("toymq").option("subscribe", numbers).load(str(broker.data_dir))
    assert from_files.where("offset < 5").agg(F.sum("offset"), F.count("*")).first() == (10, 5)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    assert over_the_wire.where("offset >= 990").count() == 10, "without push-down, too"


@pytest.mark.spark_slow
def test_a_condition_stays_with_its_query(spark: SparkSession, url: str, numbers: str) -> None:
    """Found: Spark 4.3 keeps pushed-down filters for the next query on the DataFrame, which then read only a part of the
    topic."""
    rows = read(spark, url, numbers)
    assert rows.where("offset < 5").count() == 5
    assert rows.count() == ROWS


@pytest.mark.spark_slow
def test_refusals_reach_the_user_by_name(spark: SparkSession, url: str, numbers: str) -> None:
    for options, named in (
        ({"kafka.bootstrap.servers": "h:1"}, "is of Kafka's client: write toymq.bootstrap.servers"),
        ({"startingOffsets": "latest"}, "option startingOffsets: a batch that starts at the latest"),
    ):
        with pytest.raises(PySparkException, match=named):
            spark.read.format("toymq").options(url=url, subscribe=numbers, **options).load().count()
    rows = spark.range(1).selectExpr("CAST(id AS STRING) AS value")
    with pytest.raises(PySparkException, match="unknown column valeu"):
        rows.selectExpr("value", "1 AS valeu").write.format("toymq").mode("append").options(url=url, topic="t").save()
    with pytest.raises(PySparkException, match="a topic cannot be overwritten"):
        rows.write.format("toymq").mode("overwrite").options(url=url, topic="t").save()


def test_a_batch_is_written_once_under_its_producer_id(
    spark: SparkSession, url: str, client: sync.Client
) -> None:
    rows = spark.range(300).selectExpr("CAST(id AS STRING) AS value", "CONCAT('k', id) AS key").repartition(2)
    for _ in range(2):
        rows.write.format("toymq").mode("append").options(url=url, topic="batch", producerId="once").save()
    assert sorted(int(frame.payload) for frame in records(client, "batch")) == list(range(300))
    assert {row.key.decode() for row in read(spark, url, "batch").collect()} == {f"k{n}" for n in range(300)}
    with pytest.raises(PySparkException, match="ReplayMismatch"):
        rows.repartition(5).write.format("toymq").mode("append").options(url=url, topic="batch", producerId="once").save()
    assert len(records(client, "batch")) == 300
    for _ in range(2):
        rows.limit(5).write.format("toymq").mode("append").options(url=url, topic="batch").save()
    assert len(records(client, "batch")) == 310, "without producerId a second run is another"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


def forget_commit(checkpoint: Path, batch: int) -> None:
    """Make a checkpoint as if the driver had died after the batch was written and before Spark recorded it."""
    for name in (f"{batch}", f".{batch}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)


def test_topic_to_topic_run_again_is_exactly_once(
    spark: SparkSession, url: str, client: sync.Client, numbers: str, checkpoint: Path
) -> None:
    def run(partitions: int = 3, **more: str) -> None:
        source = spark.readStream.format("toymq").options(
            url=url, subscribe=numbers, startingOffsets="earliest", maxOffsetsPerTrigger="600", minPartitions="2", **more
        )
        query = (
            source.load().repartition(partitions).writeStream.format("toymq").options(url=url, topic="copy")
            .option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination(WAIT_S)

    def claims() -> list[bytes]:
        return [frame.key for frame in records(client, CLAIMS_TOPIC) if re.fullmatch(rb"spark\..*\.copy\.[0-9]", frame.key)]

    run()
    assert len(claims()) == 6, "two batches of three tasks"
    forget_commit(checkpoint, 1)
    run()
    assert len(claims()) == 6, "the second batch was written a second time, and known"
    assert sorted(int(frame.payload) for frame in records(client, "copy")) == list(range(ROWS))
    copied = {row.key: row.value for row in read(spark, url, "copy").collect() if row.key is not None}
    assert copied == {b"k%d" % n: b"%d" % n for n in range(ROWS) if n % 3}
    forget_commit(checkpoint, 1)
    with pytest.raises(PySparkException, match="ReplayMismatch"):
        run(partitions=4)
    assert len(records(client, "copy")) == ROWS, "rows that were dealt out otherwise are not published, nor lost in silence"


@pytest.mark.spark_slow
def test_for_each_batch_and_a_broker_that_restarts(
    spark: SparkSession, url: str, broker: BrokerProcess, client: sync.Client, checkpoint: Path
) -> None:
    seen: list[int] = []

    def write(batch: DataFrame, number: int) -> None:
        for topic in ("left", "right"):
            batch.write.format("toymq").mode("append").options(url=url, topic=topic).save()
        seen.append(number)
        if number == 0:
            broker.restart()
            with sync.connect(url) as other:
                list(other.pub_many("each", (b"%d" % n for n in range(100, 200))))

    list(client.pub_many("each", (b"%d" % n for n in range(100))))
    source = spark.readStream.format("toymq").options(url=url, subscribe="each", startingOffsets="earliest").load()
    query = source.select("value").writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint)).start()
    try:
        for _ in range(10 * WAIT_S):
            query.processAllAvailable()
            if len(seen) == 2:
                break
    finally:
        query.stop()
    assert query.exception() is None
    for topic in ("left", "right"):
        with sync.connect(url) as other:
            assert sorted(int(frame.payload) for frame in records(other, topic)) == list(range(200))


@pytest.mark.spark_slow
def test_retention_that_overtakes_a_stopped_query(
    spark: SparkSession, url: str, client: sync.Client, checkpoint: Path, console: Path
) -> None:
    """The query fails and names the removed ids, or goes on and names them on stderr, as ``failOnDataLoss`` says."""
    seen: list[int] = []

    def take(batch: DataFrame, number: int) -> None:
        seen.extend(row.offset for row in batch.collect())

    def run(fail_on_data_loss: str) -> None:
        options = {"url": url, "subscribe": "short", "startingOffsets": "earliest", "failOnDataLoss": fail_on_data_loss}
        rows = spark.readStream.format("toymq").options(**options).load().select("offset")
        query = rows.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint))
        query.trigger(availableNow=True).start().awaitTermination(WAIT_S)

    client.create("short", {"retain_max_bytes": 64 << 10})
    list(client.pub_many("short", [b"x" * 1024] * 10))
    run("true")
    for _ in range(100):
        list(client.pub_many("short", [b"x" * 1024] * 10))
        first_id, next_id = client.offsets("short")
        if first_id > 10:
            break
    gone = f"topic short: records 10 to {first_id - 1} are gone: retention removed the records below {first_id}"
    with pytest.raises(PySparkException, match=rf"DataLoss: {gone} \(failOnDataLoss=false continues"):
        run("true")
    assert seen == list(range(10)), "nothing of a batch that cannot be whole"
    run("false")
    assert sorted(seen) == [*range(10), *range(first_id, next_id)]
    assert f"{gone}; continuing, with failOnDataLoss=false" in console.read_text()


def test_spark_finds_the_source_by_itself(url: str, numbers: str, spark: SparkSession) -> None:
    """A program need not import toymq_spark: Spark looks for packages named pyspark_…"""
    fresh = spark.newSession()
    assert fresh.read.format("toymq").options(url=url, subscribe=numbers).load().count() == ROWS


