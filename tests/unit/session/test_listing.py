"""JSON lists of topics in slices. Contract: protocol.md, "JSON shapes"."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.sim_served import SimServed
from toymq_py.session.listing import TOPICS_PER_TURN, Listing, json_reply


@pytest.mark.parametrize("count", [0, 1, TOPICS_PER_TURN - 1, TOPICS_PER_TURN, 3 * TOPICS_PER_TURN + 1])
def test_a_list_is_whole_after_a_turn_for_each_slice(count: int) -> None:
    topics = [{"topic": f"t{n}"} for n in range(count)]
    listing = Listing(lambda: (b'{"topics": [', iter(topics), b"]}"), lambda size: None)
    turns = 1
    while (reply := listing.make()) is None:
        turns += 1
    assert turns == count // TOPICS_PER_TURN + 1
    head, _, body = reply.partition(b"\n")
    assert head == b"JSON %d" % (len(body) - 1)
    assert json.loads(body) == {"topics": topics}


def test_nothing_is_described_before_its_turn() -> None:
    begun: list[bool] = []

    def begin() -> tuple[bytes, object, bytes]:
        begun.append(True)
        return b"[", iter(()), b"]"

    listing = Listing(begin, lambda size: None)  # type: ignore[arg-type]
    assert not begun
    assert listing.make() == json_reply([])


def described(count: int) -> Callable[[str | None], Iterator[dict[str, Any]]]:
    """Return a listing of so many topics, for a broker that has none."""
    return lambda pattern: ({"topic": f"t{number}", "settings": "x" * 200} for number in range(count))


@pytest.mark.parametrize("command", [b"STATS\n", b"TOPICS\n"])
def test_lists_that_are_made_at_a_time_count_before_they_are_written(command: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: lists of a MB were made for two hundred clients at a time, and the kernel killed a broker in 192 MiB."""
    with SimServed(max_held_bytes=1 << 20) as served:
        monkeypatch.setattr(served.broker, "describe", described(1000))
        one = served.client(command)
        served.advance(1)
        size = len(one.received)
        assert size > 200_000
        quotas, most = served.broker.quotas, 0
        clients = [served.client(command) for _ in range(12)]
        while not all(client.received.endswith(b"\n") for client in clients):
            served.advance(1e-6)
            most = max(most, quotas.held_bytes)
        refused = sum(client.received.startswith(b"ERR QUEUE_FULL 1048576 bytes") for client in clients)
        assert 4 < refused < 12, "as many as have room are made"
        assert sum(len(client.received) == size for client in clients) + refused == 12 or command == b"STATS\n"
        assert most <= (1 << 20) + size
        served.advance(1)
        assert quotas.held_bytes == 0
