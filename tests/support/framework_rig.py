"""Runs workers of frameworks that speak AMQP in processes of their own, collects what their tasks report, and runs the programs
of their documentation pages."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from tests.support.broker_process import ROOT, TIMEOUT_S, BrokerProcess, environment

SAID = "TEST_SAID"
"""The directory in which the tasks of a worker say what they did."""
BROKER = "TEST_BROKER"
"""The URL of a worker's broker."""

FIRST = 1000
"""The first task of ``do_all_under_kills``."""


class WorkerProcess:
    """``python -m …`` in a process group of its own, which is killed as a whole."""

    def __init__(
        self, *arguments: str, broker_url: str = "", said: Path | None = None, cwd: Path = ROOT, **variables: str
    ) -> None:
        self._arguments = arguments
        self._cwd = cwd
        self._variables = {
            **environment(), "PYTHONUNBUFFERED": "1", BROKER: broker_url, SAID: str(said or cwd), **variables,
        }  # fmt: skip
        self.start()

    def __enter__(self) -> "WorkerProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", *self._arguments], env=self._variables, cwd=self._cwd, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def kill(self) -> None:
        """Kill all processes of the group with SIGKILL."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def restart(self) -> None:
        self.kill()
        self.start()


def say(text: str) -> None:
    """Called by a task: report what it did, in a file of its process."""
    path = Path(os.environ[SAID]) / f"{os.getpid()}.txt"
    with path.open("a") as file:
        file.write(f"{text}\n")


def lines_said(said: Path) -> list[str]:
    """Return all lines that tasks reported."""
    return [line for path in said.glob("*.txt") for line in path.read_text().splitlines()]


def done(said: Path) -> set[str]:
    """Return the tasks that were done."""
    return set(lines_said(said))


def until(ready: Callable[[], object], within_s: float = TIMEOUT_S) -> None:
    """Wait until a condition on other processes holds."""
    ends = time.monotonic() + within_s  # noqa: TID251 (of other processes)
    while not ready():
        assert time.monotonic() < ends, "too late"  # noqa: TID251
        time.sleep(0.02)


def do_all_under_kills(
    broker: BrokerProcess, worker: WorkerProcess, send: Callable[[int], object], said: Path, *, kills: int, count: int,
    within_s: float = TIMEOUT_S,
) -> None:  # fmt: skip
    """Send ``count`` tasks "add", kill the broker and the worker in turn meanwhile, and wait until every task is done."""
    before, kill = done(said), 0
    for number in range(count):
        send(FIRST + number)
        if number % (count // kills) == count // kills - 1:
            kill += 1
            so_far, sent = len(done(said) - before), number + 1
            until(lambda so_far=so_far, sent=sent: so_far < len(done(said) - before) or so_far == sent)  # type: ignore[misc]
            if kill % 2:
                broker.restart()
            else:
                worker.restart()
    until(lambda: done(said) >= {f"add {FIRST + number}" for number in range(count)}, within_s)


def run_page(page: str, app_file: str, module: str, folder: Path, replaced: Mapping[str, str]) -> tuple[str, str, str]:
    """Run the programs of a framework's documentation page: the first program is the app, and is written to ``app_file``; the
    worker is the first shell command with ``module``; the second program is the client.

    Args:
        replaced: addresses on the page, and what replaces them.

    Returns: what the client wrote to stderr and to stdout, and the output that the page shows.
    """
    text = (ROOT / "docs" / f"{page}.md").read_text()
    for old, new in replaced.items():
        assert old in text, f"docs/{page}.md has no {old}"
        text = text.replace(old, new)
    (app, client), (said,) = (
        re.findall(rf"^```{kind}\n(.*?)^```", text, re.MULTILINE | re.DOTALL) for kind in ("python", "text")
    )
    (folder / app_file).write_text(app)
    command = re.findall(rf"^{re.escape(module)} (.*)$", text, re.MULTILINE)[0]
    path = os.pathsep.join((str(folder), environment()["PYTHONPATH"]))
    with WorkerProcess(module, *command.split(), cwd=folder, PYTHONPATH=path):
        ran = subprocess.run(
            [sys.executable, "-c", client], env={**environment(), "PYTHONPATH": path}, cwd=folder, capture_output=True,
            text=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
    return ran.stderr, ran.stdout, said


def until_confirmed(publish: Callable[[int], Awaitable[object]]) -> Callable[[int], None]:
    """Return a function for ``do_all_under_kills``, callable from another thread: it publishes on this event loop, again and
    again until there is a confirm."""
    loop = asyncio.get_running_loop()

    async def send(number: int) -> None:
        while True:
            try:
                await asyncio.wait_for(publish(number), 1)
            except Exception:  # noqa: BLE001 (whatever a connection that is lost raises)
                await asyncio.sleep(0.02)
            else:
                return

    return lambda number: asyncio.run_coroutine_threadsafe(send(number), loop).result()
