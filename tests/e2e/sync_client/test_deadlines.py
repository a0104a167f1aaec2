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


class Flood:
    """A server that sends its greeting, then data without end, and answers nothing."""

    def __init__(self) -> None:
        self.begun, self.over = threading.Event(), threading.Event()

    def __call__(self, connection: socket.socket) -> None:
        connection.recv(65_536)
        connection.sendall(GREETING)
        ends_at = time.perf_counter() + FLOOD_S
        with suppress(OSError):
            while time.perf_counter() < ends_at:
                connection.sendall(b"MSG unknown 0 1 5 - 3\nabc\n" * 1000)
                self.begun.set()
            self.over.set()


def test_a_peer_that_sends_without_end_does_not_keep_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: before a request was sent the client read until no more data came: with such a peer for ever, whatever
    ``timeout_s``."""
    monkeypatch.setattr(link, "PAUSE_S", 0.0)
    flood = Flood()
    with scripted(flood) as url:
        mq = sync.connect(url, timeout_s=0.5)
        assert flood.begun.wait(FLOOD_S)
        with pytest.raises(RequestTimeout, match="waited for the reply to PING"):
            mq.ping()
        assert not flood.over.is_set(), "the call ended by itself"
        mq.close()


def test_all_attempts_to_connect_end_with_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: each attempt had the time that was left before the back-off pause, and so had each address of a round: a call with
    ``timeout_s=2`` took up to 4 s, and more with several addresses."""
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


def test_a_call_that_is_shorter_than_the_backoff_tries_to_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a client whose calls all have short time-outs would never reconnect."""
    clock, attempts = FakeClock(monotonic_s=0.0), list[float]()

    def refused(*_: object) -> socket.socket:
        attempts.append(clock.monotonic())
        raise ConnectionRefusedError

    monkeypatch.setattr(link, "time", SimpleNamespace(perf_counter=clock.monotonic, sleep=clock.advance))
    monkeypatch.setattr(socket, "create_connection", refused)
    options = Options(parse_urls("toymq://a"), None, None, 1.0, 4.0, 0.0, 0.05, 1000.0, True, None, None, None, Random(1))
    client = Client(options)
    for call in range(30):
        before = len(attempts)
        with pytest.raises(RequestTimeout):
            client.ping()
        assert 0 < len(attempts) - before < 30
        assert clock.monotonic() == pytest.approx(call + 1, abs=0.001)


def test_a_pull_gives_other_connections_half_of_its_time() -> None:
    """Found: a pull with a lost second connection raised its time-out late by ``connect_timeout_s``, while that connection was
    made again."""

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
    """Found: when a client closed, its first silent connection used up all of the time, and the others ended without QUIT."""
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


def test_what_timed_out_while_the_broker_is_away_takes_no_memory() -> None:
    """Found: each timed-out publish was kept until the broker was back, without a bound, and so was a part of each other
    call."""

    def leaves(connection: socket.socket) -> None:
        connection.recv(65_536)
        connection.sendall(GREETING)

    with scripted(leaves) as url:
        mq = sync.connect(url, timeout_s=0.05)
        for _ in range(3):
            for call in (lambda: mq.pub("t", b"x"), lambda: list(mq.pub_many("t", [b"x"] * 9, window=4)), mq.ping):
                with pytest.raises(RequestTimeout):
                    call()
        with pytest.raises(RequestTimeout):
            mq.ping()
        assert (mq._conversation.outstanding.bytes, mq._conversation.idle) == (0, True)
        mq.close()


@pytest.mark.parametrize("answered", [False, True])
def test_a_publish_waits_for_room_and_says_so(monkeypatch: pytest.MonkeyPatch, answered: bool) -> None:
    """Found: the number of unanswered publishes had no bound: each call that timed out added its own."""
    full = threading.Event()

    def script(connection: socket.socket) -> None:
        with connection.makefile("rwb", buffering=0) as stream:
            stream.readline()
            stream.write(GREETING)
            for _ in range(2 * 4):
                stream.readline()
            stream.write(b"OK 0\nOK 1\n")
            full.wait(FLOOD_S)
            if answered:
                stream.write(b"OK 2\nOK 3\n")
                stream.readline()
                stream.readline()
                stream.write(b"OK 4\n")
            while stream.read(65_536):
                pass

    with scripted(script) as url:
        mq = sync.connect(url, timeout_s=FLOOD_S if answered else 2)
        receipts = mq.pub_many("t", [b"x"] * 4, window=4)
        assert next(receipts).msg_id == 0
        monkeypatch.setattr("toymq.sync.publishing.OUTSTANDING_BYTES_MAX", 1)
        full.set()
        if answered:
            assert mq.pub("t", b"y").msg_id == 4
            assert [receipt.msg_id for receipt in receipts] == [1, 2, 3]
        else:
            with pytest.raises(RequestTimeout, match=r"no room within 2 s: waited to publish to t"):
                mq.pub("t", b"y")
        mq.close()
