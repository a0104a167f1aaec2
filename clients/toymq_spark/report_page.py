"""A report as one HTML page with its plots inside. Everything that comes from a topic is escaped."""

import io
from html import escape
from itertools import groupby
from typing import Any

from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from toymq_spark.jobs.report import Report

COLUMNS = (
    "topic", "records", "bytes", "median", "largest", "keys", "first_id", "last_id", "gaps", "gap_ids", "archive_delay_s",
)  # fmt: skip
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; color: #222 }
table { border-collapse: collapse; margin: 1rem 0 }
th, td { padding: .3rem .8rem; text-align: right; border-bottom: 1px solid #ddd }
th:first-child, td:first-child { text-align: left } svg { max-width: 100%; height: auto }
"""


def page(report: Report) -> str:
    parts = ["<!doctype html><meta charset=utf-8><title>toymq report</title>", f"<style>{STYLE}</style><h1>Topics</h1>"]
    names = [name for name in COLUMNS if any(name in row for row in report.topics)]
    parts.append(_table(names, report.topics))
    if report.reasons:
        parts += ["<h2>Dead letters</h2>", _table(["topic", "reason", "count"], report.reasons)]
    for topic, rows in groupby(report.windows, lambda row: row["topic"]):
        parts += [f"<h2>{escape(topic)}</h2>", _plot(list(rows))]
    return "\n".join(parts)


def _table(names: list[str], rows: list[dict[str, Any]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td>{_cell(row.get(name))}</td>" for name in names) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}" if isinstance(value, float) else escape(str(value))


def _plot(rows: list[dict[str, Any]]) -> str:
    """Records a second and median size over time, as SVG."""
    figure = Figure(figsize=(10, 3.2), layout="constrained")
    FigureCanvasSVG(figure)
    rate, size = figure.subplots(1, 2)
    times = [row["start"] for row in rows]
    rate.step(times, [row["per_s"] for row in rows], where="post", color="#2b6cb0")
    rate.set_title("records/s", loc="left")
    size.plot(times, [row["median"] for row in rows], color="#2f855a", marker=".", label="median")
    size.plot(times, [row["largest"] for row in rows], color="#c05621", marker=".", label="largest")
    size.set_title("payload bytes", loc="left")
    size.legend(frameon=False)
    for axes in (rate, size):
        axes.set_ylim(bottom=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(axis="x", rotation=30)
    out = io.StringIO()
    figure.savefig(out, format="svg")
    text = out.getvalue()
    return text[text.index("<svg") :]
