"""How fast Spark reads, beside a plain job of the same shape in the same run: ``python -m tests.spark.speed --rows 5000000``.

Prints medians of three. A multiple says more than a rate: the machine may have other things to do. ``--cores 1 2`` shows how
the rates grow with the cores that Spark has; the CPU of the broker for each row is beside them. ``--plot FILE`` draws both.
"""

import argparse
import functools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure
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
PLOTTED = ("plain spark.range", "over TCP", "from the data directory", "from a bucket")
TICKS = os.sysconf("SC_CLK_TCK")


def aggregate(rows: DataFrame) -> tuple[object, ...]:
    """Read every value of the columns that matter. Returns: one row."""
    return tuple(rows.agg(F.count("*"), F.sum(F.length("value")), F.sum("offset"), F.max("key")).collect()[0])


def plain(spark: SparkSession, count: int) -> DataFrame:
    """Return rows of the same shape without a source."""
    rows = spark.range(0, count, 1, max(count // 250_000, 2))
    key = F.expr("CAST(CONCAT('key-', LPAD(id, 12, '0')) AS BINARY)").alias("key")
    return rows.select(F.col("id").alias("offset"), key, F.expr("CAST(REPEAT('x', 256) AS BINARY)").alias("value"))


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


class Measured(NamedTuple):
    """Medians of one source: rows a second, and microseconds of the broker's CPU a row."""

    rows_per_s: float
    broker_us: float


def measured(
    what: str, count: int, run: Callable[[], tuple[object, ...]], expected: tuple[object, ...], base_s: float | None, pid: int
) -> Measured:
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
    return Measured(count / seconds, broker_us)


def sources(broker: BrokerProcess, bucket: str) -> Iterator[tuple[str, dict[str, str], StructType]]:
    """Yield name, options and columns of each source."""
    every = source_schema(include_headers=False)
    three = StructType([field for field in every if field.name in ("key", "value", "offset")])
    url = f"toymq://127.0.0.1:{broker.port}"
    for what, options in (
        ("over TCP", {"url": url}),
        ("from the data directory", {"path": str(broker.data_dir)}),
        ("from a bucket", {"url": url, "tierUrl": bucket}),
    ):
        yield what, options, every
        yield f"{what}, 3 columns", options, three


def measure_readers(broker: BrokerProcess, bucket: str, count: int) -> None:
    """Measure the CPU of the code that runs in a Python worker, without Spark."""
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


def measure(spark: SparkSession, broker: BrokerProcess, bucket: str, count: int) -> dict[str, Measured]:
    expected = (count, count * len(PAYLOAD), count * (count - 1) // 2, f"key-{count - 1:012d}".encode())
    pid = broker.pid
    base = measured("plain spark.range", count, lambda: aggregate(plain(spark, count)), expected, None, pid)
    found = {"plain spark.range": base}
    for name, options, columns in sources(broker, bucket):
        rows = spark.read.format("toymq").options(subscribe="t", **options).schema(columns).load()
        run = functools.partial(aggregate, rows)
        found[name] = measured(name, count, run, expected, count / base.rows_per_s, pid)
    return found


def draw(by_cores: dict[int, dict[str, Measured]], count: int, path: Path) -> None:
    """Draw rows a second against cores, and the broker's CPU beside it; dotted lines are for all columns."""
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    panels = figure.subplots(1, 2)
    for color, name in zip(("#444444", "#d62728", "#1f77b4", "#2ca02c"), PLOTTED, strict=True):
        for style, label in (("o:", name), ("o-", f"{name}, 3 columns")):
            points = {cores: found[label] for cores, found in by_cores.items() if label in found}
            if points:
                panels[0].plot([*points], [each.rows_per_s / 1e6 for each in points.values()], style, color=color, label=label)
                panels[1].plot([*points], [each.broker_us for each in points.values()], style, color=color)
    for panel, title in zip(panels, ("million rows/s", "µs of the broker's CPU a row"), strict=True):
        panel.set_title(title, loc="left", fontsize=10)
        panel.set_xlabel("cores of Spark")
        panel.set_xticks([*by_cores])
        panel.set_ylim(bottom=0)
        panel.grid(color="#eeeeee")
        panel.spines[["top", "right"]].set_visible(False)
    figure.legend(*panels[0].get_legend_handles_labels(), fontsize=8, frameon=False, loc="outside right center")
    figure.suptitle(f"{count:,} records of {len(PAYLOAD)} bytes, {os.cpu_count()} cores for all", fontsize=9, x=0.01, ha="left")
    figure.savefig(path, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--cores", type=int, nargs="*", default=[2], help="none: the readers alone, without Spark")
    parser.add_argument("--plot", type=Path, help="a PNG or SVG")
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
        by_cores = {}
        for cores in given.cores:
            sys.stdout.write(f"\n{cores} cores, load {os.getloadavg()[0]:.1f}\n")
            spark = build_session("speed", f"local[{cores}]", {"spark.driver.memory": "2g"})
            by_cores[cores] = measure(spark, broker, bucket, given.rows)
            spark.stop()
    if given.plot is not None:
        draw(by_cores, given.rows, given.plot)


if __name__ == "__main__":
    main()
