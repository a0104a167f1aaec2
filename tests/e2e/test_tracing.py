"""A trace from a publishing process through the broker to a consuming one is one tree."""

import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased

import toymq
from tests.support.broker_process import TIMEOUT_S, BrokerProcess, environment
from tests.support.collector import collecting
from tests.support.http_rig import gateway
from tests.support.in_process import serving
from toymq import sync
from toymq.tracing import Tracing
from toymq_py.clock import SystemClock
from toymq_py.config.options import ServeOptions
from toymq_py.observability.tracing import OpenTelemetryTracer

PROCESS = """
import sys
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from toymq import sync
from toymq.tracing import Tracing

service, url, endpoint = sys.argv[1:]
provider = TracerProvider(resource=Resource({"service.name": service}))
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint + "/v1/traces")))
with sync.connect(url, tracing=Tracing(provider)) as mq:
    if service == "shop":
        with provider.get_tracer("shop").start_as_current_span("checkout"):
            mq.pub("orders", b"hello", headers={"color": "red"})
    else:
        with mq.sub("orders", "billing") as messages, messages.next(timeout=10).process() as message:
            assert message.headers["color"] == "red"
            with provider.get_tracer("billing").start_as_current_span("charge"):
                pass
provider.shutdown()
"""


def test_three_processes_make_one_tree(tmp_path: Path) -> None:
    with collecting() as collector, BrokerProcess(tmp_path / "d", "--otlp-endpoint", collector.endpoint) as broker:
        for service in ("shop", "billing"):
            arguments = [sys.executable, "-c", PROCESS, service, f"toymq://127.0.0.1:{broker.port}", collector.endpoint]
            done = subprocess.run(
                arguments, env=environment(), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            )
            assert done.returncode == 0, done.stderr
        broker.stop()
        assert broker.ended() == (0, "")
        spans = collector.spans
    assert len({span.trace_id for span in spans}) == 1, f"one trace was expected: {spans}"
    names = {span.span_id: f"{span.service}: {span.name}" for span in spans}
    assert len(names) == len(spans)
    assert {names[span.span_id]: names.get(span.parent, "none") for span in spans} == {
        "shop: checkout": "none",
        "shop: publish orders": "shop: checkout",
        "toymq: publish orders": "shop: publish orders",
        "toymq: store orders": "toymq: publish orders",
        "toymq: deliver orders": "shop: publish orders",
        "toymq: ack orders": "toymq: deliver orders",
        "billing: process orders": "shop: publish orders",
        "billing: charge": "billing: process orders",
    }


def test_a_collector_that_is_away_changes_nothing(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "d", "--otlp-endpoint", "http://127.0.0.1:1") as broker:
        provider = TracerProvider()
        with sync.connect(f"toymq://127.0.0.1:{broker.port}", tracing=Tracing(provider)) as mq:
            assert [receipt.msg_id for receipt in mq.pub_many("orders", [b"x"] * 200)] == list(range(200))
        provider.shutdown()
        began = time.perf_counter()
        assert broker.stop() == 0
        assert time.perf_counter() - began < TIMEOUT_S / 2, "the end waits for the collector 2 s at most"


def test_without_the_extra_one_line_says_so(tmp_path: Path) -> None:
    program = "import sys; sys.modules['opentelemetry'] = None; from toymq_py.cli import main; main()"
    arguments = ["serve", "--data-dir", str(tmp_path / "d"), "--listen", "127.0.0.1:0", "--otlp-endpoint", "http://127.0.0.1:1"]
    done = subprocess.run([sys.executable, "-c", program, *arguments], env=environment(), capture_output=True, text=True,
                          timeout=TIMEOUT_S, check=False)  # fmt: skip
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("toymq: --otlp-endpoint needs opentelemetry")
    assert line.endswith("pip install '.[observability]'")


@pytest.mark.parametrize("endpoint", ["localhost:4318", "ftp://h", "http://", "http://h:99999", "http://u:p@h", "http://h/ x"])
def test_an_endpoint_that_is_none_is_refused(endpoint: str) -> None:
    with pytest.raises(toymq.ConfigError, match=r"otlp_endpoint: .* is not an endpoint: write http://host:port"):
        ServeOptions(otlp_endpoint=endpoint)


# -- the client by itself


class Spans:
    """Collects the spans of a client."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracing = Tracing(self.provider)

    def of(self, name: str) -> list[Any]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]


async def test_a_handler_runs_in_a_span_below_the_publish(tmp_path: Path) -> None:
    spans = Spans()
    async with serving(tmp_path) as served, toymq.connect(f"127.0.0.1:{served.port}", tracing=spans.tracing) as mq:
        await mq.pub("orders", b"x")
        async with mq.sub("orders", "c") as messages:
            message = await messages.next(timeout=10)
            assert "traceparent" in message.headers
            inside = None
            with suppress(ValueError):
                async with message.process(retry_delay=0):
                    inside = trace.get_current_span().get_span_context()
                    raise ValueError("no such order")
            assert not trace.get_current_span().get_span_context().is_valid, "the span ended with the block"
            again = await messages.next(timeout=10)
            async with again.process():
                pass
    (publish,), (failed, worked) = spans.of("publish orders"), spans.of("process orders")
    assert publish.attributes["messaging.message.id"] == "0"
    assert failed.context == inside
    assert failed.parent.span_id == worked.parent.span_id == publish.context.span_id
    assert (failed.status.is_ok, worked.status.is_ok) == (False, True)
    assert [event.name for event in failed.events] == ["exception"]
    assert (failed.attributes["toymq.attempt"], worked.attributes["toymq.attempt"]) == (1, 2)


async def test_a_refused_publish_ends_its_span(tmp_path: Path) -> None:
    spans = Spans()
    async with serving(tmp_path) as served, toymq.connect(f"127.0.0.1:{served.port}", tracing=spans.tracing) as mq:
        await mq.create("orders", {"backlog_max_messages": 1})
        await mq.pub("orders", b"x")
        with pytest.raises(toymq.RequestError):
            await mq.pub("orders", b"x")
    stored, refused = spans.of("publish orders")
    assert stored.status.is_ok
    assert (refused.status.is_ok, refused.attributes["error.type"]) == (False, "QUEUE_FULL")


async def test_each_message_of_many_has_a_span_of_its_own(tmp_path: Path) -> None:
    spans = Spans()
    async with serving(tmp_path) as served, toymq.connect(f"127.0.0.1:{served.port}", tracing=spans.tracing) as mq:
        await mq.pub_many("orders", [b"x", (None, b"y", {"color": "red"})])
        async with mq.sub("orders", "c") as messages:
            found = [(await messages.next(timeout=10)).headers for _ in range(2)]
    assert [headers["traceparent"].split("-")[2] for headers in found] == [
        f"{span.context.span_id:016x}" for span in spans.of("create orders")
    ]
    assert [headers.get("color") for headers in found] == [None, "red"]


async def test_what_was_there_already_travels_on(tmp_path: Path) -> None:
    """This process has no tracer provider: nothing is recorded, and the caller's context is passed on."""
    spans = Spans()
    async with serving(tmp_path) as served, toymq.connect(f"127.0.0.1:{served.port}", tracing=Tracing()) as mq:
        with spans.provider.get_tracer("caller").start_as_current_span("request") as request:
            await mq.pub("orders", b"x", headers={"color": "red"})
        async with mq.sub("orders", "c") as messages:
            headers = (await messages.next(timeout=10)).headers
    assert headers["color"] == "red"
    assert headers["traceparent"].split("-")[1:3] == [
        f"{request.get_span_context().trace_id:032x}", f"{request.get_span_context().span_id:016x}"
    ]  # fmt: skip


async def test_a_log_line_about_a_message_has_its_trace(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trace_id, span_id = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    header = f"traceparent: 00-{trace_id}-{span_id}-01\n".encode()
    async with serving(tmp_path) as served:
        wire = await served.connect()

        def broken(name: str) -> None:
            raise OSError(5, "Input/output error")

        served.broker.topic_or_new = broken  # type: ignore[method-assign, assignment]
        answer = await wire.ask(b"PUB orders - %d hdr=%d\n%bx\n" % (len(header) + 1, len(header), header))
        assert answer.startswith(b"ERR STORAGE_FAILED")
        await wire.ask(b"PUB orders - 1\nx\n")
    with_trace, without = [record.__dict__ for record in caplog.records if record.levelname == "ERROR"]
    assert (with_trace["trace_id"], with_trace["span_id"]) == (trace_id, span_id)
    assert "trace_id" not in without


async def test_over_http_a_message_is_followed_too(tmp_path: Path) -> None:
    trace_id, span_id = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler=ParentBased(ALWAYS_OFF), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    async with gateway(tmp_path, tracer=OpenTelemetryTracer(provider, SystemClock(), fsync="always")) as rig:
        for flags in ("01", "00"):
            headers = {"traceparent": f"00-{trace_id}-{span_id}-{flags}"}
            assert (await rig.ask("POST", "/v1/topics/orders/messages", content=b"x", headers=headers)).status_code == 201
        leased = await rig.lease("orders", "billing", max=2)
        assert leased[0]["headers"]["traceparent"] == f"00-{trace_id}-{span_id}-01"
        acked = await rig.ask("POST", "/v1/topics/orders/messages:ack", params={"consumer": "billing"}, json={"ids": ["0-1"]})
        assert acked.status_code == 204
    spans = exporter.get_finished_spans()
    names = {span.context.span_id: span.name for span in spans}
    assert {span.name: names.get(span.parent.span_id, f"{span.parent.span_id:016x}") for span in spans if span.parent} == {
        "publish orders": span_id, "store orders": "publish orders", "deliver orders": span_id, "ack orders": "deliver orders"
    }  # fmt: skip
    assert len(spans) == 4, "the one that is not sampled has none"
