"""Comparison of two sessions."""

import pytest

from tests.support.bench_results import FACTS, pub
from toymq_bench import compare
from toymq_bench.result import Result, Session


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
