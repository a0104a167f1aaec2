"""W3C Trace Context in a message's headers: the trace that it belongs to. Source: https://www.w3.org/TR/trace-context/.

Read only by a tracer, and for log lines about one message. Knows nothing of OpenTelemetry.
"""

import re
from typing import NamedTuple

_TRACEPARENT = re.compile(
    rb"^(?i:traceparent):[ \t]*([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[^\n]*)?[ \t\r]*$", re.MULTILINE
)
_TRACESTATE = re.compile(rb"^(?i:tracestate):[ \t]*([ -~]+?)[ \t\r]*$", re.MULTILINE)
_SAMPLED = 1
_NO_TRACE, _NO_SPAN = b"0" * 32, b"0" * 16


class TraceContext(NamedTuple):
    """The span that a message comes from.

    Attributes:
        trace_id: 32 hex digits.
        span_id: 16 hex digits.
        sampled: whether the trace is to be recorded.
        state: the ``tracestate`` header, "" for none.
    """

    trace_id: str
    span_id: str
    sampled: bool
    state: str

    @property
    def traceparent(self) -> str:
        """The value of the ``traceparent`` header, for the next receiver."""
        return f"00-{self.trace_id}-{self.span_id}-{_SAMPLED if self.sampled else 0:02x}"


def trace_context(headers: bytes) -> TraceContext | None:
    """Parse the trace context of a header block; None when it is missing or invalid, which is not an error."""
    found = _TRACEPARENT.search(headers)
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == b"ff" or (version == b"00" and more) or trace_id == _NO_TRACE or span_id == _NO_SPAN:
        return None
    state = _TRACESTATE.search(headers)
    return TraceContext(
        trace_id.decode(), span_id.decode(), bool(int(flags, 16) & _SAMPLED), state[1].decode() if state else ""
    )


def log_fields(headers: bytes | None) -> dict[str, str]:
    """The ``extra=`` of a log line about a message: ``trace_id`` and ``span_id``, or nothing."""
    context = trace_context(headers) if headers else None
    return {"trace_id": context.trace_id, "span_id": context.span_id} if context is not None else {}
