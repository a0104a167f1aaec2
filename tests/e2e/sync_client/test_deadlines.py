"""The time limit of the blocking client's calls, whatever the peer does."""

import socket
import threading
import time
from contextlib import suppress

import pytest

from tests.e2e.sync_client.test_link import GREETING, scripted
from toymq import RequestTimeout, sync
from toymq.sync import link

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
