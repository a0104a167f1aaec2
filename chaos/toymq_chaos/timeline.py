"""Draws a history: throughput, redeliveries, kills, and when the broker was frozen or its disk full."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from matplotlib.figure import Figure

from toymq_chaos.history import Event

BIN_S = 0.25
MARKS = {
    "kill": ("#d62728", "-", 1.2),
    "stop": ("#555555", "-", 1.2),
    "cut": ("#9467bd", ":", 0.9),
    "clock": ("#8c564b", "--", 0.9),
}
SPANS = {"pause": ("frozen", "#dddddd"), "full": ("disk full", "#ffe9b0")}


def draw(events: Iterable[Event], path: Path, title: str) -> None:
    """Write a PNG or SVG, by the suffix of ``path``. Raises: OSError."""
    published: Counter[int] = Counter()
    delivered: Counter[int] = Counter()
    again: Counter[int] = Counter()
    marks: list[tuple[float, str, str]] = []
    spans: list[tuple[float, float, str]] = []
    began: dict[str, float] = {}
    start_ns = end_s = None
    seen: set[tuple[str | None, str | None, int | None]] = set()
    for event in events:
        if start_ns is None:
            start_ns = event.t_ns
        at_s = end_s = (event.t_ns - start_ns) / 1e9
        at = int(at_s / BIN_S)
        match event.op:
            case "pub" if event.result in ("ok", "dup"):
                published[at] += 1
            case "deliver":
                message = (event.topic, event.consumer, event.id)
                (again if message in seen else delivered)[at] += 1
                seen.add(message)
            case "kill" | "stop" | "cut" | "clock":
                marks.append((at_s, event.op, event.note or ""))
            case "pause" | "full":
                began[event.op] = at_s
            case "resume" | "free":
                op = {"resume": "pause", "free": "full"}[event.op]
                spans.append((began.pop(op, at_s), at_s, op))
            case _:
                pass
    figure = Figure(figsize=(14, 6), layout="constrained")
    rates, repeats = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    bins = range(int((end_s or 0) / BIN_S) + 1)
    times = [at * BIN_S for at in bins]
    rates.plot(times, [published[at] / BIN_S for at in bins], label="published and acknowledged", color="#1f77b4")
    rates.plot(times, [delivered[at] / BIN_S for at in bins], label="delivered first", color="#2ca02c")
    repeats.bar(times, [again[at] / BIN_S for at in bins], BIN_S, align="edge", label="delivered again", color="#ff7f0e")
    named: set[str] = set()

    def once(name: str) -> str | None:
        """A label for a legend, which shall have each name only once."""
        fresh = name not in named
        named.add(name)
        return name if fresh else None

    for number, (at_s, op, note) in enumerate(marks):
        color, line, width = MARKS[op]
        repeats.axvline(at_s, color=color, linestyle=line, linewidth=width)
        rates.axvline(at_s, color=color, linestyle=line, linewidth=width, label=once(op))
        if op == "kill" and note:
            rates.text(at_s, 0.99 - number % 3 * 0.12, note.split("/")[0], rotation=90, fontsize=7, va="top", ha="right",
                       transform=rates.get_xaxis_transform(), color=color)  # fmt: skip
    for since_s, until_s, op in spans:
        name, color = SPANS[op]
        repeats.axvspan(since_s, until_s, color=color, zorder=0)
        rates.axvspan(since_s, until_s, color=color, zorder=0, label=once(name))
    rates.set_title(title, loc="left")
    rates.set_ylabel("messages a second")
    repeats.set_ylabel("again a second")
    repeats.set_xlabel("seconds")
    for axes in (rates, repeats):
        axes.set_ylim(bottom=0)
        axes.margins(x=0)
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8, frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
