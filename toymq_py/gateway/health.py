"""Liveness and readiness. Contract: clients.md, "Operations"."""

from starlette.requests import Request
from starlette.responses import Response

from toymq_py.gateway.operations import Answer, Operation
from toymq_py.gateway.request_context import Gateway
from toymq_py.gateway.topic_operations import json_response
from toymq_py.names import some_of
from toymq_py.units import counted
from toymq_py.version import __version__

FSYNC_P99_S_MAX = 1.0
"""The broker is not ready when the 99th percentile of fsync is longer."""
LEASE_OVER = "its lease is over: another node may lead"
NAMED_MAX = 10
"""Most topics that the reason names."""


async def healthz(gateway: Gateway, request: Request) -> Response:
    """``GET /healthz``. ``cluster.standby`` answers for a node that follows."""
    stats = gateway.broker.stats()
    role = {"role": "leader", "epoch": stats["cluster"]["epoch"]} if "cluster" in stats else {}
    return json_response({"status": "ok", "version": __version__, "uptime_seconds": stats["uptime_s"], **role})


async def leader(gateway: Gateway, request: Request) -> Response:
    """``GET /leader``: 200 while this broker serves and no other node can lead. A follower of a cluster answers 503
    (``cluster.standby``)."""
    if may_be_followed(gateway):
        return json_response({"role": "leader", "reason": LEASE_OVER}, 503)
    return json_response({"role": "leader"})


def may_be_followed(gateway: Gateway) -> bool:
    """Whether this leader's lease has ended by its own clock: it cannot reach etcd, and another node may lead."""
    return gateway.clock.monotonic() >= gateway.broker.permit.until_s


def unready(gateway: Gateway) -> list[str]:
    """Reasons why a load balancer should send no work here; [] when it is ready."""
    broker = gateway.broker
    reasons = []
    if broker.shutting_down or gateway.waiting.stopped:
        reasons.append("the broker is shutting down")
    if may_be_followed(gateway):
        reasons.append(LEASE_OVER)
    bad = sorted({*broker.unopened, *(topic.name for topic in broker.topics.values() if topic.state != "ok")})
    if bad and gateway.authority is not None:
        reasons.append(counted(len(bad), "topic", "are degraded or failed"))  # the probe has no token: no names
    elif bad:
        reasons.append(f"degraded or failed: {some_of(bad, NAMED_MAX)}")
    stats = broker.stats()
    if stats["disk_low"]:
        reasons.append("the disk is low")
    elif broker.space.is_full():
        reasons.append("the disk is full")
    if stats["fsync_p99_s"] > FSYNC_P99_S_MAX:
        reasons.append(f"one sync in a hundred takes {stats['fsync_p99_s']:.1f} s")
    return reasons


async def readyz(gateway: Gateway, request: Request) -> Response:
    """``GET /readyz``."""
    reasons = unready(gateway)
    return json_response({"status": "unready" if reasons else "ready", "reasons": reasons}, 503 if reasons else 200)


READINESS = {"type": "object", "properties": {"status": {"enum": ["ready", "unready"]},
             "reasons": {"type": "array", "items": {"type": "string"}}}}  # fmt: skip
OPERATIONS: tuple[Operation, ...] = (
    Operation("GET", "/healthz", "health", "The process answers.", healthz, None,
              answers={200: Answer("It does.", {"type": "object"})}, safe=True),
    Operation("GET", "/leader", "leader", "Whether this node leads: for load balancers in front of a cluster.", leader, None,
              answers={200: Answer("It does, or is in no cluster.", {"type": "object"}),
                       503: Answer("It follows, or its lease is over.", {"type": "object"})}, safe=True),
    Operation("GET", "/readyz", "readiness", "Whether work should be sent here.", readyz, None,
              answers={200: Answer("Yes.", READINESS), 503: Answer("No, and why.", READINESS)}, safe=True),
)  # fmt: skip
