"""Faults of other brokers, tried on the real process; each case is named after the right behaviour.

Only what no other test shows; docs/faults-of-others.md names all of them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_process import BrokerProcess, Wire

MIB = 1024 * 1024
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("shared") / "d") as running:
        yield running


@pytest.fixture
def broker(shared: BrokerProcess) -> Iterator[BrokerProcess]:
    """Return one process for all tests; its topic t is new for each."""
    yield shared
    with shared.connect() as wire:
        assert wire.ask(b"DELETE t\n").startswith(b"OK ")


def publish(wire: Wire, count: int, body: bytes = b"x") -> None:
    wire.send(b"PUB t - %d\n%b\n" % (len(body), body) * count)
    answers = [wire.line() for _ in range(count)]
    assert all(answer.startswith(b"OK ") for answer in answers), answers


def consumer(wire: Wire) -> dict[str, Any]:
    """Return what DESCRIBE says of the only consumer of t."""
    size = int(wire.ask(b"DESCRIBE t\n").split()[1])
    (found,) = json.loads(wire.read(size + 1))["consumers"]
    return dict(found)


def test_a_session_that_comes_back_is_not_paused(broker: BrokerProcess) -> None:
    with broker.connect() as wire:
        assert wire.ask(b"SUB t c\n") == b"OK 1"
        assert wire.ask(b"PAUSE\n") == b"OK 0"
        publish(wire, 1)
    with broker.connect() as wire:
        assert wire.ask(b"SUB t c\n") == b"OK 1"
        assert wire.message() == (0, 1, b"x")


def test_acks_above_a_gap_hold_over_a_reconnect(broker: BrokerProcess) -> None:
    with broker.connect() as wire:
        publish(wire, 6)
        assert wire.ask(b"SUB t c\n") == b"OK 1"
        assert [wire.message()[0] for _ in range(6)] == list(range(6))
        assert wire.ask(b"ACK t c 1-2,4\n") == b"OK 3"
    with broker.connect() as wire:
        assert wire.ask(b"SUB t c\n") == b"OK 1"
        assert [wire.message()[:2] for _ in range(3)] == [(0, 2), (3, 1), (5, 1)]
        wire.nothing_before_pong()


def test_a_message_put_off_holds_up_nobody_behind_it(broker: BrokerProcess) -> None:
    with broker.connect() as wire:
        publish(wire, 3)
        assert wire.ask(b"SUB t c window=1\n") == b"OK 1"
        assert wire.message()[0] == 0
        assert wire.ask(b"NACK t c 0 delay=%d\n" % HOUR_MS) == b"OK 1"
        for msg_id in (1, 2):
            assert wire.message()[:2] == (msg_id, 1), "it takes no room in the window either"
            assert wire.ask(b"ACK t c %d\n" % msg_id) == b"OK 1"
        wire.nothing_before_pong()


def test_lag_grows_while_nobody_acks(broker: BrokerProcess) -> None:
    with broker.connect() as wire:
        with broker.connect() as gone:
            assert gone.ask(b"SUB t c\n") == b"OK 1"
            assert gone.ask(b"UNSUB t c\n") == b"OK 0"
        for backlog in (1, 2, 3):
            publish(wire, 1)
            found = consumer(wire)
            assert (found["backlog"], found["ready"], found["has_acked"]) == (backlog, backlog, False)


def test_who_looked_into_an_empty_topic_takes_nothing_from_the_next(broker: BrokerProcess) -> None:
    with broker.connect() as wire, broker.connect() as other:
        assert other.ask(b"SUB t c\n") == b"OK 1"
        assert other.ask(b"UNSUB t c\n") == b"OK 0"
        assert wire.ask(b"FETCH t 0 1 wait=1\n") == b"BATCH t 0 0 0", "waited in vain"
        assert wire.line() == b""
        publish(wire, 1)
        other.nothing_before_pong()
        assert other.ask(b"SUB t c\n") == b"OK 1"
        assert other.message() == (0, 1, b"x"), "never delivered before"
        assert wire.ask(b"FETCH t 0 1\n").startswith(b"BATCH t 1 1 ")


def test_a_position_that_is_gone_says_where_to_go_on(tmp_path: Path) -> None:
    options = ("--segment-bytes", "64KiB", "--retain-acked-for", "0")
    with BrokerProcess(tmp_path / "d", *options) as broker, broker.connect() as wire:
        publish(wire, 30, bytes(10_000))
        assert wire.ask(b"SUB t c\n") == b"OK 1"
        for _ in range(30):
            wire.message()
        assert wire.ask(b"ACK t c 0-29 sync=1\n") == b"OK 30"
        while wire.ask(b"OFFSETS t\n") == b"OFFSETS t 0 30":
            pass  # retention is on its way
        answer = wire.ask(b"FETCH t 0 1\n")
        assert answer.startswith(b"ERR OUT_OF_RANGE ")
        first_id = answer.split()[2]
        assert int(first_id) > 0
        assert wire.ask(b"SEEK t late 0\n").split()[:3] == [b"ERR", b"OUT_OF_RANGE", first_id]
        assert wire.ask(b"SEEK t late %b\n" % first_id) == b"OK %b" % first_id
        assert wire.ask(b"FETCH t %b 1\n" % first_id).startswith(b"BATCH t ")


@pytest.mark.parametrize("kill", [True, False], ids=["SIGKILL", "SIGTERM"])
def test_what_was_put_off_or_leased_is_not_stranded_by_a_restart(tmp_path: Path, kill: bool) -> None:
    with BrokerProcess(tmp_path / "d", "--shutdown-timeout", "0") as broker:
        with broker.connect() as wire:
            publish(wire, 2)
            assert wire.ask(b"SUB t c visibility=%d\n" % HOUR_MS) == b"OK 1"
            assert [wire.message()[0] for _ in range(2)] == [0, 1]
            assert wire.ask(b"NACK t c 0 delay=%d\n" % HOUR_MS) == b"OK 1"
        broker.restart(kill=kill)
        with broker.connect() as wire:
            assert wire.ask(b"SUB t c\n") == b"OK 1"
            assert [wire.message()[0] for _ in range(2)] == [0, 1]


def test_memory_does_not_hold_what_is_stored(tmp_path: Path) -> None:
    count, body = 90_000, bytes(256)
    with BrokerProcess(tmp_path / "d") as broker:
        empty = broker.rss_bytes()
        with broker.connect() as wire:
            for _ in range(count // 3000):
                publish(wire, 3000, body)
        assert broker.rss_bytes() - empty < 12 * MIB, "23 MB of payload were published"
        broker.restart()
        with broker.connect() as wire:
            assert wire.ask(b"OFFSETS t\n") == b"OFFSETS t 0 %d" % count
        assert broker.rss_bytes() - empty < 12 * MIB
