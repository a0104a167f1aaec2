"""OpenTelemetry spans of a message's way through the broker. The only module of the broker that uses OpenTelemetry.

A message belongs to the trace that its ``traceparent`` header names. It has spans if that trace is sampled; the broker starts
no trace. It passes the header on unchanged, so spans of broker and consumer are children of the publisher's span:

    publish orders            the publisher
    ├─ publish orders         the broker, from appended to stored, when OK may be sent
    │  └─ store orders        the disk, at the end of that span
    ├─ deliver orders         from appended to handed out, once for each delivery
    │  └─ ack orders          from handed out to acked, or nack
    └─ process orders         the consumer

Contract: clients.md, "Operations"; ADR 0030. Belongs to the event loop; a thread of the SDK sends the spans.
"""

import logging
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import inf

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    TraceFlags,
    TraceState,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.util.types import Attributes

from toymq_py.clock import Clock
from toymq_py.metrics import Exemplar, Histogram, Metrics
from toymq_py.records import IdRange
from toymq_py.token_bucket import TokenBucket
from toymq_py.topic import Appended, Delivery, Tracer
from toymq_py.trace_context import TraceContext, trace_context
from toymq_py.version import __version__

logger = logging.getLogger("toymq_py.tracing")

FOLLOWED_PER_S = 1000
"""Most spans a second of each stage: a span costs about 25 µs, and publishers decide what is sampled. Messages beyond have no
span of that stage; the log says so."""
BURST = 100
"""Most spans at once: 5 ms of the event loop."""
LEASED_MAX = 16_384
"""Inflight messages whose ack becomes a span; beyond, the oldest gets none."""
EXPORT_TIMEOUT_S = 2.0
"""Timeout of one batch to the collector, and of the last batches at the broker's end."""
TOLD_S = 60.0
"""How often the log reports spans that were left out."""


class _Budget:
    """The rate limit of one kind of span; logs how many spans were left out."""

    def __init__(self, clock: Clock, stage: str) -> None:
        self._clock = clock
        self._stage = stage
        self._bucket = TokenBucket(clock, BURST, FOLLOWED_PER_S)
        self._untold = 0
        self._told_at = clock.monotonic() - TOLD_S

    def allows(self) -> bool:
        if not self._bucket.wait_s():
            self._bucket.take()
            return True
        self._untold += 1
        if (now := self._clock.monotonic()) - self._told_at >= TOLD_S:
            logger.warning("sampled messages have no %s span (%d by now): %d a second is the limit",
                           self._stage, self._untold, FOLLOWED_PER_S)  # fmt: skip
            self._told_at, self._untold = now, 0
        return False


class OpenTelemetryTracer(Tracer):
    """Makes the spans that the module's docstring shows; the provider exports them."""

    def __init__(self, provider: TracerProvider, clock: Clock, *, fsync: str) -> None:
        """``fsync``: the broker's mode. Only "always" has store spans, as only then OK waits for the disk."""
        self._tracer = provider.get_tracer("toymq_py", __version__)
        self._clock = clock
        self._fsync = fsync
        self._sync_s = 0.0
        self._publishes = _Budget(clock, "publish")
        self._deliveries = _Budget(clock, "deliver")
        self._leased: OrderedDict[tuple[str, str, int], tuple[Context, int]] = OrderedDict()
        self._metrics: Metrics | None = None

    def exemplify(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def appended(self, topic: str, outcomes: Sequence[Appended], headers: Sequence[bytes]) -> None:
        began_ns = self._clock.wall_ns()
        row = 0
        for outcome in outcomes:
            blocks = headers[row : row + outcome.count]
            row += outcome.count
            followed = [
                (outcome.first_id + at, context)
                for at, block in enumerate(blocks)
                if block and (context := _sampled(block)) is not None and self._publishes.allows()
            ]
            if followed:
                outcome.commit.add_waiter(partial(self._committed, topic, outcome, followed, began_ns))

    def synced(self, seconds: float) -> None:
        self._sync_s = seconds

    def _committed(self, topic: str, outcome: Appended, followed: list[tuple[int, TraceContext]], began_ns: int) -> None:
        now_ns = max(self._clock.wall_ns(), began_ns)  # it may have been set back
        error = outcome.commit.error
        for msg_id, context in followed:
            attributes: dict[str, str | int] = _attributes("publish", topic)
            if error is None:
                attributes["messaging.message.id"] = str(msg_id)
            else:
                attributes["error.type"] = error.code
            publish = self._tracer.start_span(
                f"publish {topic}", _remote(context), SpanKind.SERVER, attributes, start_time=began_ns
            )
            if error is None and self._metrics is not None:
                self._exemplify(self._metrics.publish_seconds, (now_ns - began_ns) / 1e9, publish, now_ns)
            if error is None and self._fsync == "always":
                sync_ns = max(now_ns - round(self._sync_s * 1e9), began_ns)
                store = self._span("store", topic, set_span_in_context(publish), sync_ns, now_ns,
                                   {"messaging.message.id": str(msg_id)})  # fmt: skip
                if self._metrics is not None:
                    self._exemplify(self._metrics.fsync_seconds, self._sync_s, get_current_span(store), now_ns)
            publish.end(now_ns)

    def _exemplify(self, histogram: Histogram, value: float, span: Span, now_ns: int) -> None:
        context = span.get_span_context()
        exemplar = Exemplar(value, f"{context.trace_id:032x}", f"{context.span_id:016x}", now_ns / 1e9)
        histogram.exemplify(exemplar)

    def delivered(self, delivery: Delivery) -> None:
        records, topic, consumer = delivery.records, delivery.topic, delivery.subscription.consumer_name
        assert records.headers is not None, "a topic tells of none without"
        now_ns = self._clock.wall_ns()
        for row in range(delivery.start, delivery.stop):
            block = records.headers[row]
            if not block or (context := _sampled(block)) is None or not self._deliveries.allows():
                continue
            msg_id = records.ids[row]
            attributes: dict[str, str | int] = {
                "messaging.message.id": str(msg_id),
                "messaging.consumer.group.name": consumer,
                "toymq.attempt": delivery.attempt,
            }
            parent = self._span("deliver", topic, _remote(context), records.ts_ns[row], now_ns, attributes)
            self._leased[topic, consumer, msg_id] = parent, now_ns
            self._leased.move_to_end((topic, consumer, msg_id))
            if len(self._leased) > LEASED_MAX:
                self._leased.popitem(last=False)

    def settled(self, what: str, topic: str, consumer: str, ids: Sequence[IdRange]) -> None:
        leased = self._leased
        if not leased:
            return
        now_ns = self._clock.wall_ns()
        for msg_id in self._leased_of(topic, consumer, ids):
            parent, began_ns = leased.pop((topic, consumer, msg_id))
            attributes = {"messaging.message.id": str(msg_id), "messaging.consumer.group.name": consumer}
            self._span(what, topic, parent, began_ns, now_ns, attributes)

    def _leased_of(self, topic: str, consumer: str, ids: Sequence[IdRange]) -> list[int]:
        """The ids in ``ids`` that have a lease span. An ACK may name any number of ids, so the shorter of ids and leases is
        walked."""
        leased = self._leased
        if sum(last - first + 1 for first, last in ids) <= len(leased):
            named = (msg_id for first, last in ids for msg_id in range(first, last + 1))
            return [msg_id for msg_id in named if (topic, consumer, msg_id) in leased]
        firsts = [first for first, _ in ids]
        found = []
        for of_topic, of_consumer, msg_id in leased:
            if (of_topic, of_consumer) == (topic, consumer):
                at = bisect_right(firsts, msg_id) - 1
                if at >= 0 and msg_id <= ids[at][1]:
                    found.append(msg_id)
        return found

    def _span(
        self, what: str, topic: str, parent: Context, began_ns: int, ended_ns: int, attributes: Attributes = None
    ) -> Context:
        """Record a span that has ended. Returns: its context, for use as a parent."""
        began_ns = min(began_ns, ended_ns)  # the wall clock may have been set back
        attributes = _attributes(what, topic) | dict(attributes or {})
        span = self._tracer.start_span(f"{what} {topic}", parent, SpanKind.INTERNAL, attributes, start_time=began_ns)
        span.end(ended_ns)
        return set_span_in_context(NonRecordingSpan(span.get_span_context()))


def _sampled(block: bytes) -> TraceContext | None:
    context = trace_context(block)
    return context if context is not None and context.sampled else None


def _remote(context: TraceContext) -> Context:
    """The context of the publisher's span, for use as a parent."""
    state = TraceState.from_header([context.state]) if context.state else None
    span = SpanContext(
        int(context.trace_id, 16), int(context.span_id, 16), is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED),
        trace_state=state,
    )  # fmt: skip
    return set_span_in_context(NonRecordingSpan(span))


def _attributes(what: str, topic: str) -> dict[str, str | int]:
    """Span attributes by OpenTelemetry's semantic conventions for messaging."""
    return {"messaging.system": "toymq", "messaging.operation.name": what, "messaging.destination.name": topic}


class BoundedExporter(SpanExporter):
    """An exporter that does not delay the broker's shutdown: from ``closing`` on, spans that the collector does not accept at
    once are dropped; the SDK would retry every queued batch until its timeout. ``export`` runs on the SDK's thread."""

    def __init__(self, exporter: SpanExporter, clock: Clock) -> None:
        self._exporter = exporter
        self._clock = clock
        self._failed = False
        self._ends_at = inf

    def closing(self) -> None:
        """Prepare for the shutdown: from now on each batch is tried once."""
        self._ends_at = self._clock.monotonic() + EXPORT_TIMEOUT_S

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self._ends_at < inf and (self._failed or self._clock.monotonic() >= self._ends_at):
            return SpanExportResult.FAILURE
        result = self._exporter.export(spans)
        self._failed = result is not SpanExportResult.SUCCESS
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


@contextmanager
def opened_tracer(endpoint: str, clock: Clock, *, fsync: str) -> Iterator[OpenTelemetryTracer]:
    """A context with a tracer that exports spans to a collector's OTLP/HTTP ``endpoint`` (``http://localhost:4318``), the last
    ones at its end. Without a collector spans are lost, the log says so, and shutdown takes ``EXPORT_TIMEOUT_S`` longer."""
    url = endpoint if endpoint.rstrip("/").endswith("/v1/traces") else f"{endpoint.rstrip('/')}/v1/traces"
    exporter = BoundedExporter(OTLPSpanExporter(endpoint=url, timeout=EXPORT_TIMEOUT_S), clock)
    resource = Resource.create({"service.name": "toymq", "service.version": __version__})
    provider = TracerProvider(
        sampler=ParentBased(ALWAYS_OFF),
        resource=resource.merge(OTELResourceDetector().detect()),  # OTEL_SERVICE_NAME overrides ours
        shutdown_on_exit=False,
    )
    provider.add_span_processor(BatchSpanProcessor(exporter))
    try:
        yield OpenTelemetryTracer(provider, clock, fsync=fsync)
    finally:
        exporter.closing()
        provider.shutdown()
