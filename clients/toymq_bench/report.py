"""Formats results as text."""

from collections.abc import Iterator, Sequence

from toymq_bench import machine
from toymq_bench.result import METRICS, Result, Session

CLIENT_SHOWS = 0.1
CLIENT_IS_THE_LIMIT = 0.9
"""Shares of a core: from the first on the load generator has a part in the rate, from the second on it decides it."""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table. Columns are as wide as they need; the first is aligned left, the others right."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    for row in (head, *rows):
        others = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        yield "  ".join([row[0].ljust(widths[0]), *others]).rstrip()


def number(metric: str, value: float | None) -> str:
    """Format a metric's value with the digits of that metric; ``-`` for None."""
    return "-" if value is None else f"{value:,.{METRICS[metric].digits}f}"


def lines(session: Session) -> Iterator[str]:
    """Yield a table for each result: a row per metric, a column per run, the median last."""
    yield machine.line(session.machine)
    for result in session.results:
        yield ""
        yield f"{result.name}; durability: {result.durability}"
        metrics = [metric for metric in METRICS if result.values(metric)]
        runs = [str(position) for position in range(1, len(result.runs) + 1)]
        rows = []
        for metric in metrics:
            cells = [number(metric, run.get(metric)) for run in result.runs]
            rows.append([METRICS[metric].title, *cells, number(metric, result.median(metric))])
        yield from table(["run", *runs, "median"], rows)
        if (note := client_note(result)) is not None:
            yield note


def client_note(result: Result) -> str | None:
    """A note on the share of the load generator in the time of a run; None if it is small.

    In a closed loop the broker waits while the load generator works, so a faster one could gain at most that time.
    """
    share = max(result.values("client_cores"), default=0.0)
    if share >= CLIENT_IS_THE_LIMIT:
        return f"the load generator was the limit ({share:.2f} of a core): the broker may do more than this"
    if share < CLIENT_SHOWS or "rate" in result.parameters:
        return None
    more = share / (1 - share)
    return f"the load generator was busy {share:.0%} of the time: one that costs nothing would show at most {more:.0%} more"
