"""Archives of the pipeline, written without Spark."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from toymq_spark.manifest import Archive, Manifest, describe


class Rows:
    """A fake DataFrame: every method returns itself, and ``parquet`` writes its ids to one file."""

    def __init__(self, ids: list[int], meanwhile: Callable[[], object] = lambda: None) -> None:
        self._ids = ids
        self._meanwhile = meanwhile

    def __getattr__(self, name: str) -> Any:
        return self if name == "write" else lambda *words: self

    def parquet(self, place: str) -> None:
        self._meanwhile()
        file = Path(place) / "date=2026-11-21" / "topic=t" / f"part-{self._ids[0]}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"offset": self._ids}), file)


def three_batches(place: Path) -> Archive:
    """An archive of three batches of ten rows each."""
    found = Archive(place)
    for number in range(3):
        name = f"{number:010d}"
        place = found.attempt(name)
        Rows(list(range(10 * number, 10 * number + 10))).parquet(str(place))
        found.commit(Manifest(name, "q", tuple(describe(found.path, place))))
    return found


def ids(store: Archive) -> list[int]:
    """Return the ids of all rows, in the order of the files."""
    return [row for path in store.paths() for row in pq.ParquetFile(path).read()["offset"].to_pylist()]


def archived(place: Path, *files: tuple[str, list[int]]) -> Archive:
    """Make an archive of one batch with a file for each (topic, ids); each file is of another day."""
    archive = Archive(place)
    attempt = archive.attempt("0000000000")
    for number, (topic, ids) in enumerate(files):
        file = attempt / f"date=2026-11-{number + 1:02d}" / f"topic={topic}" / "part-0.parquet"
        file.parent.mkdir(parents=True)
        pq.write_table(pa.table({"offset": pa.array(ids, pa.int64())}), file)
    archive.commit(Manifest("0000000000", "q", tuple(describe(place, attempt))))
    return archive
