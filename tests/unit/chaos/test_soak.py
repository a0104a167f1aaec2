"""The verdict of a soak."""

from dataclasses import replace

from toymq_chaos.leaks import MIB
from toymq_chaos.soak import Report
from toymq_chaos.vitals import Vitals

REST = Vitals(
    t_s=10.0, round_number=0, at_rest=True, rss_bytes=40 * MIB, descriptors=21, tasks=8, threads=17, disk_bytes=MIB,
    ping_p50_s=0.0004, ping_p99_s=0.001, connections=2, topics=3, publish_total=1000,
)  # fmt: skip


def test_the_complaint_is_one_line() -> None:
    leaked = replace(REST, rss_bytes=100 * MIB, tasks=1000)
    assert Report([REST, leaked]).complaint() == (
        "did not return: RSS 40.0 MiB -> 100.0 MiB (at most 56.0 MiB); tasks 8 -> 1000"
    )
    assert Report([REST, leaked], failure="the broker ended").complaint() == "the broker ended", "what comes first is said"
    assert Report([REST, REST]).complaint() is None
