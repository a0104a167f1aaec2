"""Writes of a session: their size, and the bytes that a client does not read."""

from collections.abc import Iterator

import pytest

from tests.support.sim_served import SimClient, SimServed
from tests.support.tokens import authority, hello, table
from toymq_py.auth.quotas import FLOOR_BYTES
from toymq_py.session.replies import WRITE_BYTES

APP = table("app", 'publish = [">"]\nsubscribe = [">"]')
MIB = 1024 * 1024
BODY = b"x" * 8192
MESSAGES = 64
"""Two writes' worth for each subscription."""
SUBSCRIPTIONS = 20


@pytest.fixture
def served() -> Iterator[SimServed]:
    with SimServed(authority=authority(APP), max_held_bytes=4 * MIB) as served:
        publisher = served.client(hello("app") + b"".join(b"PUB t - %d\n%b\n" % (len(BODY), BODY) for _ in range(MESSAGES)))
        served.advance(1)
        assert len(publisher.lines()) == 1 + MESSAGES
        yield served


def deaf(served: SimServed, number: int) -> SimClient:
    """Connect a client that subscribes from the first message on and reads nothing."""
    client = served.client()
    client.transport.pause_reading()
    client.send(hello("app") + b"SUB t c%d start=earliest\n" % number)
    return client


def test_bytes_that_are_not_read_count_as_held_and_shrink_the_next_writes(served: SimServed) -> None:
    """Found by a trial of issue 16: every subscription that did not read kept a write in memory, which counted for no limit."""
    clients = [deaf(served, number) for number in range(SUBSCRIPTIONS)]
    served.advance(1)
    share = 2 * MIB
    assert share < served.broker.quotas.held_bytes <= share + WRITE_BYTES + len(BODY)
    small = [session for session in served.server._sessions if 0 < session._writer.unread_bytes <= FLOOR_BYTES + 2 * len(BODY)]
    assert len(small) >= SUBSCRIPTIONS // 2, "behind the share a write has what each connection may hold"
    for client in clients:
        client.transport.resume_reading()
    served.advance(5)
    assert all(client.received.count(BODY) == MESSAGES for client in clients), "and nothing stays behind"
    assert served.broker.quotas.held_bytes == 0


def test_bytes_of_a_lost_connection_are_held_no_more(served: SimServed) -> None:
    clients = [deaf(served, number) for number in range(4)]
    served.advance(1)
    assert served.broker.quotas.held_bytes > 3 * (WRITE_BYTES - len(BODY))
    for client in clients:
        client.transport.abort()
    served.advance(1)
    assert served.broker.quotas.held_bytes == 0
