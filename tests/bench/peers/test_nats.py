"""The benchmark's NATS JetStream protocol, compared with recorded bytes."""

import pytest

from tests.support.peer_wires import BODIES, STAMPS, arriving
from toymq_bench.errors import WrongReply
from toymq_bench.peers.nats import NatsConsumer


@pytest.mark.parametrize("step", [1, 13, 1000])
def test_nats_messages_are_acked_each_and_pings_answered(step: int) -> None:
    data = b"".join(b"MSG deliver.c 2 $JS.ACK.s.c.1.%d 20\r\n%b\r\n" % (number, body) for number, body in enumerate(BODIES))
    stamps, answer = arriving(NatsConsumer(20), data + b"PING\r\n", step)
    acks = b"".join(b"PUB $JS.ACK.s.c.1.%d 4\r\n+ACK\r\n" % number for number in range(3))
    assert (stamps, answer) == (STAMPS, acks + b"PONG\r\n")
    with pytest.raises(WrongReply, match="Slow Consumer"):
        NatsConsumer(20).deliveries(b"-ERR 'Slow Consumer'\r\n")
