"""Partitioned topics in Spark: partitions as a column, offsets by partition, rows by their route."""

import json
from pathlib import Path
from zlib import crc32

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.support.broker_process import BrokerProcess
from tests.support.requirements import require
from toymq import sync

pytestmark = [require("java"), pytest.mark.spark_slow]
COUNT = 4


def test_a_partitioned_topic_is_read_and_written(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> None:
    options = {"url": broker.url, "subscribe": "parted"}
    with sync.connect(broker.url) as client:
        client.create("parted", {"partitions": COUNT})
        client.create("target", {"partitions": COUNT})
    keys = [f"key-{number}" for number in range(40)]
    given = [(key, key, None if at % 2 else f"r{at % 5}") for at, key in enumerate(keys)]
    rows = spark.createDataFrame(given, "key string, value string, route string")
    rows.write.format("toymq").option("url", broker.url).option("topic", "parted").mode("append").save()
    batch = spark.read.format("toymq").options(**options).load()
    assert batch.rdd.getNumPartitions() >= COUNT, "a task a partition, at least"
    found = batch.select("topic", "partition", "offset", F.col("key").cast("string").alias("key")).collect()
    assert {row.topic for row in found} == {"parted"}
    routes = {key: key if at % 2 else f"r{at % 5}" for at, key in enumerate(keys)}
    assert {row.key: row.partition for row in found} == {key: crc32(route.encode()) % COUNT for key, route in routes.items()}
    lengths = [sum(row.partition == number for row in found) for number in range(COUNT)]
    places = [(part, at) for part, length in enumerate(lengths) for at in range(length)]
    assert sorted((row.partition, row.offset) for row in found) == places

    start = json.dumps({"parted": {str(number): 1 if length else 0 for number, length in enumerate(lengths)}})
    later = spark.read.format("toymq").options(**options, startingOffsets=start).load()
    assert later.count() == sum(max(length - 1, 0) for length in lengths)

    checkpoint = str(tmp_path / "checkpoint")
    stream = spark.readStream.format("toymq").options(**options, startingOffsets="earliest").load()
    for _ in range(2):
        query = (
            stream.select("key", "value").writeStream.format("toymq").option("url", broker.url).option("topic", "target")
            .option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()
        assert query.exception() is None
    lines = (tmp_path / "checkpoint/offsets/0").read_text().splitlines()
    offsets = next(line for line in lines if "parted" in line)
    stored = json.loads(offsets)["parted"]
    assert [stored[str(number)] for number in range(COUNT)] == lengths
    copied = spark.read.format("toymq").options(url=broker.url, subscribe="target").load()
    by_key = {row.key.decode(): row.partition for row in copied.select("key", "partition").collect()}
    assert by_key == {key: crc32(key.encode()) % COUNT for key in keys}, "by the key, and once"
    as_topics = spark.read.format("toymq").options(**options, partitions="topics").load()
    names = {(row.topic, row.partition) for row in as_topics.select("topic", "partition").distinct().collect()}
    assert names == {(f"parted#{number}", 0) for number, length in enumerate(lengths) if length}

    directory = spark.read.format("toymq").options(path=str(broker.data_dir), subscribe="parted").load()
    assert directory.groupBy("partition").count().count() == sum(length > 0 for length in lengths)
