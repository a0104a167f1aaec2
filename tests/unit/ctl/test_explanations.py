"""An error as one line: what failed and the remedy."""

import socket
import ssl
import threading

import pytest

import toymq
from toymq.url import Address
from toymq_py.errors import BadArgument, ConnectionLost, NotLeader, ProtocolViolation, QueueFull
from toymqctl.explanations import explain

NOWHERE = Address("127.0.0.1", 1)


def unreachable(cause: BaseException) -> toymq.ConnectFailed:
    error = toymq.ConnectFailed("no broker at 127.0.0.1:1: why")
    error.__cause__ = cause
    return error


def refused_as(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, f"[SSL: {reason}]")
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("address", "error", "text"),
    [
        (NOWHERE, unreachable(ConnectionRefusedError()), "no broker at 127.0.0.1:1: start one with `make run`"),
        (NOWHERE, unreachable(socket.gaierror()), "check the host in --url"),
        (NOWHERE, unreachable(TimeoutError()), "is 127.0.0.1:1 the broker's TCP port? If it is, the broker hangs"),
        (Address("h", 1, tls=True), unreachable(OSError()), "does the broker use TLS on this port?"),
        (NOWHERE, unreachable(ConnectionLost("closed")), "is 127.0.0.1:1 the broker's TCP port?"),
        (NOWHERE, ProtocolViolation("nonsense"), "nonsense; is 127.0.0.1:1 the broker's TCP port?"),
        (NOWHERE, toymq.TakenOver("the subscription was ended"), "(for toymqctl: --mode shared, or another --consumer to"),
        (
            Address("h", 1, tls=True), unreachable(refused_as("WRONG_VERSION_NUMBER")),
            "h:1 does not speak TLS: name the broker's TLS port, or toymq:// where no TLS is meant",
        ),
        (NOWHERE, BadArgument("invalid: `toymqctl alerts` or GET /v1/alerts lists them"), "`toymqctl alerts` lists them"),
        (NOWHERE, QueueFull("the backlog of t is full"), "QUEUE_FULL: the backlog of t is full; its consumers are behind"),
        (NOWHERE, unreachable(NotLeader("-")), "`toymqctl cluster` says what is waited for"),
        (NOWHERE, ValueError("anything else"), "anything else"),
    ],
    ids=range(12),
)
def test_an_error_is_explained(address: Address, error: Exception, text: str) -> None:
    assert text in explain(address, error)


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate", "--tls-ca or TOYMQ_TLS_CA"),
        ("CERTIFICATE_VERIFY_FAILED] certificate verify failed: certificate has expired", "renew the broker's certificate"),
        ("CERTIFICATE_VERIFY_FAILED] certificate verify failed: IP address mismatch, certificate is not", "a name of the cert"),
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13 alert certificate required", "--tls-cert and --tls-key (or TOYMQ_TLS_CERT"),
        ("SSLV3_ALERT_HANDSHAKE_FAILURE] sslv3 alert handshake failure", "if the broker requires a client certificate"),
        ("TLSV1_ALERT_UNKNOWN_CA] tlsv1 alert unknown ca", "another CA"),
        ("SSLV3_ALERT_CERTIFICATE_EXPIRED] sslv3 alert certificate expired", "use another --tls-cert"),
    ],
)
def test_the_advice_about_a_certificate_never_is_to_go_without_tls(said: str, advice: str) -> None:
    error = toymq.ConnectFailed(f"no broker at h:1: [SSL: {said} (_ssl.c:1006)")
    text = explain(Address("h", 1, tls=True), error)
    assert advice in text
    assert "toymq://" not in text


@pytest.mark.parametrize(("answer", "protocol"), [(b"HTTP/1.0 200 OK\r\n\r\n", "HTTP"), (b"AMQP\0\0\x09\x01", "AMQP")])
def test_a_port_that_speaks_another_protocol_is_recognised(answer: bytes, protocol: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(100)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        text = explain(Address("127.0.0.1", listener.getsockname()[1]), ProtocolViolation("nonsense"))
        thread.join()
    assert f"speaks {protocol}: name the broker's TCP port" in text
