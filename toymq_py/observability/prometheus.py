"""The broker's metrics in the text format of Prometheus, and in OpenMetrics.

Contract: clients.md, "Operations"; ADR 0078. A scrape walks over the broker's state on the broker's own event loop, so every
value is the one that the broker works with. It yields to the loop every few milliseconds, so topics are read one after the
other and not at one instant. Nothing is kept between scrapes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from toymq_py.broker import Broker
from toymq_py.clock import Clock, SystemClock
from toymq_py.metrics import TABLE, ClusterRows, Exemplar, Histogram, Kind, Metric
from toymq_py.observability.slices import Slices
from toymq_py.version import __version__

PREFIX = "toymq_"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text"
"""The format with exemplars; Prometheus prefers it."""
OPENMETRICS_TYPE = f"{OPENMETRICS}; version=1.0.0; charset=utf-8"
OPENMETRICS_END = b"# EOF\n"
ROWS_PER_SLICE = 200
"""Rows that are encoded between two looks at the clock."""
OBJECT_BYTES = 2048
"""The memory of a topic or consumer with a label of its own: its rows, and their text, measured."""
OTHERS = "(others)"
"""The label of the topics, added up, that are beyond ``metrics_objects`` or not to be seen. No topic can have this name."""

OF_TOPIC = {
    "next_id": "topic_appended_total",
    "messages": "topic_messages",
    "lost": "topic_lost_messages",
    "bytes": "topic_bytes",
    "segments": "topic_segments",
    "expired_total": "topic_expired_total",
    "dead_lettered_total": "topic_dead_lettered_total",
    "dropped_total": "topic_dropped_total",
}
"""Fields of DESCRIBE, and the metric that has the same value."""
OF_CONSUMER = {
    "ready": "consumer_ready_messages",
    "inflight": "consumer_inflight_messages",
    "scheduled": "consumer_scheduled_messages",
    "backlog": "consumer_backlog_messages",
    "retrying": "consumer_retrying_messages",
    "sessions": "consumer_sessions",
    "attached": "consumer_attached",
}

Rows = dict[tuple[str, ...], float]
"""Label values, and the number of each."""


async def render(
    broker: Broker, clock: Clock | None = None, accept: str = "", sees: Callable[[str], bool] = lambda _topic: True,
    grow: Callable[[int], None] = lambda _size: None,
) -> tuple[bytes, str]:
    """Answer ``GET /metrics``. Runs on the broker's own event loop and never blocks it for long.

    Args:
        accept: the request's ``Accept``; a client that takes OpenMetrics gets it.
        sees: whether the client may know of a topic; the other topics are added up under ``OTHERS``.
        grow: called with bytes that the page will have, to count them; an error that it raises ends the page.

    Returns: the body and its content type.
    """
    slices = Slices(clock or SystemClock())
    found = await _collect(broker, slices, sees, grow)
    histograms = broker.metrics.cluster().histograms if broker.metrics.cluster is not None else {}
    pieces: list[bytes] = []
    openmetrics = OPENMETRICS in accept
    for metric in TABLE:
        if metric.of_cluster and broker.metrics.cluster is None:
            continue
        pieces.append(heading(metric, openmetrics=openmetrics))
        if metric.kind is Kind.HISTOGRAM and not metric.of_cluster:
            pieces.append(_encode_histogram(metric, getattr(broker.metrics, metric.name), openmetrics=openmetrics))
        for values, histogram in histograms.get(metric.name, {}).items():
            pieces.append(_encode_histogram(metric, histogram, values, openmetrics=openmetrics))
        items = list(found[metric.name].items())
        for start in range(0, len(items), ROWS_PER_SLICE):
            pieces.append(encode_rows(metric, items[start : start + ROWS_PER_SLICE]))
            await slices.turn()
    if openmetrics:
        return b"".join((*pieces, OPENMETRICS_END)), OPENMETRICS_TYPE
    return b"".join(pieces), CONTENT_TYPE


def render_cluster(rows: ClusterRows) -> tuple[bytes, str]:
    """Answer ``GET /metrics`` on a follower, which runs no broker. Returns: as ``render``."""
    pieces = []
    for metric in TABLE:
        if metric.of_cluster:
            pieces += [heading(metric), encode_rows(metric, rows.numbers.get(metric.name, {}).items())]
            pieces += [_encode_histogram(metric, *row[::-1]) for row in rows.histograms.get(metric.name, {}).items()]
    return b"".join(pieces), CONTENT_TYPE


async def _collect(
    broker: Broker, slices: Slices, sees: Callable[[str], bool], grow: Callable[[int], None]
) -> dict[str, Rows]:
    found: dict[str, Rows] = {metric.name: {} for metric in TABLE}
    for name, value in _of_broker(broker):
        found[name][()] = value
    found["errors_total"] = {(code,): count for code, count in broker.metrics.errors.items()}
    found["limits_reached_total"] = {(limit,): count for limit, count in broker.metrics.limits_reached.items()}
    found["alerts_firing"] = {(name,): count for name, count in broker.metrics.alerts_firing.items()}
    found["alert_notices_total"] = {(outcome,): count for outcome, count in broker.metrics.alert_notices.items()}
    if broker.metrics.cluster is not None:
        found.update({name: dict(rows) for name, rows in broker.metrics.cluster().numbers.items()})
    found["build_info"] = {(__version__, broker.options.fsync): 1}
    states = dict.fromkeys(("ok", "degraded", "failed"), 0)
    states["failed"] = len(broker.unopened)
    room = broker.options.metrics_objects
    for name in sorted(broker.topics):
        topic = broker.topics.get(name)
        if topic is None or topic.deleted:
            continue
        states[topic.state] += 1
        consumers = list(topic.consumers.values())
        room -= 1 + len(consumers)
        label = name if room >= 0 and sees(name) else OTHERS
        if label == name:
            grow(OBJECT_BYTES * (1 + len(consumers)))
        _add(found, (label,), topic.describe(consumers=False), OF_TOPIC)
        for consumer in consumers:
            await slices.turn()
            described = topic.describe_consumer(consumer.name)
            labels = (label, consumer.name if label == name else OTHERS)
            _add(found, labels, described, OF_CONSUMER)
            oldest = found["consumer_oldest_unacked_seconds"]
            oldest[labels] = max(oldest.get(labels, 0), described["oldest_unacked_age_s"])
        await slices.turn()
    found["topics"] = {(state,): count for state, count in states.items()}
    return found


def _of_broker(broker: Broker) -> Iterator[tuple[str, float]]:
    """Samples of metrics without labels."""
    metrics, stats = broker.metrics, broker.stats()
    for metric in TABLE:
        if not metric.labels and hasattr(metrics, metric.name) and metric.kind is not Kind.HISTOGRAM:
            yield metric.name, getattr(metrics, metric.name)
    yield "connections_evictable", broker.quotas.evictable
    yield "held_bytes", broker.quotas.held_bytes
    yield "memory_high", broker.quotas.memory_high
    yield "disk_free_bytes", stats["disk_free_bytes"]
    yield "disk_low", stats["disk_low"]
    yield "resident_bytes", stats["rss_bytes"]
    yield "loop_lag_seconds", stats["loop_lag_s"]
    yield "uptime_seconds", stats["uptime_s"]


def _add(found: dict[str, Rows], labels: tuple[str, ...], described: Mapping[str, Any], fields: Mapping[str, str]) -> None:
    for field, name in fields.items():
        rows = found[name]
        rows[labels] = rows.get(labels, 0) + described[field]


def heading(metric: Metric, *, openmetrics: bool = False) -> bytes:
    """The HELP and TYPE lines of a metric family. OpenMetrics names a counter's family without the ``_total`` of its
    samples."""
    name = PREFIX + (metric.name.removesuffix("_total") if openmetrics else metric.name)
    return f"# HELP {name} {metric.help} Unit: {metric.unit}.\n# TYPE {name} {metric.kind.value}\n".encode()


def encode_rows(metric: Metric, items: Iterable[tuple[tuple[str, ...], float]]) -> bytes:
    """Encode samples of a metric: label values and a number each."""
    return "".join(
        f"{PREFIX}{metric.name}{_labels(zip(metric.labels, values, strict=True))} {float(number)}\n" for values, number in items
    ).encode()


def _encode_histogram(
    metric: Metric, histogram: Histogram, values: tuple[str, ...] = (), *, openmetrics: bool = False
) -> bytes:
    """Encode a histogram. ``values``: those of its labels."""
    name, total, lines = PREFIX + metric.name, 0, []
    labels = list(zip(metric.labels, values, strict=True))
    for place, (bound, count) in enumerate(zip((*metric.bounds, "+Inf"), histogram.counts, strict=True)):
        total += count
        exemplar = histogram.exemplars.get(place) if openmetrics else None
        shown = "" if exemplar is None else _exemplar(exemplar)
        lines.append(f"{name}_bucket{_labels([*labels, ('le', str(bound))])} {float(total)}{shown}\n")
    lines.append(f"{name}_count{_labels(labels)} {float(total)}\n{name}_sum{_labels(labels)} {float(histogram.sum)}\n")
    return "".join(lines).encode()


def _exemplar(found: Exemplar) -> str:
    labels = _labels((("trace_id", found.trace_id), ("span_id", found.span_id)))
    return f" # {labels} {float(found.value)} {found.at_s}"


def _labels(pairs: Iterable[tuple[str, str]]) -> str:
    text = ",".join(f'{name}="{_escape(value)}"' for name, value in pairs if value)  # an empty one is none, to Prometheus
    return f"{{{text}}}" if text else ""


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def exported_names() -> set[str]:
    """The names of all series as Prometheus stores them, which dashboards and alert rules may query."""
    names = set()
    for metric in TABLE:
        name = PREFIX + metric.name
        suffixes = ("_bucket", "_count", "_sum") if metric.kind is Kind.HISTOGRAM else ("",)
        names |= {name + suffix for suffix in suffixes}
    return names
