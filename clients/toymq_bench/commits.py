"""Compares a base commit with this checkout, on the same machine, in alternating runs."""

import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from toymq_bench import goals, machine
from toymq_bench.bench import Bench
from toymq_bench.broker import Broker
from toymq_bench.errors import BenchError
from toymq_bench.result import Result, Session
from toymq_bench.traffic import Plan, Traffic, measure

LOADS = {row: goals.LOADS[row] for row in ("pub 16 x 256", "pub 64 x 1", "e2e 1 -> 1", "fanout 1 -> 8")}


def git(*arguments: str) -> str:
    """Run git and return its output. Raises: BenchError with the last line of its stderr."""
    try:
        return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout.strip()
    except FileNotFoundError:
        raise BenchError("git is not installed") from None
    except subprocess.CalledProcessError as error:
        raise BenchError(f"git {arguments[0]}: {error.stderr.strip().splitlines()[-1]}") from None


@contextmanager
def checkout(reference: str) -> Iterator[Path]:
    """Check a commit out into a worktree, which is removed afterwards. Raises: BenchError when there is no such commit."""
    commit = git("rev-parse", "--verify", f"{reference}^{{commit}}")
    with tempfile.TemporaryDirectory(prefix="toymq-bench-base-") as directory:
        path = Path(directory) / "source"
        git("worktree", "add", "--detach", str(path), commit)
        try:
            yield path
        finally:
            git("worktree", "remove", "--force", str(path))


def run(base: str, plan: Plan, runs: int, directory: Path) -> tuple[Session, Session]:
    """Measure base and checkout in turn; return the results of each as a session. Raises: BenchError, OSError."""
    with checkout(base) as source:
        head = Path(git("rev-parse", "--show-toplevel"))
        sides = [Bench(plan, 1, directory, source=path) for path in (source, head)]
        for number in range(runs):
            for load, traffic in LOADS.items():
                # The one that was last begins the next time: what warms up or fills falls on both.
                for side in sides if number % 2 == 0 else reversed(sides):
                    side.run(load, {}, _once(traffic, plan))
        before, after = (Session(machine.facts(directory), _joined(side.results)) for side in sides)
        before.machine["commit"] = git("rev-parse", "--short", base)
    return before, after


def _once(traffic: Traffic, plan: Plan) -> Callable[[Broker, str], dict[str, float]]:
    return lambda broker, label: measure(broker, traffic, plan, label)


def _joined(results: list[Result]) -> list[Result]:
    """Join the single runs of each load into one result."""
    joined: dict[str, Result] = {}
    for result in results:
        joined.setdefault(result.scenario, Result(result.scenario, {}, result.durability, [])).runs.extend(result.runs)
    return list(joined.values())
