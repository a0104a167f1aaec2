"""Figures as a picture: a panel per metric, a bar per result, the runs as dots on it."""

import re
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from toymq_bench import machine
from toymq_bench.result import METRICS, Result, Session

BARS = (
    "publishes_per_s", "deliveries_per_s", "redeliveries_per_s", "broker_cpu_us", "rss_mb", "rss_per_million_mb",
    "rss_per_session_kb", "first_delivery_s", "verified_mb_per_cpu_s", "deep_to_shallow",
)  # fmt: skip
LATENCIES = ("publish", "delivery")
PERCENTILES = {"p50": "50", "p90": "90", "p99": "99", "p999": "99.9", "max": "max"}
BLUE, GREY = "#1f77b4", "#444444"


def draw(session: Session, path: Path) -> None:
    """Write a PNG or SVG, by the suffix of ``path``. Raises: OSError; ValueError when the suffix is of neither."""
    panels: list[tuple[str, list[Result]]] = []
    for metric in (*BARS, *(f"{prefix}_p50_ms" for prefix in LATENCIES)):
        if chosen := [result for result in session.results if result.values(metric)]:
            panels.append((metric, chosen))
    heights = [max(3.5, 0.35 * len(chosen)) if metric not in BARS else 0.8 + 0.4 * len(chosen) for metric, chosen in panels]
    figure = Figure(figsize=(12, sum(heights) + 1), layout="constrained")
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for panel, (metric, chosen) in zip(axes, panels, strict=True):
        if metric in BARS:
            _bars(panel, metric, chosen)
        else:
            _percentiles(panel, metric.removesuffix("_p50_ms"), chosen)
        panel.spines[["top", "right"]].set_visible(False)
    figure.suptitle(machine.line(session.machine), fontsize=9, x=0.01, ha="left")
    figure.savefig(path, dpi=100)


def _bars(axes: Axes, metric: str, results: list[Result]) -> None:
    names = [_label(result) for result in results]
    places = range(len(results))
    axes.barh(places, [result.median(metric) or 0.0 for result in results], color=BLUE, alpha=0.7)
    for place, result in zip(places, results, strict=True):
        values = result.values(metric)
        axes.plot(values, [place] * len(values), "o", color=GREY, markersize=3)
    axes.set_yticks(places, names, fontsize=7)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.set_title(METRICS[metric].title, loc="left", fontsize=10)
    axes.grid(axis="x", color="#eeeeee")
    axes.set_axisbelow(True)


def _percentiles(axes: Axes, prefix: str, results: list[Result]) -> None:
    for result in results:
        heights = [result.median(f"{prefix}_{mark}_ms") or 0.0 for mark in PERCENTILES]
        axes.plot(list(PERCENTILES.values()), heights, "o-", markersize=3, label=_label(result))
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_title(f"{prefix} latency, ms, by percentile", loc="left", fontsize=10)
    axes.grid(color="#eeeeee")
    axes.legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _label(result: Result) -> str:
    """The label of a result: scenario, parameters, and its durability in a few words (the text before the explanation)."""
    return f"{result.name}\n{re.split('[:(]', result.durability)[0].strip()}"
