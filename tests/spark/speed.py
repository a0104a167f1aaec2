"""How fast Spark reads, beside a plain job of the same shape in the same run: ``python -m tests.spark.speed --rows 5000000``.

Prints medians of three. A multiple says more than a rate: the machine may have other things to do.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.support.broker_process import BrokerProcess
from toymq import sync
from toymq_spark.session import build_session

PAYLOAD = b"x" * 256


def aggregate(rows: DataFrame) -> tuple[object, ...]:
    """Looks at every value of the columns that matter, and brings one row back."""
    return tuple(rows.agg(F.count("*"), F.sum(F.length("value")), F.sum("offset"), F.max("key")).collect()[0])


def plain(spark: SparkSession, count: int) -> DataFrame:
    """Rows of the same shape that come from nowhere."""
    rows = spark.range(0, count, 1, max(count // 250_000, 2))
    key = F.expr("CAST(CONCAT('key-', LPAD(id, 12, '0')) AS BINARY)").alias("key")
    return rows.select(F.col("id").alias("offset"), key, F.expr("CAST(REPEAT('x', 256) AS BINARY)").alias("value"))


def measured(
    what: str, count: int, run: Callable[[], tuple[object, ...]], expected: tuple[object, ...], base_s: float | None
) -> float:
    """Seconds, the median of three."""
    times = []
    for _ in range(3):
        began = time.perf_counter()
        assert run() == expected, f"{what} read something else"
        times.append(time.perf_counter() - began)
    seconds = statistics.median(times)
    beside = "" if base_s is None else f"{seconds / base_s:>8.2f} x the plain job's time"
    sys.stdout.write(f"{what:<28}{count / seconds:>12,.0f} rows/s{beside}\n")
    sys.stdout.flush()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    count = parser.parse_args().rows
    spark = build_session("speed", "local[2]", {"spark.driver.memory": "2g"})
    with tempfile.TemporaryDirectory(prefix="toymq-speed-") as place, BrokerProcess(Path(place) / "d") as broker:
        url = f"toymq://127.0.0.1:{broker.port}"
        with sync.connect(url, timeout_s=60) as client:
            for _ in client.pub_many("t", ((f"key-{n:012d}", PAYLOAD) for n in range(count)), window=8192):
                pass
        expected = (count, count * len(PAYLOAD), count * (count - 1) // 2, f"key-{count - 1:012d}".encode())
        base_s = measured("plain spark.range", count, lambda: aggregate(plain(spark, count)), expected, None)
        columns = "key binary, value binary, offset bigint"
        for what, options in (("over TCP", {"url": url}), ("from the data directory", {"path": broker.data_dir})):
            for name, reader in ((what, spark.read), (f"{what}, 3 columns", spark.read.schema(columns))):
                rows = reader.format("toymq").options(subscribe="t", **options).load()
                measured(name, count, lambda: aggregate(rows), expected, base_s)  # noqa: B023 (called at once)
    spark.stop()


if __name__ == "__main__":
    main()
