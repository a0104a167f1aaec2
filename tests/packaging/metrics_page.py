"""The table of docs/metrics.md, made from the broker's: ``python -m tests.packaging.metrics_page`` writes it."""

from pathlib import Path

from toymq_py.metrics import TABLE, Kind, Metric
from toymq_py.observability.prometheus import PREFIX

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
BEGIN = "<!-- made from toymq_py/metrics.py by `make docs` -->\n"
END = "<!-- end -->\n"


def table() -> str:
    rows = [("metric", "type", "unit", "labels", "")] + [_row(metric) for metric in TABLE]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]]) + "\n"


def _row(metric: Metric) -> tuple[str, ...]:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    buckets = f" Buckets up to {', '.join(f'{bound:g}' for bound in metric.bounds)}." if metric.kind is Kind.HISTOGRAM else ""
    return f"`{PREFIX}{metric.name}`", metric.kind.value, metric.unit, labels, metric.help + buckets


def with_table(page: str) -> str:
    """Return the page with a new table."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
