"""TLS under a session keeps every promise of plain TCP, on a network that splits and delays bytes at will.

Contract: reliability.md, "Security"; delivery.md, "Attempts" and "Sessions"; ADR 0019."""

import logging
import ssl

import pytest

from tests.support.certificates import CERT, CLIENT_CERT, KEY, client_context
from tests.support.shares import seeds
from tests.support.sim_event_loop import SimTransport
from tests.support.sim_served import SimClient, SimServed, SimTlsClient
from toymq_py.entrance import REFUSED_LINGER_MAX
from toymq_py.net.certificates import Certificates
from toymq_py.session.session import LINGER_S


def serving(*, client_ca: str | None = None, seed: int = 1, **options: int) -> SimServed:
    return SimServed(certificates=Certificates(CERT, KEY, client_ca), seed=seed, **options)


def publish(served: SimServed, count: int, size: int = 1000) -> None:
    client = served.client(b"PUB t - %d\n%b\n" % (size, b"x" * size) * count + b"QUIT\n")
    served.advance(2)
    assert client.lines()[count - 1] == b"OK %d" % (count - 1)
    client.close()


def broker_end(client: SimClient) -> SimTransport:
    """Return the broker's end of a connection."""
    far = client.transport._wire.other(client.transport)
    assert far is not None
    return far


def deliveries(received: bytes) -> list[tuple[int, int]]:
    """Return (id, attempt) of the MSG frames, whose bodies have no newline."""
    return [(int(line.split()[2]), int(line.split()[3])) for line in received.split(b"\n") if line.startswith(b"MSG ")]


@pytest.mark.parametrize("seed", seeds(10, 30))
def test_a_conversation(seed: int) -> None:
    with serving(seed=seed) as served:
        said = b"".join(b"PUB t - %d\n%b\n" % (n * 13, b"x" * (n * 13)) for n in range(300)) + b"SUB t c window=1000\nPING\n"
        client = served.tls_client(client_context(), said)
        served.advance(5)
        lines = client.lines()
        assert lines[:300] == [b"OK %d" % n for n in range(300)]
        assert b"PONG" in lines
        assert deliveries(client.received) == [(n, 1) for n in range(300)]
        bodies = [line for line in lines if not line or line.startswith(b"x")]
        assert bodies == [b"x" * (n * 13) for n in range(300)]


@pytest.mark.parametrize("seed", seeds(10, 30))
def test_what_is_in_our_buffer_when_it_ends_is_no_attempt(seed: int) -> None:
    """A client stops reading and is lost: a message that the socket did not take whole is redelivered as the first attempt."""
    with serving(seed=seed) as served:
        publish(served, 400)
        client = served.tls_client(client_context(), b"SUB t c window=1000\n")
        assert isinstance(client, SimTlsClient)
        while not client.received:
            served.advance(0.001)
        client.transport.pause_reading()
        served.advance(1)
        end = broker_end(client)
        assert end._out, "the socket is full"
        taken = client.arrived + end._on_the_way
        end.abort()
        served.advance(1)
        consumer = served.broker.topic("t").consumers["c"]
        counted = [msg_id for msg_id in range(400) if consumer.has_delivered(msg_id, msg_id)]
        again = served.tls_client(client_context(), b"SUB t c window=1000\n")
        served.advance(5)
        assert dict(deliveries(again.received)) == {msg_id: 2 if msg_id == 0 else 1 for msg_id in range(400)}
        assert counted == list(range(len(counted)))
        frame = len(b"MSG t 100 1 1781767800000000000 - 1000\n") + 1001
        assert taken / frame - 5 < len(counted) <= taken / frame, "what the socket took, but for what TLS adds"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("seed", range(10))
def test_who_says_no_more_still_gets_the_answers(seed: int, version: ssl.TLSVersion) -> None:
    context = client_context()
    context.maximum_version = version
    with serving(seed=seed) as served:
        client = served.tls_client(context, b"PUB t - 1\nx\n" * 50 + b"PUB t - 10\ntorn")
        assert isinstance(client, SimTlsClient)
        while not client.open:
            served.advance(0.001)
        with pytest.raises(ssl.SSLWantReadError):
            client.tls.unwrap()  # says that it says no more
        client.flush()
        served.advance(2)
        assert client.lines() == [b"OK %d" % n for n in range(50)]
        assert client.at_end
        assert served.broker.metrics.connections == 0
        assert served.broker.metrics.connections_torn_total == 1


def test_an_end_without_goodbye_is_an_end() -> None:
    with serving() as served:
        client = served.tls_client(client_context(), b"PUB t - 1\nx\n")
        served.advance(1)
        client.close()
        served.advance(1)
        assert served.broker.metrics.connections == 0


@pytest.mark.parametrize("seed", range(20))
def test_the_reason_of_a_fatal_error_is_read(seed: int) -> None:
    """The client reads the error even when it goes on sending, within a bound."""
    with serving(seed=seed) as served:
        client = served.tls_client(client_context(), b"PUB t x\n" + b"y" * 100_000)
        served.advance(LINGER_S / 2)
        client.send(b"z" * 1000)
        assert [line[:15] for line in client.lines()] == [b"ERR BAD_FRAMING"]
        assert client.at_end
        served.advance(LINGER_S + 0.1)
        assert broker_end(client)._ended


@pytest.mark.parametrize("data", [
    b"PING\n", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\0", b"\x15\x03\x01\x00\x02\x02\x28", b"HELLO 1 auth=4gRsecret\n",
])  # fmt: skip
def test_who_speaks_no_tls_gets_one_line(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), serving() as served:
        client = served.tls_client(None, data)
        served.advance(LINGER_S + 0.1)
        assert client.received == b"ERR BAD_FRAMING this port speaks TLS: use toymqs://\n"
        assert client.at_end
        assert broker_end(client)._ended
        assert not served.server._entrance.handshakes
    (said,) = caplog.messages
    assert "instead of TLS" in said
    assert "4gR" not in said, "no part of a token is logged"


@pytest.mark.parametrize("head", [b"\x16\x03\x01\xff\xff", b"\x16\x03\x01\x40\x00\x01\xff\xff\xff", b"\x16\x02"])
def test_a_handshake_that_is_none_ends_at_once(head: bytes) -> None:
    """The record or the message is too long, or the version is missing: no memory is kept for them."""
    with serving() as served:
        client = served.tls_client(None, head + bytes(10_000_000))
        served.advance(1)
        assert broker_end(client)._ended
        assert not served.server._entrance.handshakes


def test_tls_on_the_port_without_gets_an_answer() -> None:
    """Otherwise the client would wait: a TLS hello has no newline."""
    with serving() as served:
        client = SimTlsClient(client_context())
        client.transport = served.listener.connect(client)
        client.send(b"PING\n")
        served.advance(0.5)
        assert client.failure is not None
        assert client.failure.reason == "WRONG_VERSION_NUMBER"


def test_a_broken_record_ends_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    with serving() as served:
        client = served.tls_client(client_context(), b"SUB t c\n")
        served.advance(1)
        client.transport.write(b"\x17\x03\x03\x00\x20" + bytes(32))
        served.advance(1)
        assert client.lost
        assert served.broker.metrics.connections == 0
    assert any("is broken: decryption failed or bad record mac" in message for message in caplog.messages)


@pytest.mark.parametrize(
    ("shows", "accepted"), [(None, False), ((CLIENT_CERT, "client-key"), True), ((CERT, "key"), False)]
)
def test_client_certificates(shows: tuple[str, str] | None, accepted: bool, caplog: pytest.LogCaptureFixture) -> None:
    context = client_context()
    if shows is not None:
        cert, key = shows
        context.load_cert_chain(cert, cert.rpartition("/")[0] + f"/{key}.pem")
    with caplog.at_level(logging.INFO), serving(client_ca=CLIENT_CERT) as served:
        client = served.tls_client(context, b"PUB t - 1\nx\n")
        served.advance(1)
        assert isinstance(client, SimTlsClient)
        assert (client.lines() == [b"OK 0"]) is accepted
        assert (client.failure is None) is accepted
        assert ("t" in served.broker.topics) is accepted
    reasons = [message.rpartition(": ")[2] for message in caplog.messages]
    expected = {None: ["peer did not return a certificate"], CERT: ["self-signed certificate"]}
    assert accepted or reasons == expected[shows[0] if shows else None]


def test_old_versions_are_refused() -> None:
    context = client_context()
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with serving() as served:
        client = served.tls_client(context)
        served.advance(1)
        assert isinstance(client, SimTlsClient)
        assert client.failure is not None
        assert client.failure.reason == "TLSV1_ALERT_PROTOCOL_VERSION"


def test_tls_1_2_is_spoken() -> None:
    context = client_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with serving() as served:
        client = served.tls_client(context, b"PING\n")
        served.advance(1)
        assert client.lines() == [b"PONG"]


def test_handshakes_that_never_end_give_way_to_others() -> None:
    with serving(max_connections=3) as served:
        silent = [served.tls_client(None) for _ in range(3)]
        served.advance(0.1)
        plain = served.client(b"PING\n")
        served.advance(0.1)
        assert plain.lines() == [b"PONG"]
        assert [client.lost for client in silent] == [True, False, False]
        secret = served.tls_client(client_context(), b"PING\n")
        served.advance(1)
        assert secret.lines() == [b"PONG"]


def test_handshakes_beyond_the_limit_are_counted() -> None:
    """Beyond the limit some clients get the reason, after a handshake; the others are closed at once."""
    with serving(max_connections=3) as served:
        busy = [served.client(b"PING\n") for _ in range(3)]
        served.advance(0.1)
        told = [served.tls_client(client_context()) for _ in range(REFUSED_LINGER_MAX)]
        served.advance(0.1)
        assert all(client.lines()[0].startswith(b"ERR TOO_MANY_CONNECTIONS 3 connections") for client in told)
        more = [served.tls_client(None) for _ in range(REFUSED_LINGER_MAX + 1)]
        served.advance(0.1)
        assert sum(client.lost for client in more) == 1
        for client in busy + more:
            client.close()
        served.advance(2)
        served_again = served.tls_client(client_context(), b"PING\n")
        served.advance(1)
        assert served_again.lines() == [b"PONG"]


def test_the_broker_ends_without_waiting_for_handshakes() -> None:
    with serving() as served:
        client = served.tls_client(None)
        served.advance(0.1)
        began = served.loop.now
    assert client.lost
    assert served.loop.now - began < 1
