"""Latencies of a run: counted exactly while the load runs, summarised by an HDR histogram afterwards."""

from collections.abc import Mapping

HIGHEST_US = 3_600_000_000
"""An hour. Longer latencies count as this."""
SIGNIFICANT_DIGITS = 3
PERCENTILES = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p999": 99.9, "max": 100.0}


def check_installed() -> None:
    """Check, before a measurement begins, that the packages only it needs are installed: help works without them. Raises:
    ModuleNotFoundError."""
    import hdrh.histogram  # noqa: F401


def summary_ms(counts: Mapping[int, int], prefix: str) -> dict[str, float]:
    """Return percentiles, in ms, of latencies counted by microsecond, as ``<prefix>_p50_ms`` and so on; empty without counts.

    The load only counts in a dict: a histogram in Python costs more than a message.
    """
    if not counts:
        return {}
    from hdrh.histogram import HdrHistogram

    histogram = HdrHistogram(1, HIGHEST_US, SIGNIFICANT_DIGITS)
    for latency_us, count in counts.items():
        histogram.record_value(min(max(latency_us, 1), HIGHEST_US), count)
    return {
        f"{prefix}_{name}_ms": round(float(histogram.get_value_at_percentile(percent)) / 1000, 3)
        for name, percent in PERCENTILES.items()
    }
