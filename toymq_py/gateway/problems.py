"""Errors as ``application/problem+json`` (RFC 9457), with the error codes of the TCP protocol.

Contract: gateway.md; protocol.md, "Errors"."""

import json

from starlette.responses import Response

from toymq_py.errors import IsPartitioned, LineTooLong, RequestError, TooManyConnections

STATUS: dict[str, int] = {
    "UNKNOWN_COMMAND": 404,
    "BAD_ARGUMENT": 422,
    "BAD_NAME": 422,
    "LINE_TOO_LONG": 431,
    "BAD_FRAMING": 400,
    "NOT_TCP": 400,
    "PAYLOAD_TOO_LARGE": 413,
    "AUTH_REQUIRED": 401,
    "AUTH_FAILED": 401,
    "BAD_VERSION": 426,
    "FORBIDDEN": 403,
    "NO_SUCH_TOPIC": 404,
    "NO_SUCH_CONSUMER": 404,
    "EXISTS": 409,
    "PARTITIONED": 409,
    "ALREADY_SUBSCRIBED": 409,
    "NOT_SUBSCRIBED": 404,
    "NOT_LEASED": 404,
    "NO_SUCH_WEBHOOK": 404,
    "NO_SUCH_ALERT": 404,
    "NO_SUCH_CONNECTION": 404,
    "MODE_CONFLICT": 409,
    "OUT_OF_RANGE": 416,
    "QUEUE_FULL": 429,
    "TOO_MANY_SEARCHES": 429,
    "OUT_OF_SEQUENCE": 409,
    "TOO_MANY_TOPICS": 409,
    "TOO_MANY_CONSUMERS": 409,
    "TOO_MANY_SUBSCRIPTIONS": 409,
    "DISK_LOW": 507,
    "DISK_FULL": 507,
    "STORAGE_FAILED": 503,
    "TIER_AWAY": 503,
    "TIER_BEHIND": 507,
    "TOO_MANY_CONNECTIONS": 503,
    "SHUTTING_DOWN": 503,
    "NOT_ENOUGH_REPLICAS": 503,
    "NOT_LEADER": 503,
    "MOVED": 421,
    "PLACEMENT_UNKNOWN": 503,
    "TOO_SLOW": 408,
    "UNKNOWN_CODING": 415,
    "UNKNOWN_EXPECTATION": 417,
    "INTERNAL": 500,
}
"""HTTP status by code: the wire's and the gateway's own."""

WEBSOCKET_VERSION = "13"

RETRY_AFTER_S = {"QUEUE_FULL": 1, "TOO_MANY_SEARCHES": 1, "DISK_LOW": 10, "DISK_FULL": 10, "STORAGE_FAILED": 10,
                 "TIER_AWAY": 10, "TIER_BEHIND": 10,
                 "TOO_MANY_CONNECTIONS": 1, "SHUTTING_DOWN": 1, "NOT_ENOUGH_REPLICAS": 1, "NOT_LEADER": 1,
                 "PLACEMENT_UNKNOWN": 1}  # fmt: skip
"""``Retry-After`` by code: short for what consumers resolve, longer for what an operator must."""


class MethodNotAllowed(RequestError):
    """The path does not support the method: 405, with the TCP protocol's code for an unknown command."""

    code = "UNKNOWN_COMMAND"

    def __init__(self, text: str, allowed: str) -> None:
        super().__init__(text)
        self.allowed = allowed


class UpgradeRequired(RequestError):
    """A request to a WebSocket path without an upgrade, or with another version of WebSocket: 426, with the TCP protocol's code
    for an unsupported version (RFC 9110, 15.5.22; RFC 6455, 4.4)."""

    code = "BAD_VERSION"


class UnsupportedVersion(RequestError):
    """An unsupported version of HTTP: 505, with the TCP protocol's code for an unsupported version (RFC 9110, 15.6.6)."""

    code = "BAD_VERSION"


class TargetTooLong(LineTooLong):
    """A request target beyond the limit: 414, with the TCP protocol's code for a line that is too long (RFC 9110, 15.5.15)."""


class NotLeased(RequestError):
    """A message is not leased to the consumer. The TCP protocol answers ``OK 0``, HTTP answers 404 (gateway.md)."""

    code = "NOT_LEASED"


class NoSuchWebhook(RequestError):
    """No webhook has this name. The error code is the gateway's own."""

    code = "NO_SUCH_WEBHOOK"


class NoSuchAlert(RequestError):
    """No alert rule has this name. The error code is the gateway's own."""

    code = "NO_SUCH_ALERT"


class NoSuchConnection(RequestError):
    """No open connection has this id. The error code is the gateway's own."""

    code = "NO_SUCH_CONNECTION"


class TooManySearches(RequestError):
    """Too many searches wait, for the token, the address or the broker. The error code is the gateway's own."""

    code = "TOO_MANY_SEARCHES"
    retryable = True


class TooSlow(RequestError):
    """A request arrived too slowly: 408 (RFC 9110, 15.5.9). The code is the gateway's own."""

    code = "TOO_SLOW"


class UnknownCoding(RequestError):
    """A compressed or otherwise coded body, which would be stored as it is: 415. The code is the gateway's own."""

    code = "UNKNOWN_CODING"


class UnknownExpectation(RequestError):
    """An ``Expect`` other than ``100-continue``: 417 (RFC 9110, 10.1.1). The code is the gateway's own."""

    code = "UNKNOWN_EXPECTATION"


def status_of(error: RequestError) -> int:
    """HTTP status of an error."""
    if isinstance(error, UnsupportedVersion):
        return 505
    if isinstance(error, TargetTooLong):
        return 414
    return 405 if isinstance(error, MethodNotAllowed) else STATUS[error.code]


def headers_of_refusal(error: RequestError, status: int, retry_after_s: int | None = None) -> dict[str, str]:
    """Headers of an error response; by default with the ``Retry-After`` of the error's code.

    A body that is too large is not read: its rest is dropped for a moment, then the connection closes (``http_protocol.py``).
    """
    headers = {"cache-control": "no-store"}
    retry_after_s = retry_after_s or RETRY_AFTER_S.get(error.code)
    if retry_after_s is not None:
        headers["retry-after"] = str(retry_after_s)
    if isinstance(error, MethodNotAllowed):
        headers["allow"] = error.allowed
    if isinstance(error, UpgradeRequired):
        headers |= {"upgrade": "websocket", "connection": "Upgrade", "sec-websocket-version": WEBSOCKET_VERSION}
    if isinstance(error, UnknownCoding):
        headers["accept-encoding"] = "identity"  # RFC 9110, 15.5.16
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, TooManyConnections) and error.fatal:
        headers["connection"] = "close"
    return headers


def problem(error: RequestError, *, status: int | None = None, retry_after_s: int | None = None) -> Response:
    """The response to an error; by default with the status and ``Retry-After`` of the error's code."""
    code, status = error.code, status or status_of(error)
    headers = headers_of_refusal(error, status, retry_after_s)
    detail = f"{error}; in a path # is written %23" if isinstance(error, IsPartitioned) else str(error)
    content = {"type": f"urn:toymq:error:{code}", "title": code.replace("_", " ").capitalize(), "status": status,
               "code": code, "detail": detail}  # fmt: skip
    return Response(json.dumps(content), status, headers, "application/problem+json")
