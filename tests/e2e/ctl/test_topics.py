"""``toymqctl topics``."""

import os
import pty
import subprocess
import sys
import termios

from tests.support.broker_process import TIMEOUT_S, BrokerProcess, environment
from tests.support.ctl import Ctl, ok, rows, values


def test_long_names_fit_a_terminal_and_are_whole_for_a_program(ctl: Ctl, broker: BrokerProcess) -> None:
    long = "t" * 190
    ok(ctl("pub", long, "x"))
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    program = [sys.executable, "-c", "from toymqctl.cli import main; main()"]
    command = [*program, "--url", f"127.0.0.1:{broker.port}", "topics", long]
    surroundings = {name: value for name, value in environment().items() if name not in ("COLUMNS", "LINES")}
    done = subprocess.run(command, env=surroundings, stdin=theirs, stdout=theirs, timeout=TIMEOUT_S, check=False)
    os.close(theirs)
    shown = os.read(ours, 65_536).decode().splitlines()
    os.close(ours)
    assert done.returncode == 0
    assert [len(line) <= 80 for line in shown] == [True, True], shown
    assert "t…" in shown[1]
    assert shown[1].endswith("0  ok")
    assert rows(ctl("topics", long))[1][0] == long
    assert values(ctl("topics", long, "--json"))[0]["topic"] == long
