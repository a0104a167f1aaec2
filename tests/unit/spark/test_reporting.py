"""What people see: progress, errors of jobs in one line, the report's page."""

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.broker_process import TIMEOUT_S, environment
from toymq_py.errors import ConfigError
from toymq_spark import report_table
from toymq_spark.cli import explain
from toymq_spark.jobs.report import Report, archived_s, check_window
from toymq_spark.manifest import Archive, ArchiveFile, Manifest
from toymq_spark.metrics import progress_of
from toymq_spark.report_page import page, points

SPARK_SAYS = """[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted
Traceback (most recent call last):
  File "worker.py", line 1, in main
toymq_spark.errors.DataLoss: topic t: records 3 to 4 are gone: retention has removed what is below 5
 SQLSTATE: XXKST
"""


def test_of_what_spark_says_our_own_error_is_told() -> None:
    text = "topic t: records 3 to 4 are gone: retention has removed what is below 5"
    assert explain(SPARK_SAYS) == ("toymq_spark.errors.DataLoss", text)
    assert explain("\nPATH_NOT_FOUND\nmore") == (None, "PATH_NOT_FOUND")
    java = "An error occurred while calling o69.start.\n: java.io.IOException: file is there\n\tat a.B.c(B.java:1)\n"
    assert explain(java) == (None, "java.io.IOException: file is there")
    assert explain("") == (None, "Spark failed and does not say why")


def test_progress_says_how_far_behind_a_query_is() -> None:
    found = progress_of(
        {
            "id": "i", "name": None, "batchId": 3, "numInputRows": 7, "processedRowsPerSecond": 3.5, "batchDuration": 20,
            "sources": [
                {"endOffset": {"a": {"0": 5}}, "latestOffset": '{"a": {"0": 9}, "b": {"0": 2}}'},
                {"endOffset": "12", "latestOffset": None},
            ],
        }
    )  # fmt: skip
    assert (found.query, found.batch, found.rows, found.rows_per_s) == ("i", 3, 7, 3.5)
    assert (found.behind, found.behind_total) == ({"a": 4, "b": 2}, 6)


def test_the_page_escapes_what_comes_from_topics() -> None:
    window = {
        "topic": "t", "start": datetime(2026, 1, 1, tzinfo=UTC), "end": datetime(2026, 1, 1, 0, 1, tzinfo=UTC), "per_s": 2.5,
        "median": 7, "largest": 9,
    }  # fmt: skip
    topic = {"topic": "t", "records": 150_000, "bytes": 7, "archive_delay_s": 1.25, "gaps": 0, "oldest": window["start"]}
    reason = {
        "topic": "t.dlq", "reason": "<script>alert(1)</script>", "error_type": "<E>", "count": 3, "attempts_mean": 2.5,
        "attempts_max": 4,
    }  # fmt: skip
    html = page(Report([window], [topic], [reason]))
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert "<E>" not in html
    assert "&lt;E&gt;" in html
    assert "150,000" in html
    assert "2026-01-01 00:00:00" in html
    assert html.count("<svg") == 1
    assert "<summary>1 windows</summary>" in html
    assert "<td>2.5</td><td>4</td>" in html
    assert "<h2>Dead letters</h2>" not in page(Report([], [topic], []))
    assert "Nothing to report." in page(Report([], [], []))


def test_the_table() -> None:
    at = datetime(2026, 1, 1, 0, 7, tzinfo=UTC)
    sizes = {"records": 1500, "bytes": 3000, "median": 2, "largest": 9, "keys": 0}
    window = {"topic": "t", "start": at, "end": at, **sizes, "per_s": 25.0, "gaps": 1, "gap_ids": 2}
    topic = {"topic": "t", **sizes, "first_id": 5, "last_id": 1506, "gaps": 1, "gap_ids": 2, "oldest": at, "newest": at}
    reasons = [
        {"topic": "t.dlq", "reason": "max-attempts", "error_type": kind, "count": 3, "attempts_mean": 2.5, "attempts_max": None}
        for kind in ("ValueError", None)
    ]
    assert list(report_table.lines(Report([window, {**window, "per_s": 1 / 60}], [topic], reasons))) == [
        "topic     window from, UTC  records/s  records  payload bytes  median  largest  keys, about  gaps  ids missing",
        "t      2026-01-01 00:07:00       25.0    1,500          3,000       2        9            0     1            2",
        "t      2026-01-01 00:07:00      0.017    1,500          3,000       2        9            0     1            2",
        "",
        "topic  records  payload bytes  median  largest  keys, about  first id  last id  gaps  ids missing"
        "          oldest, UTC          newest, UTC",
        "t        1,500          3,000       2        9            0         5    1,506     1            2"
        "  2026-01-01 00:07:00  2026-01-01 00:07:00",
        "",
        "dead letters  reason        type of error  messages  attempts, mean  attempts, most",
        "t.dlq         max-attempts  ValueError            3             2.5",
        "t.dlq         max-attempts                        3             2.5",
    ]
    assert list(report_table.lines(Report([], [], [])))[1:] == ["nothing to report"]


@pytest.mark.parametrize("window", ["1 minute", "30 SECONDS", "1 hour 30 minutes", " 2  weeks ", "500 milliseconds"])
def test_a_window(window: str) -> None:
    check_window(window)


@pytest.mark.parametrize(
    "window", ["", "abc", "1", "5m", "1minute", "1 month", "1 year", "0 seconds", "-1 day", "1 day x", "600 weeks"]
)
def test_what_is_no_window(window: str) -> None:
    with pytest.raises(ConfigError, match=f"^'{window}' is no width of a window: write 30 seconds"):
        check_window(window)


def test_when_records_were_archived_stays_known_behind_compactions(tmp_path: Path) -> None:
    """The last manifest that has a file of the topic is the compaction's, and removing old files writes the batch's anew."""
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
    assert Manifest("n", "q", ()).written_ms > 1e12, "who makes one says when"


def test_windows_without_records_are_drawn_as_empty() -> None:
    """They held the rate of the window before them."""
    at = [datetime(2026, 1, 1, 0, minute, tzinfo=UTC) for minute in range(6)]
    windows = [{"start": at[n], "end": at[n + 1], "per_s": n} for n in (0, 1, 4)]
    assert points(windows, "per_s", 0.0) == ([at[0], at[1], at[2], at[4], at[5]], [0.0, 1.0, 0.0, 4.0, 0.0])


@pytest.mark.parametrize(
    ("absent", "words", "extra"),
    [("pyspark", ["verify", "x"], "spark"), ("matplotlib", ["report", "--subscribe", "t", "--html", "x.html"], "plots")],
)
def test_what_is_not_installed_is_said_in_a_line_before_the_work(absent: str, words: list[str], extra: str) -> None:
    program = f"import sys; sys.modules['{absent}'] = None; from toymq_spark.cli import main; main()"
    command = [sys.executable, "-c", program, *words]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1] == f"Error: this needs {absent}: pip install 'toymq[{extra}]'"
