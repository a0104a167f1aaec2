"""History of a topic from a bucket, in Spark. The readers without Spark are in tests/unit/spark/test_history.py."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.e2e.test_tier import settled
from tests.packaging.test_guides import text_of
from tests.spark.conftest import WAIT_S
from tests.spark.test_spark import forget_commit, records
from tests.support.broker_process import BrokerProcess, run
from tests.support.requirements import require
from tests.support.sealed_history import upload
from toymq import sync

pytestmark = [require("java"), pytest.mark.spark_slow]
COUNT = 400


@pytest.fixture(scope="module")
def tiered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("tiered") / "d", "--segment-bytes", "65536") as running:
        yield running


def publish(broker: BrokerProcess, topic: str, start: int, end: int) -> None:
    with sync.connect(f"toymq://127.0.0.1:{broker.port}") as client:
        list(client.pub_many(topic, (b"%d " % n + b"x" * 1000 for n in range(start, end))))
        client.topic_range(topic)


def place_of(broker: BrokerProcess, bucket: str, topic: str) -> dict[str, Any]:
    return {
        "url": f"toymq://127.0.0.1:{broker.port}", "tierUrl": bucket, "subscribe": topic, "maxRecordsPerPartition": 100
    }  # fmt: skip


def sums(rows: DataFrame) -> tuple[int, ...]:
    """Return the number of rows, the sum of offsets, and the sum of the numbers in the values."""
    said = F.sum(F.split(F.col("value").cast("string"), " ")[0].cast("int"))
    return tuple(rows.agg(F.count("*"), F.sum("offset"), said).collect()[0])


def expected(start: int, end: int) -> tuple[int, ...]:
    return end - start, sum(range(start, end)), sum(range(start, end))


def shown(spark: SparkSession, broker: BrokerProcess, bucket: str) -> DataFrame:
    """Run the program of docs/spark.md. Returns: what it reads without a broker."""
    (program,) = re.findall(r"^## History from a bucket\n.*?^```python\n(.*?)^```", text_of("spark"), re.MULTILINE | re.DOTALL)
    for old, new in (
        ("toymq://broker:6789", f"toymq://127.0.0.1:{broker.port}"), ("s3://history/orders", bucket), ('"orders"', '"batch"')
    ):  # fmt: skip
        assert old in program
        program = program.replace(old, new)
    names: dict[str, Any] = {"spark": spark}
    exec(program, names)
    assert names["orders"].count() == COUNT
    return names["all_there_is"]  # type: ignore[no-any-return]


def test_a_batch_from_bucket_and_broker_and_from_the_bucket_alone(
    spark: SparkSession, tiered: BrokerProcess, tmp_path: Path
) -> None:
    bucket = f"file://{tmp_path}/bucket"
    publish(tiered, "batch", 0, COUNT)
    upload(tiered.data_dir, bucket, tail=False)
    rows = spark.read.format("toymq").options(**place_of(tiered, bucket, "batch")).load()
    assert sums(rows) == expected(0, COUNT)
    assert sums(rows.where("offset >= 50 AND offset < 390")) == expected(50, 390)
    alone = shown(spark, tiered, bucket)
    count, offsets, said = sums(alone)
    assert (offsets, said) == expected(0, count)[1:]
    assert COUNT - 100 < count < COUNT, "what is sealed"
    assert sums(spark.read.format("toymq").options(**place_of(tiered, bucket, "batch"), tier="bucket").load())[0] == count
    (tmp_path / "bucket").rename(tmp_path / "away")
    with pytest.raises(PySparkException, match=r"BucketError: file://.*: the bucket: the directory .* is gone: mount its file"):
        alone.count()


def test_a_stream_from_bucket_to_broker_to_another_topic_exactly_once(
    spark: SparkSession, tiered: BrokerProcess, tmp_path: Path
) -> None:
    """A batch is run again after more segments were sealed: its tasks are the same, so the sink recognizes their rows."""
    bucket, checkpoint = f"file://{tmp_path}/bucket", tmp_path / "checkpoint"
    publish(tiered, "stream", 0, COUNT)
    upload(tiered.data_dir, bucket, tail=False)

    def copy() -> list[dict[str, Any]]:
        options = place_of(tiered, bucket, "stream") | {"startingOffsets": "earliest"}
        query = (
            spark.readStream.format("toymq").options(**options).load().writeStream.format("toymq")
            .options(url=options["url"], topic="copied").option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination(WAIT_S)
        return [json.loads(progress["sources"][0]["endOffset"])["stream"] for progress in query.recentProgress]

    (end,) = copy()
    assert 300 < end["bucket"] < end["0"] == COUNT, "the progress says what came from where"
    forget_commit(checkpoint, 0)
    publish(tiered, "stream", COUNT, COUNT + 100)
    upload(tiered.data_dir, bucket, tail=False)
    assert [at["0"] for at in copy()] == [COUNT, COUNT + 100]
    with sync.connect(f"toymq://127.0.0.1:{tiered.port}") as client:
        copied = [int(frame.payload.split()[0]) for frame in records(client, "copied")]
    assert sorted(copied) == [*range(COUNT + 100)]


def test_a_restored_topic_is_read_on_by_batch_and_stream(spark: SparkSession, tmp_path: Path) -> None:
    """Reading goes on after the ids that the restore skipped; a batch of a stream with no other ids has no task."""
    bucket, again, checkpoint = f"file://{tmp_path}/bucket", tmp_path / "again", tmp_path / "checkpoint"
    with BrokerProcess(tmp_path / "d", "--tier", bucket, "--segment-bytes", "65536") as broker:
        publish(broker, "orders", 0, COUNT)
        settled(bucket, tmp_path / "d")
        broker.stop()
    run("restore", bucket, str(again))
    run("repair", str(again))
    found: list[int] = []
    with BrokerProcess(again, "--tier", bucket, "--segment-bytes", "65536") as broker:
        with sync.connect(f"toymq://127.0.0.1:{broker.port}") as client:
            first = client.topic_range("orders").next_id
            sealed = client.describe("orders")["removed"][0][0]

        def followed(start: str) -> list[int]:
            options = place_of(broker, bucket, "orders") | {"startingOffsets": start}
            query = (
                spark.readStream.format("toymq").options(**options).load().writeStream
                .foreachBatch(lambda rows, _: found.extend(row.offset for row in rows.select("offset").collect()))
                .option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
            )  # fmt: skip
            query.awaitTermination(WAIT_S)
            return [json.loads(progress["sources"][0]["endOffset"])["orders"]["0"] for progress in query.recentProgress]

        in_the_gap = json.dumps({"orders": {"0": sealed + 1}})
        assert (followed(in_the_gap), found) == ([first], [])
        publish(broker, "orders", first, first + 5)
        assert (followed(in_the_gap), found) == ([first + 5], [*range(first, first + 5)])
        rows = spark.read.format("toymq").options(**place_of(broker, bucket, "orders")).load()
        assert rows.count() == sealed + 5
        assert rows.rdd.getNumPartitions() <= 7, "six segments, and the tail"
