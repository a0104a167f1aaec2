"""Loads on a broker: their results, and an answer from a server that is not a broker."""

import socket
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_process import BrokerProcess
from toymq_bench.broker import Broker, StartedBroker
from toymq_bench.errors import WrongReply
from toymq_bench.load import Meter
from toymq_bench.process import family
from toymq_bench.toymq_wire import ToymqConsumer
from toymq_bench.traffic import Plan, Traffic, measure, names, subscriber
from toymq_py.consumer_options import Mode

PLAN = Plan(0.2, 0.0)
"""Long enough for some messages on a busy machine."""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with BrokerProcess(tmp_path_factory.mktemp("d")) as broker:
        yield Broker("127.0.0.1", broker.port, broker.pid)


def test_every_run_has_topics_of_its_own() -> None:
    assert len({*names(3), *names(3)}) == 6


@pytest.mark.parametrize("rate", [None, 2000.0])
def test_a_run_counts_publishes_and_deliveries_and_leaves_nothing(target: Broker, rate: float | None) -> None:
    traffic = Traffic(producers=2, window=8, size=20, topics=2, consumers=2, rate=rate)
    values = measure(target, traffic, PLAN, "load")
    assert min(values[name] for name in ("publishes_per_s", "deliveries_per_s", "rss_mb")) > 0
    while not values["broker_cpu_us"]:  # the system counts it in steps of 10 ms, and a busy machine gave the broker less
        values = measure(target, traffic, PLAN, "load")
    assert values["publish_p50_ms"] <= values["publish_max_ms"]
    assert target.stats()["topics"] == [], "the broker keeps running: its topics are deleted"


def test_a_run_waits_for_its_first_message(target: Broker) -> None:
    """On a busy machine no message may be completed within a short run."""
    values = measure(target, Traffic(producers=1, window=1, size=20), Plan(0.0, 0.0), "load")
    assert values["publishes_per_s"] > 0
    both = measure(target, Traffic(producers=1, window=1, size=20, consumers=1), Plan(0.0, 0.0), "load")
    assert min(both["publishes_per_s"], both["deliveries_per_s"]) > 0, "of each kind one"


def test_with_several_workers_each_connection_is_to_the_one_that_has_the_topic(tmp_path: Path) -> None:
    """No message is passed between workers, and the CPU time is the sum of all workers."""
    with StartedBroker(tmp_path, ("--min-free-bytes", "0", "--workers", "2")) as broker:
        values = measure(broker, Traffic(producers=8, window=8, size=20, topics=8, consumers=8), PLAN, "load")
        assert min(values[name] for name in ("publishes_per_s", "deliveries_per_s")) > 0
        ports = set()
        for number in range(8):
            with broker.connect(f"t{number}") as connection:
                ports.add(connection.getpeername()[1])
        assert len(ports) == 2
        assert len(family(broker.pid)) == 3


@pytest.mark.parametrize("mode", ["shared", "keyed"])
def test_consumers_that_share_have_each_message_once(target: Broker, mode: Mode) -> None:
    values = measure(target, Traffic(producers=1, window=8, size=20, consumers=3, mode=mode), PLAN, "load")
    assert 0 < values["deliveries_per_s"] < 2 * values["publishes_per_s"]


def test_another_answer_than_ok_is_shown(target: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(target, "connect", lambda topic: ours)
    theirs.sendall(b"ERR TOO_MANY_CONSUMERS no\n")
    wire = ToymqConsumer("t", "c", 20, keyed=True, single=False)
    with theirs, pytest.raises(WrongReply, match=r"SUB was answered with: ERR TOO_MANY_CONSUMERS no"):
        subscriber(target, "t", "c", 1, wire, Meter())
    assert ours.fileno() == -1, "closed"
