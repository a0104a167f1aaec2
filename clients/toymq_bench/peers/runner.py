"""Runs the same load on toymq and all installed peers, in turn, on the same disk."""

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from toymq_bench import disk, process, report
from toymq_bench.errors import BenchError
from toymq_bench.load import Load, Meter, Publisher, Subscriber
from toymq_bench.peers.beanstalkd import Beanstalkd
from toymq_bench.peers.nats import Nats
from toymq_bench.peers.peer import Peer
from toymq_bench.peers.rabbitmq import RabbitMQ
from toymq_bench.peers.redis import Redis
from toymq_bench.peers.strace import SyncCounter
from toymq_bench.peers.toymq import Toymq
from toymq_bench.peers.toymq_amqp import ToymqAmqp
from toymq_bench.progress import phase
from toymq_bench.result import Result
from toymq_bench.traffic import Plan, timed

PEERS: tuple[type[Peer], ...] = (Toymq, ToymqAmqp, RabbitMQ, Redis, Nats, Beanstalkd)
BACKLOG_MAX = 2000
"""Most messages between publish and delivery: end-to-end latency is then the broker's, not a growing queue's."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A shape of load: ``producers`` connections with ``window`` unanswered publishes each; ``consumed``: the messages are
    consumed, too."""

    name: str
    producers: int
    window: int
    consumed: bool = False

    @property
    def metric(self) -> str:
        """The metric that the table shows for this shape."""
        return "deliveries_per_s" if self.consumed else "publishes_per_s"


SHAPES = (
    Shape("1 x 1", 1, 1),
    Shape("1 x 256", 1, 256),
    Shape("16 x 16", 16, 16),
    Shape("16 x 256", 16, 256),
    Shape("64 x 16", 64, 16),
    Shape("64 x 1", 64, 1),
    Shape("end to end", 1, 256, consumed=True),
)


def measure(peer: Peer, shape: Shape, size: int, plan: Plan, label: str) -> tuple[dict[str, float], int]:
    """Do one run on a started server. Returns: metrics, and the number of confirmed publishes, warm-up included. Raises:
    BenchError, OSError."""
    topic = "bench"
    peer.create(topic)
    meter = Meter(backlog_max=BACKLOG_MAX if shape.consumed else None)
    subscribers = []
    if shape.consumed:
        subscribers = [Subscriber(connection, wire, meter) for connection, wire in peer.consumers(topic, shape.window, size)]
    publishers = []
    for number in range(shape.producers):
        connection, wire = peer.producer(topic, number, shape.window, size)
        publishers.append(Publisher(connection, wire, meter, shape.window))
    with Load(publishers, subscribers, meter) as load:
        values = timed(load, meter, plan, lambda: process.cpu_s(peer.pids()), label)
    values["rss_mb"] = process.rss_bytes(peer.pids()) / 1e6
    return values, meter.sent - sum(publisher.outstanding for publisher in publishers)


def run(
    directory: Path, size: int, plan: Plan, runs: int, shapes: Sequence[Shape], peers: Sequence[type[Peer]], *, strace: bool
) -> list[Result]:
    """Run every shape on every peer ``runs`` times; with ``strace`` once more, to count the calls of fsync.

    Raises: BenchError, OSError.
    """
    results: dict[tuple[str, str], Result] = {}
    for number in range(1, runs + 1 + strace):
        counting = number > runs
        for shape in shapes:
            with phase("disk limit", 1):
                group = disk.records_per_commit(shape.producers * shape.window)
                limit = disk.records_per_s(directory, size + disk.RECORD_OVERHEAD_BYTES, group, min(1.0, plan.seconds))
            for kind in peers:
                label = f"{kind.name}, {shape.name}, " + ("strace" if counting else f"run {number} of {runs}")
                with tempfile.TemporaryDirectory(prefix="toymq-bench-", dir=directory) as fresh, kind(Path(fresh)) as peer:
                    key = (shape.name, kind.name)
                    result = results.setdefault(
                        key, Result(shape.name, {"peer": kind.name, "size": size}, peer.durability, [])
                    )
                    if not counting:
                        values, _ = measure(peer, shape, size, plan, label)
                        result.runs.append({**values, "disk_limit_per_s": limit})
                        continue
                    with SyncCounter(peer.pids(), Path(fresh)) as counter:
                        _, messages = measure(peer, shape, size, plan, label)
                    result.runs[0]["syncs_per_message"] = counter.syncs / messages
    return list(results.values())


def installed() -> tuple[list[type[Peer]], list[str]]:
    """Return the installed peers, and the names of the others."""
    there = [kind for kind in PEERS if kind.installed() is not None]
    return there, [f"{kind.name} ({kind.program})" for kind in PEERS if kind not in there]


def lines(results: Sequence[Result], skipped: Sequence[str]) -> Iterator[str]:
    """Yield tables of rates, CPU per message and more; the durability of each peer; the peers that are not installed."""
    by = {(result.scenario, result.parameters["peer"]): result for result in results}
    shapes = [shape for shape in SHAPES if any(scenario == shape.name for scenario, _ in by)]
    names = list(dict.fromkeys(peer for _, peer in by))
    head = [shape.name for shape in shapes]
    for title, metric in (
        ("messages/s", None), ("server CPU us/msg", "broker_cpu_us"), ("publish p99 ms", "publish_p99_ms"),
        ("client cores", "client_cores"), ("fsyncs/msg", "syncs_per_message"),
    ):  # fmt: skip
        if metric is not None and not any(result.values(metric) for result in results):
            continue
        rows = [[name, *(_cell(by[shape.name, name], metric or shape.metric) for shape in shapes)] for name in names]
        if metric is None:
            limits = {shape.name: by[shape.name, names[0]].median("disk_limit_per_s") for shape in shapes}
            rows.append(["(disk limit)", *(report.number("disk_limit_per_s", limits[name]) for name in head)])
        yield from report.table([title, *head], rows)
        yield ""
    for durability, name in Counter((result.durability, result.parameters["peer"]) for result in results):
        yield f"{name}: {durability}"
    for name in skipped:
        yield f"skipped, not installed: {name}"


def _cell(result: Result, metric: str) -> str:
    return report.number(metric, result.median(metric))


def chosen(names: Sequence[str]) -> list[Shape]:
    """Return the shapes with these names; without names all. Raises: BenchError."""
    known = {shape.name.replace(" ", ""): shape for shape in SHAPES}
    unknown = [name for name in names if name.replace(" ", "") not in known]
    if unknown:
        raise BenchError(f"unknown shape {unknown[0]!r}: write one of {', '.join(known)}")
    return [known[name.replace(" ", "")] for name in names] or list(SHAPES)
