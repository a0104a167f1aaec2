"""Changes of a whole partitioned topic while a worker does not answer, and completion of one that was interrupted. ADR 0270."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

import toymq
import toymq.sync
from tests.e2e.test_partitions import COUNT, divided, forget, places
from tests.support.worker_processes import serving
from toymq_py.heartbeat import standstill
from toymq_py.placement import worker_of
from toymqctl.cli import main as toymqctl


def refused_by_itself(url: str, method: str, *arguments: Any) -> str:
    """Return the error that a newly connected client gets, as that of `toymqctl`."""
    with toymq.sync.connect(url) as client, pytest.raises(toymq.PlacementUnknown) as refused:
        getattr(client, method)(*arguments)
    return str(refused.value)


def test_while_a_worker_stands_still_nothing_is_changed_over_tcp_nor_http(tmp_path: Path) -> None:
    """Found: `toymqctl` changed the partitions of the other worker for good, and reported that one worker does not answer; over
    HTTP nothing was done."""
    data_dir, asked = tmp_path / "data", worker_of("orders", 2)
    with serving(data_dir, 2, "--http", "127.0.0.1:0") as running:
        running.ready(2)
        url, http = f"toymq://127.0.0.1:{running.ports[asked]}", f"{running.http(asked)}/v1/topics/orders"
        with toymq.sync.connect(url) as open_before:
            open_before.create("orders", {"partitions": COUNT})
            for number in range(COUNT):
                open_before.pub(f"orders#{number}", b"x")
            open_before.seek("orders", "c", "earliest", create=True)
            os.kill(running.pids[1 - asked], signal.SIGSTOP)
            try:
                with ThreadPoolExecutor() as threads:
                    beside = [
                        threads.submit(refused_by_itself, url, *words) for words in (
                            ("purge", "orders"), ("config", "orders", {"max_attempts": 7}), ("seek", "orders", "c", "latest"),
                            ("delete", "orders"),
                        )
                    ]  # fmt: skip
                    over_http = threads.submit(httpx.post, f"{http}:purge", timeout=60)
                    with pytest.raises(toymq.PlacementUnknown, match=r"; nothing was done: repeat FORGET orders c$"):
                        open_before.forget("orders", "c")
                    assert {said.result() for said in beside} == {
                        f"worker {1 - asked} {standstill(running.pids[1 - asked])}; nothing was done: repeat {words}"
                        for words in ("PURGE orders", "CONFIG orders", "SEEK orders c", "DELETE orders")
                    }
                    assert over_http.result().status_code == 503
                    assert over_http.result().json()["detail"].endswith("; nothing was done: repeat it")
            finally:
                os.kill(running.pids[1 - asked], signal.SIGCONT)
            running.hears(f"worker {1 - asked} answers again")
            found = open_before.describe("orders")
            assert ([part["messages"] for part in found["parts"]], found["settings_differ"]) == ([1] * COUNT, [])
            assert [one["backlog"] for one in found["consumers"]] == [COUNT], "nor later, when it goes on"
            assert open_before.purge("orders") == COUNT


@pytest.mark.parametrize("yes", [False, True], ids=["asked", "yes"])
def test_the_terminal_completes_a_delete_that_was_interrupted(tmp_path: Path, yes: bool) -> None:
    """Found: without `--yes` the command was refused each time, with the advice to repeat it, and it reported "with 0 messages"
    for a topic that had some."""
    data_dir, workers = tmp_path / "data", 3
    divided(data_dir, workers)
    forget(data_dir, next(worker for worker in range(workers) if worker != worker_of("orders", workers)))
    with serving(data_dir, workers) as running:
        running.ready(workers)
        command = ["--url", f"toymq://127.0.0.1:{running.port}", "delete", "orders", *(["--yes"] if yes else [])]
        question = "delete orders: that was begun and interrupted; complete it? [y/N]: "
        if not yes:
            kept = CliRunner().invoke(toymqctl, command, input="n\n")
            assert (kept.exit_code, kept.stderr) == (1, f"{question}n\ntoymqctl: nothing was deleted\n")
        done = CliRunner().invoke(toymqctl, command, input="y\n")
        assert (done.exit_code, done.stderr) == (0, "" if yes else f"{question}y\n")
        assert done.stdout == "deleted orders, which was interrupted before: how many messages it had is not known\n"
    assert places(data_dir) == {}
