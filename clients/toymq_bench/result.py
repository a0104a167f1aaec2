"""Results: the runs of one scenario, and the file with all results of an invocation."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from toymq_bench.errors import BenchError

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric's title and digits, and whether more is better (None: neither)."""

    title: str
    more_is_better: bool | None = False
    digits: int = 0


def _latencies(prefix: str, title: str) -> dict[str, Metric]:
    marks = {"p50": "p50", "p90": "p90", "p99": "p99", "p999": "p99.9", "max": "max"}
    return {f"{prefix}_{mark}_ms": Metric(f"{title} {shown} ms", digits=3) for mark, shown in marks.items()}


METRICS: dict[str, Metric] = {
    "publishes_per_s": Metric("publishes/s", more_is_better=True),
    "deliveries_per_s": Metric("deliveries/s", more_is_better=True),
    "redeliveries_per_s": Metric("redeliveries/s", more_is_better=True),
    "jobs_per_s": Metric("jobs/s", more_is_better=True),
    "worker_cpu_us": Metric("worker CPU us/job", digits=2),
    "worker_cores": Metric("worker cores", more_is_better=None, digits=2),
    "broker_cpu_us": Metric("broker CPU us/msg", digits=2),
    "client_cpu_us": Metric("client CPU us/msg", digits=2),
    "broker_cores": Metric("broker cores", more_is_better=None, digits=2),
    "client_cores": Metric("client cores", more_is_better=None, digits=2),
    **_latencies("publish", "publish"),
    **_latencies("delivery", "delivery"),
    **_latencies("ping", "PING"),
    **_latencies("late", "late"),
    "publish_cpu_us": Metric("broker CPU us/publish", digits=2),
    "rss_per_message_b": Metric("RSS B per waiting message", digits=1),
    "rss_mb": Metric("RSS MB", digits=1),
    "rss_per_million_mb": Metric("RSS MB per million", digits=1),
    "rss_per_session_kb": Metric("RSS kB per session", digits=1),
    "ready_s": Metric("ready s", digits=3),
    "first_delivery_s": Metric("first delivery s", digits=3),
    "verified_mb_per_cpu_s": Metric("MB per CPU s", more_is_better=True),
    "log_mb": Metric("log MB", more_is_better=None),
    "consume_shallow_us": Metric("consume, shallow us", digits=1),
    "consume_deep_us": Metric("consume, deep us", digits=1),
    "deep_to_shallow": Metric("deep / shallow", digits=3),
    "disk_limit_per_s": Metric("disk limit/s", more_is_better=None),
    "limit_share": Metric("of the disk limit", more_is_better=True, digits=2),
    "syncs_per_message": Metric("fsyncs/msg", more_is_better=None, digits=5),
}


@dataclass(frozen=True, slots=True)
class Result:
    """The runs of one scenario with the same parameters. ``durability`` is the broker's own word for it, for example
    ``always``."""

    scenario: str
    parameters: dict[str, Any]
    durability: str
    runs: list[dict[str, float]]

    @property
    def name(self) -> str:
        """Scenario and parameters in one line."""
        return " ".join([self.scenario, *(f"{name}={value}" for name, value in self.parameters.items())])

    def median(self, metric: str) -> float | None:
        """The median of a metric over the runs; None where it was not measured."""
        found = self.values(metric)
        return median(found) if found else None

    def values(self, metric: str) -> list[float]:
        """The values of a metric, one for each run that has it."""
        return [run[metric] for run in self.runs if metric in run]


@dataclass(frozen=True, slots=True)
class Session:
    """The results of one invocation on one machine."""

    machine: dict[str, Any]
    results: Sequence[Result]

    def save(self, path: Path) -> None:
        """Write the session to a file. Raises: OSError."""
        found = {"format": FORMAT, "machine": self.machine, "results": [asdict(result) for result in self.results]}
        path.write_text(json.dumps(found, indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> "Session":
        """Read a session from a file. Raises: BenchError when the file is not one; OSError."""
        try:
            found = json.loads(path.read_text())
            if found["format"] != FORMAT:
                raise BenchError(f"{path}: format {found['format']}, and {FORMAT} is known")
            return cls(found["machine"], [Result(**result) for result in found["results"]])
        except (ValueError, KeyError, TypeError) as error:
            raise BenchError(f"{path} is not a file of toymq-bench --json: {error!r}") from None
