"""Loads on a broker: what they measure, and an answer that is not that of a broker."""

import socket
from typing import Any

import pytest

from tests.support.broker_process import BrokerProcess
from toymq_bench.broker import Broker
from toymq_bench.errors import WrongReply
from toymq_bench.load import Meter
from toymq_bench.toymq_wire import ToymqConsumer
from toymq_bench.traffic import Plan, Traffic, measure, names, subscriber

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
    values = measure(target, Traffic(producers=2, window=8, size=20, topics=2, consumers=2, rate=rate), PLAN, "load")
    assert min(values[name] for name in ("publishes_per_s", "deliveries_per_s", "broker_cpu_us", "rss_mb")) > 0
    assert values["publish_p50_ms"] <= values["publish_max_ms"]
    assert target.stats()["topics"] == [], "the broker keeps running: its topics are deleted"


def test_another_answer_than_ok_is_shown(target: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(target, "connect", lambda: ours)
    theirs.sendall(b"ERR TOO_MANY_CONSUMERS no\n")
    wire = ToymqConsumer("t", "c", 20, keyed=True, single=False)
    with theirs, pytest.raises(WrongReply, match=r"SUB was answered with: ERR TOO_MANY_CONSUMERS no"):
        subscriber(target, "t", "c", 1, wire, Meter())
    assert ours.fileno() == -1, "closed"
