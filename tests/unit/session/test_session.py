"""What a session's turn costs beside its commands. Contract: delivery.md, "Sessions"."""

import pytest

from tests.support.sim_served import SimServed
from toymq_py.protocol import ServerConnection
from toymq_py.quotas import FLOOR_BYTES


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
        assert len(client.lines()) == messages
    assert looks <= most, f"{messages} publishes of {size} bytes, and {FLOOR_BYTES} are free"
