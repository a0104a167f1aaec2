"""Percentiles of latencies."""

import pytest

from toymq_bench.latency import summary_ms


def test_percentiles_are_within_the_precision_of_the_histogram() -> None:
    summary = summary_ms(dict.fromkeys(range(1, 100001), 1), "publish")
    assert summary["publish_p50_ms"] == pytest.approx(50, rel=0.002)
    assert summary["publish_p999_ms"] == pytest.approx(99.9, rel=0.002)
    assert summary_ms({5: 999, 7000: 1}, "publish")["publish_max_ms"] == pytest.approx(7, rel=0.002)
    assert summary_ms({}, "publish") == {}
