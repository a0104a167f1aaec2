"""``report``: widths of windows, and the times at which records were archived."""

import os
from pathlib import Path

import pytest

from toymq_py.errors import ConfigError
from toymq_spark.jobs.report import archived_s, check_window
from toymq_spark.manifest import Archive, ArchiveFile, Manifest


@pytest.mark.parametrize("window", ["1 minute", "30 SECONDS", "1 hour 30 minutes", " 2  weeks ", "500 milliseconds"])
def test_a_window(window: str) -> None:
    check_window(window)


@pytest.mark.parametrize(
    "window", ["", "abc", "1", "5m", "1minute", "1 month", "1 year", "0 seconds", "-1 day", "1 day x", "600 weeks"]
)
def test_what_is_no_window(window: str) -> None:
    with pytest.raises(ConfigError, match=f"^invalid window '{window}': write 30 seconds"):
        check_window(window)


def test_when_records_were_archived_stays_known_behind_compactions(tmp_path: Path) -> None:
    """The last manifest with a file of the topic may be a compaction's, and removing old files rewrites the batch's."""
    archive = Archive(tmp_path)

    def commit(name: str, written_ms: int, *topics: str, replaces: tuple[str, ...] = ()) -> Manifest:
        files = []
        for topic in topics:
            path = tmp_path / "data" / f"batch={name}" / "date=2026-01-01" / f"topic={topic}" / "part"
            path.parent.mkdir(parents=True)
            path.touch()
            files.append(ArchiveFile(str(path.relative_to(tmp_path)), topic, "2026-01-01", 1, 0, 0, 1))
        archive.commit(Manifest(name, "q", tuple(files), replaces, written_ms))
        return Manifest(name, "q", tuple(files), replaces, written_ms)

    first, second = commit("0000000000", 1000, "t", "u"), commit("0000000001", 2000, "t")
    assert archived_s(archive) == {"t": 2, "u": 1}
    replaced = tuple(file.path for manifest in (first, second) for file in manifest.files)
    commit("compact-1", 9000, "t", "u", replaces=replaced)
    assert archived_s(archive) == {"t": 2, "u": 1}
    for manifest in (first, second):
        archive.remove(manifest, [file.path for file in manifest.files])
    assert archived_s(archive) == {"t": 2, "u": 1}
    old = commit("0000000002", 0, "t")
    (made,) = (tmp_path / "manifest").glob("0000000002.json")
    os.utime(made, (7, 7))
    assert archived_s(archive) == {"t": 7, "u": 1}, "one of an older version has the time of its file"
    paths = tuple(file.path for file in old.files)
    commit("compact-2", 9000, "t", replaces=paths)
    archive.remove(old, paths)
    assert archived_s(archive) == {"u": 1}, "and when that is lost, it is not guessed"
    assert Manifest("n", "q", ()).written_ms > 1e12, "a new one has the time at which it was made"
