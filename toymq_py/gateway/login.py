"""The dashboard's login: a token becomes a cookie that scripts cannot read. Contract: gateway.md.

The cookie is the token itself: nothing is kept here, and a token that is taken away logs out.
"""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from toymq_py.auth import Grant
from toymq_py.errors import AuthFailed, BadArgument, BadFraming, PayloadTooLarge
from toymq_py.gateway.access import COOKIE, grant_of
from toymq_py.gateway.bodies import JSON_BYTES_MAX, parse_object, read_body
from toymq_py.gateway.gateway import Gateway
from toymq_py.gateway.operations import Answer, Body, Operation
from toymq_py.gateway.topics import json_response

COOKIE_AGE_S = 30 * 24 * 3600


async def who(gateway: Gateway, request: Request) -> Response:
    """``GET /v1/login``."""
    return json_response(describe(grant_of(request)))


def describe(grant: Grant | None) -> dict[str, Any]:
    """Who somebody is; nobody is needed where there is no authentication."""
    if grant is None:
        return {"required": False, "name": None, "admin": True}
    return {"required": True, "name": grant.name, "admin": grant.admin}


async def login(gateway: Gateway, request: Request) -> Response:
    """``POST /v1/login``."""
    body = parse_object(await read_body(request, JSON_BYTES_MAX))
    if body.keys() != {"token"}:
        raise BadArgument("a login is a token, and nothing else")  # what stands there instead may be one: it is not repeated
    token = body["token"]
    if type(token) is not str or not token.isascii() or not token.isprintable() or any(c in token for c in ' ",;\\'):
        raise BadArgument("token is a text as it is in the hands of its owner")
    grant = None if gateway.authority is None else gateway.authority.find(token)
    if gateway.authority is not None and grant is None:
        raise AuthFailed("this token is not known here")
    response = json_response(describe(grant))
    if grant is not None:
        secure = request.url.scheme == "https"
        response.set_cookie(COOKIE, token, max_age=COOKIE_AGE_S, secure=secure, httponly=True, samesite="strict")
    return response


async def logout(gateway: Gateway, request: Request) -> Response:
    """``DELETE /v1/login``."""
    response = Response(status_code=204)
    response.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return response


WHO = {
    "type": "object",
    "required": ["required", "name", "admin"],
    "properties": {
        "required": {"type": "boolean", "description": "The broker has an auth file."},
        "name": {"type": ["string", "null"]},
        "admin": {"type": "boolean"},
    },
}
OPERATIONS = (
    Operation("GET", "/v1/login", "who", "Who is asking.", who, "see", answers={200: Answer("You are.", WHO)}, safe=True),
    Operation(
        "POST", "/v1/login", "login", "Turn a token into the dashboard's cookie.", login, None,
        body=Body('`{"token": "…"}`', {"application/json": {
            "type": "object", "required": ["token"], "properties": {"token": {"type": "string"}},
        }}),
        answers={200: Answer("The cookie is set, when the broker has an auth file.", WHO)},
        errors=(AuthFailed, BadArgument, BadFraming, PayloadTooLarge),
    ),
    Operation("DELETE", "/v1/login", "logout", "Forget the cookie.", logout, None, answers={204: Answer("It is gone.")}),
)  # fmt: skip
