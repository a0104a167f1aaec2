"""Checks of what `toymqctl` printed."""

import json
import os
import pty
import subprocess
import sys
import termios
from collections.abc import Callable

from click.testing import Result

from tests.support.broker_process import TIMEOUT_S, BrokerProcess, environment

Ctl = Callable[..., Result]


def ok(result: Result) -> str:
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return result.stdout



def rows(result: Result) -> list[list[str]]:
    return [line.split() for line in ok(result).splitlines()]



def values(result: Result) -> list[dict[str, object]]:
    return [json.loads(line) for line in ok(result).splitlines()]



def refused(result: Result, code: int, text: str) -> None:
    """Check that a command failed with one line on stderr that contains the text, and nothing on stdout."""
    assert result.exit_code == code, result.output
    assert result.stderr.count("\n") == 1, result.stderr
    assert result.stderr.startswith("toymqctl: ")
    assert text in result.stderr, result.stderr
    assert result.stdout == ""


def on_a_terminal(broker: BrokerProcess, *arguments: str) -> str:
    """Run a command on a terminal of 80 columns, and return its output."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    program = [sys.executable, "-c", "from toymqctl.cli import main; main()"]
    command = [*program, "--url", f"127.0.0.1:{broker.port}", *arguments]
    surroundings = {name: value for name, value in environment().items() if name not in ("COLUMNS", "LINES")}
    done = subprocess.run(command, env=surroundings, stdin=theirs, stdout=theirs, stderr=theirs, timeout=TIMEOUT_S, check=False)
    os.close(theirs)
    shown = os.read(ours, 65_536).decode()
    os.close(ours)
    assert done.returncode == 0, shown
    return shown
