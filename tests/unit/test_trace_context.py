"""``traceparent`` as W3C Trace Context defines it: an invalid value is ignored without an error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toymq_py.trace_context import TraceContext, log_fields, trace_context

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(
    ("headers", "sampled", "state"),
    [
        (f"traceparent: 00-{TRACE}-{SPAN}-01\n", True, ""),
        (f"traceparent:00-{TRACE}-{SPAN}-00\n", False, ""),
        (f"TraceParent: 00-{TRACE}-{SPAN}-03 \r\n", True, ""),
        (f"a: b\ntraceparent: 00-{TRACE}-{SPAN}-01\ntracestate: x=1,y=2\nc: d\n", True, "x=1,y=2"),
        (f"tracestate: x=1\ntraceparent: 00-{TRACE}-{SPAN}-02", False, "x=1"),
        (f"traceparent: 01-{TRACE}-{SPAN}-01-what-a-later-version-adds\n", True, ""),
    ],
)
def test_a_context_is_read(headers: str, sampled: bool, state: str) -> None:
    assert trace_context(headers.encode()) == TraceContext(TRACE, SPAN, sampled, state)
    assert log_fields(headers.encode()) == {"trace_id": TRACE, "span_id": SPAN}


def test_what_is_passed_on_is_read_again() -> None:
    for sampled in (True, False):
        context = TraceContext(TRACE, SPAN, sampled, "")
        assert trace_context(f"traceparent: {context.traceparent}\n".encode()) == context


@pytest.mark.parametrize(
    "headers",
    [
        "",
        "color: red\n",
        f"xtraceparent: 00-{TRACE}-{SPAN}-01\n",
        f"color: traceparent: 00-{TRACE}-{SPAN}-01\n",
        f"traceparent: ff-{TRACE}-{SPAN}-01\n",
        f"traceparent: 00-{TRACE}-{SPAN}-01-more\n",
        f"traceparent: 00-{TRACE.upper()}-{SPAN}-01\n",
        f"traceparent: 00-{TRACE[:-1]}-{SPAN}-01\n",
        f"traceparent: 00-{'0' * 32}-{SPAN}-01\n",
        f"traceparent: 00-{TRACE}-{'0' * 16}-01\n",
        f"traceparent: 00-{TRACE}-{SPAN}-1\n",
        f"traceparent: 00-{TRACE}\n-{SPAN}-01\n",
    ],
)
def test_what_is_not_valid_is_none(headers: str) -> None:
    assert trace_context(headers.encode()) is None
    assert log_fields(headers.encode()) == {}


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_any_bytes_around_it_are_no_error(before: bytes, after: bytes) -> None:
    line = f"traceparent: 00-{TRACE}-{SPAN}-01".encode()
    trace_context(before + after)
    found = trace_context(before.replace(b"parent", b"") + b"\n" + line + b"\n" + after)
    assert found is not None
    assert found[:3] == (TRACE, SPAN, True)
