"""`toymqctl doctor`."""

from pathlib import Path

from click.testing import CliRunner

from tests.support.broker_process import BrokerProcess
from tests.support.ctl import Ctl, ok, values
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
