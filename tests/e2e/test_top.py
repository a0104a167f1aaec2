"""`toymqctl top` against a real broker, and without its extra."""

import os
import pty
import select
import subprocess
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path

from textual.widgets import DataTable

from tests.support.broker_process import TIMEOUT_S, BrokerProcess, environment
from tests.support.in_process import serving
from toymq.url import parse_url
from toymqctl.broker import Broker
from toymqctl.top.poller import BrokerFeed
from toymqctl.top.screen import Top


async def test_it_shows_a_brokers_figures(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        wire = await served.connect()
        assert await wire.ask(b"SUB orders billing window=1\n") == b"OK 1"
        assert await wire.ask(b"PUB orders - 6\npoison\n") == b"OK 0"
        assert (await wire.message())[2] == b"poison"
        for _ in range(3):
            wire.send(b"PUB orders - 1\nx\n")
        wire.send(b"NACK orders billing 0 dead=1 reason=rejected\n")
        watching = await served.connect()
        assert await watching.ask(b"SUB orders.dlq watch\n") == b"OK 1"
        await watching.message()  # the letter is there
        async with BrokerFeed(Broker(parse_url(f"toymq://127.0.0.1:{served.port}"))) as feed:
            app = Top(feed, every_s=None)
            async with app.run_test(size=(120, 20)) as pilot:
                await app.poll()
                table = app.query_one(DataTable)
                shown = [[str(cell) for cell in table.get_row_at(row)] for row in range(2)]
                assert [(row[0], row[3], row[5], row[7], row[8]) for row in shown] == [
                    ("orders", "3", "1", "1", "4"), ("orders.dlq", "1", "1", "0", "1")
                ]  # fmt: skip
                await pilot.press("d")
                await app.workers.wait_for_complete()
                await pilot.pause()
                letter = [str(cell) for cell in table.get_row_at(0)]
                assert (letter[2], letter[4], letter[-1]) == ("billing", "rejected", "poison")


def toymqctl(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    started = f"{program}; import sys; sys.argv[0] = 'toymqctl'; from toymqctl.cli import main; main()"
    command = [sys.executable, "-c", started, *arguments]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def test_without_the_extra_one_line_says_so() -> None:
    done = toymqctl("import sys; sys.modules['textual'] = None", "top")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("toymqctl: top needs textual")
    assert "pip install '.[tui]'" in line


def test_without_a_terminal_one_line_says_so() -> None:
    done = toymqctl("pass", "top")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("toymqctl: top needs a terminal")


class Terminal:
    """A context manager that runs `toymqctl top` on a pseudo-terminal, and kills it at the end."""

    def __init__(self, port: int) -> None:
        self._ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (24, 120))
        command = [sys.executable, "-c", "from toymqctl.cli import main; main()", "--url", f"toymq://127.0.0.1:{port}", "top"]
        self._process = subprocess.Popen(
            command, env=environment() | {"TERM": "xterm-256color"}, stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._ours)

    def until(self, text: bytes) -> None:
        """Read the output until it contains the text."""
        drawn = b""
        deadline = time.perf_counter() + TIMEOUT_S
        while text not in drawn:
            ready, _, _ = select.select([self._ours], [], [], max(deadline - time.perf_counter(), 0))
            assert ready, f"{text!r} was expected on the screen, not {drawn!r}"
            drawn += os.read(self._ours, 65_536)

    def type(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def rest(self) -> tuple[int, str]:
        """Return the exit code, and the output that was still to come."""
        written = b""
        with suppress(OSError):  # EIO: the other end is closed
            while data := os.read(self._ours, 65_536):
                written += data
        return self._process.wait(TIMEOUT_S), written.decode()


def test_on_a_terminal_through_an_outage(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "d") as broker:
        with broker.connect() as wire:
            assert wire.ask(b"PUB a-topic - 1\nx\n") == b"OK 0"
        with Terminal(broker.port) as terminal:
            terminal.until(b"a-topic")
            broker.kill()
            terminal.until(b"trying again")
            broker.start()
            terminal.until(b"/s -")  # another life has no rates yet
            terminal.type(b"q")
            status, rest = terminal.rest()
    assert status == 0
    assert "Traceback" not in rest


def test_without_a_broker_one_line_says_so() -> None:
    with Terminal(1) as terminal:
        status, written = terminal.rest()
    assert status == 1
    (line,) = written.splitlines()
    assert "no broker at 127.0.0.1:1" in line


def test_other_commands_pay_nothing_for_it() -> None:
    program = (
        "import sys, toymqctl.cli as cli; [cli.main.get_command(None, name) for name in cli.COMMANDS];"
        "print({'asyncio', 'textual', 'rich'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
