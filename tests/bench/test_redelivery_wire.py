"""A benchmark consumer that nacks each message once."""

import pytest

from tests.support.bench_messages import message
from toymq_bench.errors import WrongReply
from toymq_bench.redelivery_wire import RedeliveryConsumer


def given_back(*deliveries: tuple[int, int]) -> bytes:
    consumer = RedeliveryConsumer("t", "c", 20, 3)
    data = b"".join(message(one, 5).replace(b" %d 1 " % one, b" %d %d " % (one, attempt)) for one, attempt in deliveries)
    return consumer.deliveries(data).answer


def test_first_deliveries_are_given_back_and_second_ones_acked() -> None:
    assert given_back((0, 1), (1, 1), (0, 2), (2, 1)) == b"NACK t c 0-2 delay=0\nACK t c 0\n"
    with pytest.raises(WrongReply, match="attempt 2, and 1 was due"):
        given_back((0, 2))
