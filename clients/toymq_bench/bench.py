"""One invocation: its options, its broker, its runs and their disk limits."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toymq_bench import backlog, disk, latency, machine
from toymq_bench.broker import Broker, StartedBroker, allow_descriptors
from toymq_bench.progress import phase
from toymq_bench.result import Result, Session
from toymq_bench.traffic import Plan, Traffic, measure

LIMIT_S = 1.0
"""The disk limit is measured before each run, for as long as the run takes, but no longer than this."""


@dataclass(slots=True)
class Bench:
    """Options that all scenarios share, and the results so far."""

    plan: Plan
    runs: int
    directory: Path
    """Parent of the brokers' fresh directories."""
    serve_options: tuple[str, ...] = ()
    running: tuple[str, int, int] | None = None
    """Host, port and pid of a broker to measure instead of a fresh one for each run."""
    source: Path | None = None
    """A checkout to start the broker of, instead of the installed one."""
    results: list[Result] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Raises: ModuleNotFoundError."""
        latency.check_installed()

    def broker(self, *options: str) -> Broker:
        """A fresh broker with further options, or the running one. Raises: BenchError, OSError."""
        if self.running is not None:
            return Broker(*self.running)
        return StartedBroker(self.directory, (*options, *self.serve_options), self.source)

    def run(
        self,
        scenario: str,
        parameters: dict[str, Any],
        once: Callable[[Broker, str], dict[str, float]],
        *,
        options: tuple[str, ...] = (),
        commit: tuple[int, int] | None = None,
    ) -> Result:
        """Run a scenario as often as asked, each time on a fresh broker.

        Args:
            once: gets the broker and a label for its progress.
            options: of the broker, as the scenario needs them.
            commit: bytes of a record, and records of a commit, for a disk limit beside each run; None where it says nothing.

        Raises: BenchError, OSError.
        """
        result = Result(scenario, parameters, "", [])
        durability = ""
        for number in range(1, self.runs + 1):
            label = f"{result.name}, run {number} of {self.runs}" if self.runs > 1 else result.name
            limit = None
            # Where a running broker keeps its data we do not know, and another disk's limit would say nothing.
            if commit is not None and self.running is None:
                with phase("disk limit", 1):
                    limit = disk.records_per_s(self.directory, *commit, min(LIMIT_S, self.plan.seconds))
            with self.broker(*options) as broker:
                durability = broker.stats()["fsync"]
                values = once(broker, label)
            if limit is not None:
                values["disk_limit_per_s"] = limit
                if "publishes_per_s" in values and "rate" not in parameters:
                    values["limit_share"] = values["publishes_per_s"] / limit
            result.runs.append(values)
        result = Result(scenario, parameters, f"fsync {durability}", result.runs)
        self.results.append(result)
        return result

    def run_traffic(self, scenario: str, parameters: dict[str, Any], traffic: Traffic) -> Result:
        """Run a load, and measure the disk limit of its records. Raises: BenchError, OSError."""
        return self.run(
            scenario, parameters, lambda broker, label: measure(broker, traffic, self.plan, label),
            commit=(traffic.size + disk.RECORD_OVERHEAD_BYTES, disk.records_per_commit(traffic.producers * traffic.window)),
        )  # fmt: skip

    def run_idle(self, sessions: int) -> None:
        """Run ``backlog.idle``, with descriptors and connections for so many sessions. Raises: BenchError, OSError."""
        allow_descriptors(sessions + 200)
        self.run(
            "idle", {"sessions": sessions}, lambda broker, label: backlog.idle(broker, sessions, label),
            options=("--max-connections", str(sessions + 10)),
        )  # fmt: skip

    def session(self) -> Session:
        """The results so far, with the facts of this machine."""
        facts = machine.facts(self.directory)
        if self.running is not None:
            facts["file_system"] = "unknown file system"
        return Session(facts, self.results)
