"""SIGTERM under load, a second broker, and starts that cannot work."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.broker_process import COMMAND, BrokerProcess, Wire, environment, run
from tests.support.certificates import CERT, KEY


def test_sigterm_under_load_keeps_every_ok(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "d")
    broker.start()
    wire = broker.connect()
    wire.send(b"".join(b"PUB t - 100\n%b\n" % (b"x" * 100) for _ in range(20_000)))
    oks = 0
    for _ in range(100):
        assert wire.line() == b"OK %d" % oks
        oks += 1
    broker.terminate()
    refused = 0
    while line := wire.line():
        if line.startswith(b"OK "):
            assert not refused, "after the first refusal nothing is accepted"
            assert line == b"OK %d" % oks
            oks += 1
        else:
            assert line.startswith(b"ERR SHUTTING_DOWN"), line
            refused += 1
    wire.close()
    code, errors = broker.ended()
    assert (code, errors) == (0, ""), "exit 0, and nothing to say"
    with broker, broker.connect() as wire:
        first, following = wire.ask(b"OFFSETS t\n").split()[2:]
        assert int(first) == 0
        assert int(following) == oks, "exactly what was answered OK is there"


def test_acks_in_flight_are_taken(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "d")
    broker.start()
    with broker.connect() as wire:
        for n in range(3):
            wire.ask(b"PUB t - 1\n%d\n" % n)
        wire.ask(b"SUB t c\n")
        for _ in range(3):
            wire.message()
        broker.terminate()
        assert wire.line() == b"CLOSED t c SHUTTING_DOWN"
        assert wire.ask(b"ACK t c 0-1\n") == b"OK 2", "an ack that comes after SIGTERM counts"
        assert wire.ask(b"ACK t c 2\n") == b"OK 1"
        assert wire.at_end(), "all is acked: there is nothing to wait for"
    assert broker.ended()[0] == 0
    with broker, broker.connect() as wire:
        wire.ask(b"SUB t c\n")
        wire.nothing_before_pong()


def test_an_ack_that_never_comes_is_waited_for_no_longer_than_the_deadline(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "d", "--shutdown-timeout", "100ms")
    broker.start()
    with broker.connect() as wire:
        wire.ask(b"PUB t - 1\nx\n")
        wire.ask(b"SUB t c\n")
        wire.message()
        broker.terminate()
        assert wire.line() == b"CLOSED t c SHUTTING_DOWN"
        assert wire.at_end()
    assert broker.ended()[0] == 0


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "d", "--shutdown-timeout", "1h")
    broker.start()
    with broker.connect() as wire:
        wire.ask(b"PUB t - 1\nx\n")
        wire.ask(b"SUB t c\n")
        wire.message()
        broker.terminate()
        assert wire.line() == b"CLOSED t c SHUTTING_DOWN", "the first signal is being obeyed"
        broker.terminate()
        assert broker.ended()[0] == -15


def test_two_brokers_on_one_directory(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "d") as broker:
        second = run("serve", "--data-dir", str(broker.data_dir), "--listen", "127.0.0.1:0")
        assert second.returncode == 2
        assert second.stderr == (
            f"toymq: {broker.data_dir} is in use by process {broker.pid}, a broker: "
            f"connect to toymq://127.0.0.1:{broker.port} instead\n"
        )
        with broker.connect() as wire:
            assert wire.ask(b"PING\n") == b"PONG", "the first one does not notice"


def taken_by_another(option: str, address: str) -> str:
    """Return the error for an address that is in use, with its remedy."""
    said = f"cannot listen on {address}: Address already in use"
    return f"{said}: a broker may be running there: stop it, or give {option} 127.0.0.1:PORT"


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = run("serve", "--data-dir", str(tmp_path / "d"), "--listen", address)
    assert done.returncode == 2
    assert done.stderr == f"toymq: --listen: {taken_by_another('--listen', address)}\n"


LOSES_A_RACE = """
import sys
from toymq_py import daemon
from toymq_py.cli import main
from toymq_py.config.option_schema import parse_address
from toymq_py.server import Server

rival = Server.bind(*parse_address(sys.argv.pop(1)))
applied = daemon.apply_definitions

def first(*arguments):
    rival[0].listen()
    return applied(*arguments)

daemon.apply_definitions = first
main()
"""
"""Another broker has bound the address, too, and listens while this one recovers."""


@pytest.mark.parametrize("option", ["--listen", "--http", "--https", "--tls-listen", "--metrics"])
def test_of_two_brokers_that_start_together_one_says_ready(tmp_path: Path, option: str) -> None:
    """Found by a trial: the second broker also reported ready, and then died with a traceback, or never served its gateway."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    (tmp_path / "toymq").write_text(LOSES_A_RACE)
    others = [] if option == "--listen" else ["--listen", "127.0.0.1:0"]
    over_tls = ["--tls-cert", CERT, "--tls-key", KEY] if option in ("--https", "--tls-listen") else []
    done = subprocess.run(
        [sys.executable, str(tmp_path / "toymq"), address, "serve", "--data-dir", str(tmp_path / "d"), option, address, *others,
         *over_tls],
        env=environment(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"toymq: {option}: {taken_by_another(option, address)}\n"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("--listen", "127.0.0.1"), ("--http", "127.0.0.1")),
        (("--listen", "127.0.0.1"), ("--metrics", "127.0.0.1")),
        (("--http", "127.0.0.1"), ("--metrics", "localhost")),
        (("--listen", "0.0.0.0"), ("--http", "127.0.0.1")),
        (("--listen", "[::1]"), ("--http", "[::]")),
        (("--http", "127.0.0.1"), ("--https", "127.0.0.1")),
        (("--listen", "127.0.0.1"), ("--tls-listen", "127.0.0.1")),
    ],
)
def test_two_options_on_one_address(tmp_path: Path, first: tuple[str, str], second: tuple[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = {"--listen": "127.0.0.1:0", "--tls-listen": "127.0.0.1:0"}
    options |= {option: f"{host}:{port}" for option, host in (first, second)}
    done = run(
        "serve", "--data-dir", str(tmp_path / "d"), "--insecure-public", "--tls-cert", CERT, "--tls-key", KEY,
        *(word for option in options.items() for word in option),
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    said = done.stderr.splitlines()[-1]
    assert said.startswith(f"toymq: {second[0]} "), said
    assert f":{port} is the address of {first[0]} " in said
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "d").exists(), "nothing was opened"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--listen", "nonsense"], "is not an address"),
        (["--listen", "0.0.0.0:0"], "--insecure-public"),
        (["--segment-bytes", "12 parsecs"], "invalid size '12 parsecs'"),
        (["--visibility", "11y"], "invalid duration '11y'"),
        (["--max-payload", "65MiB"], "65MiB is out of range: it must be 1B to 64MiB"),
        (["--fsync", "sometimes"], "'sometimes' is not one of always, interval, never"),
        (["--no-such-option"], "No such option"),
    ],
)
def test_options_that_make_no_sense(tmp_path: Path, options: list[str], says: str) -> None:
    done = run("serve", "--data-dir", str(tmp_path / "d"), *options)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_data_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run("serve", "--data-dir", str(tmp_path / "file"), "--listen", "127.0.0.1:0")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "file" in done.stderr


def test_a_missing_parent(tmp_path: Path) -> None:
    done = run("serve", "--data-dir", str(tmp_path / "no" / "such"), "--listen", "127.0.0.1:0")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "cannot make" in done.stderr


def test_options_come_from_the_environment(tmp_path: Path) -> None:
    import subprocess

    env = {**environment(), "TOYMQ_DATA_DIR": str(tmp_path / "d"), "TOYMQ_LISTEN": "nonsense"}
    done = subprocess.run([*COMMAND, "serve"], env=env, capture_output=True, text=True, timeout=20, check=False)
    assert "nonsense" in done.stderr


def test_strict_recovery_refuses_a_hole(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "d") as broker, broker.connect() as wire:
        for _ in range(3):
            wire.ask(b"PUB t - 1\nx\n")
    log = tmp_path / "d/topics/t/00000000000000000000.log"
    data = bytearray(log.read_bytes())
    data[40] ^= 1
    log.write_bytes(data)
    done = run("serve", "--data-dir", str(tmp_path / "d"), "--listen", "127.0.0.1:0", "--strict-recovery")
    assert done.returncode == 2
    assert "record 1 is lost" in done.stderr
    with BrokerProcess(tmp_path / "d") as broker, broker.connect() as wire:
        size = int(wire.ask(b"DESCRIBE t\n").split()[1])
        assert b'"state": "degraded"' in wire.read(size + 1)
        assert wire.ask(b"PUB t - 1\ny\n") == b"OK 3", "it goes on"


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("output", ["a pipe without a reader", "/dev/full"])
def test_a_broker_whose_output_nothing_takes_serves(tmp_path: Path, output: str, workers: int) -> None:
    """The process that started the broker may have exited before it is ready. Found: each worker then printed a traceback, and
    the exit code was 120."""
    if output == "/dev/full":
        into = os.open(output, os.O_WRONLY)
    else:
        reader, into = os.pipe()
        os.close(reader)
    command = [*COMMAND, "serve", "--data-dir", str(tmp_path / "d"), "--listen", "127.0.0.1:0", "--workers", str(workers)]
    with subprocess.Popen(command, env=environment(), stdout=into, stderr=subprocess.PIPE, text=True) as broker:
        os.close(into)
        assert broker.stderr is not None
        lines = iter(broker.stderr.readline, "")
        try:
            said = next(line for line in lines if "ready" in line or "Traceback" in line)
            assert "did not take this line" in said
            port = re.findall(r"127\.0\.0\.1:([0-9]+)", said)[0]
            with Wire(int(port)) as wire:
                assert wire.ask(b"PING\n") == b"PONG"
        finally:
            broker.terminate()
        rest = "".join(lines)
    assert (broker.returncode, "Traceback" in rest, "BrokenPipe" in rest) == (0, False, False), rest
