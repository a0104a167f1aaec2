"""What a session's turn costs beside its commands. Contract: delivery.md, "Sessions"."""

import gc

import pytest

from tests.support.sim_served import SimServed
from toymq_py.auth.quotas import FLOOR_BYTES
from toymq_py.protocol import ServerConnection


@pytest.mark.parametrize(("size", "messages", "most"), [(200, 100, 0), (1000, 200, 5)])
def test_what_waits_in_the_parser_is_counted_once_for_many_small_publishes(
    size: int, messages: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    counted = ServerConnection.buffered_bytes

    def look(connection: ServerConnection) -> int:
        nonlocal looks
        looks += 1
        return counted.__get__(connection)

    monkeypatch.setattr(ServerConnection, "buffered_bytes", property(look))
    with SimServed() as served:
        client = served.client()
        for _ in range(messages):
            client.send(b"PUB t - %d\n%b\n" % (size, b"x" * size))
            served.advance(0.01)
        served.advance(0.1)  # the last one may still be at the disk
        assert len(client.lines()) == messages
    assert looks <= most, f"{messages} publishes of {size} bytes, and {FLOOR_BYTES} are free"


def test_a_fetch_leaves_no_cycle_behind() -> None:
    """A million pipelined ones left 700 MB to the garbage collector, which seldom comes."""
    with SimServed() as served:
        client = served.client(b"PUB t - 1\nx\n" + b"FETCH t 1 1\n" * 10)
        served.advance(1)
        gc.collect()
        gc.disable()
        try:
            client.send(b"FETCH t 1 1\n" * 500)
            served.advance(1)
            assert gc.collect() < 500
        finally:
            gc.enable()
