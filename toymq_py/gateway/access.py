"""Who a request comes from and whether it may: tokens, and pages of other sites.

Contract: gateway.md; clients.md, "auth file"; ADR 0024. A token comes as ``Authorization: Bearer``, or as the cookie of the
dashboard's login. The table is asked for every request, so what a reload takes away is gone at once.
"""

from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection

from toymq_py.auth import Authority, Grant
from toymq_py.errors import AuthFailed, AuthRequired, Forbidden
from toymq_py.gateway.operations import Need
from toymq_py.model import check_topic_or_pattern
from toymq_py.quotas import Seat

COOKIE = "toymq_token"
_GRANT = "toymq.grant"
SEAT = "toymq.seat"
"""In the ASGI scope's ``state``: the connection's ``Seat``, which a token makes its own."""


def check_site(connection: HTTPConnection, *, safe: bool) -> None:
    """Refuse what a page of another site sends, in the name of whoever looks at it. Over TLS a page that came without is one:
    anybody on its way may have written it.

    Raises: Forbidden.
    """
    headers = connection.headers
    scheme, _, host = headers.get("origin", "").partition("://")
    over_tls = connection.scope["scheme"] in ("https", "wss")
    if (origin := headers.get("origin")) is not None and (host != headers.get("host") or (over_tls and scheme != "https")):
        raise Forbidden(f"{origin[:200]} is another site than this one")
    if not safe and headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        raise Forbidden("a page of another site may not do this")


def check_rights(
    authority: Authority | None, connection: HTTPConnection, needs: Need | None, topic: str | None = None
) -> None:
    """Find out who asks, and whether they may. ``grant_of`` has the answer from then on.

    Args:
        topic: what is asked for; by default what the path says.

    Raises: AuthRequired, AuthFailed, Forbidden, TooManyConnections.
    """
    if authority is None or needs is None:
        return
    grant = authority.find(_token_of(connection.headers))
    if grant is None:
        raise AuthFailed("this token is not known here")
    seat: Seat | None = connection.scope.get("state", {}).get(SEAT)
    if seat is not None:
        seat.identify(grant.name, admin=grant.admin)
    connection.scope[_GRANT] = grant
    check_grant(grant, needs, topic if topic is not None else connection.path_params.get("topic", ""))


def check_grant(grant: Grant, needs: Need, name: str) -> None:
    """Raises: Forbidden; BadName for what no topic can be called."""
    may = {"publish": grant.may_publish, "subscribe": grant.may_subscribe, "describe": grant.sees}
    if needs in may and not may[needs](name):
        raise Forbidden(f"{grant.name} may not {needs} {check_topic_or_pattern(name)}")
    if needs == "admin" and not grant.admin:
        raise Forbidden(f"{grant.name} is no administrator")


def check_again(authority: Authority | None, connection: HTTPConnection, needs: Need, name: str) -> None:
    """Whether what was allowed when a stream or a wait began still is. Raises: AuthFailed, Forbidden."""
    grant = grant_of(connection)
    if authority is not None and grant is not None:
        present = authority.present(grant)
        if present is None:
            raise AuthFailed("this token is not known here any more")
        check_grant(present, needs, name)


def check_topic(connection: HTTPConnection, needs: Need, name: str) -> None:
    """For a topic that is named in the body. Raises: Forbidden."""
    grant = grant_of(connection)
    if grant is not None:
        check_grant(grant, needs, name)


def grant_of(connection: HTTPConnection) -> Grant | None:
    """Whose request it is; None without authentication."""
    grant: Grant | None = connection.scope.get(_GRANT)
    return grant


def _token_of(headers: Headers) -> str:
    """Raises: AuthRequired."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme:
        if scheme.lower() != "bearer" or not token.strip():
            raise AuthRequired("Authorization is: Bearer <token>")
        return token.strip()
    try:
        morsel = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        morsel = None
    if morsel is None or not morsel.value:
        raise AuthRequired("a token is needed: Authorization: Bearer <token>")
    return morsel.value
