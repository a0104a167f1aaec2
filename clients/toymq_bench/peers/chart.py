"""Draws the comparison with peers: a panel for each load shape, a bar for each server."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from toymq_bench import machine
from toymq_bench.peers.runner import SHAPES, Shape
from toymq_bench.peers.toymq import Toymq
from toymq_bench.result import Result, Session

COLUMNS = 3
OURS, OTHERS, GREY = "#1f77b4", "#9db8d2", "#444444"


def draw(session: Session, path: Path) -> None:
    """Write a PNG or SVG, by the suffix of ``path``. Raises: OSError; ValueError when the suffix is of neither."""
    shapes = [shape for shape in SHAPES if any(result.scenario == shape.name for result in session.results)]
    rows = -(-len(shapes) // COLUMNS)
    figure = Figure(figsize=(12, 0.9 + 2.3 * rows), layout="constrained")
    axes = figure.subplots(rows, COLUMNS, squeeze=False)
    for place, panel in enumerate(axes.flat):
        if place < len(shapes):
            _panel(panel, shapes[place], [result for result in session.results if result.scenario == shapes[place].name])
        else:
            panel.set_visible(False)
    legend = "messages/s, connections x outstanding; hatched: replies before the disk has it; dots: runs"
    figure.suptitle(f"{legend}\n{machine.line(session.machine)}", fontsize=8, x=0.01, ha="left")
    figure.savefig(path, dpi=100)


def _panel(axes: Axes, shape: Shape, results: list[Result]) -> None:
    names = [str(result.parameters["peer"]) for result in results]
    for place, (name, result) in enumerate(zip(names, results, strict=True)):
        rate = result.median(shape.metric) or 0.0
        weak = "///" if result.durability.startswith("WEAK") else None
        axes.barh(place, rate, color=OURS if name == Toymq.name else OTHERS, hatch=weak, edgecolor="white")
        axes.plot(result.values(shape.metric), [place] * len(result.runs), "o", color=GREY, markersize=2.5)
        axes.annotate(f" {rate:,.0f}", (max(result.values(shape.metric), default=rate), place), va="center", fontsize=8)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.margins(x=0.22)
    axes.set_xticks([])
    axes.set_title(shape.name, loc="left", fontsize=10)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
