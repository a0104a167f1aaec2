"""Samples of a broker's process: written as a line and read again, and percentiles."""

import pytest

from toymq_chaos.vitals import Vitals, parse, percentile
from toymq_py.errors import DamagedData

SAMPLE = Vitals(
    t_s=10.0, round_number=0, at_rest=True, rss_bytes=40 << 20, descriptors=21, tasks=8, threads=17, disk_bytes=1 << 20,
    ping_p50_s=0.0004, ping_p99_s=0.001, connections=2, topics=3, publish_total=1000,
)  # fmt: skip


def test_a_sample_survives_its_line() -> None:
    assert parse(SAMPLE.to_json(), 1) == SAMPLE
    with pytest.raises(DamagedData, match="line 7"):
        parse("{", 7)


def test_percentiles() -> None:
    assert percentile([], 99) is None
    assert percentile([1.0], 99) == 1.0
    assert percentile([float(n) for n in range(1, 101)], 99) == 99.0
    assert percentile([float(n) for n in range(1, 101)], 50) == 50.0
