"""Formats a report as one HTML page that contains its plots. All text that comes from a topic is escaped."""

import io
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from html import escape
from itertools import groupby
from typing import Any

from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure

from toymq_spark.jobs.report import Report
from toymq_spark.report_table import COLUMNS, REASONS, TOPICS, WINDOWS, cell, present

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 82rem; color: #222 }
table { border-collapse: collapse; margin: 1rem 0 }
th, td { padding: .3rem .55rem; text-align: right; border-bottom: 1px solid #ddd }
th:first-child, td:first-child { text-align: left } td { white-space: nowrap } svg { max-width: 100%; height: auto }
"""


def page(report: Report) -> str:
    parts = ["<!doctype html><meta charset=utf-8><title>toymq report</title>", f"<style>{STYLE}</style><h1>Topics</h1>"]
    parts.append(_table(present(TOPICS, report.topics), report.topics) if report.topics else "<p>Nothing to report.</p>")
    if report.columns:
        parts += ["<h2>Values</h2>", _table({**COLUMNS, "topic": "topic"}, report.columns)]
    if report.reasons:
        parts += ["<h2>Dead letters</h2>", _table({**REASONS, "topic": "topic"}, report.reasons)]
    columns = {name: label for name, label in WINDOWS.items() if name != "topic"}
    for topic, found in groupby(report.windows, lambda row: row["topic"]):
        rows = list(found)
        numbers = f"<details><summary>{len(rows):,} windows</summary>{_table(columns, rows)}</details>"
        parts += [f"<h2>{escape(topic)}</h2>", _plot(rows), numbers]
    return "\n".join(parts)


def _table(columns: Mapping[str, str], rows: list[dict[str, Any]]) -> str:
    head = "".join(f"<th>{escape(label)}</th>" for label in columns.values())
    body = "".join("<tr>" + "".join(f"<td>{escape(cell(row.get(name)))}</td>" for name in columns) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _plot(rows: list[dict[str, Any]]) -> str:
    """Draw records per second and median size over time, as SVG."""
    figure = Figure(figsize=(10, 3.2), layout="constrained")
    FigureCanvasSVG(figure)
    rate, size = figure.subplots(1, 2)
    rate.step(*points(rows, "per_s", 0.0), where="post", color="#2b6cb0")
    rate.set_title("records/s (times in UTC)", loc="left")
    size.plot(*points(rows, "median", math.nan), color="#2f855a", marker=".", label="median")
    size.plot(*points(rows, "largest", math.nan), color="#c05621", marker=".", label="largest")
    size.set_title("payload bytes", loc="left")
    size.legend(frameon=False)
    for axes in (rate, size):
        axes.set_ylim(bottom=0)
        axes.set_xlim(rows[0]["start"], rows[-1]["end"])  # around one window alone matplotlib shows four years
        axes.spines[["top", "right"]].set_visible(False)
        days = AutoDateLocator(tz=UTC, minticks=3, maxticks=8)  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(days)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(days, tz=UTC))  # type: ignore[no-untyped-call]
    out = io.StringIO()
    figure.savefig(out, format="svg")
    text = out.getvalue()
    return text[text.index("<svg") :]


def points(rows: list[dict[str, Any]], name: str, nothing: float) -> tuple[list[datetime], list[float]]:
    """Return the values at the starts of windows, with the value ``nothing`` inserted for windows without records, which a
    report leaves out."""
    times: list[datetime] = []
    values: list[float] = []
    for at, row in enumerate(rows):
        times.append(row["start"])
        values.append(float(row[name]))
        if at + 1 == len(rows) or rows[at + 1]["start"] > row["end"]:
            times.append(row["end"])
            values.append(nothing)
    return times, values
