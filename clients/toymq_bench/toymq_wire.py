"""Our own protocol as a load speaks it: ``frames.Producing`` and ``frames.Consuming``."""

import re

from toymq_bench.errors import WrongReply
from toymq_bench.frames import MARK, STAMP_BYTES, Chunk, Template, payload
from toymq_py.protocol import Publish, Subscribe, encode_command


class ToymqProducer:
    """PUBs of one topic. With ``keyed`` each has a key that was never used before."""

    def __init__(self, topic: str, number: int, window: int, size: int, *, keyed: bool) -> None:
        """``number`` tells the producers of a topic apart. Raises: ValueError when a payload cannot hold its send time."""
        keys = (b"%b-%d-%d" % (MARK, number, 100_000 + i) if keyed else b"" for i in range(window))
        body = payload(size, marked=not keyed and size >= STAMP_BYTES)
        self.template = Template([encode_command(Publish(topic, [key], [body])) for key in keys])
        self._rest = b""

    def replies(self, data: bytes) -> int:
        """Raises: WrongReply unless each line is an OK."""
        data = self._rest + data
        lines = data.count(b"\n")
        end = data.rfind(b"\n") + 1
        self._rest = data[end:]
        if data.count(b"OK ", 0, end) != lines:
            wrong = next(line for line in data.split(b"\n") if not line.startswith(b"OK "))
            raise WrongReply(f"a publish was answered with: {wrong[:200].decode(errors='replace')}")
        return lines


class ToymqConsumer:
    """A subscription from id 0 that acks a range per read, or each message with ``single``; every id comes once, in order."""

    def __init__(self, topic: str, consumer: str, size: int, *, keyed: bool, single: bool = False) -> None:
        """Raises: ValueError when neither key nor payload can hold the send time."""
        if not keyed:
            payload(size, marked=True)
        rest = rb"(.{12})\S* %d\n.{%d}\n" % (size, size) if keyed else rb"- %d\n(.{12}).{%d}\n" % (size, size - STAMP_BYTES)
        self._head = b"MSG %b " % topic.encode()
        self._message = re.compile(re.escape(self._head) + rb"(\d+) 1 \d+ " + rest, re.DOTALL)
        self._ack = b"ACK %b %b " % (topic.encode(), consumer.encode())
        self._single = single
        self._unparsed = b""
        self._next_id = 0

    @staticmethod
    def subscribe(topic: str, consumer: str, window: int) -> bytes:
        """What opens it."""
        return encode_command(Subscribe(topic, consumer, window=window))

    def deliveries(self, data: bytes) -> Chunk:
        """Raises: WrongReply when an error came, or an id that is not the next."""
        data = self._unparsed + data
        if b"ERR " in data or b"CLOSED " in data:
            raise WrongReply(f"a consumer was told: {data[-200:].decode(errors='replace')}")
        found = self._message.findall(data)
        if not found:
            self._unparsed = data
            return Chunk((), b"")
        ids, stamps = zip(*found, strict=True)
        numbers = [int(one) for one in ids]
        following = self._next_id + len(numbers)
        if numbers != list(range(self._next_id, following)):
            raise WrongReply(f"{len(numbers)} deliveries from id {numbers[0]} to {numbers[-1]}; {self._next_id} was the next")
        self._next_id = following
        # findall does not say where it ended; the last message is near the end.
        last = self._message.match(data, data.rindex(self._head + ids[-1] + b" "))
        assert last is not None
        self._unparsed = data[last.end() :]
        if self._single:
            return Chunk(stamps, b"".join([self._ack + one + b"\n" for one in ids]))
        return Chunk(stamps, self._ack + ids[0] + b"-" + ids[-1] + b"\n")
