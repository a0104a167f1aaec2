"""Benchmark scenarios on a backlog: drain, redelivery, depth; and the cost of stored messages: memory, recovery, verify."""

import json
import os
import socket
import subprocess
import time
from statistics import median

from toymq.broker_process import TOYMQ
from toymq_bench.broker import Broker, StartedBroker
from toymq_bench.errors import BenchError, WrongReply
from toymq_bench.load import Load, Meter, Subscriber, now_us
from toymq_bench.progress import phase
from toymq_bench.redelivery_wire import RedeliveryConsumer
from toymq_bench.toymq_wire import ToymqConsumer
from toymq_bench.traffic import delete, fill, names, subscriber
from toymq_py.protocol import Publish, Subscribe, encode_command

SHALLOW = 10
"""Messages of the small backlog in ``depth``."""


def drain(broker: Broker, count: int, consumers: int, window: int, size: int, label: str) -> dict[str, float]:
    """Measure consumers that each read and ack a backlog of ``count`` messages. Raises: BenchError, OSError."""
    (topic,) = topics = names(1)
    fill(broker, topic, count, size, f"{label}: fill")
    meter = Meter()
    began, cpu_s, own_s = now_us(), broker.cpu_s(), time.process_time()
    subscribers = [
        subscriber(broker, topic, f"c{one}", window, ToymqConsumer(topic, f"c{one}", size, keyed=True), meter)
        for one in range(consumers)
    ]
    values = _until_all(broker, subscribers, meter, count * consumers, began, cpu_s, own_s, label)
    _clean(broker, topics)
    return values


def redelivery(broker: Broker, count: int, window: int, size: int, label: str) -> dict[str, float]:
    """Measure a consumer that nacks every message once and acks its second delivery. Raises: BenchError, OSError."""
    (topic,) = topics = names(1)
    fill(broker, topic, count, size, f"{label}: fill")
    meter = Meter()
    began, cpu_s, own_s = now_us(), broker.cpu_s(), time.process_time()
    wire = RedeliveryConsumer(topic, "c", size, count)
    values = _until_all(broker, [subscriber(broker, topic, "c", window, wire, meter)], meter, count, began, cpu_s, own_s, label)
    values["redeliveries_per_s"] = values.pop("deliveries_per_s")
    _clean(broker, topics)
    return values


def _until_all(
    broker: Broker, subscribers: list[Subscriber], meter: Meter, count: int, began: int, cpu_s: float, own_s: float, label: str
) -> dict[str, float]:
    with phase(label, count) as bar, Load([], subscribers, meter) as load:

        def until(_: int) -> bool:
            bar.at(meter.delivered)
            return meter.delivered >= count

        span_s = (load.run(until) - began) / 1e6
    cpu_s, own_s = broker.cpu_s() - cpu_s, time.process_time() - own_s
    return {
        "deliveries_per_s": meter.delivered / span_s,
        "broker_cpu_us": cpu_s * 1e6 / meter.delivered,
        "broker_cores": cpu_s / span_s,
        "client_cores": own_s / span_s,
        "rss_mb": broker.rss_bytes() / 1e6,
    }


def depth(broker: Broker, count: int, cycles: int, size: int, label: str) -> dict[str, float]:
    """Measure the median time from an ACK to the next delivery, at a backlog of ``count`` messages and at one of at most
    ``SHALLOW``.

    The window is one message, so that only the depth of the backlog differs. Raises: BenchError, OSError.
    """
    deep, shallow = topics = names(2)
    fill(broker, deep, count, size, f"{label}: fill")
    frame = encode_command(Publish(shallow, [b""], [b"x" * size]))
    times: dict[str, list[float]] = {deep: [], shallow: []}
    with phase(label, cycles) as bar, _OneByOne(broker, deep) as from_deep, _OneByOne(broker, shallow) as from_shallow, \
            broker.connect() as producer, producer.makefile("rb") as replies:  # fmt: skip
        from_deep.next()
        while len(times[shallow]) < cycles:
            producer.sendall(frame * SHALLOW)
            if any(not replies.readline().startswith(b"OK ") for _ in range(SHALLOW)):
                raise WrongReply("a publish was refused")
            from_shallow.next()
            # Alternating: other work of the machine affects both.
            for _ in range(SHALLOW - 1):
                times[shallow].append(from_shallow.ack_and_next())
                times[deep].append(from_deep.ack_and_next())
            from_shallow.ack()
            bar.at(len(times[shallow]))
    _clean(broker, topics)
    deep_us, shallow_us = median(times[deep]) * 1e6, median(times[shallow]) * 1e6
    return {"consume_shallow_us": shallow_us, "consume_deep_us": deep_us, "deep_to_shallow": deep_us / shallow_us}


class _OneByOne:
    """A consumer whose window is one message. A context manager."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self._socket: socket.socket = broker.connect()
        self._reader = self._socket.makefile("rb")
        self._ack = b"ACK %b c " % topic.encode()
        self._socket.sendall(encode_command(Subscribe(topic, "c", window=1)))
        self._id = b""

    def __enter__(self) -> "_OneByOne":
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()
        self._socket.close()

    def next(self) -> None:
        """Wait for a delivery. Raises: WrongReply, TimeoutError."""
        while (line := self._reader.readline()).startswith(b"OK "):
            pass
        if not line.startswith(b"MSG "):
            raise WrongReply(f"expected a delivery, not {line[:200].decode(errors='replace')!r}")
        words = line.split()
        self._id = words[2]
        self._reader.read(int(words[6]) + 1)

    def ack(self) -> None:
        self._socket.sendall(self._ack + self._id + b"\n")

    def ack_and_next(self) -> float:
        """Ack, wait for the next delivery, and return the seconds between the two."""
        began = time.perf_counter()
        self.ack()
        self.next()
        return time.perf_counter() - began


def stock(broker: Broker, count: int, size: int, label: str) -> dict[str, float]:
    """Measure memory, recovery and verify with the same stored messages. Raises: BenchError, OSError."""
    (topic,) = names(1)
    own = started(broker)
    fill(own, topic, count, size, f"{label}: fill")
    return {"rss_mb": own.rss_bytes() / 1e6, **restart(own, topic), **verified(own)}


def started(broker: Broker) -> StartedBroker:
    """Return the broker, for a scenario that kills it: asserts that this harness has started it."""
    assert isinstance(broker, StartedBroker)
    return broker


def stored(broker: Broker, count: int, size: int, label: str) -> dict[str, float]:
    """Measure resident memory with ``count`` stored messages and no consumer. Raises: BenchError, OSError."""
    empty = broker.rss_bytes()
    fill(broker, names(1)[0], count, size, f"{label}: fill")
    full = broker.rss_bytes()
    return {"rss_mb": full / 1e6, "rss_per_million_mb": (full - empty) / count}


def recovery(broker: Broker, count: int, size: int, label: str) -> dict[str, float]:
    """Kill a broker with ``count`` stored messages and measure its restart. Raises: BenchError, OSError."""
    (topic,) = names(1)
    fill(broker, topic, count, size, f"{label}: fill")
    return restart(started(broker), topic)


def restart(broker: StartedBroker, topic: str) -> dict[str, float]:
    """Measure a restart: kill the broker, start it, and read the first message as a new consumer. Includes the start of the
    Python interpreter."""
    broker.kill()
    began = time.perf_counter()
    broker.start()
    ready_s = time.perf_counter() - began
    with _OneByOne(broker, topic) as consumer:
        consumer.next()
    return {"ready_s": ready_s, "first_delivery_s": time.perf_counter() - began}


def verify(broker: Broker, count: int, size: int, label: str) -> dict[str, float]:
    """Measure ``toymq verify`` on a log with ``count`` messages. Raises: BenchError, OSError."""
    fill(broker, names(1)[0], count, size, f"{label}: fill")
    return verified(started(broker))


def verified(broker: StartedBroker) -> dict[str, float]:
    """Stop the broker and measure ``toymq verify`` on its directory. Includes the start of the Python interpreter."""
    broker.stop()
    before = os.times()
    command = [*TOYMQ, "verify", "--json", str(broker.data_dir)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    after = os.times()
    if done.returncode != 0:
        raise BenchError(f"toymq verify: {(done.stderr or done.stdout).strip().splitlines()[-1]}")
    log_mb = sum(json.loads(line)["bytes"] for line in done.stdout.splitlines()) / 1e6
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    return {"log_mb": log_mb, "verified_mb_per_cpu_s": log_mb / cpu_s}


def idle(broker: Broker, sessions: int, label: str) -> dict[str, float]:
    """Measure resident memory with idle connections, in total and per connection. Raises: BenchError, OSError."""
    empty = broker.rss_bytes()
    connections: list[socket.socket] = []
    try:
        with phase(label, sessions) as bar:
            for number in range(sessions):
                connections.append(connection := broker.connect())
                connection.sendall(b"PING\n")
                if connection.recv(100) != b"PONG\n":
                    raise WrongReply(f"connection {number + 1} was refused")
                bar.at(number)
        rss = broker.rss_bytes()
    finally:
        for connection in connections:
            connection.close()
    return {"rss_mb": rss / 1e6, "rss_per_session_kb": (rss - empty) / sessions / 1e3}


def _clean(broker: Broker, topics: list[str]) -> None:
    if broker.data_dir is None:
        delete(broker, topics)
