"""How fast Spark reads, beside a plain job of the same shape in the same run: ``python -m tests.spark.speed --rows 5000000``.

Prints medians of three. A multiple says more than a rate: the machine may have other things to do. ``--cores 1 2`` shows how
the rates grow with the cores that Spark has; the CPU of the broker for each row is beside them.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tests.support.broker_process import BrokerProcess
from tests.support.sealed_history import upload
from toymq import sync
from toymq_spark.options import parse_source
from toymq_spark.schema import source_schema
from toymq_spark.session import build_session
from toymq_spark.source import BatchReader

PAYLOAD = b"x" * 256
TICKS = os.sysconf("SC_CLK_TCK")


def aggregate(rows: DataFrame) -> tuple[object, ...]:
    """Looks at every value of the columns that matter, and brings one row back."""
    return tuple(rows.agg(F.count("*"), F.sum(F.length("value")), F.sum("offset"), F.max("key")).collect()[0])


def plain(spark: SparkSession, count: int) -> DataFrame:
    """Rows of the same shape that come from nowhere."""
    rows = spark.range(0, count, 1, max(count // 250_000, 2))
    key = F.expr("CAST(CONCAT('key-', LPAD(id, 12, '0')) AS BINARY)").alias("key")
    return rows.select(F.col("id").alias("offset"), key, F.expr("CAST(REPEAT('x', 256) AS BINARY)").alias("value"))


def cpu_s(pid: int) -> float:
    """CPU time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def measured(
    what: str, count: int, run: Callable[[], tuple[object, ...]], expected: tuple[object, ...], base_s: float | None, pid: int
) -> float:
    """Seconds, the median of three."""
    times, begin_s = [], cpu_s(pid)
    for _ in range(3):
        began = time.perf_counter()
        assert run() == expected, f"{what} read something else"
        times.append(time.perf_counter() - began)
    seconds = statistics.median(times)
    beside = "" if base_s is None else f"{seconds / base_s:>8.2f} x the plain job's time"
    broker_us = (cpu_s(pid) - begin_s) / 3 / count * 1e6
    sys.stdout.write(f"{what:<32}{count / seconds:>12,.0f} rows/s{broker_us:>8.3f} us of the broker's CPU a row{beside}\n")
    sys.stdout.flush()
    return seconds


def sources(broker: BrokerProcess, bucket: str) -> Iterator[tuple[str, dict[str, str], StructType]]:
    """Name, options and columns of what is read."""
    every = source_schema(include_headers=False)
    three = StructType([field for field in every if field.name in ("key", "value", "offset")])
    url = f"toymq://127.0.0.1:{broker.port}"
    for what, options in (
        ("over TCP", {"url": url}),
        ("from the data directory", {"path": broker.data_dir}),
        ("from a bucket", {"url": url, "tierUrl": bucket}),
    ):
        yield what, options, every
        yield f"{what}, 3 columns", options, three


def measure_readers(broker: BrokerProcess, bucket: str, count: int) -> None:
    """The CPU of what runs in a Python worker, without Spark."""
    for name, options, columns in sources(broker, bucket):
        given = parse_source({option.lower(): value for option, value in options.items()} | {"subscribe": "t"}, "batch")
        reader, times, before_s = BatchReader(given, columns), [], cpu_s(broker.pid)
        for _ in range(3):
            began = time.process_time()
            found = sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))
            assert found == count, f"{name} read {found} rows"
            times.append(time.process_time() - began)
        mine_us, broker_us = statistics.median(times) / count * 1e6, (cpu_s(broker.pid) - before_s) / 3 / count * 1e6
        sys.stdout.write(f"{name:<36}{mine_us:>8.3f} us of the reader's CPU a row{broker_us:>8.3f} us of the broker's\n")
        sys.stdout.flush()


def measure(spark: SparkSession, broker: BrokerProcess, bucket: str, count: int) -> None:
    expected = (count, count * len(PAYLOAD), count * (count - 1) // 2, f"key-{count - 1:012d}".encode())
    pid = broker.pid
    base_s = measured("plain spark.range", count, lambda: aggregate(plain(spark, count)), expected, None, pid)
    for name, options, columns in sources(broker, bucket):
        rows = spark.read.format("toymq").options(subscribe="t", **options).schema(columns).load()
        measured(name, count, lambda: aggregate(rows), expected, base_s, pid)  # noqa: B023 (called at once)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--cores", type=int, nargs="*", default=[2], help="none: the readers alone, without Spark")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="toymq-speed-") as place, BrokerProcess(Path(place) / "d") as broker:
        with sync.connect(f"toymq://127.0.0.1:{broker.port}", timeout_s=60) as client:
            for _ in client.pub_many("t", ((f"key-{n:012d}", PAYLOAD) for n in range(given.rows)), window=8192):
                pass
            client.topic_range("t")
        bucket = f"file://{place}/bucket"
        upload(broker.data_dir, bucket, tail=True)
        sys.stdout.write(f"without Spark, load {os.getloadavg()[0]:.1f}\n")
        measure_readers(broker, bucket, given.rows)
        for cores in given.cores:
            sys.stdout.write(f"\n{cores} cores, load {os.getloadavg()[0]:.1f}\n")
            spark = build_session("speed", f"local[{cores}]", {"spark.driver.memory": "2g"})
            measure(spark, broker, bucket, given.rows)
            spark.stop()


if __name__ == "__main__":
    main()
