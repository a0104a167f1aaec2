"""A broker in a process of its own, tested with programs that stand for ``toymq`` and start at once."""

import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from toymq import broker_process
from toymq.broker_process import BrokerProcess, StartFailed
from toymq_py.errors import BadArgument

READY = "toymq 127.0.0.1:1234 toymqs://127.0.0.1:99 http://127.0.0.1:80/ http://h:81/metrics https://h:82/ ready, data in d"


def shell(script: str) -> tuple[str, ...]:
    """Return a program that runs a script whatever its arguments are."""
    return ("sh", "-c", script, "sh")


def test_addresses_come_from_the_ready_line_and_go_with_the_process(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "d", program=shell(f"echo {READY}; exec sleep 60")) as broker:
        assert broker.ready_line == READY + "\n"
        assert (broker.port, broker.tls_port, broker.url) == (1234, 99, "toymq://127.0.0.1:1234")
        assert (broker.http, broker.https) == ("http://127.0.0.1:80/", "https://h:82/")
        assert broker.stop() == -signal.SIGTERM
        assert (broker.addresses, broker.http, broker.https, broker.tls_port) == ([], "", "", 0)
        with pytest.raises(ProcessLookupError):
            _ = broker.pid
        assert broker.wait() == -signal.SIGTERM, "the last exit code stays"
        broker.signal(signal.SIGHUP)  # without effect
        broker.kill()


def test_a_second_start_is_an_error_and_leaves_the_first(tmp_path: Path) -> None:
    """Found by a trial: after a second start the first process ran on, and nothing owned it."""
    with BrokerProcess(tmp_path / "d", program=shell(f"echo {READY}; exec sleep 60")) as broker:
        pid = broker.pid
        with pytest.raises(StartFailed, match=rf"^the broker runs already, process {pid}: stop\(\) or restart\(\) it$"):
            broker.start()
        assert broker.pid == pid
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        broker.start()  # of one that ended by itself
        assert broker.pid != pid


def test_a_usage_error_names_the_program(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match="toymq: No such option '--nothing'"):
        BrokerProcess(tmp_path / "d", "--nothing").start()


def test_a_start_that_fails_says_the_last_line_of_its_own_stderr(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("an earlier life\n")
    broker = BrokerProcess(tmp_path / "d", log=log, program=shell("echo one >&2; echo 'disk gone' >&2; exit 3"))
    with pytest.raises(StartFailed, match=r"^the broker did not start: disk gone$"):
        broker.start()
    assert (broker.returncode, broker.stderr) == (3, "one\ndisk gone\n")
    assert log.read_text() == "an earlier life\none\ndisk gone\n"
    with pytest.raises(StartFailed, match="exit code 4, nothing on stderr"):
        BrokerProcess(tmp_path / "d", program=shell("exit 4")).start()


def test_a_broker_that_is_not_ready_in_time_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_process, "READY_S", 0.05)
    broker = BrokerProcess(tmp_path / "d", program=shell("exec sleep 60"))
    with pytest.raises(StartFailed, match=r"^the broker was not ready after 0 s: exit code -9"):
        broker.start()
    assert broker.returncode == -signal.SIGKILL


def test_what_is_no_program_leaves_nothing_open(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        BrokerProcess(tmp_path / "d", program=[str(tmp_path / "toymq")]).start()


def test_arguments_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOYMQ_CONFIG", "/home/me/toymq.toml")
    script = 'echo "$TOYMQ_CONFIG $MINE $*" >&2; exit 1'
    broker = BrokerProcess(tmp_path / "d", "--http", "h", program=shell(script), environment={"MINE": "yes"})
    listen = f"127.0.0.1:{broker.port}"
    with pytest.raises(StartFailed) as failed:
        broker.start("--fsync", "never")
    assert str(failed.value).removeprefix("the broker did not start: ") == (
        f"{os.devnull} yes serve --data-dir {tmp_path / 'd'} --listen {listen} --http h --fsync never"
    )


def test_paths_and_numbers_are_taken_as_they_are(tmp_path: Path) -> None:
    broker = BrokerProcess(str(tmp_path), "--tls-cert", tmp_path, "--workers", 2, program=shell('echo "$*" >&2'))
    with pytest.raises(StartFailed, match=rf"--data-dir {tmp_path} --listen \S+ --tls-cert {tmp_path} --workers 2 --q 1"):
        broker.start("--q", 1)


@pytest.mark.parametrize(
    ("error", "data_dir", "options", "text"),
    [
        (TypeError, None, (), r"^data_dir is a path, tmp_path / \"data\" say, not None$"),
        (TypeError, 5, (), "not 5$"),
        (BadArgument, "", (), "not ''$"),
        (BadArgument, "a\0b", (), "data_dir is a path"),
        (TypeError, "d", (None,), '^an option is a text, a number or a path, "--max-payload", 1024 say, not None$'),
        (TypeError, "d", ("--cluster", True), "not True$"),
        (BadArgument, "d", ("\0",), "no option has a null character"),
    ],
)
def test_what_is_no_path_and_no_option_is_named(error: type[Exception], data_dir: Any, options: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        BrokerProcess(data_dir, *options)


def test_wrong_workers_are_told_by_the_program(tmp_path: Path) -> None:
    for options in (["--workers"], ["--workers", "x"]):
        with pytest.raises(StartFailed, match="--workers"):
            BrokerProcess(tmp_path / "d", *options).start()


def test_a_broker_that_does_not_end_is_an_error_and_can_be_killed(tmp_path: Path) -> None:
    script = f"trap '' TERM; echo {READY}; while :; do sleep 1 >&2; done"
    with BrokerProcess(tmp_path / "d", program=shell(script)) as broker:
        broker.signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            broker.wait(0.05)
        assert broker.ready_line


def test_each_worker_has_a_port_of_its_own_that_no_other_program_is_given(tmp_path: Path) -> None:
    """Found: a worker's port was in use by another program, since only the first worker's was reserved."""
    broker = BrokerProcess(tmp_path / "d", "--workers", "2")
    for port in range(broker.port, broker.port + 3):
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
