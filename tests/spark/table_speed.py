"""Time and size of archives as tables, by batch, without Spark: ``python -m tests.spark.table_speed --batches 300``.

Prints, for each format, the CPU time and the time of writing a batch's files and of what a commit adds, for the first tenth of
the batches and the last, and the bytes of data and of metadata.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from tests.support.tables import QUERY, SCHEMA, batch_of
from toymq_spark.tables.opening import open_table
from toymq_spark.tables.table import Target, Written, append
from toymq_spark.tables.writing import write

VALUE_BYTES = 256


def records(number: int, rows: int) -> pa.RecordBatch:
    """Return a batch of one minute."""
    ids = range(number * rows, (number + 1) * rows)
    at_us = [1_795_867_200_000_000 + 60_000_000 * number + n for n in range(rows)]
    values = os.urandom(VALUE_BYTES // 2 * rows).hex().encode()
    columns = batch_of(ids).columns
    columns[SCHEMA.get_field_index("timestamp")] = pa.array(at_us, pa.timestamp("us", "UTC"))
    parts = [values[at : at + VALUE_BYTES] for at in range(0, len(values), VALUE_BYTES)]
    columns[SCHEMA.get_field_index("value")] = pa.array(parts, pa.binary())
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def measure(kind: str, batches: int, rows: int, place: Path) -> None:
    whole: list[tuple[float, float]] = []
    files: list[tuple[float, float]] = []
    table = open_table(str(place), kind)
    for number in range(batches):
        batch = records(number, rows)
        began = _now()

        def timed(target: Target, batch: pa.RecordBatch = batch) -> Sequence[Written]:
            before = _now()
            written = write([batch], target)
            files.append(_since(before))
            return written

        append(table, QUERY, number, SCHEMA, timed)
        whole.append(_since(began))
    part = max(batches // 10, 1)
    for name, chosen in (("first", slice(1, part + 1)), ("last", slice(-part, None))):
        rest = [tuple(one - its for one, its in zip(*pair, strict=True)) for pair in zip(whole, files, strict=True)][chosen]
        print(  # noqa: T201
            f"{kind}, {name} {part}: files {_ms(files[chosen])}, commit {_ms(rest)} (median: CPU, elapsed)"
        )
    sizes = {file: file.stat().st_size for file in place.rglob("*") if file.is_file()}
    data = sum(size for file, size in sizes.items() if file.suffix == ".parquet" and "_delta_log" not in file.parts)
    print(f"{kind}: data {data:,} bytes, metadata {sum(sizes.values()) - data:,} bytes in {batches} batches")  # noqa: T201


def _now() -> tuple[float, float]:
    return time.process_time(), time.perf_counter()


def _since(began: tuple[float, float]) -> tuple[float, float]:
    now = _now()
    return now[0] - began[0], now[1] - began[1]


def _ms(times: Sequence[tuple[float, ...]]) -> str:
    return " ms, ".join(f"{statistics.median(one[at] for one in times) * 1000:.0f}" for at in (0, 1)) + " ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=300)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("kinds", nargs="*", default=["delta", "iceberg"])
    given = parser.parse_args()
    for kind in given.kinds:
        with tempfile.TemporaryDirectory(prefix="toymq-tables-") as place:
            measure(kind, given.batches, given.rows, Path(place) / "table")


if __name__ == "__main__":
    main()
