"""``compact``: merge small files of an archive into few large ones, with a new manifest.

Readers see the old files until the new manifest is in place, and then have a grace time to finish. Of two concurrent
compactions one succeeds; the other fails with ``AlreadyCommitted`` and leaves nothing behind.
"""

import shutil
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql import SparkSession

from toymq_spark.jobs import archive as archive_job
from toymq_spark.manifest import COMPACTION, AlreadyCommitted, Archive, ArchiveFile, Manifest, describe

TARGET_BYTES = 128 << 20
GRACE_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Compacted:
    """The result of a compaction: numbers of files, and of rows."""

    merged: int
    made: int
    removed: int
    rows: int


def compact(
    spark: SparkSession, archive: Path, *, target_bytes: int = TARGET_BYTES, grace_ms: int = GRACE_MS, now_ms: int | None = None
) -> Compacted:
    """Merge small files, and remove those that were replaced before the grace time.

    Args:
        target_bytes: merge files below this size, up to about this size.
        grace_ms: time that a replaced file stays.
        now_ms: the current time, milliseconds since 1970; only tests set it.

    Raises: AlreadyCommitted when another compaction was done meanwhile. NoArchive, DamagedData, OSError.
    """
    if now_ms is None:
        now_ms = time.time_ns() // 1_000_000  # noqa: TID251 (a job has no Clock)
    store = Archive(archive.absolute())
    store.require()  # before anything is removed
    store.discard_attempts(COMPACTION)
    removed = _remove_replaced(store, now_ms - grace_ms)
    name = store.next_compaction()  # before the files are listed: what replaces one of them has this name or an earlier one
    groups = list(_groups(store.files(), target_bytes))
    if not groups:
        return Compacted(0, 0, removed, 0)
    place = store.attempt(name)
    try:
        done = _merge(spark, store, groups, name, place, now_ms)
    except Exception as error:
        shutil.rmtree(place, ignore_errors=True)
        if store.find(name) is None:
            raise
        # The other one may have removed a file that this one reads.
        why = f"{archive}: another compaction was faster; this one replaced nothing"
        raise AlreadyCommitted(why) from error
    store.discard_attempts(name)
    return replace(done, removed=removed)


def _merge(
    spark: SparkSession, store: Archive, groups: list[list[ArchiveFile]], name: str, place: Path, now_ms: int
) -> Compacted:
    for group in groups:
        rows = archive_job.read(spark, store.path, [file.path for file in group]).coalesce(1)
        ordered = rows.sortWithinPartitions("date", "topic", "offset")
        ordered.write.partitionBy("date", "topic").mode("append").parquet(str(place))
    made = tuple(describe(store.path, place))
    replaced = tuple(file.path for group in groups for file in group)
    before, after = sum(file.rows for group in groups for file in group), sum(file.rows for file in made)
    if before != after:
        raise AssertionError(f"{before} rows became {after}: nothing was replaced")
    store.commit(Manifest(name, name, made, replaced, now_ms))
    return Compacted(len(replaced), len(made), 0, after)


def _groups(files: list[ArchiveFile], target_bytes: int) -> Iterator[list[ArchiveFile]]:
    """Yield groups of small files of the same day and topic; each group becomes one file. A file that would be alone is left
    out."""
    by_place: dict[tuple[str, str], list[ArchiveFile]] = defaultdict(list)
    for file in files:
        if file.bytes < target_bytes:
            by_place[file.date, file.topic].append(file)
    for group in by_place.values():
        taken: list[ArchiveFile] = []
        for file in group:
            if taken and sum(one.bytes for one in taken) + file.bytes > target_bytes:
                if len(taken) > 1:
                    yield taken
                taken = []
            taken.append(file)
        if len(taken) > 1:
            yield taken


def _remove_replaced(store: Archive, before_ms: int) -> int:
    """Remove files that a compaction replaced before a time. Returns: how many."""
    manifests = store.manifests()
    old = {path for manifest in manifests if manifest.written_ms <= before_ms for path in manifest.replaces}
    count = 0
    for manifest in manifests:
        going = [file.path for file in manifest.files if file.path in old]
        if going:
            store.remove(manifest, going)
            count += len(going)
    return count
