"""The chart of results has a panel for each measured metric, with every run in it."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.bench_results import FACTS, pub
from tests.support.drawn import drawn_figures, late
from toymq_bench.result import Result, Session

draw = late("toymq_bench.chart", "draw")


def panels(session: Session, path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Write the chart. Returns: its axes by title."""
    drawn = drawn_figures(monkeypatch)
    draw(session, path)
    return {axes.get_title(loc="left"): axes for axes in drawn[0].axes}


def test_a_bar_is_the_median_and_a_dot_is_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "chart.png"
    session = Session(FACTS, [pub(10.0, 30.0, 20.0), pub(5.0, cpu_us=4.0)])
    found = panels(session, path, monkeypatch)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert len(found) == 2, "publishes and CPU; nothing was delivered"
    rates = next(axes for title, axes in found.items() if "publish" in title)
    assert [bar.get_width() for bar in rates.patches] == [20.0, 5.0]
    assert sorted(rates.lines[0].get_xdata()) == [10.0, 20.0, 30.0]


def test_latencies_are_lines_over_percentiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marks = ("p50", "p90", "p99", "p999", "max")
    run = {f"publish_{mark}_ms": float(place) for place, mark in enumerate(marks, 1)}
    session = Session(FACTS, [Result("pub", {}, "fsync always", [run])])
    (axes,) = panels(session, tmp_path / "chart.svg", monkeypatch).values()
    assert list(axes.lines[0].get_ydata()) == [1, 2, 3, 4, 5]
    assert axes.get_yscale() == "log"
