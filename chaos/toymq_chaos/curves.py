"""Draws the samples of a soak: resources of the broker over time, at work and at rest."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from toymq_chaos import leaks
from toymq_chaos.leaks import MIB, Quantity
from toymq_chaos.vitals import Vitals

BLUE, ORANGE, GREEN, GREY, RED = "#1f77b4", "#ff7f0e", "#2ca02c", "#777777", "#d62728"


def draw(samples: Sequence[Vitals], path: Path, title: str) -> None:
    """Write a PNG or SVG, by the suffix of ``path``. Raises: OSError."""
    figure = Figure(figsize=(14, 12), layout="constrained")
    memory, descriptors, tasks, disk, pings = figure.subplots(5, 1, sharex=True, height_ratios=(3, 2, 2, 2, 2))
    minutes = bool(samples) and samples[-1].t_s > 300
    per_unit_s = 60.0 if minutes else 1.0

    def curve(axes: Axes, quantity: Quantity, color: str, unit: float = 1.0) -> None:
        """Draw a quantity's samples as a line, with those at rest as dots."""
        for only_rests in (False, True):
            chosen = leaks.rests_of(samples) if only_rests else samples
            known = [(vitals.t_s, value) for vitals in chosen if (value := quantity.of(vitals)) is not None]
            axes.plot(
                [t_s / per_unit_s for t_s, _ in known], [value / unit for _, value in known],
                "o" if only_rests else "-", color=color, markersize=5, linewidth=1.0,
                alpha=1.0 if only_rests else 0.55, label=f"{quantity.name}, at rest" if only_rests else quantity.name,
            )  # fmt: skip

    curve(memory, leaks.RSS, BLUE, MIB)
    curve(descriptors, leaks.DESCRIPTORS, GREEN)
    curve(tasks, leaks.TASKS, ORANGE)
    curve(tasks, leaks.THREADS, GREY)
    curve(disk, leaks.DISK, BLUE, MIB)
    curve(pings, leaks.PING_P50, GREY, 0.001)
    curve(pings, leaks.PING_P99, ORANGE, 0.001)
    rests = leaks.rests_of(samples)
    if rests:
        memory.axhline(rests[0].rss_bytes / MIB, color=GREY, linestyle=":", linewidth=1.0, label="first rest")
        memory.axhline(
            leaks.allowed_rss_bytes(rests[0]) / MIB, color=RED, linestyle="--", linewidth=1.0, label="most at a rest"
        )
        descriptors.axhline(rests[0].descriptors, color=GREY, linestyle=":", linewidth=1.0, label="first rest")
        disk.axhline(
            leaks.allowed_disk_bytes(rests[0]) / MIB, color=RED, linestyle="--", linewidth=1.0, label="most at a rest"
        )
    memory.set_title(title, loc="left")
    for axes, what in ((memory, "RSS, MiB"), (descriptors, "descriptors"), (tasks, "tasks, threads"), (disk, "disk, MiB")):
        axes.set_ylabel(what)
        axes.set_ylim(bottom=0)
    pings.set_ylabel("PING, ms")
    pings.set_yscale("log")
    pings.yaxis.set_major_formatter("{x:g}")
    pings.set_xlabel("minutes" if minutes else "seconds")
    for axes in (memory, descriptors, tasks, disk, pings):
        axes.margins(x=0.01)
        axes.grid(axis="y", color="#eeeeee")
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8, frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=100)
