"""Compares two files of benchmark results, side by side."""

from collections.abc import Iterator

from toymq_bench import machine, report
from toymq_bench.result import METRICS, Result, Session


def verdict(metric: str, before: list[float], after: list[float]) -> str:
    """Return ``better`` or ``worse`` when the ranges of the two sides' runs do not overlap, else ""."""
    more = METRICS[metric].more_is_better
    if more is None or len(before) < 2 or len(after) < 2:
        return ""
    if min(after) > max(before):
        return "better" if more else "worse"
    if max(after) < min(before):
        return "worse" if more else "better"
    return ""


def rows(before: Result, after: Result) -> Iterator[list[str]]:
    """Yield a table row for each metric that both results have."""
    for metric in METRICS:
        old, new = before.median(metric), after.median(metric)
        if old is None or new is None:
            continue
        change = f"{(new / old - 1) * 100:+.1f} %" if old else "-"
        numbers = (report.number(metric, old), report.number(metric, new))
        yield [METRICS[metric].title, *numbers, change, verdict(metric, before.values(metric), after.values(metric))]


def lines(before: Session, after: Session) -> Iterator[str]:
    """Yield a table for each result that both files have; a result that only one file has is named."""
    yield f"A  {machine.line(before.machine)}"
    yield f"B  {machine.line(after.machine)}"
    old = {(result.name, result.durability): result for result in before.results}
    new = {(result.name, result.durability): result for result in after.results}
    for key, result in old.items():
        if key in new:
            yield ""
            yield "; durability: ".join(key)
            yield from report.table(["median", "A", "B", "change", ""], list(rows(result, new[key])))
    for side, only in (("A", old.keys() - new.keys()), ("B", new.keys() - old.keys())):
        for name, durability in sorted(only):
            yield f"only in {side}: {name}; durability: {durability}"
