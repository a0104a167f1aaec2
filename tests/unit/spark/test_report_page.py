"""The page of ``toymq-pipeline report --html``."""

from datetime import UTC, datetime

from tests.support.drawn import late
from toymq_spark.jobs.report import Report

page, points = late("toymq_spark.report_page", "page"), late("toymq_spark.report_page", "points")


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
    column = {"topic": "t", "column": "<c>", "filled": 3, "different": 2, "least": "<a>", "most": "b"}
    html = page(Report([], [topic], [], [column]))
    assert "<h2>Values</h2>" in html
    assert "<td>&lt;c&gt;</td><td>3</td><td>2</td><td>&lt;a&gt;</td><td>b</td>" in html
    assert "<h2>Dead letters</h2>" not in page(Report([], [topic], []))
    assert "Nothing to report." in page(Report([], [], []))


def test_windows_without_records_are_drawn_as_empty() -> None:
    """Found: empty windows were drawn with the rate of the window before them."""
    at = [datetime(2026, 1, 1, 0, minute, tzinfo=UTC) for minute in range(6)]
    windows = [{"start": at[n], "end": at[n + 1], "per_s": n} for n in (0, 1, 4)]
    assert points(windows, "per_s", 0.0) == ([at[0], at[1], at[2], at[4], at[5]], [0.0, 1.0, 0.0, 4.0, 0.0])


def test_the_axis_of_one_window_is_that_window() -> None:
    """Found: the axis went from 2025 to 2029."""
    at = [datetime(2026, 6, 1, 0, minute, tzinfo=UTC) for minute in range(2)]
    html = page(Report([{"topic": "t", "start": at[0], "end": at[1], "per_s": 1, "median": 7, "largest": 9}], [], []))
    assert "2025" not in html
    assert "2027" not in html
