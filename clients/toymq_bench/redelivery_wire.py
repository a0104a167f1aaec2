"""A consumer for the load generator that nacks every message once; implements ``frames.Consuming``."""

import re

from toymq.message import lines_of, to_ranges
from toymq_bench.errors import WrongReply
from toymq_bench.frames import Chunk
from toymq_py.protocol import Ack, Nack, encode_command
from toymq_py.records import IdRange


class RedeliveryConsumer:
    """Nacks first deliveries without a delay and acks second ones; each of the ids below ``count`` must come exactly twice."""

    def __init__(self, topic: str, consumer: str, size: int, count: int) -> None:
        rest = rb"(.{12})\S* %d\n.{%d}\n" % (size, size)
        self._message = re.compile(rb"MSG %b (\d+) (\d+) \d+ " % re.escape(topic.encode()) + rest, re.DOTALL)
        self._topic, self._consumer = topic, consumer
        self._unparsed = b""
        self._seen = bytearray(count)

    def deliveries(self, data: bytes) -> Chunk:
        """Parse received deliveries; only second deliveries are counted. Raises: WrongReply."""
        data = self._unparsed + data
        if b"ERR " in data or b"CLOSED " in data:
            raise WrongReply(f"a consumer was told: {data[-200:].decode(errors='replace')}")
        given_back, acked, stamps, end = [], [], [], 0
        for found in self._message.finditer(data):
            end = found.end()
            msg_id, attempt = int(found[1]), int(found[2])
            self._seen[msg_id] += 1
            if attempt != self._seen[msg_id]:
                raise WrongReply(f"id {msg_id} came as attempt {attempt}, and {self._seen[msg_id]} was due")
            if attempt == 1:
                given_back.append(msg_id)
            else:
                acked.append(msg_id)
                stamps.append(found[3])
        self._unparsed = data[end:]
        lines = []
        for ids, answer in ((given_back, self._nack), (acked, self._ack)):
            lines += [answer(line) for line in lines_of(to_ranges(ids))]
        return Chunk(stamps, b"".join(lines))

    def _nack(self, ids: tuple[IdRange, ...]) -> bytes:
        return encode_command(Nack(self._topic, self._consumer, ids, delay_ms=0))

    def _ack(self, ids: tuple[IdRange, ...]) -> bytes:
        return encode_command(Ack(self._topic, self._consumer, ids))
