"""The tables of ``toymq-pipeline report``."""

from datetime import UTC, datetime

from toymq_spark import report_table
from toymq_spark.jobs.report import Report


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
    columns = [
        {"topic": "t", "column": "id", "filled": 1500, "different": 1490, "least": "1", "most": "99"},
        {"topic": "t", "column": "tags", "filled": 3, "different": None, "least": None, "most": None},
    ]
    assert list(report_table.lines(Report([], [topic], [], columns)))[-3:] == [
        "values of  column  filled  different, about  least  most",
        "t          id       1,500             1,490  1      99",
        "t          tags         3",
    ]
    assert list(report_table.lines(Report([], [], [])))[1:] == ["nothing to report"]
