"""An archive is what its manifests name, whatever else lies there."""

import re
from pathlib import Path

import pytest

from toymq_py.errors import DamagedData
from toymq_spark.manifest import Archive, ArchiveFile, Manifest, NoArchive


def file(path: str, first_id: int = 0) -> ArchiveFile:
    return ArchiveFile(path, "t", "2026-11-21", 10, first_id, first_id + 9, 100)


def place(archive: Archive, name: str, *names: str) -> Manifest:
    """Files of a batch, written; the manifest is the caller's to commit."""
    directory = archive.directory(name) / "date=2026-11-21" / "topic=t"
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
        with pytest.raises(NoArchive, match=f"^{re.escape(str(tmp_path))} is no archive: it has no manifest$"):
            read()
    archive.commit(manifest)
    assert archive.find("0000000001") == manifest
    assert [Path(path).read_text() for path in archive.paths()] == ["a", "b"]
    again = Archive(tmp_path).directory("0000000001")
    assert not again.exists(), "what an attempt left is taken away before the next"


def test_what_a_compaction_stands_for(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    first, second = place(archive, "0000000001", "a"), place(archive, "0000000002", "b")
    merged = place(archive, "compact-1", "ab")
    for manifest in (first, second):
        archive.commit(manifest)
    assert archive.orphans("compact-") == [tmp_path / "data" / "batch=compact-1"]
    replaces = tuple(one.path for manifest in (first, second) for one in manifest.files)
    archive.commit(Manifest(merged.name, merged.query, merged.files, replaces, 5))
    assert archive.orphans("compact-") == []
    assert [Path(path).name for path in archive.paths()] == ["ab"]
    archive.remove(first, [one.path for one in first.files])
    assert not (tmp_path / "data" / "batch=0000000001").exists()
    assert archive.find("0000000001") == Manifest("0000000001", "q", ()), "it still says that the batch was archived"
    assert [Path(path).name for path in archive.paths()] == ["ab"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 1, "name": "x"}', '{"version": 1, "files": [{"x": 1}]}'])
def test_a_manifest_that_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "manifest").mkdir()
    (tmp_path / "manifest" / "0000000001.json").write_text(text)
    with pytest.raises(DamagedData, match=r"0000000001.json is no manifest"):
        Archive(tmp_path).files()


def test_a_manifest_of_another_version(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    archive.commit(place(archive, "0000000001", "a"))
    path = tmp_path / "manifest" / "0000000001.json"
    path.write_text(path.read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(DamagedData, match="is of version 2"):
        archive.files()
