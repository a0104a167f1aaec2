"""The performance goals of performance.md, one row each, and how each is measured."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from toymq_bench import backlog, report
from toymq_bench.bench import Bench
from toymq_bench.result import METRICS, Result
from toymq_bench.traffic import Traffic

MESSAGES = 10_000_000
"""Stored messages of the rows marked ``stock``."""
CYCLES = 5000
IDLE_SESSIONS = 10_000
SIZE = 256
MIB_IN_MB = 1.048576


@dataclass(frozen=True, slots=True)
class Goal:
    """The goal for one metric of a scenario: ``goal`` is the value aimed at, ``floor`` (None: none) a value that is still
    acceptable."""

    row: str
    metric: str
    title: str
    floor: float | None
    goal: float
    stock: bool = False
    """It depends on the number of stored messages."""

    def mark(self, measured: float) -> str:
        """Return ``goal``, ``floor`` or ``MISSED`` for a measured value."""
        sign = 1 if METRICS[self.metric].more_is_better else -1
        if sign * measured >= sign * self.goal:
            return "goal"
        return "floor" if self.floor is not None and sign * measured >= sign * self.floor else "MISSED"


LOADS: dict[str, Traffic] = {
    "pub 16 x 256": Traffic(16, 256),
    "e2e 1 -> 1": Traffic(1, 4096, consumers=1),
    "fanout 1 -> 8": Traffic(1, 4096, consumers=8),
    "pub 64 x 1": Traffic(64, 1),
    "pub 1 x 1": Traffic(1, 1),
    "pub 16 x 256, 16 topics": Traffic(16, 256, topics=16),
}
GOALS = (
    Goal("pub 16 x 256", "publishes_per_s", "durable PUB/s, 16 x 256", 200_000, 450_000),
    Goal("pub 16 x 256", "limit_share", "  of the disk limit", None, 0.5),
    Goal("pub 16 x 256", "broker_cpu_us", "  broker CPU us/PUB", 3.0, 2.0),
    Goal("e2e 1 -> 1", "deliveries_per_s", "1 -> 1, all acked, window 4096, /s", 150_000, 300_000),
    Goal("fanout 1 -> 8", "deliveries_per_s", "fan-out 1 -> 8, deliveries/s", 700_000, 1_500_000),
    Goal("pub 64 x 1", "publishes_per_s", "64 x 1, /s", 25_000, 45_000),
    Goal("pub 64 x 1", "publish_p99_ms", "  p99 ms", None, 5),
    Goal("pub 1 x 1", "limit_share", "1 x 1, of write + fdatasync", 0.4, 0.7),
    Goal("pub 16 x 256, 16 topics", "publishes_per_s", "16 topics, 16 x 256, /s", 150_000, 400_000),
    Goal("stock", "verified_mb_per_cpu_s", "verify, MB per CPU s", 400, 1000, stock=True),
    Goal("stock", "first_delivery_s", "restart to first delivery, s", 2, 0.4, stock=True),
    Goal("stock", "rss_mb", "RSS with the messages stored, MB", 200, 60, stock=True),
    Goal("idle", "rss_mb", "RSS with 10,000 idle sessions, MB", 200 * MIB_IN_MB, 80 * MIB_IN_MB),
    Goal("depth", "deep_to_shallow", "consume, deep against shallow", 2, 1.05, stock=True),
)


def run(bench: Bench, messages: int) -> None:
    """Measure every row of the goals table. Raises: BenchError, OSError."""
    for row, traffic in LOADS.items():
        bench.run_traffic(row, {}, traffic)
    bench.run_idle(IDLE_SESSIONS)
    bench.run("stock", {"messages": messages}, lambda broker, label: backlog.stock(broker, messages, SIZE, label))
    bench.run("depth", {"messages": messages}, lambda broker, label: backlog.depth(broker, messages, CYCLES, SIZE, label))


def lines(results: Sequence[Result]) -> Iterator[str]:
    """Yield a table row for each goal: median, extremes, floor, goal, and the median of the disk's limit at that time."""
    found = {result.scenario: result for result in results}
    rows = []
    for goal in GOALS:
        result = found[goal.row]
        measured = result.median(goal.metric)
        if measured is None:
            continue
        values = result.values(goal.metric)
        number = [report.number(goal.metric, value) for value in (measured, min(values), max(values), goal.floor, goal.goal)]
        short = goal.stock and result.parameters["messages"] != MESSAGES
        limit = report.number("disk_limit_per_s", result.median("disk_limit_per_s"))
        mark = goal.mark(measured) + ("*" if short else "")
        rows.append([goal.title, number[0], f"{number[1]} to {number[2]}", *number[3:], limit, mark])
    yield from report.table(["measure", "median", "runs", "floor", "goal", "disk limit/s", ""], rows)
    stocks = {result.parameters["messages"] for result in results if "messages" in result.parameters}
    for messages in sorted(stocks - {MESSAGES}):
        yield f"* with {messages:,} messages; the goal speaks of {MESSAGES:,}"
    for result in results:
        if (note := report.client_note(result)) is not None:
            yield f"{result.name}: {note}"
