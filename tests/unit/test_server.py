"""What the server does beside its sessions: it binds, and runs the broker's timers."""

import socket

import pytest

from tests.support.sim_served import SimClient, SimServed
from toymq_py.server import Server


def attempts(client: SimClient) -> list[bytes]:
    """Topic, id and attempt of each delivery so far."""
    return [b" ".join(line.split()[1:4]) for line in client.lines() if line.startswith(b"MSG ")]


def test_what_was_scheduled_before_a_restart_comes_at_its_time() -> None:
    """Simulation, queue seed 7: it never came, since the deadline was told before the server listened."""
    with SimServed() as served:
        publisher = served.client(b"PUB t - 1 delay=500\na\n")
        served.advance(0.1)
        assert publisher.lines() == [b"OK 0"]
        served.restart()
        subscriber = served.client(b"SUB t c\n")
        served.advance(0.2)
        assert attempts(subscriber) == [], "not before its time"
        served.advance(0.3)
        assert attempts(subscriber) == [b"t 0 1"]


def test_a_schedule_that_was_recovered_does_not_stop_visibility_timeouts() -> None:
    """They were later than the deadline that nobody had heard of, so nobody heard of them either."""
    with SimServed(visibility_ms=30_000) as served:
        served.client(b"PUB t - 1 delay=3600000\na\nPUB t - 1\nb\n")
        served.advance(0.1)
        served.restart()
        subscriber = served.client(b"SUB t c\n")
        served.advance(0.1)
        assert attempts(subscriber) == [b"t 1 1"]
        served.advance(30.0)
        assert attempts(subscriber) == [b"t 1 1", b"t 1 2"]


def test_an_address_that_a_name_has_twice_is_bound_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of two lines for localhost in /etc/hosts: the second socket could not listen."""
    resolve = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda _host, *rest, **words: 2 * resolve("127.0.0.1", *rest, **words))
    (listener,) = Server.bind("localhost", 0)
    listener.close()
