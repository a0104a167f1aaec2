"""The port of ``--metrics``: what a connection may keep of its seats."""

import socket

from toymq_py.observability import metrics_server


class Slow:
    """Eight seconds go by between two looks."""

    def __init__(self) -> None:
        self._now = 0.0

    def wall_ns(self) -> int:
        return 0

    def monotonic(self) -> float:
        self._now += 8
        return self._now


def test_a_head_that_comes_in_drops_ends_at_one_deadline() -> None:
    requests = metrics_server._Requests(Slow())
    ours, theirs = socket.socketpair()
    with ours:
        assert requests.room.acquire(blocking=False)
        requests.process_request(theirs, ("127.0.0.1", 1))
        ours.sendall(b"G")
        ours.settimeout(5)
        assert ours.recv(1) == b"", "hung up on"
        assert requests.room.acquire(timeout=5), "and its seat is free"
        for _ in range(metrics_server.REQUESTS_MAX - 1):
            assert requests.room.acquire(timeout=5)
