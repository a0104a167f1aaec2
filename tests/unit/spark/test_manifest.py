"""An archive consists of what its manifests name, whatever other files are there."""

import errno
import os
import re
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.dataset import field

from toymq_py.errors import DamagedData, LocalError
from toymq_spark.manifest import (
    COLUMNS,
    COMPACTION,
    AlreadyCommitted,
    Archive,
    ArchiveFile,
    ArchiveMismatch,
    Manifest,
    NoArchive,
    describe,
    united,
    value_type,
)


def file(path: str, first_id: int = 0) -> ArchiveFile:
    return ArchiveFile(path, "t", "2026-11-21", 10, first_id, first_id + 9, 100)


def place(archive: Archive, name: str, *names: str) -> Manifest:
    """Write the files of a batch. Returns: their manifest, which the caller may commit."""
    directory = archive.attempt(name) / "date=2026-11-21" / "topic=t"
    directory.mkdir(parents=True)
    for one in names:
        (directory / one).write_text(one)
    paths = [str((directory / one).relative_to(archive.path)) for one in names]
    return Manifest(name, "q", tuple(file(path, 10 * at) for at, path in enumerate(paths)))


def test_files_without_a_manifest_are_not_there(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    assert archive.manifests() == []
    manifest = place(archive, "0000000001", "a", "b")
    for read in (archive.files, archive.paths):
        with pytest.raises(NoArchive, match=f"^{re.escape(str(tmp_path))} is not an archive: it has no manifest$"):
            read()
    archive.commit(manifest)
    assert archive.find("0000000001") == manifest
    assert [Path(path).read_text() for path in archive.paths()] == ["a", "b"]


def test_of_two_attempts_at_a_batch_one_is_committed(tmp_path: Path) -> None:
    """Each attempt writes to a place of its own; the files of the other one are removed when it can no longer win."""
    archive = Archive(tmp_path)
    first, second = place(archive, "0000000001", "a"), place(archive, "0000000001", "a")
    later = place(archive, "0000000002", "b")
    archive.discard_attempts("0000000001")
    assert len(list((tmp_path / "data").iterdir())) == 3, "any of them may be committed yet"
    archive.commit(first)
    with pytest.raises(AlreadyCommitted):
        archive.commit(second)
    assert archive.find("0000000001") == first
    archive.discard_attempts("0000000001")
    kept = {archive.path / Path(one.files[0].path).parents[2] for one in (first, later)}
    assert set((tmp_path / "data").iterdir()) == kept
    archive.commit(later)
    assert [one.name for one in (tmp_path / "manifest").iterdir() if one.suffix != ".json"] == [], "nothing temporary is left"


def test_a_file_system_without_hard_links_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("os.link", link)
    with pytest.raises(LocalError, match="an archive needs a file system with hard links"):
        Archive(tmp_path).commit(Manifest("0000000000", "q", ()))
    assert list((tmp_path / "manifest").iterdir()) == []


def test_a_link_whose_answer_was_lost_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS repeats a request without an answer, and then reports that the name exists."""
    link = os.link

    def twice(source: Path, target: Path) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr("os.link", twice)
    Archive(tmp_path).commit(Manifest("0000000000", "q", ()))
    assert Archive(tmp_path).find("0000000000") is not None


def test_what_a_compaction_stands_for(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    first, second = place(archive, "0000000001", "a"), place(archive, "0000000002", "b")
    for manifest in (first, second):
        archive.commit(manifest)
    assert archive.next_compaction() == "compact-0000000001"
    merged, dead = place(archive, "compact-0000000001", "ab"), place(archive, "compact-0000000001", "a")
    replaces = tuple(one.path for manifest in (first, second) for one in manifest.files)
    archive.commit(Manifest(merged.name, merged.query, merged.files, replaces, 5))
    assert archive.next_compaction() == "compact-0000000002"
    archive.discard_attempts(COMPACTION)
    assert not (tmp_path / dead.files[0].path).exists()
    assert [Path(path).name for path in archive.paths()] == ["ab"]
    archive.remove(first, [one.path for one in first.files])
    assert list((tmp_path / "data").glob("batch=0000000001*")) == []
    assert archive.find("0000000001") == Manifest("0000000001", "q", ()), "it still says that the batch was archived"
    assert [Path(path).name for path in archive.paths()] == ["ab"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 1, "name": "x"}', '{"version": 1, "files": [{"x": 1}]}'])
def test_a_manifest_that_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "manifest").mkdir()
    (tmp_path / "manifest" / "0000000001.json").write_text(text)
    with pytest.raises(DamagedData, match=r"0000000001.json: invalid manifest"):
        Archive(tmp_path).files()


def test_a_manifest_of_another_version(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    archive.commit(place(archive, "0000000001", "a"))
    path = tmp_path / "manifest" / "0000000001.json"
    path.write_text(path.read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(DamagedData, match="has version 2"):
        archive.files()


def test_pyarrow_sees_topic_and_date(tmp_path: Path) -> None:
    """Found: rows of different topics could not be told apart."""
    archive = Archive(tmp_path / "topic=mine" / "archive")
    archive.commit(Manifest("0000000000", "q", ()))
    assert archive.dataset().to_table().column_names == [*COLUMNS.names, "topic", "date"], "and no row"
    attempt = archive.attempt("0000000001")
    for number, topic in enumerate(("a", "2026", "__HIVE_DEFAULT_PARTITION__")):
        file = attempt / "date=2026-11-21" / f"topic={topic}" / "part-0.parquet"
        file.parent.mkdir(parents=True)
        pq.write_table(COLUMNS.empty_table().from_pylist([{"offset": number}], COLUMNS), file)
    archive.commit(Manifest("0000000001", "q", tuple(describe(archive.path, attempt))))
    day = date(2026, 11, 21)
    rows = archive.dataset().to_table(columns=["offset", "topic", "date"]).to_pylist()
    expected = [(0, "a", day), (1, "2026", day), (2, "__HIVE_DEFAULT_PARTITION__", day)]
    assert sorted(tuple(row.values()) for row in rows) == expected
    assert archive.dataset().count_rows(filter=field("topic") == "2026") == 1


def typed_file(place: Path, name: str, **columns: pa.DataType) -> str:
    values = pa.array([dict.fromkeys(columns)], pa.struct(list(columns.items())))
    pq.write_table(pa.table({"value": values}), place / name)
    return str(place / name)


def test_typed_values_have_the_columns_of_all_files(tmp_path: Path) -> None:
    old = typed_file(tmp_path, "old", a=pa.int64(), gone=pa.string())
    new = typed_file(tmp_path, "new", a=pa.int64(), added=pa.date32())
    assert set(value_type([old, new])) == {
        pa.field("a", pa.int64()), pa.field("gone", pa.string()), pa.field("added", pa.date32())
    }  # fmt: skip
    assert value_type([]) == pa.binary()
    other = typed_file(tmp_path, "other", a=pa.string())
    with pytest.raises(ArchiveMismatch, match=r"values are struct<.*> and struct<.*> in one archive: archive to another place"):
        value_type([old, other])
    with pytest.raises(ArchiveMismatch, match="in one archive"):
        united(pa.binary(), pa.struct([("a", pa.int64())]))
