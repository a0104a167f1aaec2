"""``toymq-chaos --workers``: workers, their supervisor and ``toymq workers --set`` are killed, and every promise is kept."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from toymq_chaos.supervisor import BrokerFailed
from toymq_chaos.users import TOPIC
from toymq_chaos.worker_supervisor import WorkerSupervisor
from toymq_py.placement import worker_of

CHAOS = Path(sys.executable).with_name("toymq-chaos")


def chaos(out: Path, *options: str) -> list[dict[str, object]]:
    """Run the harness. Returns: its history."""
    arguments = [CHAOS, "run", "--workers", "2", "--out", out, *options]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("every promise was kept\n")
    return [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]


def test_workers_under_faults_keep_their_promises(tmp_path: Path) -> None:
    """The broker lives three times, with two workers, three, and three."""
    rows = chaos(tmp_path / "out", "--seed", "89", "--duration", "3900ms", "--publishers", "3")
    killed = Counter(row.get("worker") for row in rows if row["op"] == "kill")
    assert {0, 1, 2} < killed.keys(), "each of them"
    assert killed[None] == 2, "the supervisor"
    assert [row["workers"] for row in rows if row["op"] == "start"] == [2, 3, 3]
    assert "stalled" not in {row["op"] for row in rows}
    own = {row["process"].partition(".")[0] for row in rows if row["op"] == "deliver" and row["topic"] == TOPIC}  # type: ignore[attr-defined]
    assert own == {"a-4", "a-32", "a-1024", "b-16"}, "the product's own clients, which follow MOVED"
    topics = {str(row["topic"]) for row in rows if row["op"] == "deliver"}
    assert {worker_of(topic, 2) for topic in topics} == {0, 1}
    assert any(worker_of(topic, 2) != worker_of(topic, 3) for topic in topics), "some of them move"
    assert {"lanes", "jobs.dlq", "jobs"} <= topics, "order per key, dead letters, shared consumers"
    check = [CHAOS, "check", "--json", tmp_path / "out/history.jsonl"]
    done = subprocess.run(check, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["lost"] == 0


@pytest.mark.torture
@pytest.mark.parametrize("seed", [11, 12, 13])
def test_workers_under_faults_for_long(tmp_path: Path, seed: int) -> None:
    rows = chaos(tmp_path / "out", "--seed", str(seed), "--duration", "90s")
    assert sum(row["op"] == "kill" for row in rows) > 60


async def test_a_worker_that_ends_by_itself_is_told_from_one_that_was_killed(tmp_path: Path) -> None:
    broker = WorkerSupervisor(tmp_path / "d", tmp_path / "log", tmp_path / "clock", ["--min-free-bytes", "0"], 2)
    try:
        await broker.start_workers(2)
        await broker.answers(0)
        broker.signal_worker(0, signal.SIGKILL)
        await broker.replaced(0)
        assert broker.surprises == []
        os.kill(broker.pid_of(1), signal.SIGKILL)
        while not broker.surprises:  # noqa: ASYNC110 (it comes with the line of its successor)
            await asyncio.sleep(0.01)
        assert broker.surprises == ["worker 1 has ended by itself"]
    finally:
        broker.signal(signal.SIGKILL)
        assert await broker.ended() == -signal.SIGKILL


async def test_workers_that_do_not_start_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "d").write_text("no directory")
    broker = WorkerSupervisor(tmp_path / "d", tmp_path / "log", tmp_path / "clock", [], 2)
    with pytest.raises(BrokerFailed, match="the workers did not start, exit code 2: toymq: "):
        await broker.start_workers(2)
