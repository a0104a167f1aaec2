"""Formats that the dialects share: Go durations, RFC 3339 times. A dialect is the HTTP API of another queue. Contract:
dialects.md."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime

from toymq_py.broker import Broker
from toymq_py.broker_waits import stored
from toymq_py.errors import BadArgument
from toymq_py.units import DURATION_MS_MAX

_GO_DURATION = re.compile(r"(?:\d+(?:\.\d*)?|\.\d+)(?:ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_GO_UNITS_MS = {"ns": 1e-6, "us": 1e-3, "µs": 1e-3, "μs": 1e-3, "ms": 1.0, "s": 1e3, "m": 6e4, "h": 3.6e6}


def go_duration_ms(name: str, text: str) -> int:
    """A Go duration (``1500ms``, ``2m``, ``1h30m``; ``0`` needs no unit) as whole milliseconds, rounded up.

    Raises: BadArgument.
    """
    if text == "0":
        return 0
    total_ms, end = 0.0, 0
    while found := _GO_DURATION.match(text, end):
        unit = found[0].lstrip("0123456789.")
        total_ms += float(found[0].removesuffix(unit)) * _GO_UNITS_MS[unit]
        end = found.end()
    if not text or end < len(text) or total_ms > DURATION_MS_MAX:
        raise BadArgument(f"invalid duration {name} {text[:50]!a}: write 1500ms or 2m, at most ten years")
    return int(-(-total_ms // 1))


def rfc3339(ns: int) -> str:
    """Format Unix nanoseconds as an RFC 3339 time stamp, as Go writes it."""
    at = datetime.fromtimestamp(ns // 1_000_000_000, UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{ns % 1_000_000_000:09d}Z"


async def ensure(broker: Broker, name: str, settings: Mapping[str, str]) -> None:
    """Create a topic with these settings unless it exists. Raises: RequestError."""
    if not broker.has(name):
        await stored(lambda done: broker.create(name, settings, done))

