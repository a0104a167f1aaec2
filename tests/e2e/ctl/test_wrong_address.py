"""What `toymqctl` prints when another server, or none, is at the address."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from click.shell_completion import ZshComplete
from click.testing import CliRunner

from tests.support.ctl import refused
from toymq import first_connection
from toymqctl.cli import main as toymqctl


@contextmanager
def answering(answer: bytes) -> Iterator[int]:
    """Run a server that sends the same bytes to every client, whatever it is asked."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "speaks HTTP: name the broker's TCP port, 6789 unless"),
        (b"AMQP\0\0\x09\x01", "speaks AMQP: name the broker's TCP port, 6789 unless"),
        (b"220 mail.example ESMTP\r\n", "is 127.0.0.1:"),
        (b"ERR AUTH_FAILED no\n", "AUTH_FAILED: no; set another token with TOYMQ_TOKEN or --token-file"),
    ],
)
def test_somebody_else_answers(answer: bytes, text: str) -> None:
    with answering(answer) as port:
        refused(CliRunner().invoke(toymqctl, ["--url", f"127.0.0.1:{port}", "ping"]), 1, text)


def test_a_cluster_without_a_leader_names_what_each_node_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: the error named only the first address, as dead, although that node had answered."""
    monkeypatch.setattr(first_connection, "FAILOVER_S", 0.0)
    with answering(b"ERR NOT_LEADER 127.0.0.1:1\n") as port:
        done = CliRunner().invoke(toymqctl, ["--url", f"127.0.0.1:{port},127.0.0.1:1", "ping"])
        checked = CliRunner().invoke(toymqctl, ["--url", f"127.0.0.1:{port},127.0.0.1:1", "doctor"])
    said = f"127.0.0.1:{port} does not lead its cluster, and names 127.0.0.1:1; no broker at 127.0.0.1:1: Connection refused"
    refused(done, 1, f"toymqctl: {said}; `toymqctl cluster` says what is waited for\n")
    assert checked.stdout == f"FAIL  reachable: {said}\n      do: `toymqctl cluster` says what is waited for\n"


def test_completion_in_a_shell_does_not_wait_for_a_leader(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(first_connection, "FAILOVER_S", 0.1)
    with answering(b"ERR NOT_LEADER -\n") as port:
        complete = ZshComplete(toymqctl, {}, "toymqctl", "_TOYMQCTL_COMPLETE")
        assert complete.get_completions(["--url", f"127.0.0.1:{port}", "describe"], "") == []
    assert caplog.messages == [], "that it waits"


def test_of_several_addresses_each_is_named() -> None:
    done = CliRunner().invoke(toymqctl, ["--url", "127.0.0.1:1,127.0.0.1:2", "ping"])
    refused(done, 1, "no broker at 127.0.0.1:1: Connection refused; no broker at 127.0.0.1:2: Connection refused; start one")


def test_a_host_that_is_none() -> None:
    refused(CliRunner().invoke(toymqctl, ["--url", "nowhere.invalid", "ping"]), 1, "check the host in --url")
