"""The picture of a soak: each quantity over time, with what is allowed at a rest."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.drawn import drawn_figures, late
from tests.unit.chaos.test_leaks import REST, WORK
from toymq_chaos import leaks
from toymq_chaos.leaks import MIB

draw = late("toymq_chaos.curves", "draw")


@pytest.mark.parametrize(("last_s", "unit", "per_unit_s"), [(20.0, "seconds", 1.0), (600.0, "minutes", 60.0)])
def test_samples_are_lines_and_rests_are_dots(
    last_s: float, unit: str, per_unit_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = drawn_figures(monkeypatch)
    last = replace(REST, t_s=last_s, ping_p50_s=None, ping_p99_s=None)
    draw([WORK, REST, last], tmp_path / "c.png", "a soak")
    memory, *_, pings = drawn[0].axes
    line, dots, first, most = memory.lines
    assert list(line.get_xdata()) == [at / per_unit_s for at in (5.0, 10.0, last_s)]
    assert list(line.get_ydata()) == [400, 40, 40]
    assert list(dots.get_ydata()) == [40, 40]
    assert (first.get_ydata()[0], most.get_ydata()[0]) == (40, leaks.allowed_rss_bytes(REST) / MIB)
    assert len(pings.lines[0].get_xdata()) == 2, "a sample without a ping has no point"
    assert pings.get_xlabel() == unit
