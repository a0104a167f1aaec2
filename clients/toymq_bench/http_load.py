"""HTTP publishers on a broker's gateway: one request outstanding on each kept-alive connection."""

from toymq_bench.broker import StartedBroker, connect
from toymq_bench.frames import MARK, payload
from toymq_bench.load import Load, Meter, Publisher
from toymq_bench.peers.peer import CountingProducer
from toymq_bench.traffic import Plan, names, timed

OPTIONS = ("--http", "127.0.0.1:0")
"""Options of the measured broker."""
JSON_LINES = b"Content-Type: application/x-ndjson\r\n"


def request(topic: str, number: int, size: int, batch: int, *, keyed: bool) -> bytes:
    """Encode an HTTP request that publishes one message, or ``batch`` messages as JSON lines; ``keyed``: each with a unique
    key."""
    body = payload(size, marked=False)
    if batch == 1:
        key = b"Idempotency-Key: %b-%d\r\n" % (MARK, number) if keyed else b""
        return _post(topic, "messages", key, body)
    keys = [b',"key":"%b-%d-%d"' % (MARK, number, row) if keyed else b"" for row in range(batch)]
    return _post(topic, "messages:batch", JSON_LINES, b"".join(b'{"payload":"%b"%b}\n' % (body, key) for key in keys))


def _post(topic: str, path: str, headers: bytes, body: bytes) -> bytes:
    head = f"POST /v1/topics/{topic}/{path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n".encode()
    return head + headers + b"\r\n" + body


def measure(
    broker: StartedBroker, connections: int, size: int, batch: int, plan: Plan, label: str, *, keyed: bool
) -> dict[str, float]:
    """Do one run of HTTP publishers; the latencies are those of requests. Raises: BenchError, OSError."""
    (topic,) = names(1)
    meter = Meter()
    publishers = []
    for number in range(connections):
        wire = CountingProducer(
            request(topic, number, size, batch, keyed=keyed), 1,
            b"HTTP/1.1 201 ", rb"HTTP/1.1 [345]|\"duplicate\":true",
        )  # fmt: skip
        publishers.append(Publisher(connect(broker.host, broker.http_port), wire, meter, 1))
    with Load(publishers, [], meter) as load:
        values = timed(load, meter, plan, broker.cpu_s, label)
    values["publishes_per_s"] *= batch
    values["broker_cpu_us"] /= batch
    return {**values, "rss_mb": broker.rss_bytes() / 1e6}

