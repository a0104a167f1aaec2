"""``toymq serve --workers N`` as a process."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from threading import Condition, Thread

from tests.support.broker_process import COMMAND, Wire, environment
from tests.support.forked_broker import ForkedBroker, can_fork
from toymq_py.placement import worker_of

WITHIN_S = 60.0


class Workers:
    """The supervisor process, and what its workers report when they are ready."""

    def __init__(self, data_dir: Path, number: int, *options: str) -> None:
        arguments = [
            "serve", "--workers", str(number), "--listen", "127.0.0.1:0", "--data-dir", str(data_dir), "--min-free-bytes", "0",
            "--max-connections", "100", *options,
        ]  # fmt: skip
        variables = {**environment(), "TOYMQ_CONFIG": os.devnull}
        self.process: ForkedBroker | subprocess.Popen[str]
        if can_fork(variables):
            read, write = os.pipe()
            self.process, stderr = ForkedBroker(arguments, variables, write), os.fdopen(read)
            os.close(write)
        else:
            pipe = subprocess.PIPE
            self.process = subprocess.Popen([*COMMAND, *arguments], env=variables, stdout=pipe, stderr=pipe, text=True)
            assert self.process.stderr is not None
            stderr = self.process.stderr
        assert self.process.stdout is not None
        self._streams = self.process.stdout, stderr
        self.port = 0
        """The one at which every worker takes connections."""
        self.ports: dict[int, int] = {}
        self.pids: dict[int, int] = {}
        self.said = ""
        self._more_said = Condition()
        self._lines: Queue[str] = Queue()
        self._threads = [
            Thread(target=self._collect, args=self._streams[:1]), Thread(target=self._hear, args=self._streams[1:])
        ]  # fmt: skip
        for thread in self._threads:
            thread.start()

    def _collect(self, stdout: Iterator[str]) -> None:
        for line in stdout:
            self._lines.put(line)
        self._lines.put("")

    def _hear(self, stderr: Iterator[str]) -> None:
        for line in stderr:
            with self._more_said:
                self.said += line
                self._more_said.notify_all()

    def hears(self, text: str) -> None:
        """Wait for a text on stderr."""
        with self._more_said:
            assert self._more_said.wait_for(lambda: text in self.said, WITHIN_S), self.said

    def ready(self, count: int) -> None:
        """Wait for ``count`` workers to be ready."""
        for _ in range(count):
            line = self._lines.get(timeout=WITHIN_S)
            common, own = r"127\.0\.0\.1:(\d+) (?:toymqs://\S+ )?", r"127\.0\.0\.1:(\d+)"  # that of all first
            found = re.search(rf"toymq {common}{own} .*workers/(\d+).*\(pid (\d+)\)", line)
            assert found is not None, line or f"it has ended: {self.said}"
            assert self.port in (0, int(found[1])), f"the address of all workers comes first: {line}"
            worker, self.port = int(found[3]), int(found[1])
            self.ports[worker], self.pids[worker] = int(found[2]), int(found[4])

    def wire(self, worker: int) -> Wire:
        return Wire(self.ports[worker])

    def addresses(self) -> list[list[str]]:
        """Return the addresses of each worker, as CLUSTER tells them."""
        with self.wire(0) as wire:
            assert wire.ask(b"CLUSTER\n").startswith(b"JSON")
            found: list[list[str]] = json.loads(wire.line())["workers"]
        return found

    def http(self, worker: int) -> str:
        """``http://host:port`` of a worker."""
        return next(address for address in self.addresses()[worker] if address.startswith("http")).removesuffix("/")

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(WITHIN_S)

    def join(self) -> None:
        """Wait until the supervisor and all workers have ended: no process has their output open any more."""
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
        for stream in workers._streams:
            stream.close()


def topic_of(worker: int, workers: int) -> str:
    return next(name for name in map("topic{}".format, range(100)) if worker_of(name, workers) == worker)


def publish(wire: Wire, topic: str, text: str) -> bytes:
    return wire.ask(f"PUB {topic} - {len(text)}\n{text}\n".encode())
