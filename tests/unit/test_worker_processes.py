"""`toymq serve --workers`, as processes."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from threading import Thread

import pytest

from tests.support.broker_process import COMMAND, ROOT, Wire, environment, run
from toymq_py.placement import worker_of

WITHIN_S = 60.0


class Workers:
    """The supervisor, and what its workers say when they are ready."""

    def __init__(self, data_dir: Path, number: int, *options: str) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, "serve", "--workers", str(number), "--listen", "127.0.0.1:0", "--data-dir", str(data_dir),
             "--min-free-bytes", "0", "--max-connections", "100", *options],
            env={**environment(), "TOYMQ_CONFIG": os.devnull}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.ports: dict[int, int] = {}
        self.pids: dict[int, int] = {}
        self.said = ""
        self._lines: Queue[str] = Queue()
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        stdout, stderr = self.process.stdout, self.process.stderr
        self._threads = [Thread(target=self._collect, args=[stdout]), Thread(target=self._hear, args=[stderr])]
        for thread in self._threads:
            thread.start()

    def _collect(self, stdout: Iterator[str]) -> None:
        for line in stdout:
            self._lines.put(line)

    def _hear(self, stderr: Iterator[str]) -> None:
        for line in stderr:
            self.said += line

    def ready(self, count: int) -> None:
        """Wait for so many workers to be ready."""
        for _ in range(count):
            line = self._lines.get(timeout=WITHIN_S)
            found = re.search(r"toymq 127\.0\.0\.1:(\d+) .*workers/(\d+).*\(pid (\d+)\)", line)
            assert found is not None, line
            worker = int(found[2])
            self.ports[worker], self.pids[worker] = int(found[1]), int(found[3])

    def wire(self, worker: int) -> Wire:
        return Wire(self.ports[worker])

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(WITHIN_S)

    def join(self) -> None:
        """Until no process has its output open: the supervisor and all workers have ended."""
        self.process.wait(WITHIN_S)
        for thread in self._threads:
            thread.join(WITHIN_S)
            assert not thread.is_alive(), "a worker has outlived its supervisor"


@contextmanager
def serving(data_dir: Path, number: int, *options: str) -> Iterator[Workers]:
    workers = Workers(data_dir, number, *options)
    try:
        yield workers
    finally:
        workers.process.kill()
        workers.join()
        for stream in (workers.process.stdout, workers.process.stderr):
            assert stream is not None
            stream.close()


def topic_of(worker: int, workers: int) -> str:
    return next(name for name in map("topic{}".format, range(100)) if worker_of(name, workers) == worker)


def publish(wire: Wire, topic: str, text: str) -> bytes:
    return wire.ask(f"PUB {topic} - {len(text)}\n{text}\n".encode())


def test_each_topic_is_with_one_worker_and_the_others_name_it(tmp_path: Path) -> None:
    with serving(tmp_path / "data", 2) as workers:
        workers.ready(2)
        for worker in (0, 1):
            topic = topic_of(worker, 2)
            with workers.wire(worker) as here, workers.wire(1 - worker) as there:
                address = f"ERR MOVED 127.0.0.1:{workers.ports[worker]} (worker {worker}) has the topic {topic}".encode()
                for command in ("CREATE {}", "DESCRIBE {}", "SUB {} c", "PULL {} c 1", "DELETE {}"):
                    assert there.ask(command.format(topic).encode() + b"\n") == address, command
                assert publish(there, topic, "x") == address
                assert publish(here, topic, "x") == b"OK 0"
                assert here.ask(b"DESCRIBE %b.dlq\n" % topic.encode()).startswith(b"ERR NO_SUCH_TOPIC")
                assert there.ask(b"DESCRIBE %b.dlq\n" % topic.encode()).startswith(b"ERR MOVED")
        assert workers.stop() == 0
        workers.join()


def test_a_worker_that_is_killed_is_replaced_at_its_address_and_the_others_go_on(tmp_path: Path) -> None:
    with serving(tmp_path / "data", 2) as workers:
        workers.ready(2)
        with workers.wire(0) as other:
            for turn in range(3):
                with workers.wire(1) as wire:
                    assert publish(wire, topic_of(1, 2), str(turn)) == b"OK %d" % turn
                port = workers.ports[1]
                os.kill(workers.pids[1], signal.SIGKILL)
                workers.ready(1)
                assert workers.ports[1] == port
                assert publish(other, topic_of(0, 2), str(turn)) == b"OK %d" % turn
        assert "worker 1 was ended by SIGKILL" in workers.said
        with workers.wire(1) as wire:
            wire.send(f"SUB {topic_of(1, 2)} c start=earliest window=9\n".encode())
            assert wire.line().startswith(b"OK")
            assert [wire.message()[2] for _ in range(3)] == [b"0", b"1", b"2"]


def test_workers_end_with_a_supervisor_that_is_killed_and_what_was_acknowledged_is_there(tmp_path: Path) -> None:
    with serving(tmp_path / "data", 2) as workers:
        workers.ready(2)
        for worker in (0, 1):
            with workers.wire(worker) as wire:
                assert publish(wire, topic_of(worker, 2), "kept") == b"OK 0"
        workers.process.kill()
        workers.join()
    with serving(tmp_path / "data", 2) as workers:
        workers.ready(2)
        for worker in (0, 1):
            with workers.wire(worker) as wire:
                assert publish(wire, topic_of(worker, 2), "next") == b"OK 1"
        assert workers.stop() == 0


def test_a_worker_that_cannot_start_does_not_stop_the_others(tmp_path: Path) -> None:
    with serving(tmp_path / "data", 2) as workers:
        workers.ready(2)
        assert workers.stop() == 0
        workers.join()
    (tmp_path / "data/workers/1/LOCK").unlink()
    (tmp_path / "data/workers/1/LOCK").mkdir()
    with serving(tmp_path / "data", 2) as workers:
        workers.ready(1)
        with workers.wire(0) as wire:
            assert publish(wire, topic_of(0, 2), "x") == b"OK 0"
        (tmp_path / "data/workers/1/LOCK").rmdir()
        workers.ready(1)
        assert "worker 1: cannot use" in workers.said
        assert workers.stop() == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--workers", "3"), "is divided over 2 workers, which cannot be changed yet: serve it with --workers 2"),
        ((), "is divided over 2 workers: `toymq serve --workers 2` serves it"),
        (("--workers", "2", "--listen", "0.0.0.0:6789", "--insecure-public"), "give an address of this machine"),
        (("--workers", "2", "--listen", "127.0.0.1:6789", "--http", "127.0.0.1:6790"), "of worker"),
        (("--workers", "2", "--definitions", "some.toml"), "--definitions and --workers exclude each other"),
        (("--workers", "2", "--amqp", "127.0.0.1:0"), "--amqp and --workers exclude each other"),
        (("--workers", "2", "--listen", "127.0.0.1:65535"), "65536"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_refused(tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    with serving(tmp_path / "data", 2) as workers:
        workers.ready(2)
        assert workers.stop() == 0
    listen = () if "--listen" in options else ("--listen", "127.0.0.1:0")
    ended = run("serve", "--data-dir", str(tmp_path / "data"), *listen, *options)
    assert ended.returncode == 2
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_directory_of_one_process_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "topics/orders").mkdir(parents=True)
    ended = run("serve", "--data-dir", str(tmp_path), "--workers", "2", "--listen", "127.0.0.1:0")
    assert ended.returncode == 2
    assert "only an empty directory can be divided over workers: serve it without --workers" in ended.stderr
    assert not (tmp_path / "workers.json").exists()


def test_one_process_loads_nothing_of_it() -> None:
    code = """
import sys, toymq_py.daemon, toymq_py.cli.serve
print(sorted({"toymq_py.worker_processes"} & sys.modules.keys()))
"""
    ended = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=False)
    assert ended.stdout == "[]\n", ended.stderr


def test_the_guide_tells_the_truth(tmp_path: Path) -> None:
    """docs/more-cores.md: its program finds the workers of its topics, and the answer is that of its transcript."""
    page = (ROOT / "docs/more-cores.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (asked, answer) = re.findall(r"```\n> (.*)\n< (.*)\n```", page)[0]
    with serving(tmp_path / "data", 2, "--http", "127.0.0.1:0") as workers:
        workers.ready(2)
        with workers.wire(0) as wire:
            said = re.sub(r":[0-9]+", ":PORT", wire.ask(asked.encode() + b"\n").decode())
            assert said == re.sub(r":[0-9]+", ":PORT", answer)
        for start in (0, 1):
            text = program.replace("127.0.0.1:6789", f"127.0.0.1:{workers.ports[start]}")
            ended = subprocess.run(
                [sys.executable, "-W", "error", "-c", text], env=environment(), capture_output=True, text=True, check=False
            )
            assert (ended.returncode, ended.stderr) == (0, "")
        for worker, topic in enumerate(("orders", "events")):
            with workers.wire(worker) as wire:
                assert publish(wire, topic, "x") == b"OK 2"
