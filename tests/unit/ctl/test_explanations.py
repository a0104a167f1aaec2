"""An error as one line: what failed and what to do."""

import socket
import threading

import pytest

import toymq
from toymq.url import Address
from toymq_py.errors import REQUEST_ERRORS, ProtocolViolation, QueueFull
from toymqctl.explanations import ADVICE, explain

NOWHERE = Address("127.0.0.1", 1)


def unreachable(cause: BaseException) -> toymq.ConnectFailed:
    error = toymq.ConnectFailed("no broker at 127.0.0.1:1: why")
    error.__cause__ = cause
    return error


def test_each_advice_belongs_to_a_code_of_the_protocol() -> None:
    assert set(ADVICE) <= set(REQUEST_ERRORS)


@pytest.mark.parametrize(
    ("address", "error", "text"),
    [
        (NOWHERE, unreachable(ConnectionRefusedError()), "no broker at 127.0.0.1:1: start one with `make run`"),
        (NOWHERE, unreachable(socket.gaierror()), "check the host in --url"),
        (NOWHERE, unreachable(TimeoutError()), "is 127.0.0.1:1 the broker's TCP port? If it is, the broker hangs"),
        (Address("h", 1, tls=True), unreachable(OSError()), "does the broker use TLS on this port?"),
        (NOWHERE, ProtocolViolation("nonsense"), "nonsense; is 127.0.0.1:1 the broker's TCP port?"),
        (NOWHERE, toymq.TakenOver("the subscription was ended"), "(for toymqctl: --mode shared, or another --consumer to"),
        (NOWHERE, QueueFull("orders is full"), "QUEUE_FULL: orders is full; its consumers are behind"),
        (NOWHERE, ValueError("anything else"), "anything else"),
    ],
    ids=range(8),
)
def test_an_error_is_explained(address: Address, error: Exception, text: str) -> None:
    assert text in explain(address, error)


def test_a_port_that_speaks_http_is_recognised() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        text = explain(Address("127.0.0.1", listener.getsockname()[1]), ProtocolViolation("nonsense"))
        thread.join()
    assert "speaks HTTP: name the broker's TCP port" in text
