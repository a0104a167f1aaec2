"""One invocation of ``toymq-bench``: its options, its broker, its runs, and the disk's limit beside them."""

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
    """The options that all scenarios share, and the results so far."""

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
        """Check that the packages for a measurement are installed. Raises: ModuleNotFoundError."""
        latency.check_installed()

    def broker(self, *options: str) -> Broker:
        """Return a new broker, with further options of ``toymq serve``, or the running one that is measured. Raises:
        BenchError, OSError."""
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
            once: does one run; gets the broker and a label for the progress bar.
            options: options of ``toymq serve`` that the scenario needs.
            commit: bytes per record, and records per group commit, for measuring the disk's limit before each run; None: it is
                not measured.

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
        """Run a load of publishers and consumers, and measure the disk's limit for its records. Raises: BenchError, OSError."""
        return self.run(
            scenario, parameters, lambda broker, label: measure(broker, traffic, self.plan, label),
            commit=(traffic.size + disk.RECORD_OVERHEAD_BYTES, disk.records_per_commit(traffic.producers * traffic.window)),
        )  # fmt: skip

    def run_idle(self, sessions: int) -> None:
        """Run the scenario ``backlog.idle`` with ``sessions`` connections, after raising the limits of descriptors and
        connections. Raises: BenchError, OSError."""
        allow_descriptors(sessions + 200)
        self.run(
            "idle", {"sessions": sessions}, lambda broker, label: backlog.idle(broker, sessions, label),
            options=("--max-connections", str(sessions + 10)),
        )  # fmt: skip

    def session(self) -> Session:
        """Return the results so far, with facts about this machine."""
        facts = machine.facts(self.directory)
        if self.running is not None:
            facts["file_system"] = "unknown file system"
        return Session(facts, self.results)
