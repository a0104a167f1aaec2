"""Marks in the table of goals."""

import pytest

from toymq_bench import goals


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
