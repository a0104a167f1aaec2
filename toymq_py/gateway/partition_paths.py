"""Routes requests for a partitioned topic to one partition, by rewriting their path. ADR 0184.

    POST /v1/topics/orders/messages ──► /v1/topics/orders%233/messages, by route, group or key

The steps after that, to find the worker, check rights and publish, are the same as for any topic.
"""

from urllib.parse import quote

from starlette.types import Scope

from toymq_py.errors import RequestError
from toymq_py.gateway.headers import headers_of
from toymq_py.gateway.publish_operations import PATH
from toymq_py.gateway.request_context import Gateway

PUBLISH = "/messages"
ROUTED = "toymq.routed"
"""Key in the ASGI scope's ``state``: whether the partition was chosen here, and not named by the client."""


class PartitionPaths:
    """Rewrites the paths of one gateway's requests."""

    def __init__(self, gateway: Gateway) -> None:
        self._partitioned = gateway.broker.partitioned
        self._router = gateway.router

    def rewrite(self, scope: Scope) -> None:
        """Choose the partition of a publish to a partitioned topic."""
        path: str = scope["path"]
        if not self._partitioned.by_name or scope.get("method") != "POST" or not path.endswith(PUBLISH):
            return
        whole = self._partitioned.by_name.get(path.removeprefix(PATH).removesuffix(PUBLISH))
        if whole is None or not path.startswith(PATH):
            return
        found = dict(scope["headers"])
        try:
            block = headers_of(scope["headers"])
        except RequestError:
            return  # which the publish says
        key, route = found.get(b"idempotency-key", b""), found.get(b"x-route", b"")
        name = whole.names[self._router.numbers(whole, [key], routes=[route], blocks=[block])[0]]
        scope.setdefault("state", {})[ROUTED] = True
        scope["path"] = f"{PATH}{name}{PUBLISH}"
        scope["raw_path"] = f"{PATH}{quote(name)}{PUBLISH}".encode()
