"""toymq's wire protocol for the load generator: implements ``frames.Producing`` and ``frames.Consuming``."""

import re
import struct

from toymq_bench.errors import WrongReply
from toymq_bench.frames import BLOCK, MARK, STAMP_BYTES, Chunk, Template, payload
from toymq_py.consumer_options import Mode
from toymq_py.protocol import Publish, Subscribe, encode_command

_OKS = re.compile(rb"(?:OK \d+\n)+")


class ToymqProducer:
    """Sends PUBs to one topic; ``keyed``: each with a new key."""

    def __init__(self, topic: str, number: int, window: int, size: int, *, keyed: bool) -> None:
        """``number``: unique among the producers of a topic. Raises: ValueError when a payload cannot hold its send time."""
        # Short, since each byte costs the broker: send time, place in the block, producer.
        keys = (b"%b%03d%04d" % (MARK, i, number) if keyed else b"" for i in range(min(window, BLOCK)))
        body = payload(size, marked=not keyed and size >= STAMP_BYTES)
        self.template = Template([encode_command(Publish(topic, [key], [body])) for key in keys])
        self._rest = b""

    def replies(self, data: bytes) -> int:
        """Count the replies in the received bytes. Raises: WrongReply unless each line is an OK."""
        data = self._rest + data
        lines = data.count(b"\n")
        self._rest = data[data.rfind(b"\n") + 1 :]
        # A line that has only begun counts as well.
        if data.count(b"OK ") != lines + self._rest.startswith(b"OK "):
            wrong = next(line for line in data.split(b"\n") if not line.startswith(b"OK "))
            raise WrongReply(f"a publish was answered with: {wrong[:200].decode(errors='replace')}")
        return lines


class ToymqConsumer:
    """A subscription from id 0 that expects every id once, in order. It acks one range per read of the socket, or with
    ``single`` each message."""

    def __init__(self, topic: str, consumer: str, size: int, *, keyed: bool, single: bool = False) -> None:
        """``keyed``: the send time is in the key, else in the payload. Raises: ValueError when the payload is too small."""
        if not keyed:
            payload(size, marked=True)
        self._head = b"MSG %b " % topic.encode()
        key = rb"(.{12})\S*" if keyed else rb"(-)"
        self._header = re.compile(re.escape(self._head) + rb"(\d+) 1 \d+ " + key + rb" %d\n" % size)
        self._ack = b"ACK %b %b " % (topic.encode(), consumer.encode())
        self._size = size
        self._keyed = keyed
        self._single = single
        self._unparsed = b""
        self._next_id = 0

    @staticmethod
    def subscribe(topic: str, consumer: str, window: int, mode: Mode | None = None) -> bytes:
        """Encode the SUB command."""
        return encode_command(Subscribe(topic, consumer, window=window, mode=mode))

    def deliveries(self, data: bytes) -> Chunk:
        """Parse and ack received deliveries. Raises: WrongReply for anything but the next id."""
        data = self._unparsed + data
        at = self._after_oks(data, 0)
        ids: list[bytes] = []
        stamps: list[bytes] = []
        while (header := self._header.match(data, at)) is not None:
            length = header.end() + self._size + 1 - at
            fitting = (len(data) - at) // length
            if not fitting:
                break
            # Frames of one length are unpacked together: up to an id with one more digit, or an OK in between.
            width = len(header[1])
            count = max(min(fitting, 10**width - self._next_id), 1)
            while not data.startswith(self._head + b"%d " % (self._next_id + count - 1), at + (count - 1) * length):
                count //= 2
                if not count:
                    raise WrongReply(f"id {int(header[1])} was delivered, and {self._next_id} was the next")
            stamp_at = (header.start(2) if self._keyed else header.end()) - at
            id_at = len(self._head)
            layout = f"{id_at}x{width}s{stamp_at - id_at - width}x12s{length - stamp_at - STAMP_BYTES}x"
            found, stamped = zip(*struct.iter_unpack(layout, memoryview(data)[at : at + count * length]), strict=True)
            if [int(one) for one in found] != list(range(self._next_id, self._next_id + count)):
                raise WrongReply(f"{count} deliveries from id {self._next_id} on, and not each was the next")
            ids += found
            stamps += stamped
            self._next_id += count
            at = self._after_oks(data, at + count * length)
        self._unparsed = data[at:]
        if header is None and b"\n" in self._unparsed:
            raise WrongReply(f"expected a first delivery, not {self._unparsed[:200].decode(errors='replace')!r}")
        if not ids:
            return Chunk((), b"")
        if self._single:
            return Chunk(stamps, b"".join([self._ack + one + b"\n" for one in ids]))
        return Chunk(stamps, self._ack + ids[0] + b"-" + ids[-1] + b"\n")

    @staticmethod
    def _after_oks(data: bytes, at: int) -> int:
        """Skip the OK lines, replies to ACKs, that begin at position ``at``; return the position after them."""
        found = _OKS.match(data, at)
        return at if found is None else found.end()


class SharingConsumer:
    """One of several subscriptions of a shared or keyed consumer: accepts any ids, in any order, and acks each message
    separately."""

    def __init__(self, topic: str, consumer: str) -> None:
        """Assumes messages with keys that begin with the send time."""
        self._ack = b"ACK %b %b " % (topic.encode(), consumer.encode())
        self._unparsed = b""

    def deliveries(self, data: bytes) -> Chunk:
        """Parse and ack received deliveries. Raises: WrongReply for anything but deliveries and OK."""
        data = self._unparsed + data
        stamps: list[bytes] = []
        acks: list[bytes] = []
        at = 0
        while (end := data.find(b"\n", at)) >= 0:
            words = data[at:end].split()
            if words[0] == b"MSG":
                frame_end = end + 2 + int(words[6])
                if frame_end > len(data):
                    break
                stamps.append(words[5][:STAMP_BYTES])
                acks.append(self._ack + words[2] + b"\n")
                at = frame_end
            elif words[0] == b"OK":
                at = end + 1
            else:
                raise WrongReply(f"expected a delivery, not {data[at:end][:200].decode(errors='replace')!r}")
        self._unparsed = data[at:]
        return Chunk(stamps, b"".join(acks))
