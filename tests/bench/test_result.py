"""What was measured, written down and read again, held against goals and against other figures."""

import json
from pathlib import Path

import pytest

from toymq_bench import compare, goals, machine, report
from toymq_bench.errors import BenchError
from toymq_bench.result import Result, Session

FACTS = machine.facts(Path())


def pub(*rates: float, cpu_us: float = 2.0, client_cores: float = 0.1) -> Result:
    runs = [{"publishes_per_s": rate, "broker_cpu_us": cpu_us, "client_cores": client_cores} for rate in rates]
    return Result("pub", {"producers": 16}, "fsync always", runs)


def test_a_session_comes_back_from_its_file(tmp_path: Path) -> None:
    session = Session(FACTS, [pub(1.0, 2.0), Result("idle", {}, "fsync never", [{"rss_mb": 12.5}])])
    session.save(tmp_path / "a.json")
    assert Session.load(tmp_path / "a.json") == session


def test_the_facts_are_told_and_name_no_host() -> None:
    assert FACTS.keys() == {"date", "cpu", "cores", "kernel", "file_system", "python", "build", "commit"}
    assert FACTS["file_system"] != "unknown"


NOT_OURS = ["{", "[]", "{}", json.dumps({"format": 2}), json.dumps({"format": 1, "machine": {}, "results": [{}]})]


@pytest.mark.parametrize("text", NOT_OURS)
def test_another_file_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(BenchError, match=r"a\.json"):
        Session.load(tmp_path / "a.json")


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


@pytest.mark.parametrize(
    ("before", "after", "change", "word"),
    [
        ((100.0, 110.0, 120.0), (200.0, 210.0, 230.0), "+90.9", "better"),
        ((100.0, 110.0, 120.0), (90.0, 80.0, 95.0), "-18.2", "worse"),
        ((100.0, 110.0, 120.0), (119.0, 180.0, 190.0), "+63.6", ""),
        ((100.0,), (200.0,), "+100.0", ""),
    ],
)
def test_a_comparison_calls_better_only_what_lies_apart(
    before: tuple[float, ...], after: tuple[float, ...], change: str, word: str
) -> None:
    shown = compare.lines(Session(FACTS, [pub(*before)]), Session(FACTS, [pub(*after)]))
    (row,) = [line.split() for line in shown if line.startswith("publishes/s")]
    assert row[3:] == [change, "%", *filter(None, [word])]


def test_less_cpu_is_better_and_what_only_one_side_has_is_named() -> None:
    idle = Result("idle", {}, "fsync always", [{"rss_mb": 1.0}])
    shown = list(compare.lines(Session(FACTS, [pub(1.0, 1.0)]), Session(FACTS, [pub(1.0, 1.0, cpu_us=1.0), idle])))
    assert any(line.startswith("broker CPU") and line.endswith("better") for line in shown)
    assert "only in B: idle; durability: fsync always" in shown


@pytest.mark.parametrize(
    ("metric", "measured", "mark"),
    [
        ("publishes_per_s", 450_000, "goal"), ("publishes_per_s", 449_999, "floor"), ("publishes_per_s", 199_999, "MISSED"),
        ("broker_cpu_us", 2.0, "goal"), ("broker_cpu_us", 3.0, "floor"), ("broker_cpu_us", 3.01, "MISSED"),
        ("limit_share", 0.49, "MISSED"),
    ],
)  # fmt: skip
def test_marks(metric: str, measured: float, mark: str) -> None:
    (goal,) = [goal for goal in goals.GOALS if (goal.row, goal.metric) == ("pub 16 x 256", metric)]
    assert goal.mark(measured) == mark
