"""Archives that are tables, written without Spark, and independent readers, which do not use our code nor, for Delta, delta-rs.

``python -m tests.support.tables`` reads lines ``kind place checkpoint batches``, and for each it forks a process that archives
like a Spark driver: a fork is faster than importing the libraries again. It prints the process's id; the process prints each
batch.
"""

import contextlib
import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.broker_process import ROOT
from tests.support.requirements import require
from toymq_spark.manifest import COLUMNS
from toymq_spark.tables.opening import open_table
from toymq_spark.tables.table import Table, TableError, append
from toymq_spark.tables.writing import write

KINDS = [pytest.param(kind, marks=require(kind)) for kind in ("delta", "iceberg")]
SCHEMA = pa.schema([*COLUMNS, pa.field("topic", pa.string())])
NOON_S = 1_795_867_200
"""2026-11-28T12:00:00Z."""
ROWS = 30
"""Of a batch, an hour each, so that a batch has several days."""
QUERY = "6b1d"


def batch_of(ids: range, topic: str = "orders", schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    """Make records whose value is their id; each further column of the schema has the id, too."""
    count = len(ids)
    columns = {
        "key": pa.array([b"k%d" % n if n % 2 else None for n in ids], pa.binary()),
        "value": pa.array([b"%d" % n for n in ids], pa.binary()),
        "partition": pa.array([0] * count, pa.int32()),
        "timestamp": pa.array([(NOON_S + 3600 * n) * 1_000_000 for n in ids], pa.timestamp("us", "UTC")),
        "timestampType": pa.array([1] * count, pa.int32()),
        "headers": pa.array([[("Trace", b"%d" % n)] if n % 3 else None for n in ids], COLUMNS.field("headers").type),
        "topic": pa.array([topic] * count, pa.string()),
    }
    known = [columns.get(field.name, pa.array(ids, pa.int64())) for field in schema]
    return pa.RecordBatch.from_arrays(known, schema=schema)


def archive(table: Table, number: int, *, query: str = QUERY, topic: str = "orders", schema: pa.Schema = SCHEMA) -> bool:
    """Archive the batch with a number, as a driver and one executor do."""
    rows = batch_of(range(number * ROWS, (number + 1) * ROWS), topic, schema)
    return append(table, query, number, schema, lambda target: write([rows], target))


def ids(kind: str, place: Path) -> list[int]:
    """Return the ids of all records, read by an independent reader; check that each record is complete."""
    rows = (delta_rows if kind == "delta" else iceberg_rows)(place)
    assert all(row["value"] == b"%d" % row["offset"] for row in rows)
    return sorted(row["offset"] for row in rows)


def delta_rows(place: Path) -> list[dict[str, Any]]:
    """Read a Delta table from its log, from the first commit on, as Delta's protocol describes it, and from the files that
    remain."""
    added: dict[str, dict[str, Any]] = {}
    for commit in sorted((place / "_delta_log").glob("*.json")):
        for action in map(json.loads, commit.read_text().splitlines()):
            if "add" in action:
                added[action["add"]["path"]] = action["add"]
            if "remove" in action:
                added.pop(action["remove"]["path"], None)
    rows = []
    for path, file in added.items():
        found = pq.ParquetFile(place / unquote(path)).read().to_pylist()
        rows += [{**row, **file["partitionValues"]} for row in found]
    return rows


def iceberg_rows(place: Path) -> list[dict[str, Any]]:
    """Read the files that the manifests of an Iceberg table name; PyIceberg reads the manifests, pyarrow the files."""
    import sqlite3

    from pyiceberg.table import StaticTable

    with contextlib.closing(sqlite3.connect(place / "_catalog.db")) as catalog:
        ((location,),) = catalog.execute("SELECT metadata_location FROM iceberg_tables").fetchall()
    files = StaticTable.from_metadata(location).inspect.data_files()["file_path"].to_pylist()
    return [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]


def program_of_the_page(library: str, place: Path) -> dict[str, Any]:
    """Run the program in docs/spark.md that uses a library, with another place for the table. Returns: the program's
    variables."""
    page = (ROOT / "docs" / "spark.md").read_text()
    (program,) = [text for text in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL) if library in text]
    names: dict[str, Any] = {}
    exec(re.sub(r"/data/[\w-]+", str(place), program), names)
    return names


def drive(kind: str, place: str, checkpoint: str, batches: int) -> None:
    """Archive until ``batches`` batches are there, beginning after the last one that the checkpoint has as done, as Spark
    does."""
    done = Path(checkpoint)
    first = int(done.read_text()) + 1 if done.exists() else 0
    for number in range(first, batches):
        archive(open_table(place, kind), number)
        following = done.with_suffix(f".{os.getpid()}")
        following.write_text(str(number))
        following.replace(done)
        os.write(1, b"%d archived\n" % os.getpid())
    os.write(1, b"%d ended\n" % os.getpid())


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel forgets those that ended
    for line in sys.stdin:
        kind, place, checkpoint, batches = line.split()
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            code = 1
            try:
                drive(kind, place, checkpoint, int(batches))
                code = 0
            except TableError as error:  # the catalog's lock is held by a driver that is held up
                os.write(1, f"{os.getpid()} {'locked' if 'is locked' in str(error) else 'failed'} {error!r}\n".encode())
            except Exception as error:  # noqa: BLE001 (the end of a process)
                os.write(1, f"{os.getpid()} failed {error!r}\n".encode())
            finally:
                os._exit(code)
        os.write(1, b"%d started\n" % pid)  # at once: print writes the line's end apart


if __name__ == "__main__":
    for library in ("deltalake", "pyiceberg.catalog.sql"):
        with contextlib.suppress(ImportError):
            __import__(library)
    main()
