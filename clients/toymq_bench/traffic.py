"""The load of a scenario on a toymq broker: number and rate of publishers and consumers, and the metrics of a run."""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from toymq_bench.broker import Broker
from toymq_bench.errors import WrongReply
from toymq_bench.frames import Consuming
from toymq_bench.latency import summary_ms
from toymq_bench.load import Load, Meter, Publisher, Schedule, Subscriber, now_us
from toymq_bench.pings import pings
from toymq_bench.progress import phase
from toymq_bench.toymq_wire import SharingConsumer, ToymqConsumer, ToymqProducer
from toymq_py.consumer_options import Mode

FILLERS, FILL_WINDOW = 4, 1024
"""Connections, and their windows, that publish a backlog."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The duration of a run, and of the warm-up before it, in seconds."""

    seconds: float
    warmup_s: float


@dataclass(frozen=True, slots=True)
class Traffic:
    """The load of a run. Connection i uses topic i modulo ``topics``; every consumer gets every message of its topic.

    ``rate``: publishes per second of all producers together, at fixed times (open loop); None: ``window`` unanswered publishes
    per connection (closed loop).
    """

    producers: int = 1
    window: int = 256
    size: int = 256
    topics: int = 1
    consumers: int = 0
    consumer_window: int = 4096
    rate: float | None = None
    keyed: bool = True
    single_acks: bool = False
    mode: Mode | None = None
    """The consumers of a topic are one consumer, which shares its messages so."""


def names(count: int) -> list[str]:
    """Return ``count`` names for new topics."""
    run = secrets.token_hex(3)
    return [f"b{run}-{number}" for number in range(count)]


def subscriber(
    broker: Broker, topic: str, consumer: str, window: int, wire: Consuming, meter: Meter, mode: Mode | None = None
) -> Subscriber:
    """Connect a subscriber and wait for the OK of its SUB. Raises: WrongReply, OSError."""
    connection = broker.connect(topic)
    connection.sendall(ToymqConsumer.subscribe(topic, consumer, window, mode))
    reply = b""
    while not reply.endswith(b"\n"):  # byte by byte: deliveries belong to the load
        reply += (byte := connection.recv(1))
        if not byte or (len(reply) > 2 and not reply.startswith(b"OK ")):
            with connection:
                said = (reply + connection.recv(200)).decode(errors="replace").strip()
            raise WrongReply(f"SUB was answered with: {said}")
    return Subscriber(connection, wire, meter)


def delete(broker: Broker, topics: list[str]) -> None:
    """Delete the topics of a run, on a broker that keeps running."""
    with broker.client() as client:
        for topic in topics:
            client.delete(topic)


def publisher(
    broker: Broker, topic: str, number: int, traffic: Traffic, meter: Meter, schedule: Schedule | None = None
) -> Publisher:
    """Connect a publisher. Raises: ValueError, OSError."""
    wire = ToymqProducer(topic, number, traffic.window, traffic.size, keyed=traffic.keyed)
    return Publisher(broker.connect(topic), wire, meter, traffic.window, schedule)


def measure(broker: Broker, traffic: Traffic, plan: Plan, label: str) -> dict[str, float]:
    """Do one run and return its metrics. Raises: BenchError, ValueError, OSError."""
    topics = names(traffic.topics)
    meter = Meter()
    subscribers = []
    for number in range(traffic.consumers):
        topic, consumer = topics[number % len(topics)], f"c{number}" if traffic.mode is None else "c"
        wire: Consuming
        if traffic.mode is None:
            wire = ToymqConsumer(topic, consumer, traffic.size, keyed=traffic.keyed, single=traffic.single_acks)
        else:
            wire = SharingConsumer(topic, consumer)
        subscribers.append(subscriber(broker, topic, consumer, traffic.consumer_window, wire, meter, traffic.mode))
    publishers = []
    began_us = now_us()
    for number in range(traffic.producers):
        schedule = None
        if traffic.rate is not None:
            interval_us = 1e6 * traffic.producers / traffic.rate
            schedule = Schedule(began_us + interval_us * number / traffic.producers, interval_us)
        publishers.append(publisher(broker, topics[number % len(topics)], number, traffic, meter, schedule))
    with Load(publishers, subscribers, meter) as load:
        values = timed(load, meter, plan, broker.cpu_s, label)
    values["rss_mb"] = broker.rss_bytes() / 1e6
    if broker.data_dir is None:
        delete(broker, topics)
    return values


def measure_with_pings(broker: Broker, traffic: Traffic, plan: Plan, label: str) -> dict[str, float]:
    """Do one run, while another process measures PING round trips, and return its metrics. Raises: BenchError, ValueError,
    OSError."""
    with pings(broker, plan.warmup_s + plan.seconds) as metrics:
        values = measure(broker, traffic, plan, label)
    return values | metrics


def timed(load: Load, meter: Meter, plan: Plan, broker_cpu_s: Callable[[], float], label: str) -> dict[str, float]:
    """Warm up, then measure for the plan's seconds, but at least until the load ``has_begun``; return the metrics. Raises:
    BenchError."""
    with phase(label, 100 * (plan.warmup_s + plan.seconds)) as bar:
        began = now_us()

        def reached(end_us: float, *, begun: bool = False) -> Callable[[int], bool]:
            def until(now: int) -> bool:
                bar.at((now - began) / 1e4)
                return now >= end_us and (load.has_begun or not begun)

            return until

        start = load.run(reached(began + plan.warmup_s * 1e6))
        meter.reset()
        cpu_s, own_s = broker_cpu_s(), time.process_time()
        span_s = (load.run(reached(start + plan.seconds * 1e6, begun=True)) - start) / 1e6
        cpu_s, own_s = broker_cpu_s() - cpu_s, time.process_time() - own_s
    return {
        "publishes_per_s": meter.acked / span_s,
        **({"deliveries_per_s": meter.delivered / span_s} if meter.delivered else {}),
        **summary_ms(meter.publish_us, "publish"),
        **summary_ms(meter.delivery_us, "delivery"),
        "broker_cpu_us": cpu_s * 1e6 / (meter.acked or meter.delivered),
        "broker_cores": cpu_s / span_s,
        "client_cores": own_s / span_s,
    }


def fill(broker: Broker, topic: str, count: int, size: int, label: str) -> None:
    """Publish ``count`` messages with keys. Raises: BenchError, OSError."""
    traffic = Traffic(window=min(FILL_WINDOW, count), size=size)
    meter = Meter(budget=count)
    publishers = [publisher(broker, topic, number, traffic, meter) for number in range(FILLERS)]
    with phase(label, count) as bar, Load(publishers, [], meter) as load:

        def until(_: int) -> bool:
            bar.at(meter.acked)
            return meter.acked >= count

        load.run(until)
