"""The broker's spans: their parents, when they begin and end, and which messages are not traced."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased

from tests.support import sim_disk
from tests.support.broker_rig import BrokerRig
from tests.support.fake_clock import FakeClock
from toymq_py.observability import tracing
from toymq_py.observability.tracing import (
    BURST,
    EXPORT_TIMEOUT_S,
    FOLLOWED_PER_S,
    BoundedExporter,
    OpenTelemetryTracer,
)
from toymq_py.topic import TracedTopic

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = f"color: red\ntraceparent: 00-{TRACE}-{SPAN}-01\ntracestate: vendor=1\n".encode()
SYNC_S = 0.25


@dataclass
class Followed:
    """A rig whose disk takes ``SYNC_S`` for a sync, and its finished spans."""

    rig: BrokerRig
    exporter: InMemorySpanExporter

    def spans(self) -> list[ReadableSpan]:
        spans = self.exporter.get_finished_spans()
        return sorted(spans, key=lambda span: (span.end_time or 0, span.start_time or 0, span.name))

    def names(self) -> list[str]:
        return [span.name for span in self.spans()]

    def tree(self) -> dict[str, str]:
        """Return each span's name with its parent's; a foreign parent by its id."""
        spans = self.spans()
        names = {span.context.span_id: span.name for span in spans}
        return {
            span.name: names.get(span.parent.span_id, f"{span.parent.span_id:016x}") if span.parent is not None else "none"
            for span in spans
        }


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Followed]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler=ParentBased(ALWAYS_OFF), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    rig = BrokerRig(tracer=lambda clock: OpenTelemetryTracer(provider, clock, fsync="always"))
    sync = sim_disk.SimFile.sync

    def slow_sync(file: sim_disk.SimFile) -> None:
        rig.clock.advance(SYNC_S)
        sync(file)

    rig.publish("orders", b"first")  # the log is made
    monkeypatch.setattr(sim_disk.SimFile, "sync", slow_sync)
    yield Followed(rig, exporter)
    provider.shutdown()


def test_a_message_is_one_tree(followed: Followed) -> None:
    rig = followed.rig
    appended_ns = rig.clock.wall_ns()
    rig.publish("orders", b"x", headers=SAMPLED)
    consumer = rig.subscribe("orders", start="1")
    rig.advance(2.0)
    assert rig.take(consumer) == [(1, 1)]
    rig.advance(3.0)
    rig.ack("orders", 1, 1, flush=False)
    assert followed.tree() == {
        "publish orders": SPAN, "store orders": "publish orders", "deliver orders": SPAN, "ack orders": "deliver orders"
    }  # fmt: skip
    assert {f"{span.context.trace_id:032x}" for span in followed.spans()} == {TRACE}
    times = {
        span.name.split()[0]: (((span.start_time or 0) - appended_ns) / 1e9, ((span.end_time or 0) - appended_ns) / 1e9)
        for span in followed.spans()
    }
    assert times == {"publish": (0, 0.25), "store": (0, 0.25), "deliver": (0, 2.25), "ack": (2.25, 5.25)}
    publish, _, deliver, _ = followed.spans()
    for span in followed.spans():
        assert span.attributes is not None
        assert span.attributes["messaging.destination.name"] == "orders"
        assert span.attributes["messaging.message.id"] == "1"
    assert deliver.attributes is not None
    assert (deliver.attributes["messaging.consumer.group.name"], deliver.attributes["toymq.attempt"]) == ("c", 1)
    assert publish.context.trace_state.get("vendor") == "1", "what other vendors put there is passed on"


def test_store_is_the_end_of_publish(followed: Followed) -> None:
    rig = followed.rig
    publisher = rig.broker.topic_or_new("orders").publisher
    publisher.publish([b""], [b"x"], [SAMPLED])
    rig.clock.advance(1.0)  # the sync before it takes so long
    rig.loop.drain()
    store, publish = sorted(followed.spans(), key=lambda span: span.name, reverse=True)
    assert ((store.end_time or 0) - (store.start_time or 0)) / 1e9 == SYNC_S
    assert ((publish.end_time or 0) - (publish.start_time or 0)) / 1e9 == 1 + SYNC_S


@pytest.mark.parametrize(
    "headers", [None, b"", b"color: red\n", SAMPLED.replace(b"-01\n", b"-00\n"), SAMPLED.replace(b"00-", b"ff-")]
)
def test_what_is_not_sampled_is_not_followed(followed: Followed, headers: bytes | None) -> None:
    rig = followed.rig
    rig.publish("orders", b"x", headers=headers)
    rig.take(rig.subscribe("orders"))
    rig.ack("orders", 0, 1)
    assert followed.names() == []


def test_each_delivery_has_its_span_and_its_end(followed: Followed) -> None:
    rig = followed.rig
    rig.publish("orders", b"x", headers=SAMPLED)
    one, two = rig.subscribe("orders", "one", start="1"), rig.subscribe("orders", "two", start="1")
    rig.take(one)
    rig.take(two)
    rig.broker.topic("orders").nack("one", [(1, 1)], 0.0)
    assert rig.take(one) == [(1, 2)]
    rig.ack("orders", 1, 1, "one")
    rig.ack("orders", 1, 1, "two")
    rig.ack("orders", 1, 1, "two")  # again: nothing ends twice
    ended = [(span.name.split()[0], (span.attributes or {}).get("messaging.consumer.group.name")) for span in followed.spans()]
    assert sorted(ended, key=str) == sorted([
        ("publish", None), ("store", None), ("deliver", "one"), ("deliver", "two"), ("nack", "one"), ("deliver", "one"),
        ("ack", "one"), ("ack", "two"),
    ], key=str)  # fmt: skip


def test_a_numbered_publish_is_followed_too(followed: Followed) -> None:
    rig = followed.rig
    publisher = rig.broker.topic_or_new("orders").publisher
    for _ in range(2):  # the second time as a duplicate, which appends nothing
        publisher.publish_sequenced([b"p", b"p"], [b"x", b"y"], [SAMPLED, b""], [1, 2])
        rig.loop.drain()
    assert followed.names() == ["publish orders", "store orders"]


def test_after_a_restart_a_delivery_hangs_on_the_same_span(followed: Followed) -> None:
    rig = followed.rig
    rig.publish("orders", b"x", headers=SAMPLED)
    followed.exporter.clear()
    rig.reopen()
    assert rig.take(rig.subscribe("orders", start="1")) == [(1, 1)]
    assert followed.tree() == {"deliver orders": SPAN}


def test_a_publish_that_was_not_stored_says_why(followed: Followed) -> None:
    rig = followed.rig
    rig.disk.fail("sync", 1, 5)
    rig.publish("orders", b"x", headers=SAMPLED)
    (publish,) = followed.spans()
    assert publish.name == "publish orders"
    assert (publish.attributes or {})["error.type"] == "STORAGE_FAILED"


@pytest.mark.parametrize("last", [3, 1 << 60], ids=["by id", "by what is out"])
def test_an_ack_ends_what_it_names(followed: Followed, last: int) -> None:
    rig = followed.rig
    rig.publish("orders", *[b"x"] * 5, headers=SAMPLED)
    other = rig.subscribe("orders", "other")
    rig.take(other)
    rig.take(rig.subscribe("orders"))
    rig.broker.topic("orders").ack("c", [(1, 1), (3, last)])
    acked = [(span.attributes or {})["messaging.message.id"] for span in followed.spans() if span.name == "ack orders"]
    assert acked == ["1", "3"] if last == 3 else ["1", "3", "4", "5"]


def test_more_than_the_budget_is_left_out_and_said_once(followed: Followed, caplog: pytest.LogCaptureFixture) -> None:
    rig = followed.rig
    publisher = rig.broker.topic_or_new("orders").publisher
    with caplog.at_level(logging.WARNING, "toymq_py.tracing"):
        publisher.publish([b""] * (BURST + 50), [b"x"] * (BURST + 50), [SAMPLED] * (BURST + 50))
        assert len(caplog.records) == 1
        rig.loop.drain()
        assert followed.names().count("publish orders") == BURST
        rig.clock.advance(BURST / FOLLOWED_PER_S)
        publisher.publish([b""] * (BURST + 50), [b"x"] * (BURST + 50), [SAMPLED] * (BURST + 50))
        rig.loop.drain()
    assert followed.names().count("publish orders") == 2 * BURST
    assert [record.getMessage() for record in caplog.records] == [
        f"sampled messages have no publish span (1 by now): {FOLLOWED_PER_S} a second is the limit"
    ], "not a line for each"
    assert rig.numbers("orders")["messages"] == 1 + 2 * (BURST + 50), "all the same they are stored"


def test_what_is_out_with_consumers_is_bounded(followed: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "LEASED_MAX", 2)
    rig = followed.rig
    rig.publish("orders", *[b"x"] * 3, headers=SAMPLED)
    rig.take(rig.subscribe("orders", start="1"))
    rig.ack("orders", 1, 3)
    acked = [(span.attributes or {})["messaging.message.id"] for span in followed.spans() if span.name == "ack orders"]
    assert acked == ["2", "3"]


class ToldExporter(SpanExporter):
    """An exporter that answers what the test sets, and takes its time."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.result = SpanExportResult.SUCCESS
        self.takes_s = 0.0
        self.asked = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.asked += 1
        self._clock.advance(self.takes_s)
        return self.result


def test_a_collector_that_hangs_does_not_hold_the_end() -> None:
    clock = FakeClock()
    collector = ToldExporter(clock)
    bounded = BoundedExporter(collector, clock)
    collector.result, collector.takes_s = SpanExportResult.FAILURE, EXPORT_TIMEOUT_S
    assert [bounded.export(()) for _ in range(2)] == [SpanExportResult.FAILURE] * 2
    assert collector.asked == 2, "while the broker runs each batch is tried"
    bounded.closing()
    assert [bounded.export(()) for _ in range(9)] == [SpanExportResult.FAILURE] * 9
    assert collector.asked == 2, "at the end not even one more"


def test_a_collector_that_is_slow_gets_what_fits() -> None:
    clock = FakeClock()
    collector = ToldExporter(clock)
    bounded = BoundedExporter(collector, clock)
    bounded.closing()
    collector.takes_s = EXPORT_TIMEOUT_S * 0.6
    results = [bounded.export(()) for _ in range(9)]
    assert results == [SpanExportResult.SUCCESS] * 2 + [SpanExportResult.FAILURE] * 7


def test_without_a_tracer_nothing_looks_into_headers() -> None:
    rig = BrokerRig()
    rig.publish("orders", b"x", headers=SAMPLED)
    topic = rig.broker.topic("orders")
    assert not isinstance(topic, TracedTopic)
    assert topic.publisher.tracer is None


def test_the_histograms_name_messages_that_are_followed(followed: Followed) -> None:
    """A slow bucket leads to a trace: that of publishes to a publish's span, that of syncs to a sync's."""
    metrics = followed.rig.broker.metrics
    followed.rig.publish("orders", b"no span asks for this one")
    assert metrics.publish_seconds.exemplars == {} == metrics.fsync_seconds.exemplars
    followed.rig.publish("orders", b"x", headers=SAMPLED)
    spans = {span.name: f"{span.context.span_id:016x}" for span in followed.spans()}
    for histogram, name in ((metrics.publish_seconds, "publish orders"), (metrics.fsync_seconds, "store orders")):
        ((place, exemplar),) = histogram.exemplars.items()
        assert (exemplar.value, exemplar.trace_id, exemplar.span_id) == (SYNC_S, TRACE, spans[name])
        assert histogram.counts[place] > 0, "it lies in a bucket that has something"
