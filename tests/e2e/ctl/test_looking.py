"""`toymqctl` tail, describe, consumers, stats, ping."""

import os
import pty
import subprocess
import sys
import termios
from pathlib import Path

from tests.support.broker_process import TIMEOUT_S, BrokerProcess, environment
from tests.support.ctl import Ctl, ok, refused, rows, values


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
    refused(ctl("tail", "log", "--from", "soon"), 1, "BAD_ARGUMENT: a position is")


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


def test_long_names_fit_a_terminal_and_are_whole_for_a_program(ctl: Ctl, broker: BrokerProcess) -> None:
    long = "t" * 190
    ok(ctl("pub", long, "x"))
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 60))
    program = [sys.executable, "-c", "from toymqctl.cli import main; main()"]
    command = [*program, "--url", f"127.0.0.1:{broker.port}", "topics", long]
    surroundings = {name: value for name, value in environment().items() if name not in ("COLUMNS", "LINES")}
    done = subprocess.run(command, env=surroundings, stdin=theirs, stdout=theirs, timeout=TIMEOUT_S, check=False)
    os.close(theirs)
    shown = os.read(ours, 65_536).decode().splitlines()
    os.close(ours)
    assert done.returncode == 0
    assert [len(line) <= 60 for line in shown] == [True, True], shown
    assert "t…" in shown[1]
    assert shown[1].endswith("0  ok")
    assert rows(ctl("topics", long))[1][0] == long
    assert values(ctl("topics", long, "--json"))[0]["topic"] == long


def test_describe_and_consumers(ctl: Ctl) -> None:
    ok(ctl("create", "seen", "visibility=90s"))
    ok(ctl("pub", "seen", "a", "b", "c"))
    ok(ctl("sub", "seen", "--consumer", "one", "--max", "2"))
    lines = ok(ctl("describe", "seen")).splitlines()
    assert lines[:4] == ["topic     seen", "state     ok", "messages  3", "ids       0 to 2"]
    assert "settings  visibility=90s" in lines
    head, row = (line.split() for line in lines[-2:])
    assert head[:3] == ["topic", "consumer", "last"]
    assert row[:7] == ["seen", "one", "1", "1", "1", "0", "0"]
    assert row[8:] == ["0", "exclusive"]
    (consumer,) = values(ctl("consumers", "seen", "--json"))
    assert (consumer["topic"], consumer["consumer"], consumer["last_acked"], consumer["backlog"]) == ("seen", "one", 1, 1)
    assert [row[:2] for row in rows(ctl("consumers")) if row[0] == "seen"] == [["seen", "one"]]
    ok(ctl("create", "unread"))
    assert ok(ctl("consumers", "unread")) == "no consumers\n"
    assert "ids       none, the next is 0" in ok(ctl("describe", "unread"))
    refused(ctl("describe", "nothing"), 1, "`toymqctl topics` lists")
    refused(ctl("consumers", "nothing"), 1, "`toymqctl topics` lists")


def test_stats(ctl: Ctl) -> None:
    ok(ctl("pub", "counted", "x"))
    names = [line.split("  ")[0] for line in ok(ctl("stats")).splitlines()]
    assert names == [
        "version", "uptime", "connections", "topics", "messages", "published", "delivered", "acked", "errors", "fsync",
        "memory", "disk free",
    ]  # fmt: skip
    (told,) = values(ctl("stats", "--json"))
    assert f"{told['publish_total']}, " in ok(ctl("stats"))


def test_ping_for_programs(ctl: Ctl) -> None:
    first, second = values(ctl("ping", "--count", "2", "--json"))
    assert first.keys() == second.keys() == {"round_trip_s"}
