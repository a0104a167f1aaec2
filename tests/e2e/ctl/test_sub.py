"""``toymqctl sub``."""

import subprocess
import sys
from pathlib import Path

from tests.support.broker_process import TIMEOUT_S, BrokerProcess, environment
from tests.support.ctl import Ctl, ok, refused, rows
from toymq import sync


def test_workers_that_share_from_the_shell(ctl: Ctl, broker: BrokerProcess) -> None:
    ok(ctl("pub", "shared.work", "x"))
    with sync.connect(f"127.0.0.1:{broker.port}") as client:
        client.sub("shared.work", "w", mode="shared", window=1).next(TIMEOUT_S)
        ok(ctl("pub", "shared.work", "y"))
        shared = ctl("sub", "shared.*", "--consumer", "w", "--mode", "shared", "--max", "1", "--timeout", "5s")
        assert rows(shared)[0][-1] == "y"
        refused(ctl("sub", "shared.work", "--consumer", "w", "--mode", "exclusive"), 1, "use the --mode of its current")
    refused(ctl("sub", "t", "--mode", "share"), 2, "not one of 'exclusive', 'shared'")


def test_a_time_out_without_a_connection_is_a_failure(tmp_path: Path) -> None:
    """Exit code 0 would tell a script that the topic is empty."""
    with BrokerProcess(tmp_path / "d") as broker:
        with sync.connect(broker.url) as mq:
            mq.pub("t", b"x")
        ctl = [sys.executable, "-c", "from toymqctl.cli import main; main()", "--url", broker.url]
        command = [*ctl, "sub", "t", "--timeout", "1s"]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment()) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "0\tx\n"
            broker.kill()
            out, err = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, out) == (1, "")
    assert "toymqctl: no message within 1 s: waited for one of t for toymqctl (" in err


def test_a_start_beyond_the_end_is_told(ctl: Ctl) -> None:
    ok(ctl("pub", "short", "a", "b", "c"))
    beyond = ctl("sub", "short", "--consumer", "one", "--start", "10", "--timeout", "10ms")
    assert (beyond.exit_code, beyond.stdout) == (0, "")
    assert beyond.stderr == "toymqctl: short has no message 10 yet: one begins at 3, its next message\n"
    known = ctl("sub", "short", "--consumer", "one", "--start", "0", "--timeout", "10ms")
    note = "one of short exists and goes on where it was: --start is for a new consumer, `seek` moves one"
    assert known.stderr == f"toymqctl: {note}\n"
    assert ok(ctl("sub", "short", "--consumer", "two", "--start", "2", "--timeout", "10ms")) == "2\tc\n"
    assert ok(ctl("sub", "short", "--consumer", "three", "--start", "3", "--timeout", "10ms")) == ""


def test_the_format_bytes_is_the_payload_alone(ctl: Ctl) -> None:
    ok(ctl("pub", "binary", "--whole", stdin=b"\x00\xff\n\x01"))
    arguments = (("sub", "binary", "--no-ack", "--max", "1"), ("pull", "binary", "w"), ("tail", "binary"))
    for words in arguments:
        assert ctl(*words, "--format", "bytes").stdout_bytes == b"\x00\xff\n\x01", words
    assert ctl("tail", "binary", "--format", "raw").stdout_bytes == b"\x00\xff\n\x01\n"
