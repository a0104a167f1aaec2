"""Whether the process lives, and whether it should be sent work. Contract: clients.md, "Operations"."""

from starlette.requests import Request
from starlette.responses import Response

from toymq_py.gateway.operations import Answer, Operation
from toymq_py.gateway.request_context import Gateway
from toymq_py.gateway.topic_operations import json_response
from toymq_py.version import __version__

FSYNC_P99_S_MAX = 1.0
"""A disk that takes longer than this for one sync in a hundred serves nobody well."""
NAMED_MAX = 10
"""Of many topics in trouble, so many are named."""


async def healthz(gateway: Gateway, request: Request) -> Response:
    """``GET /healthz``."""
    uptime_s = gateway.broker.stats()["uptime_s"]
    return json_response({"status": "ok", "version": __version__, "uptime_seconds": uptime_s})


def unready(gateway: Gateway) -> list[str]:
    """Why no work should be sent here; nothing when it should."""
    broker = gateway.broker
    reasons = []
    if broker.shutting_down or gateway.waiting.stopped:
        reasons.append("it is shutting down")
    bad = sorted({*broker.unopened, *(topic.name for topic in broker.topics.values() if topic.state != "ok")})
    if bad and gateway.authority is not None:
        reasons.append(f"{len(bad)} topics are degraded or failed")  # whoever asks has shown no token: no names
    elif bad:
        named = ", ".join(bad[:NAMED_MAX]) + (f" and {len(bad) - NAMED_MAX} more" if len(bad) > NAMED_MAX else "")
        reasons.append(f"degraded or failed: {named}")
    stats = broker.stats()
    if stats["disk_low"]:
        reasons.append("the disk is low")
    if stats["fsync_p99_s"] > FSYNC_P99_S_MAX:
        reasons.append(f"one sync in a hundred takes {stats['fsync_p99_s']:.1f} s")
    return reasons


async def readyz(gateway: Gateway, request: Request) -> Response:
    """``GET /readyz``."""
    reasons = unready(gateway)
    return json_response({"status": "unready" if reasons else "ready", "reasons": reasons}, 503 if reasons else 200)


READINESS = {"type": "object", "properties": {"status": {"enum": ["ready", "unready"]},
             "reasons": {"type": "array", "items": {"type": "string"}}}}  # fmt: skip
OPERATIONS = (
    Operation("GET", "/healthz", "health", "The process answers.", healthz, None,
              answers={200: Answer("It does.", {"type": "object"})}, safe=True),
    Operation("GET", "/readyz", "readiness", "Whether work should be sent here.", readyz, None,
              answers={200: Answer("Yes.", READINESS), 503: Answer("No, and why.", READINESS)}, safe=True),
)  # fmt: skip
