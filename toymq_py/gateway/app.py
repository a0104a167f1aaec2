"""The ASGI application: one endpoint for each path; an error is a problem document with the code of the TCP protocol.

Contract: gateway.md; ADR 0024 (which browsers may call what).
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

from starlette.convertors import PathConvertor, register_url_convertor
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route, Router, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from toymq_py.auth import audit
from toymq_py.disk_errors import BeingExamined, storage_error
from toymq_py.errors import BadArgument, Forbidden, InternalError, RequestError, UnknownCommand
from toymq_py.gateway import (
    alert_operations,
    amqp_operations,
    answer_room,
    broker_operations,
    connection_operations,
    consumer_operations,
    events,
    health,
    history_operations,
    login,
    message_operations,
    metrics,
    mq,
    pages,
    poll_operations,
    publish_operations,
    search_operations,
    settings_operations,
    tinymq,
    topic_operations,
    webhook_operations,
    websocket,
)
from toymq_py.gateway.access import (
    REQUEST,
    audit_new_topic,
    audit_request,
    check_again,
    check_rights,
    check_site,
    identify,
    refused,
    topics_made_by,
)
from toymq_py.gateway.bodies import WHEN_WHOLE, seat_of
from toymq_py.gateway.forwarding import Forwarding
from toymq_py.gateway.http_request import HttpRequest
from toymq_py.gateway.operations import Operation
from toymq_py.gateway.partition_paths import PartitionPaths
from toymq_py.gateway.problems import MethodNotAllowed, problem
from toymq_py.gateway.request_context import Gateway
from toymq_py.net.host_names import AllowedHosts

logger = logging.getLogger("toymq_py.gateway")

OPERATIONS: tuple[Operation, ...] = (
    *publish_operations.OPERATIONS,
    *topic_operations.OPERATIONS,
    *settings_operations.OPERATIONS,
    *poll_operations.OPERATIONS,
    *consumer_operations.OPERATIONS,
    *message_operations.OPERATIONS,
    *search_operations.OPERATIONS,
    *events.OPERATIONS,
    *websocket.OPERATIONS,
    *webhook_operations.OPERATIONS,
    *alert_operations.OPERATIONS,
    *connection_operations.OPERATIONS,
    *amqp_operations.OPERATIONS,
    *broker_operations.OPERATIONS,
    *history_operations.OPERATIONS,
    *login.OPERATIONS,
    *health.OPERATIONS,
    *metrics.OPERATIONS,
)
"""All operations of the API."""
CLEAR = ("http", "ws")
"""The schemes without TLS."""
DIALECTS: Mapping[str, tuple[Operation, ...]] = {"mq": mq.OPERATIONS, "tinymq": tinymq.OPERATIONS}


class Slashes(PathConvertor):
    """A path convertor for any text. Starlette's ``path`` excludes line breaks, but a name with one should get BAD_NAME."""

    regex = r"[\s\S]*"


register_url_convertor("slashes", Slashes())


class Endpoint:
    """All methods of one path. An ASGI application."""

    def __init__(self, gateway: Gateway, operations: Iterable[Operation]) -> None:
        self._gateway = gateway
        self._by_method = {operation.method: operation for operation in operations}
        self._queries = {
            method: frozenset(parameter.name for parameter in operation.parameters if parameter.where == "query")
            for method, operation in self._by_method.items()
        }
        if "GET" in self._by_method and self._by_method["GET"].safe:
            self._by_method["HEAD"] = self._by_method["GET"]
            self._queries["HEAD"] = self._queries["GET"]

    def is_brief(self, method: str) -> bool:
        """Whether ``respond`` can run without a task for this method: it waits for the disk at most."""
        operation = self._by_method.get(method)
        return operation is not None and operation.brief

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self.respond(HttpRequest(scope, receive, send))
        if scope["method"] == "HEAD" and isinstance(response, StreamingResponse):
            response.body_iterator = _nothing()  # it would be read into nothing, and never end
        if response is not None:
            await response(scope, receive, send)

    def _find(self, request: Request) -> Operation:
        """Find the operation of a request. Raises: MethodNotAllowed."""
        operation = self._by_method.get(request.method)
        if operation is None:
            allowed = ", ".join(self._by_method)
            raise MethodNotAllowed(f"{request.method} is not supported on this path: use {allowed}", allowed)
        return operation

    def _check(self, operation: Operation, request: Request) -> None:
        """Check site, rights and query parameters. Raises: AuthRequired, AuthFailed, Forbidden, BadArgument."""
        check_site(self._gateway, request, safe=operation.safe)
        if self._gateway.authority is not None:
            topic = check_rights(self._gateway, request, operation.needs, partial(_topic_of, operation, request))
            if operation.needs is not None:
                request.scope[WHEN_WHOLE] = partial(check_again, self._gateway, request, operation.needs, topic)
        if request.scope["query_string"]:
            known = self._queries[request.method]
            if not known:
                raise BadArgument("unknown parameter: this request takes none behind its ?")
            query = request.query_params
            for name in query:
                if name not in known:
                    raise BadArgument(f"unknown parameter {name[:100]!a}: use {', '.join(sorted(known))}")
                if len(query.getlist(name)) > 1:
                    raise BadArgument(f"parameter {name} is given more than once")

    async def respond(self, request: Request) -> Response | None:
        """Carry out a request. Returns: None when the client is gone."""
        gateway, operation = self._gateway, None
        made: list[str] = []
        refuse: Callable[[RequestError], Response] = problem
        try:
            operation = self._find(request)
            refuse = operation.refuse
            owner = _owner_of(request)
            self._check(operation, request)
            if _owner_of(request) is not owner:  # what it asks for is in the token's share, and no longer in its address's
                await gateway.waiting.turn()
                if operation.safe and _has_left(request):
                    return None
            if operation.safe:
                response = await _handle(operation, gateway, request)
                answer_room.check(request, response)
            else:
                with topics_made_by(request) as made:
                    response = await _handle(operation, gateway, request)
        except RequestError as error:
            refusal = error.bare()
        except ClientDisconnect:
            return None
        except OSError as error:
            if not isinstance(error, BeingExamined):  # which passes, and is said to the client alone
                logger.error("%s %s failed: %s", request.method, request.url.path, error)  # noqa: TRY400 (the disk, not us)
            refusal = storage_error(error)
        except Exception:
            logger.exception("bug in %s %s", request.method, request.url.path)
            refusal = InternalError()
        else:
            if operation.changes and not (operation.makes_topic and made):
                audit_request(request, operation.name, audit.OK if response.status_code < 400 else str(response.status_code))
            return response
        gateway.broker.metrics.refused(refusal.code)
        has_line = operation is not None and operation.makes_topic and made
        if operation is not None and not has_line and (operation.changes or refusal.code in audit.REFUSED):
            audit_request(request, operation.name, refusal)
        return refuse(refusal)


def _owner_of(request: Request) -> object:
    """The token or address in whose share of the event loop's turns the request runs."""
    seat = seat_of(request)
    return None if seat is None else seat.holder


def _has_left(request: Request) -> bool:
    seat = seat_of(request)
    return seat is not None and seat.left


def _topic_of(operation: Operation, request: Request) -> str:
    """The topic that the request needs rights for: the parameter that the operation names, else the path's ``topic``."""
    found = None if operation.topic is None else operation.topic.of(request)
    return request.path_params.get("topic", "") if found is None else found


async def _handle(operation: Operation, gateway: Gateway, request: Request) -> Response:
    """Run the handler. While a segment that it needs is examined for damage, or fetched, a GET waits and others are refused."""
    while True:
        try:
            return await operation.handler(gateway, request)
        except BeingExamined as busy:
            if request.method != "GET" or busy.problem is not None:
                raise
            examined = asyncio.Event()
            busy.when_done(examined.set)
            await examined.wait()


class Application:
    """The routes. A check of the header ``Host``, which every request must pass, comes before them."""

    def __init__(self, gateway: Gateway, *, hosts: AllowedHosts | None, dialects: Sequence[str] = ()) -> None:
        """
        Args:
            hosts: names accepted in ``Host``; None for all. With tokens and TLS all are.
            dialects: HTTP APIs of other message queues to serve, too; keys of ``DIALECTS``.
        """
        operations = (*OPERATIONS, *chain.from_iterable(DIALECTS[name] for name in dialects))
        self._gateway = gateway
        self._hosts = hosts
        self._partitions = PartitionPaths(gateway)
        self.forwarding = Forwarding(gateway) if gateway.broker.placement.addresses else None
        gateway.broker.on_topic_created = audit_new_topic
        by_path: dict[str, list[Operation]] = defaultdict(list)
        for operation in operations:
            by_path[operation.path].append(operation)
        routes: list[Route | WebSocketRoute] = [*pages.routes(operations)]
        routes += [Route(path, endpoint=Endpoint(gateway, found)) for path, found in by_path.items()]
        routes.append(websocket.route(gateway))
        if "tinymq" in dialects:
            routes.append(tinymq.route(gateway))
        routes.sort(key=lambda route: _place(route.path))
        self._router: ASGIApp = Router(routes, redirect_slashes=False, default=_no_such_path)
        self._by_depth = {
            depth: [route for route in routes if route.path.count("/") == depth or ":slashes}" in route.path]
            for depth in {route.path.count("/") for route in routes}
        }
        """The routes that a path with so many slashes may match, in their order: most routes are not looked at."""

    def identify(self, request: HttpRequest) -> bool:
        """Count a new connection for the token of its first request (``access.identify``)."""
        return identify(self._gateway, request)

    def answer_of(self, request: HttpRequest) -> Coroutine[Any, Any, Response | None] | None:
        """The answer to a request of an operation that needs no task (``is_brief``), run without ASGI. None for other requests,
        and for those that are refused before routing: call the application for these."""
        scope = request.scope
        path, method = scope["path"], scope["method"]
        if path.endswith("\n") or not self._is_allowed(scope["scheme"], request.headers):
            return None
        self._partitions.rewrite(scope)
        path = scope["path"]
        if self.forwarding is not None and self.forwarding.place(scope) is not None:
            return None
        for route in self._by_depth.get(path.count("/"), ()):
            if (found := route.path_regex.match(path)) is not None:
                endpoint, convertors = route.endpoint, route.param_convertors
                if not isinstance(endpoint, Endpoint) or not endpoint.is_brief(method):
                    return None
                scope["path_params"] = {name: convertors[name].convert(text) for name, text in found.groupdict().items()}
                return endpoint.respond(request)
        return None

    def _is_allowed(self, scheme: str, headers: Headers) -> bool:
        if self._hosts is None or (scheme not in CLEAR and self._gateway.authority is not None):
            return True
        return self._hosts.allow(headers.get("host"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._is_allowed(scope["scheme"], Headers(scope=scope)):
            error = Forbidden("Host is not allowed: use localhost or an address, or start the broker with --allowed-host NAME")
            refused(self._gateway, HTTPConnection(scope), REQUEST, error)
            await problem(error)(scope, receive, send)
            return
        if scope["path"].endswith("\n"):  # the ``$`` of the routes matches before it: another path would be served
            await _no_such_path(scope, receive, send)
            return
        self._partitions.rewrite(scope)
        if self.forwarding is not None and (worker := self.forwarding.place(scope)) is not None:
            await self.forwarding.forward(worker, scope, receive, send)
            return
        await self._router(scope, receive, send)


def _place(path: str) -> int:
    """The sort key of a route. ``{id}`` would also match ``7:nack``, and ``/{q}`` any path, so they come last. Publish and
    lease, the most frequent, come first by their order in ``OPERATIONS``."""
    if path.startswith("/{"):
        return 4
    last = path.rpartition("/")[2]
    if "{" not in last:
        return 0 if path.startswith("/v1/topics/") else 3
    return 1 if ":" in last.replace(":slashes}", "}") else 2


async def _nothing() -> AsyncIterator[bytes]:
    """The body of an answer to HEAD."""
    return
    yield b""


async def _no_such_path(scope: Scope, receive: Receive, send: Send) -> None:
    await problem(UnknownCommand("no such path: /docs lists the API"))(scope, receive, send)
