"""``/metrics``: the exporter of ``observability``, mounted. Contract: clients.md, "Operations"."""

from starlette.requests import Request
from starlette.responses import Response

from toymq_py.gateway.gateway import Gateway
from toymq_py.gateway.operations import Answer, Operation
from toymq_py.observability.prometheus import render


async def metrics(gateway: Gateway, request: Request) -> Response:
    """``GET /metrics``."""
    content, media = await render(gateway.broker, gateway.clock, request.headers.get("accept", ""))
    return Response(content, 200, {"cache-control": "no-store", "content-type": media})


OPERATIONS = (
    Operation("GET", "/metrics", "metrics", "Every metric, for Prometheus (docs/metrics.md).", metrics, "see",
              answers={200: Answer("Exact, now.", {"type": "string"}, "text/plain")}, safe=True),
)  # fmt: skip
