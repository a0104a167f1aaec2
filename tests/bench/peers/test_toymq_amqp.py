"""A broker of this checkout measured over AMQP, as RabbitMQ is."""

from pathlib import Path

import pytest

from toymq_bench.peers import runner
from toymq_bench.peers.rabbitmq import RabbitMQ
from toymq_bench.peers.toymq_amqp import ToymqAmqp
from toymq_bench.traffic import Plan


def test_messages_are_published_delivered_and_acked(tmp_path: Path) -> None:
    with ToymqAmqp(tmp_path) as peer:
        (shape,) = runner.chosen(["end to end"])
        values, published = runner.measure(peer, shape, 256, Plan(seconds=0.3, warmup_s=0.05), "test")
    assert published > 0
    assert values["deliveries_per_s"] > 0


def test_it_is_there_where_rabbitmq_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(RabbitMQ, "program", str(tmp_path / "rabbitmq-server"))
    assert ToymqAmqp.installed() is None
