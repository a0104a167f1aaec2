"""The table of the hottest lines, and the error without py-spy."""

import sys
from pathlib import Path

import pytest

from toymq_bench import profile
from toymq_bench.errors import BenchError
from toymq_bench.profile import SAMPLES_PER_S, lines


def test_a_line_counts_where_it_is_the_innermost() -> None:
    raw = "main (a.py:1);turn (b.py:2) 300\nmain (a.py:1) 50\nmain (a.py:1);other (c.py:3);turn (b.py:2) 50\n"
    *table, busy = lines(raw, messages=1000.0, seconds=2.0)
    us_per_sample = 1e6 / SAMPLES_PER_S / 1000
    assert [row.split()[-1] for row in table[-2:]] == [f"{350 * us_per_sample:.2f}", f"{50 * us_per_sample:.2f}"]
    assert [row.split()[0] for row in table[-2:]] == ["turn", "main"]
    assert busy == f"all Python: {400 * us_per_sample:.2f} us a message, 50% of the time"


def test_a_missing_pyspy_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(profile.shutil, "which", lambda name: None)
    with pytest.raises(BenchError, match=r"py-spy is not installed: .*profile"):
        profile.pyspy()
