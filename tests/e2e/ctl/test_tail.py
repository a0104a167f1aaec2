"""``toymqctl tail``."""

import subprocess
import sys
from pathlib import Path

from tests.support.broker_process import TIMEOUT_S, BrokerProcess, environment
from tests.support.ctl import Ctl, ok, refused, values


def test_tail_reads_without_a_consumer(ctl: Ctl) -> None:
    ok(ctl("pub", "log", stdin=b"".join(b"line %d\n" % n for n in range(30))))
    assert ok(ctl("tail", "log")).splitlines() == [f"{n}\tline {n}" for n in range(20, 30)]
    assert ok(ctl("tail", "log", "-n", "2")) == "28\tline 28\n29\tline 29\n"
    assert ok(ctl("tail", "log", "-n", "0")) == ""
    assert len(ok(ctl("tail", "log", "--from", "earliest", "--format", "raw")).splitlines()) == 30
    assert ok(ctl("tail", "log", "--from", "27", "--max", "2")) == "27\tline 27\n28\tline 28\n"
    assert ok(ctl("tail", "log", "--from", "latest")) == ""
    assert len(ok(ctl("tail", "log", "--from", "@0")).splitlines()) == 30
    (row,) = values(ctl("tail", "log", "-n", "1", "--json"))
    assert {**row, "ts_ns": 0} == {"topic": "log", "id": 29, "ts_ns": 0, "payload": "line 29"}, "it is no delivery"
    assert values(ctl("describe", "log", "--json"))[0]["consumers"] == []
    assert ok(ctl("tail", "log", "--from", "30")) == ""
    refused(ctl("tail", "log", "--from", "31"), 1, "OUT_OF_RANGE: 0 ")
    refused(ctl("tail", "nothing"), 1, "NO_SUCH_TOPIC: there is no topic nothing; `toymqctl topics` lists")
    refused(ctl("tail", "log", "--from", "soon"), 2, "invalid position 'soon': write earliest")


def test_tail_follows_through_a_restart_of_the_broker(tmp_path: Path) -> None:
    program = [sys.executable, "-c", "from toymqctl.cli import main; main()"]
    with BrokerProcess(tmp_path / "d") as broker, broker.connect() as wire:
        assert wire.ask(b"PUB t - 1\na\n") == b"OK 0"
        command = [*program, "--url", f"127.0.0.1:{broker.port}", "tail", "t", "--follow", "--max", "4"]
        with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as tail:
            assert tail.stdout is not None
            assert tail.stdout.readline() == "0\ta\n"
            assert wire.ask(b"PUB t - 1\nb\n") == b"OK 1"
            assert tail.stdout.readline() == "1\tb\n"
            broker.restart()
            with broker.connect() as again:
                assert again.ask(b"PUB t - 1\nc\n") == b"OK 2"
                assert tail.stdout.readline() == "2\tc\n"
                assert again.ask(b"PUB t - 1\nd\n") == b"OK 3"
            out, errors = tail.communicate(timeout=TIMEOUT_S)
        assert (tail.returncode, out) == (0, "3\td\n")
        assert errors.startswith(f"toymqctl: 127.0.0.1:{broker.port}: the "), "an outage is said"
        assert errors.endswith("reconnecting\n")
        assert errors.count("\n") == 1
