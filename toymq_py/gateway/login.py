"""The dashboard's login: a token starts a login, whose id is in a cookie that scripts cannot read.

Contract: gateway.md; ADR 0055.
"""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from toymq_py.auth.tokens import Grant
from toymq_py.errors import AuthFailed, BadArgument, BadFraming, PayloadTooLarge
from toymq_py.gateway.access import SECURE_COOKIE, cookie_name, find_login, grant_of
from toymq_py.gateway.bodies import JSON_BYTES_MAX, parse_object, read_body
from toymq_py.gateway.logins import LIFETIME_S
from toymq_py.gateway.operations import Answer, Body, Operation
from toymq_py.gateway.request_context import Gateway
from toymq_py.gateway.topic_operations import json_response


async def show_login(gateway: Gateway, request: Request) -> Response:
    """``GET /v1/login``."""
    return json_response(describe(grant_of(request)))


def describe(grant: Grant | None) -> dict[str, Any]:
    """A token's name and rights as JSON; ``required`` is False when the broker has no tokens."""
    if grant is None:
        return {"required": False, "name": None, "admin": True}
    return {"required": True, "name": grant.name, "admin": grant.admin}


async def login(gateway: Gateway, request: Request) -> Response:
    """``POST /v1/login``."""
    body = parse_object(await read_body(request, JSON_BYTES_MAX))
    if body.keys() != {"token"}:
        raise BadArgument('a login has one member: {"token": "..."}')  # another member may be a token: it is not repeated
    token = body["token"]
    if type(token) is not str or not token.isascii() or not token.isprintable() or " " in token:
        raise BadArgument("token must be a string of printable ASCII characters without space")
    if gateway.authority is None or gateway.logins is None:
        return json_response(describe(None))
    grant = gateway.authority.admit(token)
    response = json_response(describe(grant))
    _end(gateway, request)
    _set_cookie(request, response, gateway.logins.begin(grant), round(LIFETIME_S))
    return response


async def logout(gateway: Gateway, request: Request) -> Response:
    """``DELETE /v1/login``."""
    _end(gateway, request)
    response = Response(status_code=204)
    _set_cookie(request, response, "", 0)
    return response


def _end(gateway: Gateway, request: Request) -> None:
    login = find_login(gateway, request)
    if login is not None and gateway.logins is not None:
        gateway.logins.end(login)


def _set_cookie(request: Request, response: Response, login_id: str, age_s: int) -> None:
    name = cookie_name(request)
    response.set_cookie(name, login_id, max_age=age_s, secure=name == SECURE_COOKIE, httponly=True, samesite="strict")


LOGIN_ANSWER = {
    "type": "object",
    "required": ["required", "name", "admin"],
    "properties": {
        "required": {"type": "boolean", "description": "The broker has an auth file."},
        "name": {"type": ["string", "null"]},
        "admin": {"type": "boolean"},
    },
}
OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "GET", "/v1/login", "who", "The name of the request's token, and whether it has the right admin.", show_login, "see",
        answers={200: Answer("The token.", LOGIN_ANSWER)}, safe=True,
    ),
    Operation(
        "POST", "/v1/login", "login", "Begin a login: the dashboard's cookie has its id.", login, None,
        body=Body('`{"token": "…"}`', {"application/json": {
            "type": "object", "required": ["token"], "properties": {"token": {"type": "string"}},
        }}),
        answers={200: Answer("The cookie is set, when the broker has an auth file.", LOGIN_ANSWER)},
        errors=(AuthFailed, BadArgument, BadFraming, PayloadTooLarge),
    ),
    Operation("DELETE", "/v1/login", "logout", "End the login.", logout, None, answers={204: Answer("It has ended.")}),
)  # fmt: skip
