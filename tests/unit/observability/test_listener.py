"""The port of ``--metrics``: what a connection may keep of its seats."""

import socket

import pytest

from toymq_py.observability import listener


def test_a_head_that_comes_in_drops_ends_at_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(0, 1000, 8))  # a byte every 8 s
    monkeypatch.setattr(listener, "monotonic", lambda: next(now), raising=False)
    requests = listener._Requests()
    ours, theirs = socket.socketpair()
    with ours:
        assert requests.room.acquire(blocking=False)
        requests.process_request(theirs, ("127.0.0.1", 1))
        ours.sendall(b"G")
        ours.settimeout(5)
        assert ours.recv(1) == b"", "hung up on"
        assert requests.room.acquire(timeout=5), "and its seat is free"
        for _ in range(listener.REQUESTS_MAX - 1):
            assert requests.room.acquire(timeout=5)
