"""The report of a session."""

from tests.support.bench_results import FACTS, pub
from toymq_bench import report
from toymq_bench.result import Session


def test_the_report_shows_each_run_and_the_median() -> None:
    shown = list(report.lines(Session(FACTS, [pub(100.0, 900.0, 300.0)])))
    assert "pub producers=16; durability: fsync always" in shown
    (row,) = [line.split() for line in shown if line.startswith("publishes/s")]
    assert row == ["publishes/s", "100", "900", "300", "300"]


def test_a_busy_client_is_named_as_the_limit() -> None:
    assert report.client_note(pub(1.0, client_cores=0.09)) is None
    assert "busy 20% of the time: one that costs nothing would show at most 25% more" in (
        report.client_note(pub(1.0, client_cores=0.2)) or ""
    )
    assert "0.97 of a core" in (report.client_note(pub(1.0, client_cores=0.97)) or "")
