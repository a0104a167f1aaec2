"""Texts of failed connections."""

import errno
import socket
import ssl
from dataclasses import replace

import pytest

import toymq
from tests.support.obliging_broker import ObligingBroker
from toymq import sync
from toymq.client import Client
from toymq.connect_failure import connect_failed, is_hopeless, of_a_round, what_failed
from toymq.url import Address
from toymq_py.errors import AuthFailed, DirectoryLost, ToymqError

THERE = Address("h", 1)


def tls_error(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, f"[SSL: {reason}] in small letters (_ssl.c:1006)")
    error.reason = reason
    return error


def refused_certificate(why: str) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, f"[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: {why} (_ssl.c:1006)")
    error.reason, error.verify_message = "CERTIFICATE_VERIFY_FAILED", why
    return error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('h', 1)"), "no broker at h:1: Connection refused"),
        (socket.gaierror(-2, "Name or service not known"), "no broker at h:1: Name or service not known"),
        (
            tls_error("WRONG_VERSION_NUMBER"),
            "h:1 does not speak TLS: name the broker's TLS port, or toymq:// where no TLS is meant",
        ),
        (tls_error("TLSV1_ALERT_UNKNOWN_CA"), "no TLS with h:1: TLSV1_ALERT_UNKNOWN_CA"),
        (
            refused_certificate("self-signed certificate"),
            "the certificate of h:1 is not accepted: self-signed certificate: connect with"
            " ssl=ssl.create_default_context(cafile=…), the CA that signed it",
        ),
        (
            refused_certificate("Hostname mismatch, certificate is not valid for 'h'"),
            "the certificate of h:1 is not accepted: Hostname mismatch, certificate is not valid for 'h'",
        ),
        (OSError(), "no broker at h:1: OSError"),
    ],
)
def test_a_failure_names_the_address_and_what_happened(error: OSError, said: str) -> None:
    failed = connect_failed(THERE, error)
    assert str(failed) == said
    assert failed.__cause__ is error
    assert said.startswith(what_failed(THERE, error))


def test_a_round_names_every_address() -> None:
    """Found: of two dead addresses the error named only the last one."""
    cause = OSError("why")
    failures: list[ToymqError] = [toymq.ConnectFailed(f"no broker at {host}: refused") for host in "ab"]
    failures[-1].__cause__ = cause
    together = of_a_round(failures)
    assert isinstance(together, toymq.ConnectFailed)
    assert str(together) == "no broker at a: refused; no broker at b: refused"
    assert together.__cause__ is cause
    assert of_a_round(failures[:1]) is failures[0]
    refused = AuthFailed("unknown token")
    assert of_a_round([failures[0], refused]) is refused, "its class says what to do"


def test_a_round_is_hopeless_when_no_certificate_of_it_is_accepted() -> None:
    """A certificate that is not accepted stays so; an address that is down may come back."""
    refused = connect_failed(THERE, refused_certificate("certificate has expired"))
    down = connect_failed(THERE, ConnectionRefusedError(errno.ECONNREFUSED, "why"))
    assert isinstance(of_a_round([refused, refused]), toymq.CertificateRefused)
    assert is_hopeless(of_a_round([refused]))
    assert is_hopeless(of_a_round([refused, refused]))
    assert not is_hopeless(of_a_round([refused, down]))
    assert not is_hopeless(of_a_round([down, refused]))


async def test_neither_client_connects_to_what_has_other_data(broker: ObligingBroker) -> None:
    """The client refuses even when a broker answers: it does not serve the directory that was opened."""
    lost: list[DirectoryLost] = []
    options = replace(toymq.connect("unix:/d/toymq.sock")._options, lost=lambda: next(iter(lost), None))
    blocking = sync.client.Client(options).open()
    async with Client(options) as mq:
        await mq.pub("t", b"x")
        lost.append(DirectoryLost("/d was removed: open it again"))
        assert is_hopeless(lost[0])
        broker.close()  # each connects again
        with pytest.raises(DirectoryLost, match="/d was removed: open it again"):
            await mq.pub("t", b"x")
    with pytest.raises(DirectoryLost, match="/d was removed: open it again"):
        blocking.pub("t", b"x")
    with pytest.raises(DirectoryLost):
        await Client(options)
    blocking.close()


async def test_both_clients_name_every_address() -> None:
    dead = ["127.0.0.1:1", "127.0.0.1:2"]
    with pytest.raises(toymq.ConnectFailed, match=r"127\.0\.0\.1:1: Connection refused; no broker at 127\.0\.0\.1:2: Conn"):
        await toymq.connect(dead)
    with pytest.raises(toymq.ConnectFailed, match=r"127\.0\.0\.1:1: Connection refused; no broker at 127\.0\.0\.1:2: Conn"):
        sync.connect(dead)
