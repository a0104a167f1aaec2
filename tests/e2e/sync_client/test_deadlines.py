"""The time limit of the blocking client's calls, whatever the peer does."""

import socket
import threading
import time
from contextlib import suppress
from random import Random
from types import SimpleNamespace

import pytest

from tests.e2e.sync_client.test_link import GREETING, scripted
from tests.support.fake_clock import FakeClock
from toymq import RequestTimeout, sync
from toymq.options import Options
from toymq.sync import Client, link
from toymq.url import parse_urls

FLOOD_S = 15.0
"""A call that ends with the flood, and not by itself, is found out; and the test ends."""


@pytest.fixture(autouse=True)
def short_goodbye(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toymq.sync.client.GOODBYE_S", 0.05)


def test_a_peer_that_sends_without_end_does_not_keep_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """What had come was read until nothing more came, before a request was sent: for ever, whatever ``timeout_s``."""
    monkeypatch.setattr(link, "PAUSE_S", 0.0)
    begun, over = threading.Event(), threading.Event()

    def flood(connection: socket.socket) -> None:
        connection.recv(65_536)
        connection.sendall(GREETING)
        ends_at = time.perf_counter() + FLOOD_S
        with suppress(OSError):
            while time.perf_counter() < ends_at:
                connection.sendall(b"MSG unknown 0 1 5 - 3\nabc\n" * 1000)
                begun.set()
            over.set()

    with scripted(flood) as url:
        mq = sync.connect(url, timeout_s=0.5)
        assert begun.wait(FLOOD_S)
        with pytest.raises(RequestTimeout, match="waited for the reply to PING"):
            mq.ping()
        assert not over.is_set(), "the call ended by itself"
        mq.close()


def test_all_attempts_to_connect_end_with_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each had what was left before the pause ahead of it, and so had each address of a round: a call with ``timeout_s=2`` took
    up to 4 s, and more with several addresses."""
    clock, attempts = FakeClock(monotonic_s=0.0), list[float]()

    def silent(_: object, timeout_s: float) -> socket.socket:
        clock.advance(timeout_s)
        attempts.append(clock.monotonic())
        raise TimeoutError("timed out")

    monkeypatch.setattr(link, "time", SimpleNamespace(perf_counter=clock.monotonic, sleep=clock.advance))
    monkeypatch.setattr(socket, "create_connection", silent)
    options = Options(parse_urls("toymq://a,b"), None, None, 10.0, 4.0, 0.0, 1.0, 2.0, True, None, None, None, Random(1))
    with pytest.raises(RequestTimeout):
        Client(options).ping()
    assert len(attempts) == 3
    assert max(attempts) == pytest.approx(10.0, abs=0.01)


def test_a_pull_gives_other_connections_half_of_its_time() -> None:
    """It raised ``connect_timeout_s`` too late, while another connection of the client, which was lost, was made again."""

    def silent(connection: socket.socket) -> None:
        connection.recv(65_536)
        connection.sendall(GREETING)
        while connection.recv(65_536):
            pass

    with scripted(silent) as url:
        mq = sync.connect(url, timeout_s=0.3, connect_timeout_s=FLOOD_S)
        with pytest.raises(RequestTimeout, match="OK of a publish"):
            mq.pub("t", b"x")
        began = time.perf_counter()
        with pytest.raises(RequestTimeout, match="reply to PULL"):
            mq.pull("t", "c")
        assert time.perf_counter() - began < FLOOD_S / 2
        mq.close()


def test_a_client_with_many_connections_takes_its_leave_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one that was silent took all of the time, and the others ended without QUIT."""
    monkeypatch.setattr("toymq.sync.client.GOODBYE_S", 0.0)
    heard: list[bytes] = []

    def script(connection: socket.socket) -> None:
        connection.recv(65_536)
        connection.sendall(GREETING)
        while data := connection.recv(65_536):
            heard.append(data)

    with scripted(script) as url:
        sync.connect(url).close()
    assert heard == [b"QUIT\n"]
