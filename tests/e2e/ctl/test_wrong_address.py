"""What `toymqctl` says when another server, or none, is there."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from click.testing import CliRunner

from tests.support.ctl import refused
from toymqctl.cli import main as toymqctl


@contextmanager
def answering(answer: bytes) -> Iterator[int]:
    """A server that says one thing to all, whatever it is asked."""
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
        (b"220 mail.example ESMTP\r\n", "is 127.0.0.1:"),
        (b"ERR AUTH_FAILED no\n", "AUTH_FAILED: no; set another token with TOYMQ_TOKEN or --token-file"),
    ],
)
def test_somebody_else_answers(answer: bytes, text: str) -> None:
    with answering(answer) as port:
        refused(CliRunner().invoke(toymqctl, ["--url", f"127.0.0.1:{port}", "ping"]), 1, text)


def test_a_host_that_is_none() -> None:
    refused(CliRunner().invoke(toymqctl, ["--url", "nowhere.invalid", "ping"]), 1, "check the host in --url")
