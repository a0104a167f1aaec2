"""Measures messages with a delay: how late they arrive, the CPU that the broker uses meanwhile, and the stalls of its event
loop."""

import random
import re
import select
import socket
import time
from collections import Counter

from toymq.message import lines_of, to_ranges
from toymq_bench.broker import Broker
from toymq_bench.errors import BenchError, WrongReply
from toymq_bench.frames import payload
from toymq_bench.latency import summary_ms
from toymq_bench.pings import pings
from toymq_bench.progress import phase
from toymq_bench.traffic import names
from toymq_py.protocol import Ack, Publish, Subscribe, encode_command

CHUNK = 500
"""Publishes that are written in one piece."""
OUTSTANDING = 16
"""Pieces that wait for their answers."""
RECEIVE_BYTES = 1 << 18
DIGITS = 10
"""The delay in milliseconds that a payload begins with."""
PATIENCE_S = 60.0
"""Most lateness of the last messages."""


def delay(
    broker: Broker, count: int, lead_s: float, span_s: float, window: int, size: int, seed: int, label: str
) -> dict[str, float]:
    """Publish ``count`` messages whose delays end at random times within ``span_s`` seconds, which begin ``lead_s`` seconds
    after the first publish; consume and ack them. Lateness counts from the broker's time stamp of the message plus its delay.

    Raises: BenchError (publishing took longer than ``lead_s``), WrongReply, OSError.
    """
    (topic,) = names(1)
    with broker.connect() as connection, broker.connect() as producer:
        connection.sendall(encode_command(Subscribe(topic, "c", window=window)))
        consumer = _Consumer(connection, topic, size)
        empty = broker.rss_bytes()
        cpu_s, began = broker.cpu_s(), time.perf_counter()
        _publish(producer, topic, count, lead_s, span_s, size, random.Random(seed), f"{label}: publish")
        took_s = time.perf_counter() - began
        if took_s > lead_s:
            raise BenchError(f"publishing took {took_s:.1f} s: write a larger --lead")
        values = {
            "publishes_per_s": count / took_s,
            "publish_cpu_us": (broker.cpu_s() - cpu_s) * 1e6 / count,
            "rss_per_message_b": (broker.rss_bytes() - empty) / count,
        }
        time.sleep(max(began + lead_s - time.perf_counter() - 1.0, 0.0))
        cpu_s = broker.cpu_s()
        seconds = began + lead_s + span_s - time.perf_counter()
        with pings(broker, seconds) as metrics:
            own_s = time.process_time()
            with phase(label, count) as bar:
                while consumer.received < count:
                    consumer.take(PATIENCE_S + lead_s)
                    bar.at(consumer.received)
            own_s = time.process_time() - own_s
        values |= {"broker_cpu_us": (broker.cpu_s() - cpu_s) * 1e6 / count, "broker_cores": (broker.cpu_s() - cpu_s) / span_s}
        values |= {"client_cores": own_s / span_s, "rss_mb": broker.rss_bytes() / 1e6}
    return values | summary_ms(consumer.late_us, "late") | metrics


def _publish(
    producer: socket.socket, topic: str, count: int, lead_s: float, span_s: float, size: int, rng: random.Random, label: str
) -> None:
    filler = payload(size - DIGITS, marked=False)
    began = time.perf_counter()
    answered = sent = 0
    with phase(label, count) as bar:
        while answered < count:
            while sent < count and sent - answered < CHUNK * OUTSTANDING:
                gone_s = time.perf_counter() - began
                rows = min(CHUNK, count - sent)
                delays_ms = [max(int((lead_s - gone_s + span_s * rng.random()) * 1000), 0) for _ in range(rows)]
                bodies = [b"%0*d%b" % (DIGITS, ms, filler) for ms in delays_ms]
                producer.sendall(encode_command(Publish(topic, [b""] * rows, bodies, delays_ms=delays_ms)))
                sent += rows
            data = producer.recv(RECEIVE_BYTES)
            if not data or b"ERR" in data:
                raise WrongReply(f"a publish was answered with: {data[-200:].decode(errors='replace')}")
            answered += data.count(b"\n")
            bar.at(answered)


class _Consumer:
    """Reads and acks deliveries, with one ACK line for each read of the socket; each id may come only once."""

    def __init__(self, connection: socket.socket, topic: str, size: int) -> None:
        self._connection = connection
        self._topic = topic
        head = rb"MSG %b (\d+) 1 (\d+) - %d\n" % (re.escape(topic.encode()), size)
        self._message = re.compile(head + rb"(\d{%d}).{%d}\n" % (DIGITS, size - DIGITS), re.DOTALL)
        self._unparsed = b""
        self.late_us: Counter[int] = Counter()
        self._seen: set[int] = set()

    @property
    def received(self) -> int:
        return len(self._seen)

    def take(self, patience_s: float) -> None:
        """Read and ack what comes within ``patience_s``. Raises: BenchError, WrongReply, OSError."""
        if not select.select([self._connection], [], [], patience_s)[0]:
            raise BenchError(f"no message for {patience_s:.0f} s after {self.received}")
        data = self._unparsed + self._connection.recv(RECEIVE_BYTES)
        now_ns = time.clock_gettime_ns(time.CLOCK_REALTIME)
        if b"ERR " in data or b"CLOSED " in data:
            raise WrongReply(f"a consumer got: {data[-200:].decode(errors='replace')}")
        ids, end = [], 0
        for found in self._message.finditer(data):
            end = found.end()
            ids.append(int(found[1]))
            self.late_us[(now_ns - int(found[2])) // 1000 - int(found[3]) * 1000] += 1
        self._unparsed = data[end:]
        known = len(self._seen)
        self._seen.update(ids)
        if len(self._seen) != known + len(ids):
            raise WrongReply("a message was delivered twice")
        acks = [encode_command(Ack(self._topic, "c", line)) for line in lines_of(to_ranges(ids))]
        self._connection.sendall(b"".join(acks))
