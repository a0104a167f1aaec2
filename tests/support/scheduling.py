"""Decides which worker of ``make test`` runs which tests, and in which order."""

import contextlib
import importlib
from collections import Counter
from pathlib import Path

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

LONG = (
    "tests/spark/", "tests/e2e/test_dashboard_axe", "tests/e2e/test_dashboard.py",
    "tests/e2e/test_hostile_peers", "tests/e2e/test_tier", "tests/packaging/test_distribution", "tests/e2e/test_runbook",
    "tests/e2e/test_chaos", "tests/e2e/test_command_lines", "tests/e2e/test_worker_supervisor",
    "tests/e2e/workers/test_job_process", "tests/simulation/", "tests/bench/test_cli",
    "tests/packaging/test_hatch_build", "tests/e2e/test_partitions", "tests/model/",
    "tests/e2e/test_hostile_heads", "tests/packaging/test_guides", "tests/fault/test_forged", "tests/fault/test_backup.py",
    "tests/e2e/test_ended_connections", "tests/e2e/test_restart", "tests/e2e/test_definitions", "tests/e2e/test_hostile",
    "tests/unit/test_worker_processes", "tests/unit/gateway/test_answer_room", "tests/e2e/test_cluster", "tests/e2e/test_s",
    "tests/e2e/test_power_loss",
    "tests/fault/", "tests/fuzz/", "tests/e2e/", "tests/property/", "tests/packaging/",
)  # fmt: skip
"""Files that take long for the tests they have, the longest first: ``make test`` begins with them, or one core waits for the
others at the end."""
TOGETHER = ("tests/spark/",)
"""Folders that one worker runs: their tests share what takes longer to start than they take, a JVM."""


def scope_of(nodeid: str) -> str:
    """Return the unit that one worker runs as a whole: a test file, or a folder in ``TOGETHER``."""
    return next((folder for folder in TOGETHER if nodeid.startswith(folder)), nodeid.partition("::")[0])


def in_order(items: list[pytest.Item]) -> list[pytest.Item]:
    """Sort the tests: long files first, then the files with the most tests."""
    tests = Counter(item.path for item in items)
    return sorted(items, key=lambda item: (_rank(item.nodeid), -tests[item.path]))


def _rank(nodeid: str) -> int:
    return next((rank for rank, begin in enumerate(LONG) if nodeid.startswith(begin)), len(LONG))


def import_ahead(config: pytest.Config) -> None:
    """Import the test files that will be collected, each worker starting at another file. Errors are ignored here: the
    collection reports them."""
    workers = config.workerinput["workercount"]  # type: ignore[attr-defined]
    worker = int(config.workerinput["workerid"].removeprefix("gw"))  # type: ignore[attr-defined]
    files = [file for argument in config.args for file in sorted(Path(argument.partition("::")[0]).rglob("test_*.py"))]
    first = len(files) * worker // workers
    for file in files[first:] + files[:first]:
        name = ".".join(file.resolve().relative_to(config.rootpath).with_suffix("").parts)
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(name)


class Scheduling(LoadFileScheduling):
    """The scheduling of ``--dist loadfile``, except that the folders in ``TOGETHER`` stay together."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        super().mark_test_complete(node, item_index, duration)
        scopes = self.assigned_work[node]
        scope = scope_of(self.registered_collections[node][item_index])
        if all(scopes[scope].values()):
            del scopes[scope]  # it would be counted at the end of each of ten thousand tests
