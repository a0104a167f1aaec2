"""What becomes of a name while its topic is being deleted."""

import errno
from collections.abc import Callable

import pytest

from tests.support.broker_rig import BrokerRig
from tests.support.sim_served import SimServed

MAKERS = {
    "PUB": (b"PUB t - 1\ny\n", b"OK 0"),
    "SUB": (b"SUB t c\n", b"OK 1"),
    "PULL": (b"PULL t c 1\n", b"OK 0"),
    "CREATE": (b"CREATE t ttl=5\n", b"OK 0"),
}


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Removals of a directory that wait for the test to call them."""
    from toymq_py.data_directory import DataDirectory

    calls: list[Callable[[], None]] = []
    remove = DataDirectory.remove_topic
    monkeypatch.setattr(DataDirectory, "remove_topic", lambda self, *rest: calls.append(lambda: remove(self, *rest)))
    return calls


@pytest.mark.parametrize("verb", MAKERS)
def test_what_makes_a_topic_waits_for_the_one_that_is_being_deleted(verb: str, held: list[Callable[[], None]]) -> None:
    """Found by an attack: a PUB got NO_SUCH_TOPIC, which no page names for it, and a CREATE got EXISTS."""
    command, reply = MAKERS[verb]
    with SimServed() as served:
        admin = served.client(b"PUB t - 1\nx\nPUB t - 1\nx\nDELETE t\n")
        served.advance(0.1)
        client = served.client(command + b"PING\n")
        served.advance(0.1)
        assert (client.received, len(held)) == (b"", 1)
        held[0]()
        served.advance(0.1)
        assert client.lines()[:2] == [reply, b"PONG"]
        assert admin.lines() == [b"OK 0", b"OK 1", b"OK 2"]
        assert served.broker.topic("t").next_id == (verb == "PUB"), "it begins anew"


def test_commands_in_one_packet_are_executed_in_order_around_a_delete() -> None:
    with SimServed() as served:
        twice = b"PUB t - 1\nx\nPUB t - 1\nx\nDELETE t\n"
        client = served.client(twice + twice + b"SUB t c\nDELETE t\n")
        served.advance(1)
        assert client.lines() == [b"OK 0", b"OK 1", b"OK 2", b"OK 0", b"OK 1", b"OK 2", b"OK 1", b"CLOSED t c DELETED", b"OK 0"]


def test_what_needs_a_topic_does_not_wait(held: list[Callable[[], None]]) -> None:
    with SimServed() as served:
        served.client(b"PUB t - 1\nx\nDELETE t\n")
        served.advance(0.1)
        client = served.client(b"DELETE t\nPURGE t\nSEEK t c 0\nACK t c 0\nDESCRIBE t\n")
        served.advance(0.1)
        assert [line.split(b" ")[1] for line in client.lines()] == [b"NO_SUCH_TOPIC"] * 5
        held[0]()


def test_a_client_that_waits_for_a_name_is_refused_when_the_broker_stops(held: list[Callable[[], None]]) -> None:
    with SimServed() as served:
        served.client(b"PUB t - 1\nx\nDELETE t\n")
        served.advance(0.1)
        client = served.client(b"PUB t - 1\ny\n")
        served.advance(0.1)
        served.loop.call_later(0.05, held[0])
        assert served.stop() <= 0.1
        assert client.received.startswith(b"ERR SHUTTING_DOWN ")


def test_a_name_whose_directory_stays_is_closed_until_a_restart() -> None:
    rig = BrokerRig()
    rig.publish("t", b"x")
    rig.disk.fail("rename", 1, errno.EIO)
    assert rig.delete("t") == "Input/output error"
    assert rig.change("create", "t") == "STORAGE_FAILED"
