"""The broker's metrics in the text format of Prometheus. The only home of prometheus_client.

Contract: clients.md, "Operations". A scrape is a walk over the broker's state on its own loop, so every number is what the
broker itself goes by; it gives the loop back every few milliseconds, so topics are seen one after the other and not in one
instant. Nothing is kept between scrapes.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar as Example

from toymq_py.broker import Broker
from toymq_py.clock import Clock, SystemClock
from toymq_py.metrics import TABLE, Exemplar, Histogram, Kind, Metric
from toymq_py.version import __version__

PREFIX = "toymq_"
CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
OPENMETRICS = "application/openmetrics-text"
"""The format that has exemplars; Prometheus asks for it first."""
OPENMETRICS_TYPE = f"{OPENMETRICS}; version=1.0.0; charset=utf-8"
OPENMETRICS_END = b"# EOF\n"
SLICE_S = 0.004
"""How long a scrape holds the loop at a time, about: a fifth of what nothing may exceed (performance.md)."""
ROWS_PER_SLICE = 200
"""Rows that are encoded between two looks at the clock."""
OTHERS = "(others)"
"""Label of the topics beyond ``metrics_objects``, or that are not to be seen, added up. No topic can have this name."""

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
"""Field of DESCRIBE to the metric that tells the same."""
OF_CONSUMER = {
    "ready": "consumer_ready_messages",
    "inflight": "consumer_inflight_messages",
    "scheduled": "consumer_scheduled_messages",
    "backlog": "consumer_backlog_messages",
    "sessions": "consumer_sessions",
}

Rows = dict[tuple[str, ...], float]
"""Label values to a number."""


class _One(Collector):
    """A family by itself, for ``generate_latest``."""

    def __init__(self, family: Family) -> None:
        self._family = family

    def collect(self) -> Iterator[Family]:
        yield self._family


class _Slices:
    """Gives the loop back when a slice is used up."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._end = clock.monotonic() + SLICE_S

    async def turn(self) -> None:
        if self._clock.monotonic() >= self._end:
            await asyncio.sleep(0)
            self._end = self._clock.monotonic() + SLICE_S


async def render(
    broker: Broker, clock: Clock | None = None, accept: str = "", sees: Callable[[str], bool] = lambda _topic: True
) -> tuple[bytes, str]:
    """A scrape: what ``GET /metrics`` answers. For the broker's own loop, which is never held for long.

    Args:
        accept: the request's ``Accept``; who takes OpenMetrics gets it.
        sees: whether who asks may know of a topic; others have no name, and are added up.

    Returns: the body and its content type.
    """
    slices = _Slices(clock or SystemClock())
    found = await _collect(broker, slices, sees)
    pieces: list[bytes] = []
    openmetrics = OPENMETRICS in accept
    for metric in TABLE:
        histogram = getattr(broker.metrics, metric.name) if metric.kind is Kind.HISTOGRAM else None
        for piece in _encode(metric, histogram, found[metric.name], openmetrics=openmetrics):
            pieces.append(piece)
            await slices.turn()
    if openmetrics:
        return b"".join((*pieces, OPENMETRICS_END)), OPENMETRICS_TYPE
    return b"".join(pieces), CONTENT_TYPE


async def _collect(broker: Broker, slices: _Slices, sees: Callable[[str], bool]) -> dict[str, Rows]:
    found: dict[str, Rows] = {metric.name: {} for metric in TABLE}
    for name, value in _of_broker(broker):
        found[name][()] = value
    found["errors_total"] = {(code,): count for code, count in broker.metrics.errors.items()}
    found["limits_reached_total"] = {(limit,): count for limit, count in broker.metrics.limits_reached.items()}
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
    """Numbers without labels."""
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


def _encode(metric: Metric, histogram: Histogram | None, rows: Rows, *, openmetrics: bool) -> Iterator[bytes]:
    """The family in pieces. Every piece is a family to the library: its heading is taken off all but the first."""
    items = list(rows.items())
    for start in range(0, max(len(items), 1), ROWS_PER_SLICE):
        family = _family(metric, histogram, items[start : start + ROWS_PER_SLICE])
        one = _One(family)
        text: bytes = generate_openmetrics(one) if openmetrics else generate_latest(one)  # type: ignore[no-untyped-call]
        text = text.removesuffix(OPENMETRICS_END)
        yield text.split(b"\n", 2)[2] if start else text


def _family(metric: Metric, histogram: Histogram | None, items: list[tuple[tuple[str, ...], float]]) -> Family:
    name, text = PREFIX + metric.name, f"{metric.help} Unit: {metric.unit}."
    if metric.kind is Kind.HISTOGRAM:
        assert histogram is not None
        total = 0
        buckets: list[tuple[str, float] | tuple[str, float, Example]] = []
        for place, (bound, count) in enumerate(zip((*metric.bounds, "+Inf"), histogram.counts, strict=True)):
            total += count
            bucket, exemplar = (str(bound), float(total)), histogram.exemplars.get(place)
            buckets.append(bucket if exemplar is None else (*bucket, _example(exemplar)))
        return HistogramMetricFamily(name, text, buckets=buckets, sum_value=histogram.sum)
    kind = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    family = kind(name, text, labels=metric.labels)
    for labels, value in items:
        family.add_metric(labels, value)
    return family


def _example(found: Exemplar) -> Example:
    """In the library's words; the text format leaves it out."""
    return Example({"trace_id": found.trace_id, "span_id": found.span_id}, found.value, found.at_s)


def exported_names() -> set[str]:
    """Names of all series as Prometheus sees them: what dashboards and alert rules may ask for."""
    names = set()
    for metric in TABLE:
        name = PREFIX + metric.name
        suffixes = ("_bucket", "_count", "_sum") if metric.kind is Kind.HISTOGRAM else ("",)
        names |= {name + suffix for suffix in suffixes}
    return names
