"""Formats a report as text. Has the titles of its columns, for the HTML page, too. Does not know Spark."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toymq_spark.jobs.report import Report

SIZES = {"records": "records", "bytes": "payload bytes", "median": "median", "largest": "largest", "keys": "keys, about"}
TOPICS = {
    "topic": "topic", **SIZES, "first_id": "first id", "last_id": "last id", "gaps": "gaps", "gap_ids": "ids missing",
    "oldest": "oldest, UTC", "newest": "newest, UTC", "archive_delay_s": "archived after, s",
}  # fmt: skip
WINDOWS = {
    "topic": "topic", "start": "window from, UTC", "per_s": "records/s", **SIZES, "gaps": "gaps", "gap_ids": "ids missing",
}  # fmt: skip
REASONS = {
    "topic": "dead letters", "reason": "reason", "error_type": "type of error", "count": "messages",
    "attempts_mean": "attempts, mean", "attempts_max": "attempts, most",
}  # fmt: skip
COLUMNS = {
    "topic": "values of", "column": "column", "filled": "filled", "different": "different, about", "least": "least",
    "most": "most",
}  # fmt: skip
"""What a report calls a column, and what people call it."""


def lines(report: "Report") -> Iterator[str]:
    """Yield the lines of a report. Windows come first: there may be thousands, and the shorter tables below them stay
    visible."""
    if not report.topics:
        yield from _table(TOPICS, [])
        yield "nothing to report"
        return
    yield from _table(WINDOWS, report.windows)
    yield ""
    yield from _table(present(TOPICS, report.topics), report.topics)
    for columns, rows in ((COLUMNS, report.columns), (REASONS, report.reasons)):
        if rows:
            yield ""
            yield from _table(columns, rows)


def present(columns: Mapping[str, str], rows: list[dict[str, Any]]) -> dict[str, str]:
    """Return the columns for which some row has a value."""
    return {name: label for name, label in columns.items() if any(name in row for row in rows)}


def cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
    if isinstance(value, float):
        return f"{value:.2g}" if 0 < value < 1 else f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _table(columns: Mapping[str, str], rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of a table, with texts aligned left, numbers right."""
    cells = [[cell(row.get(name)) for name in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns.values(), *cells, strict=True)]
    to_left = [all(isinstance(row.get(name), str | None) for row in rows) for name in columns]
    for line in (list(columns.values()), *cells):
        places = zip(line, widths, to_left, strict=True)
        yield "  ".join(text.ljust(width) if left else text.rjust(width) for text, width, left in places).rstrip()
