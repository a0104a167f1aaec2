"""`toymqctl doctor`."""

import os
import signal
from pathlib import Path

from click.testing import CliRunner, Result

from tests.support.broker_process import BrokerProcess
from tests.support.ctl import Ctl, ok, values
from tests.support.worker_processes import publish, serving, topic_of
from toymqctl.cli import main as toymqctl


def test_doctor_of_a_sound_broker(ctl: Ctl) -> None:
    findings = values(ctl("doctor", "--json"))
    checks = {str(finding["check"]): finding for finding in findings}
    assert set(checks) == {
        "reachable", "round trip", "version", "durability", "disk", "fsync", "limits", "clock", "topics", "lag",
        "retries", "dead letters",
    }  # fmt: skip
    assert {str(checks[name]["state"]) for name in ("reachable", "version", "durability", "clock", "topics")} == {"ok"}
    assert "ok    durability: OK means on the disk" in ok(ctl("doctor")).splitlines()


def test_doctor_finds_damage_and_says_what_to_do(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "d", "--fsync", "interval") as broker:
        with broker.connect() as wire:
            wire.send(b"PUB hurt - 1\na\nPUB hurt - 1\nb\n")
            assert [wire.line() for _ in range(2)] == [b"OK 0", b"OK 1"]
        broker.stop()
        (log,) = (tmp_path / "d" / "topics" / "hurt").glob("*.log")
        data = bytearray(log.read_bytes())
        data[20] ^= 1
        log.write_bytes(data)
        broker.start()
        result = CliRunner().invoke(toymqctl, ["--url", f"127.0.0.1:{broker.port}", "doctor"])
    assert result.exit_code == 1
    assert "FAIL  topic hurt: degraded: 1 message is lost to damage, the others are served\n      do: `toymq" in result.stdout
    assert "warn  durability: --fsync interval: OK does not mean" in result.stdout


def test_doctor_of_nobody() -> None:
    result = CliRunner().invoke(toymqctl, ["--url", "127.0.0.1:1", "doctor"])
    assert result.exit_code == 1
    assert result.stdout.startswith("FAIL  reachable: no broker at 127.0.0.1:1: start one with `make run` or `toymq serve`")


def test_a_worker_that_stands_still_is_named_and_the_others_are_checked(tmp_path: Path) -> None:
    """Found: the doctor printed `ok topics: 0` and `ok dead letters: none` for a worker that did not answer, and the checks
    that ask one worker over HTTP failed."""
    with serving(tmp_path / "data", 2, "--http", "127.0.0.1:0") as workers:
        workers.ready(2)
        hurt = topic_of(0, 2)
        with workers.wire(0) as wire:
            assert publish(wire, hurt, "x") == b"OK 0"
            assert wire.ask(f"PULL {hurt} c 1\n".encode()).startswith(b"MSG")
            assert wire.line() == b"x"
            assert wire.line() == b"OK 1"
            assert wire.ask(f"NACK {hurt} c 0 dead=1\n".encode()) == b"OK 1"
            while b'"letters": 1' not in (wire.ask(b"TOPICS\n"), wire.line())[1]:  # it is written behind the OK
                pass

        def ctl(port: int, *arguments: str) -> Result:
            return CliRunner().invoke(toymqctl, ["--url", f"127.0.0.1:{port}", *arguments])

        os.kill(workers.pids[1], signal.SIGSTOP)
        try:
            result = ctl(workers.ports[0], "doctor")
            assert result.exit_code == 1
            assert "FAIL  worker 1: does not answer within 2 s" in result.stdout
            assert f"`kill -9 {workers.pids[1]}` on the broker's machine ends it" in result.stdout
            assert f"warn  dead letters: 1 of {hurt} (without worker 1)" in result.stdout
            assert "all of them answer" not in result.stdout
            shown = ctl(workers.ports[0], "connections")
            assert (shown.exit_code, "worker 0 of 2 alone" in shown.stderr) == (0, True)
            assert "dead letter" in ok(ctl(workers.ports[0], "inspect", hurt, "0"))
            for kind in ("alerts", "webhooks"):
                shown = ctl(workers.ports[0], kind)
                assert (shown.exit_code, f"no {kind}" in shown.stdout) == (0, True)
                assert shown.stderr == f"toymqctl: these are the {kind} of worker 0 of 2 alone: --http-url asks another one\n"
            os.kill(workers.pids[1], signal.SIGCONT)
            with workers.wire(1) as wire:
                assert wire.ask(b"PING\n") == b"PONG"
            os.kill(workers.pids[0], signal.SIGSTOP)
            result = ctl(workers.ports[1], "connections")
            assert result.exit_code
            assert "worker 0: cannot ask http://127.0.0.1:" in result.output
            assert "`--http-url http://127.0.0.1:" in result.output
        finally:
            for pid in workers.pids.values():
                os.kill(pid, signal.SIGCONT)
        assert workers.stop() == 0
