"""How long a client may take to authenticate, and its cost until then. Contract: reliability.md, "Security"."""

import pytest

from tests.support.certificates import CERT, KEY, client_context
from tests.support.sim_event_loop import SOCKET_BUFFER_BYTES
from tests.support.sim_served import SimClient, SimServed
from tests.support.tokens import EVERYTHING, authority, hello
from toymq_py.net.certificates import Certificates
from toymq_py.session.authorization import GREETING_S
from toymq_py.session.session import LINGER_S

NO_HELLO = [b"ERR AUTH_REQUIRED no HELLO with a token within 10 s"]


def test_a_thousand_that_say_nothing_are_cut() -> None:
    with SimServed(authority=authority(EVERYTHING)) as served:
        clients = [served.client() for _ in range(1000)]
        served.advance(GREETING_S - 0.1)
        assert served.broker.metrics.connections == 1000
        assert not any(client.received for client in clients)
        served.advance(0.3)
        assert all(client.lines() == NO_HELLO and client.at_end for client in clients)
        served.advance(LINGER_S + 0.1)
        assert served.broker.metrics.connections == 0


def test_a_thousand_that_shake_no_hands_are_cut() -> None:
    with SimServed(certificates=Certificates(CERT, KEY)) as served:
        clients = [served.tls_client(None) for _ in range(1000)]
        served.advance(GREETING_S - 0.1)
        assert not any(client.lost for client in clients)
        served.advance(0.2)
        assert all(client.lost and not client.received for client in clients)
        assert not served.server._entrance.handshakes


def _dribble(served: SimServed, client: SimClient, data: bytes) -> None:
    """Send a byte a second, as long as the broker reads."""
    for at in range(len(data)):
        if client.lost or client.at_end:
            return
        client.transport.write(data[at : at + 1])
        served.advance(1.0)


def test_a_slow_hello_is_cut() -> None:
    with SimServed(authority=authority(EVERYTHING)) as served:
        client = served.client()
        began = served.loop.now
        _dribble(served, client, hello("all"))
        assert client.lines() == NO_HELLO
        assert served.loop.now - began < GREETING_S + 2
        assert not served.broker.topics


def test_a_slow_handshake_is_cut() -> None:
    with SimServed(certificates=Certificates(CERT, KEY)) as served:
        client = served.tls_client(None)
        began = served.loop.now
        _dribble(served, client, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100))
        assert client.lost
        assert not client.received
        assert served.loop.now - began < GREETING_S + 2


def test_tls_gives_no_more_time_for_hello() -> None:
    """The TLS handshake has a time-out of its own, and HELLO has the same as without TLS."""
    with SimServed(authority=authority(EVERYTHING), certificates=Certificates(CERT, KEY)) as served:
        client = served.tls_client(client_context())
        served.advance(GREETING_S - 0.1)
        assert not client.received
        served.advance(0.3)
        assert client.lines() == NO_HELLO
        assert client.at_end


def test_a_broker_that_stood_still_reads_before_it_judges() -> None:
    """After a SIGSTOP, for example, every timer is due when the broker goes on, and bytes that arrived meanwhile are still in
    the socket."""
    with SimServed(authority=authority(EVERYTHING)) as served:
        client = served.client()
        served.advance(1)
        client.send(hello("all") + b"PING\n")
        served.loop.now += 60
        served.advance(1)
        assert [line[:7] for line in client.lines()] == [b"HELLO 1", b"PONG"]


@pytest.mark.parametrize("tls", [False, True])
def test_who_says_hello_in_time_stays(tls: bool) -> None:
    with SimServed(authority=authority(EVERYTHING), certificates=Certificates(CERT, KEY)) as served:
        client = served.tls_client(client_context()) if tls else served.client()
        served.advance(GREETING_S - 1)
        client.send(hello("all"))
        served.advance(1000)
        client.send(b"PING\n")
        served.advance(0.1)
        assert [line[:7] for line in client.lines()] == [b"HELLO 1", b"PONG"]


def test_without_an_auth_file_nobody_has_to_speak() -> None:
    with SimServed() as served:
        client = served.client()
        served.advance(1000)
        client.send(b"PING\n")
        served.advance(0.1)
        assert client.lines() == [b"PONG"]


@pytest.mark.parametrize("seed", range(20))
def test_a_body_is_not_taken_from_a_stranger(seed: int) -> None:
    """A client that announces two megabytes before HELLO is refused at once, however the bytes arrive."""
    with SimServed(authority=authority(EVERYTHING), seed=seed) as served:
        client = served.client(b"PUB t - 2000000\n" + b"x" * 100_000)
        served.advance(0.5)
        assert [line.split(b" ")[1] for line in client.lines()] == [b"AUTH_REQUIRED"]
        (session,) = served.server._sessions
        assert session._reader._parser.buffered_bytes <= SOCKET_BUFFER_BYTES, "what came in one piece with the first line"
        assert session._reader._inbox_bytes == 0
        assert not served.broker.topics
