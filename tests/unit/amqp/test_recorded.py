"""Sessions of real clients, as recorded by tests/support/amqp_recorder.py: they give the same events however their bytes are
split.

Contract: amqp.md, "Shape" (sans-IO)."""

import random
from contextlib import closing

import pytest

from tests.support import shares
from tests.support.recorded_sessions import CLIENTS, RECORDED, mutated, sides
from toymq_py.amqp.connection import AmqpConnection, Content, Event, NotAmqp, Signal
from toymq_py.amqp.errors import AmqpError
from toymq_py.amqp.methods import Method


def events(pieces: list[bytes], *, of_client: bool) -> list[Event]:
    connection = AmqpConnection(frame_max=131_072, body_bytes_max=1 << 21, channel_max=2047, expects_header=of_client)
    seen: list[Event] = []
    for piece in pieces:
        connection.received(piece)
        with closing(connection.events()) as some:  # type: ignore[type-var]
            seen += (event for event in some if event[1] is not Signal.NOTHING)
    return seen


def names(seen: list[Event]) -> list[str]:
    return [
        what.method.name if isinstance(what, Content) else what.name if isinstance(what, Method | Signal) else str(what)
        for _, what in seen
    ]


def test_each_client_is_recorded() -> None:
    assert tuple(sorted(path.stem for path in RECORDED.glob("*.json"))) == CLIENTS


@pytest.mark.parametrize("client", CLIENTS)
def test_both_sides_of_a_session_are_understood(client: str) -> None:
    said = [names(events([data], of_client=of_client)) for data, of_client in sides(client)]
    for client_said, broker_said in zip(said[::2], said[1::2], strict=True):
        assert client_said[:4] == ["GREETING", "connection.start-ok", "connection.tune-ok", "connection.open"]
        assert broker_said[:3] == ["connection.start", "connection.tune", "connection.open-ok"]
    everything = {name for names_of_side in said for name in names_of_side}
    assert everything >= {"queue.declare-ok", "basic.publish", "basic.consume-ok", "basic.deliver", "basic.ack"}


@shares.one_in(11)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_session_is_the_same_whatever_cut_it_has(client: str, share: int) -> None:
    """Try every split into two parts, and every byte alone."""
    for data, of_client in sides(client):
        whole = events([data], of_client=of_client)
        for at in range(0, len(data) + 1, share):
            assert events([data[:at], data[at:]], of_client=of_client) == whole, at
        assert events([data[at : at + 1] for at in range(len(data))], of_client=of_client) == whole


@pytest.mark.parametrize("client", CLIENTS)
def test_a_session_is_the_same_in_random_pieces(client: str) -> None:
    seeded = random.Random(22)
    for data, of_client in sides(client):
        whole = events([data], of_client=of_client)
        for _ in range(20):
            cuts = sorted(seeded.choices(range(len(data) + 1), k=seeded.randint(1, 40)))
            pieces = [data[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True)]
            assert events(pieces, of_client=of_client) == whole, cuts


@pytest.mark.parametrize("client", CLIENTS)
def test_a_changed_session_is_events_or_an_error_however_it_is_cut(client: str) -> None:
    seeded = random.Random(23)
    for data, of_client in sides(client):
        for _ in range(60):
            changed = mutated(data, seeded)
            whole = outcome([changed], of_client=of_client)
            at = seeded.randrange(len(changed))
            assert outcome([changed[:at], changed[at:]], of_client=of_client) == whole


def outcome(pieces: list[bytes], *, of_client: bool) -> tuple[list[str], str]:
    """Return the events up to an error, and the error."""
    connection = AmqpConnection(frame_max=131_072, body_bytes_max=1 << 21, channel_max=2047, expects_header=of_client)
    seen: list[str] = []
    try:
        for piece in pieces:
            connection.received(piece)
            with closing(connection.events()) as some:  # type: ignore[type-var]
                for event in some:
                    seen.append(str(event))
    except (AmqpError, NotAmqp) as error:
        return seen, str(error)
    return seen, ""
