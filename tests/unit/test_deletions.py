"""Commands for a name while its topic is being deleted."""

import errno
from collections.abc import Callable

import pytest

from tests.support.broker_rig import BrokerRig
from tests.support.sim_served import SimServed
from toymq_py.errors import StorageFailed
from toymq_py.storage.topic_directories import topic_names

MAKERS = {
    "PUB": (b"PUB t - 1\ny\n", b"OK 0"),
    "SUB": (b"SUB t c\n", b"OK 1"),
    "PULL": (b"PULL t c 1\n", b"OK 0"),
    "CREATE": (b"CREATE t ttl=5\n", b"OK 0"),
}


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Return removals of a directory that wait for the test to call them."""
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


@pytest.mark.parametrize("op", ["rename", "sync_dir"])
def test_a_topic_on_a_full_disk_is_removed_when_there_is_room(op: str) -> None:
    """Found: the name stayed in use until a restart, which brought the topic back."""
    rig = BrokerRig()
    rig.publish("t", b"x")
    fault = rig.disk.fail(op, 1, errno.ENOSPC, sticky=True, path="topics")
    assert rig.delete("t") == "No space left on device"
    with pytest.raises(StorageFailed, match=r"t could not be deleted \(No space .*\): it is tried again every 5 s: make room"):
        rig.publish("t", b"y")
    rig.loop.advance(12)
    assert rig.change("create", "t") == "STORAGE_FAILED"
    assert fault.fired
    rig.disk.heal()
    rig.loop.advance(5.1)
    assert rig.broker.unopened == {}
    assert not rig.files("t")
    assert rig.publish("t", b"z")[0].first_id == 0
    rig.reopen()
    assert rig.broker.topic("t").next_id == 1


FULL = ("pwrite", 1, errno.ENOSPC)


def names_on(served: SimServed) -> list[str]:
    """Return the topics in memory, and the directories on the disk."""
    return [*served.broker.topics, *topic_names(served._disk, "/data/d")]


@pytest.mark.parametrize(("op", "where"), [("pwrite", ".log"), ("open", ".log"), ("mkdir", "topics/t")])
@pytest.mark.parametrize("pattern", ["", "SUB > c\n", "PULL > c 1 wait=9000\n"])
def test_a_topic_whose_first_publish_finds_the_disk_full_does_not_stay(op: str, where: str, pattern: str) -> None:
    """Found: the topic stayed without a message, also over a restart. Consumers of patterns do not keep it either."""
    with SimServed() as served:
        other = served.client(pattern.encode())
        served._disk.fail(op, 1, errno.ENOSPC, path=where)
        client = served.client(b"PUB t - 1\nx\n")
        served.advance(2)
        assert client.lines()[0].startswith(b"ERR DISK_FULL ")
        assert names_on(served) == []
        client = served.client(b"PUB t - 1\ny\n")
        served.advance(2)
        assert client.lines() == [b"OK 0"]
        assert names_on(served) == ["t", "t"]
        assert (b"\ny\n" in other.received) is bool(pattern)


@pytest.mark.parametrize("command", [b"CREATE t\n", b"SUB t c\n", b"PUB t - 1\ny\n", b"PUB s - 1\ny\n"])
def test_it_stays_where_there_is_more_of_it(command: bytes) -> None:
    with SimServed() as served:
        fault = served._disk.fail(*FULL, path="/t/0")
        served.client(b"PUB t - 1\nx\n")
        served.advance(0.5)
        assert fault.fired
        served.client(command)
        served.advance(2)
        assert ("t" in served.broker.topics) is (b" t" in command)


def test_and_where_the_log_has_failed_which_is_told() -> None:
    with SimServed() as served:
        served._disk.fail("pwrite", 1, errno.EIO, path=".log")
        client = served.client(b"PUB t - 1\nx\n")
        served.advance(2)
        assert client.lines()[0].startswith(b"ERR STORAGE_FAILED ")
        assert served.broker.topic("t").state == "failed"


def test_a_created_topic_that_lost_its_first_publish_to_a_full_disk_stays() -> None:
    with SimServed() as served:
        served.client(b"CREATE t\n")
        served.advance(0.1)
        served._disk.fail(*FULL, path=".log")
        served.client(b"PUB t - 1\nx\n")
        served.advance(2)
        assert "t" in served.broker.topics
