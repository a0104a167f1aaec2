"""The benchmark's RabbitMQ protocol, compared with recorded bytes."""

import struct

import pytest

from tests.support.peer_wires import BODIES, STAMPS, arriving
from toymq_bench.errors import WrongReply
from toymq_bench.peers import rabbitmq


def confirm(tag: int, multiple: bool = False) -> bytes:
    return rabbitmq.method(1, 60, 80, struct.pack(">QB", tag, multiple))


@pytest.mark.parametrize("step", [1, 13, 1000])
def test_confirms_of_one_and_of_many_count_each_message_once(step: int) -> None:
    producer = rabbitmq.RabbitProducer(b"q", 4, 20)
    data = confirm(2) + confirm(4) + confirm(3, multiple=True) + confirm(5) + confirm(9, multiple=True)
    assert sum(producer.replies(data[start : start + step]) for start in range(0, len(data), step)) == 9
    with pytest.raises(WrongReply):
        producer.replies(rabbitmq.method(1, 60, 120, struct.pack(">QB", 10, 0)))  # basic.nack


@pytest.mark.parametrize("step", [1, 13, 1000])
def test_rabbitmq_deliveries_are_acked_each(step: int) -> None:
    data = b""
    for tag, body in enumerate(BODIES, 1):
        data += rabbitmq.method(1, 60, 60, b"\x01c" + struct.pack(">QB", tag, 0) + b"\0\x01q")
        data += rabbitmq.frame(2, 1, struct.pack(">HHQHB", 60, 0, 20, 0x1000, 2)) + rabbitmq.frame(3, 1, body)
    assert arriving(rabbitmq.RabbitConsumer(20), data, step) == (STAMPS, b"".join(confirm(tag) for tag in (1, 2, 3)))
    with pytest.raises(WrongReply, match="NOT_FOUND"):
        rabbitmq.RabbitConsumer(20).deliveries(rabbitmq.method(1, 20, 40, b"\x01\x94\x09NOT_FOUND"))
