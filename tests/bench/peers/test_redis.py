"""The benchmark's Redis Streams protocol, compared with recorded bytes."""

import pytest

from tests.support.peer_wires import BODIES, STAMPS, arriving
from toymq_bench.errors import WrongReply
from toymq_bench.peers.redis import RedisConsumer, command


@pytest.mark.parametrize("step", [1, 13, 1000])
def test_redis_entries_are_acked_each_and_the_next_read_follows(step: int) -> None:
    entry = b"*2\r\n$15\r\n%d-0\r\n*2\r\n$1\r\nd\r\n$20\r\n%b\r\n"
    entries = b"".join(entry % (1526919030470 + number, body) for number, body in enumerate(BODIES))
    consumer = RedisConsumer(b"s", 10, 20)
    stamps, answer = arriving(consumer, b"*1\r\n*2\r\n$1\r\ns\r\n*3\r\n" + entries, step)
    acks = [command(b"XACK", b"s", b"g", b"%d-0" % (1526919030470 + number)) for number in range(3)]
    assert (stamps, answer) == (STAMPS, b"".join(acks) + consumer.read)
    assert arriving(consumer, b":1\r\n:1\r\n:1\r\n*-1\r\n", 1000) == ([], consumer.read)
    with pytest.raises(WrongReply, match="NOGROUP"):
        consumer.deliveries(b"-NOGROUP no such group\r\n")
