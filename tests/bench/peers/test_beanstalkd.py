"""The benchmark's beanstalkd protocol, compared with recorded bytes."""

import pytest

from tests.support.peer_wires import BODIES, STAMPS, arriving
from toymq_bench.errors import WrongReply
from toymq_bench.peers.beanstalkd import BeanstalkdConsumer


@pytest.mark.parametrize("step", [1, 13, 1000])
def test_beanstalkd_jobs_are_deleted_before_the_next_reserve(step: int) -> None:
    consumer = BeanstalkdConsumer(20)
    assert arriving(consumer, b"RESERVED 5 20\r\n" + BODIES[0] + b"\r\n", step) == (STAMPS[:1], b"delete 5\r\nreserve\r\n")
    assert arriving(consumer, b"DELETED\r\nRESERVED 6 20\r\n" + BODIES[2] + b"\r\n", step)[0] == STAMPS[2:]
    with pytest.raises(WrongReply, match="NOT_FOUND"):
        consumer.deliveries(b"NOT_FOUND\r\n")
