"""``/metrics`` on the gateway. Contract: clients.md, "Operations"."""

from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from toymq_py.gateway import answer_room
from toymq_py.gateway.access import grant_of, is_internal
from toymq_py.gateway.neighbours import labelled_metrics
from toymq_py.gateway.operations import Answer, Operation
from toymq_py.gateway.request_context import Gateway
from toymq_py.observability.prometheus import render


async def metrics(gateway: Gateway, request: Request) -> Response:
    """``GET /metrics``."""
    grant = grant_of(request)
    sees = grant.sees if grant is not None else lambda _topic: True
    accept = request.headers.get("accept", "")
    if gateway.neighbours is not None and not is_internal(request):
        accept = ""  # of all workers in one format, that without exemplars
    content, media = await render(gateway.broker, gateway.clock, accept, sees, partial(answer_room.grow, request))
    if gateway.neighbours is not None and not is_internal(request):
        content = labelled_metrics(gateway.broker.placement.in_order(content, await gateway.neighbours.ask("/metrics")))
    return Response(content, 200, {"cache-control": "no-store", "content-type": media})


OPERATIONS: tuple[Operation, ...] = (
    Operation("GET", "/metrics", "metrics", "Every metric, for Prometheus (docs/metrics.md).", metrics, "see",
              answers={200: Answer("The present numbers, exact.", {"type": "string"}, "text/plain")}, safe=True),
)  # fmt: skip
