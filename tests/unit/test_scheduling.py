"""Which test worker runs which tests: the scheduler of ``make test`` with two workers that only record their commands."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.scheduling import Scheduling, import_ahead, in_order, scope_of

TESTS = [
    "tests/spark/test_jobs.py::test_a", "tests/spark/test_spark.py::test_b", "tests/spark/test_spark.py::test_c",
    "tests/unit/test_x.py::test_a", "tests/unit/test_x.py::test_b[::]", "tests/unit/test_y.py::test_a",
]  # fmt: skip


class Worker:
    """An xdist worker, as far as a scheduler calls it."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name, spec=name)
        self.told: list[int] = []
        self.shutting_down = False

    def send_runtest_some(self, indices: list[int]) -> None:
        self.told += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def scheduling(*workers: Worker) -> Scheduling:
    config = SimpleNamespace(getvalue=lambda name: ["popen"] * len(workers), option=SimpleNamespace(loadscopereorder=False))
    scheduler = Scheduling(cast(Any, config))
    for worker in workers:
        scheduler.add_node(cast(Any, worker))
    for worker in workers:
        scheduler.add_node_collection(cast(Any, worker), TESTS)
    scheduler.schedule()
    return scheduler


def test_one_worker_has_all_tests_of_spark_and_the_others_go_by_file() -> None:
    assert [scope_of(test) for test in TESTS] == ["tests/spark/"] * 3 + ["tests/unit/test_x.py"] * 2 + ["tests/unit/test_y.py"]
    first, second = Worker("gw0"), Worker("gw1")
    scheduling(first, second)
    assert (first.told, second.told) == ([0, 1, 2], [3, 4, 5])


def test_each_test_is_run_once_and_the_run_ends() -> None:
    workers = Worker("gw0"), Worker("gw1")
    scheduler, done = scheduling(*workers), list[int]()
    while not scheduler.tests_finished:
        worker = next(worker for worker in workers if worker.told)
        done.append(worker.told.pop(0))
        scheduler.mark_test_complete(cast(Any, worker), done[-1])
    assert len(done) >= len(TESTS) - len(workers)
    assert sorted(done + workers[0].told + workers[1].told) == list(range(len(TESTS)))
    assert all(worker.shutting_down for worker in workers)


def test_what_a_worker_that_crashed_has_not_done_goes_to_its_successor() -> None:
    first, second, third = Worker("gw0"), Worker("gw1"), Worker("gw2")
    scheduler = scheduling(first, second)
    scheduler.mark_test_complete(cast(Any, first), 0)
    assert scheduler.remove_node(cast(Any, first)) == TESTS[1]
    scheduler.add_node(cast(Any, third))
    scheduler.add_node_collection(cast(Any, third), TESTS)
    scheduler.schedule()
    assert third.told == [1, 2]


def test_long_files_come_first_and_then_those_of_the_most_tests() -> None:
    items = [SimpleNamespace(nodeid=test, path=test.partition("::")[0]) for test in reversed(TESTS)]
    order = [item.nodeid for item in in_order(cast("list[pytest.Item]", items))]
    assert order == [TESTS[2], TESTS[1], TESTS[0], TESTS[4], TESTS[3], TESTS[5]]


def test_each_worker_imports_all_files_and_begins_with_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when a file cannot be imported: the collection reports that."""
    folder = tmp_path / "ahead"
    folder.mkdir()
    for name in "abcd":
        (folder / f"test_{name}.py").write_text("import order\norder.append(__name__)\n")
    (folder / "test_bad.py").write_text("raise ValueError\n")
    order: list[str] = []
    monkeypatch.setitem(sys.modules, "order", cast(Any, order))
    monkeypatch.syspath_prepend(tmp_path)
    names = [f"ahead.test_{name}" for name in "abcd"]
    for worker, expected in enumerate([names, [*names[2:], *names[:2]]]):
        told = {"workerid": f"gw{worker}", "workercount": 2}
        import_ahead(cast(Any, SimpleNamespace(args=[str(folder)], rootpath=tmp_path, workerinput=told)))
        assert order == expected
        order.clear()
        for name in names:
            del sys.modules[name]
