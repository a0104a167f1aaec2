"""Spans of OpenTelemetry around publishes and handlers: the client's only home of OpenTelemetry (extra ``observability``).

    from toymq.tracing import Tracing

    async with toymq.connect(tracing=Tracing()) as mq:
        await mq.pub("orders", b"hello")                  # a span "publish orders", whose context travels with the message
        ...
        async with message.process():                     # a span "process orders" below it, current for the block

To ack by hand, use ``with tracing.processing(message, consumer):``. Without an OpenTelemetry provider in the process no span is
recorded, but a trace context that came with a message is still passed on. Contract: clients.md; ADR 0030.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from opentelemetry import propagate, trace
from opentelemetry.trace import SpanKind, Status, StatusCode

from toymq.message import Delivery, Receipt
from toymq.options import MessageTracing, PublishEnded
from toymq_py.errors import ToymqError


class Tracing(MessageTracing):
    """A tracer for one or more clients, made once in a process. The process's propagators decide which headers carry the trace
    context, ``traceparent`` by default."""

    def __init__(self, provider: trace.TracerProvider | None = None) -> None:
        """``provider``: where spans go; None takes the process's global provider."""
        self._tracer = trace.get_tracer("toymq", tracer_provider=provider)

    def publishing(self, topic: str, headers: Mapping[str, str] | None) -> tuple[dict[str, str], PublishEnded]:
        span = self._tracer.start_span(f"publish {topic}", kind=SpanKind.PRODUCER, attributes=_attributes("publish", topic))

        def ended(outcome: Receipt | ToymqError | None) -> None:
            if isinstance(outcome, Receipt):
                span.set_attributes({"messaging.message.id": str(outcome.msg_id), "toymq.duplicate": outcome.duplicate})
            else:
                span.set_attribute("error.type", outcome.code if outcome is not None else "unknown")
                span.set_status(Status(StatusCode.ERROR, str(outcome or "the caller stopped waiting for the answer")))
            span.end()

        return _injected(span, headers), ended

    def created(self, topic: str, headers: Mapping[str, str] | None) -> dict[str, str]:
        span = self._tracer.start_span(f"create {topic}", kind=SpanKind.PRODUCER, attributes=_attributes("create", topic))
        span.end()
        return _injected(span, headers)

    @contextmanager
    def processing(self, message: Delivery, consumer: str) -> Iterator[None]:
        attributes = _attributes("process", message.topic) | {
            "messaging.message.id": str(message.id),
            "messaging.consumer.group.name": consumer,
            "toymq.attempt": message.attempt,
        }
        with self._tracer.start_as_current_span(
            f"process {message.topic}", propagate.extract(message.headers), SpanKind.CONSUMER, attributes
        ):
            yield


def _injected(span: trace.Span, headers: Mapping[str, str] | None) -> dict[str, str]:
    carried = dict(headers or {})
    propagate.inject(carried, trace.set_span_in_context(span))
    return carried


def _attributes(what: str, topic: str) -> dict[str, str | int]:
    """Span attributes in OpenTelemetry's semantic conventions for messaging."""
    return {"messaging.system": "toymq", "messaging.operation.name": what, "messaging.destination.name": topic}
