"""What people see: progress, errors of jobs in one line, the report's page."""

import subprocess
import sys
from datetime import UTC, datetime

import pytest

from tests.support.broker_process import TIMEOUT_S, environment
from toymq_spark.cli import explain
from toymq_spark.jobs.report import Report
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
    reason = {"topic": "t.dlq", "reason": "<script>alert(1)</script>", "count": 3}
    html = page(Report([window], [topic], [reason]))
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert "150,000" in html
    assert "2026-01-01 00:00:00" in html
    assert html.count("<svg") == 1
    assert "<h2>Dead letters</h2>" not in page(Report([], [topic], []))


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
    assert done.stderr.splitlines()[-1] == f"Error: this needs {absent}: pip install 'toymq_py[{extra}]'"
