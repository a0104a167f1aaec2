"""How late a stream is, and what a large read costs publishers: ``python -m tests.spark.latency``.

1. Micro-batches: so many rows a second come in, and a query takes them as fast as it can. For each batch, how long it took, and
   how old its oldest row was when it was done.
2. Publishes, one after the other, each waited for: alone, beside a client that fetches at half of Spark's full speed and does
   nothing else (what is the broker's own share), beside a Spark read at its full speed, and beside one at half of it.
3. With ``--bucket-rows``: publishes beside a Spark read, at its full speed, of as many records in a bucket in a directory. The
   goal of the lake is 20 GB, 72,000,000 records; they are on the disk twice.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tests.spark.speed import PAYLOAD, aggregate
from tests.support.broker_process import BrokerProcess
from tests.support.sealed_history import upload
from toymq import sync
from toymq_spark.datasource import ToymqDataSource
from toymq_spark.options import parse_source
from toymq_spark.record_sources import FETCH_BYTES_MAX, FETCH_COUNT_MAX
from toymq_spark.session import build_session
from toymq_spark.source import BatchReader

COLUMNS = "key binary, value binary, offset bigint"
TASKS = 2
WARM_UP = 5
"""Batches in which the JVM compiles."""
PUBLISHES_PER_S = 100


def publish_paced(url: str, topic: str, rate: int, seconds: float) -> int:
    """Publish in steps of 10 ms. Returns: how many messages."""
    step = max(rate // 100, 1)
    began, count = time.perf_counter(), 0
    with sync.connect(url, timeout_s=60) as client:
        while count < rate * seconds:
            list(client.pub_many(topic, [PAYLOAD] * step))
            count += step
            time.sleep(max(began + count / rate - time.perf_counter(), 0))
    return count


def publish_latencies(url: str, topic: str, seconds: float) -> list[float]:
    """Publish one message after the other. Returns: the milliseconds of each from when it was due, so waiting for an earlier
    publish counts."""
    latencies: list[float] = []
    with sync.connect(url, timeout_s=60) as client:
        began = time.perf_counter()
        while len(latencies) < PUBLISHES_PER_S * seconds:
            due = began + len(latencies) / PUBLISHES_PER_S
            time.sleep(max(due - time.perf_counter(), 0))
            client.pub(topic, PAYLOAD)
            latencies.append((time.perf_counter() - due) * 1000)
    return latencies


def tell(what: str, values: Sequence[float], unit: str = "ms") -> None:
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    sys.stdout.write(f"{what:<60} p50 {cuts[49]:>9,.1f}  p99 {cuts[98]:>9,.1f}  max {max(values):>9,.1f} {unit}\n")
    sys.stdout.flush()


def micro_batches(spark: SparkSession, url: str, pool: ProcessPoolExecutor, rate: int, seconds: float) -> None:
    ages_ms: list[float] = []
    rows = 0

    def take(batch: DataFrame, number: int) -> None:
        nonlocal rows
        count, _, oldest = batch.agg(F.count("*"), F.sum(F.length("value")), F.min("timestamp")).collect()[0]
        rows += count
        if count:
            ages_ms.append((time.time() - oldest.timestamp()) * 1000)  # noqa: TID251 (held against the broker's time)

    with sync.connect(url) as client:
        client.create("stream")
    with tempfile.TemporaryDirectory(prefix="toymq-latency-") as checkpoint:
        source = spark.readStream.format("toymq").options(url=url, subscribe="stream", startingOffsets="earliest").load()
        query = source.writeStream.option("checkpointLocation", checkpoint).foreachBatch(take).start()
        try:
            published = pool.submit(publish_paced, url, "stream", rate, seconds).result()
            query.processAllAvailable()
            durations = [float(progress["batchDuration"]) for progress in query.recentProgress if progress["numInputRows"]]
        finally:
            query.stop()
    assert rows == published, f"{published} rows came in, and {rows} were taken"
    sys.stdout.write(f"{published / seconds:,.0f} rows/s in, {len(ages_ms)} batches\n")
    tell("  duration of a batch", durations[WARM_UP:])
    tell("  age of its oldest row when it is done", ages_ms[WARM_UP:])


def fetch_paced(url: str, topic: str, rows_per_s: float, seconds: float) -> float:
    """Fetch the topic repeatedly from the beginning, with the requests of the Spark source. Returns: rows a second."""
    began, rows, at = time.perf_counter(), 0, 0
    with sync.connect(url, timeout_s=60) as client:
        while time.perf_counter() - began < seconds:
            batch = client.fetch(topic, at, FETCH_COUNT_MAX, max_bytes=FETCH_BYTES_MAX)
            rows += batch.next_id - at
            at = batch.next_id if batch.frames else 0
            time.sleep(max(began + rows / rows_per_s - time.perf_counter(), 0))
    return rows / (time.perf_counter() - began)


def paced_source(rows_per_s: float) -> type[ToymqDataSource]:
    """Return the source with tasks that read no faster than this. A brake behind it, in ``mapInArrow``, would cost a process
    for each task."""

    class PacedReader(BatchReader):
        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            began, rows = time.perf_counter(), 0
            for batch in BatchReader.read(self, partition):
                rows += batch.num_rows
                time.sleep(max(began + rows / rows_per_s - time.perf_counter(), 0))
                yield batch

    class PacedSource(ToymqDataSource):
        @classmethod
        def name(cls) -> str:
            return "toymq-paced"

        def reader(self, schema: StructType) -> DataSourceReader:
            return PacedReader(parse_source(self.options, "batch"), schema)

    return PacedSource


def read_until(table: DataFrame, done: Future[list[float]]) -> float:
    """Read the table repeatedly until ``done``. Returns: rows a second."""
    rows, began = 0, time.perf_counter()
    while not done.done():
        rows += int(str(aggregate(table)[0]))
    return rows / (time.perf_counter() - began)


def publish_history(url: str, topic: str, count: int) -> None:
    """Publish records of the shape that ``tests.spark.speed`` reads."""
    with sync.connect(url, timeout_s=60) as client:
        for _ in client.pub_many(topic, ((f"key-{n:012d}", PAYLOAD) for n in range(count)), window=8192):
            pass
        client.topic_range(topic)  # so that it has an incarnation, without which it is not uploaded


def publishes_beside_a_read(
    spark: SparkSession, url: str, pool: ProcessPoolExecutor, count: int, seconds: float
) -> None:
    publish_history(url, "t", count)

    def table(source: str) -> DataFrame:
        return spark.read.schema(COLUMNS).format(source).options(url=url, subscribe="t", minPartitions=str(TASKS)).load()

    def beside(what: str, run: Callable[[Future[list[float]]], float]) -> float:
        done = pool.submit(publish_latencies, url, "beside", seconds)
        rows_per_s = run(done)
        tell(f"publish, beside {what} at {rows_per_s:,.0f} rows/s", done.result())
        return rows_per_s

    tell("publish, alone", pool.submit(publish_latencies, url, "beside", seconds).result())
    rows = table("toymq")
    aggregate(rows)  # the JVM compiles, which takes both cores
    full = beside("Spark", lambda done: read_until(rows, done))
    spark.dataSource.register(paced_source(full / 2 / TASKS))
    half = table("toymq-paced")
    aggregate(half)
    rate = beside("Spark", lambda done: read_until(half, done))
    beside("a client that fetches", lambda _: pool.submit(fetch_paced, url, "t", rate, seconds).result())


def publishes_beside_a_bucket(
    spark: SparkSession, broker: BrokerProcess, bucket: str, pool: ProcessPoolExecutor, count: int
) -> None:
    url = f"toymq://127.0.0.1:{broker.port}"
    pool.submit(publish_history, url, "history", count).result()
    upload(broker.data_dir, bucket, tail=True)
    rows = spark.read.schema(COLUMNS).format("toymq").options(url=url, tierUrl=bucket, subscribe="history").load()
    for turn in ("first", "second"):
        alone = pool.submit(publish_latencies, url, "beside", 20.0).result()
        done: Future[list[float]] = pool.submit(publish_latencies, url, "beside", count / 2e6)
        began = time.perf_counter()
        assert aggregate(rows)[0] == count
        tell("publish, alone", alone)
        rate = count / (time.perf_counter() - began)
        tell(f"publish, beside Spark's {turn} read of the bucket at {rate:,.0f} rows/s", done.result())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=8000, help="Rows a second into the stream.")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rows", type=int, default=5_000_000, help="Of the topic that is read beside the publishes.")
    parser.add_argument("--nice", type=int, default=0, help="Of Spark alone, which competes with the broker for cores.")
    parser.add_argument("--idle", action="store_true", help="Spark has what the others leave (SCHED_IDLE, chrt --idle 0).")
    parser.add_argument("--bucket-rows", type=int, default=0, help="Records in a bucket that are read beside publishes.")
    parser.add_argument("--apart", action="store_true", help="Spark has the last core alone, the others the rest.")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if options.apart:
        os.sched_setaffinity(0, cores[:-1])
    with (
        tempfile.TemporaryDirectory(prefix="toymq-latency-") as place,
        BrokerProcess(Path(place) / "d") as broker,
        ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool,
    ):
        url = f"toymq://127.0.0.1:{broker.port}"
        for waiting in [pool.submit(publish_latencies, url, "warm-up", 0.5) for _ in range(2)]:
            waiting.result()  # its processes are there, and not nice
        os.nice(options.nice)
        if options.idle:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        if options.apart:
            os.sched_setaffinity(0, cores[-1:])
        settings = {"spark.driver.memory": "2g", "spark.sql.shuffle.partitions": "2"}
        spark = build_session("latency", f"local[{TASKS}]", settings)
        micro_batches(spark, url, pool, options.rate, options.seconds)
        publishes_beside_a_read(spark, url, pool, options.rows, options.seconds)
        if options.bucket_rows:
            publishes_beside_a_bucket(spark, broker, f"file://{place}/bucket", pool, options.bucket_rows)
        spark.stop()


if __name__ == "__main__":
    main()
