"""Who a request comes from and whether it may: tokens, and pages of other sites.

Contract: gateway.md; clients.md, "auth file"; ADR 0024, ADR 0055. A token comes as ``Authorization: Bearer``, or stands behind
the cookie of a login. The tables are asked for every request, so what a reload or a logout takes away is gone at once.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection

from toymq_py.auth import audit
from toymq_py.auth.quotas import Seat, acting
from toymq_py.auth.tokens import Grant
from toymq_py.broker import Done
from toymq_py.errors import AuthFailed, AuthRequired, Forbidden, RequestError
from toymq_py.gateway.bodies import SEAT
from toymq_py.gateway.logins import Login
from toymq_py.gateway.operations import Need
from toymq_py.gateway.request_context import Gateway
from toymq_py.model import check_topic_or_pattern
from toymq_py.storage.disk_errors import storage_error

COOKIE = "toymq_login"
SECURE_COOKIE = "__Host-toymq_login"
"""Over TLS: a browser takes and sends it over TLS only, and no other host or path can set it."""
COOKIES_MAX = 200
"""So many of a request are looked at; browsers keep fewer for a host."""
UNFORGEABLE = ("authorization", "x-requested-with")
"""What a page cannot send to another site that has not been asked first (CORS), and here the answer is no."""
BROWSERS = ("Mozilla/", "Opera/")
BROWSER_HEADERS = ("accept-language", "referer", "sec-fetch-mode", "sec-fetch-dest", "upgrade-insecure-requests")
CREATE_TOPIC = "createTopic"
"""What the audit trail calls it, whatever request makes a topic."""
_asked: ContextVar[Sequence[tuple[HTTPConnection, list[str]]]] = ContextVar("asked", default=())
"""The request that is carried out, and the topics that it made; empty behind it."""
_GRANT = "toymq.grant"
_LOGIN = "toymq.login"
ABOUT = frozenset(("topic", "queue", "q", "consumer", "group", "name"))
"""Parameters of path and query that say what is acted on."""


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
    if safe:
        return
    site = headers.get("sec-fetch-site")
    if site is not None and site not in ("same-origin", "none"):
        raise Forbidden("a page of another site may not do this")
    if origin is None and site is None and _is_browser(headers) and not any(name in headers for name in UNFORGEABLE):
        raise Forbidden("a browser that does not say which page asks needs a token or a header X-Requested-With for this")


def _is_browser(headers: Headers) -> bool:
    """Whether a page may have sent it: no page can have a browser leave all of these out, nor send another ``User-Agent`` to
    another site that has not been asked first."""
    return headers.get("user-agent", "").startswith(BROWSERS) or any(name in headers for name in BROWSER_HEADERS)


def check_rights(gateway: Gateway, connection: HTTPConnection, needs: Need | None, topic: str | None = None) -> None:
    """Find out who asks, and whether they may. ``grant_of`` has the answer from then on.

    Args:
        topic: what is asked for; by default what the path says.

    Raises: AuthRequired, AuthFailed, Forbidden, TooManyConnections.
    """
    if gateway.authority is None or needs is None:
        return
    grant = _find_grant(gateway, connection)
    seat: Seat | None = connection.scope.get("state", {}).get(SEAT)
    if seat is not None:
        seat.identify(grant.name, admin=grant.admin)
        acting.set(seat.token)  # for the task of this request
    connection.scope[_GRANT] = grant
    check_grant(grant, needs, topic if topic is not None else connection.path_params.get("topic", ""))


def check_grant(grant: Grant, needs: Need, name: str) -> None:
    """Raises: Forbidden; BadName for what no topic can be called."""
    may = {"publish": grant.may_publish, "subscribe": grant.may_subscribe, "describe": grant.sees}
    if needs in may and not may[needs](name):
        raise Forbidden(f"{grant.name} may not {needs} {check_topic_or_pattern(name)}")
    if needs == "admin" and not grant.admin:
        raise Forbidden(f"{grant.name} is no administrator")


def present_grant(gateway: Gateway, connection: HTTPConnection) -> Grant | None:
    """What was allowed when a stream or a wait began, as it is now; None when the token or the login has gone."""
    login: Login | None = connection.scope.get(_LOGIN)
    if login is not None and gateway.logins is not None:
        return gateway.logins.use(login)
    grant = grant_of(connection)
    return None if gateway.authority is None or grant is None else gateway.authority.present(grant)


def check_again(gateway: Gateway, connection: HTTPConnection, needs: Need, name: str) -> None:
    """Whether what was allowed when a body, a stream or a wait began still is; ``grant_of`` has the rights of now.

    Raises: AuthFailed, Forbidden.
    """
    if grant_of(connection) is not None:
        present = present_grant(gateway, connection)
        if present is None:
            raise AuthFailed("this token or login is not known here any more")
        connection.scope[_GRANT] = present
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


@contextmanager
def topics_made_by(connection: HTTPConnection) -> Iterator[list[str]]:
    """Topics that are made meanwhile have a line in the audit trail: this request made them. What goes on behind it (the task
    of a webhook, a timer) has its context, and is not the request. Gives the names of those topics."""
    made: list[str] = []
    asked = [(connection, made)]
    before = _asked.set(asked)
    try:
        yield made
    finally:
        asked.clear()
        _asked.reset(before)


def audit_new_topic(name: str) -> Done:
    """For ``Broker.on_made``."""
    asked = list(_asked.get())
    for _, made in asked:
        made.append(name)

    def told(error: OSError | RequestError | None) -> None:
        for connection, _ in asked:
            result = storage_error(error) if isinstance(error, OSError) else error
            audit_request(connection, CREATE_TOPIC, result or audit.OK, {"topic": name})

    return told


def audit_request(
    connection: HTTPConnection, action: str, result: str | RequestError, about: Mapping[str, str] | None = None
) -> None:
    """Write a line of the audit trail; the token is known by now.

    Args:
        result: ``OK``, a status, or the refusal; that of an expired token names it.
        about: what was acted on, else what the request says.
    """
    grant = grant_of(connection)
    token = None if grant is None else grant.name
    if isinstance(result, RequestError):
        token, result = token or result.token, result.code
    if about is None:
        about = {name: str(value) for name, value in (*connection.path_params.items(), *connection.query_params.items())
                 if name in ABOUT}  # fmt: skip
    client = connection.client
    audit.record(
        action, result, token=token, address=None if client is None else client.host,
        via="websocket" if connection.scope["type"] == "websocket" else "http", about=about,
    )  # fmt: skip


def cookie_name(connection: HTTPConnection) -> str:
    """Of the cookie that a login is in."""
    return SECURE_COOKIE if connection.scope["scheme"] in ("https", "wss") else COOKIE


def find_login(gateway: Gateway, connection: HTTPConnection) -> Login | None:
    """The login whose cookie a request has; it may have ended."""
    login_id = _cookie_of(connection)
    return None if gateway.logins is None or login_id is None else gateway.logins.find(login_id)


def _cookie_of(connection: HTTPConnection) -> str | None:
    """Read by hand: the standard library's parser takes seconds for hostile ones."""
    wanted = cookie_name(connection)
    for field in connection.headers.getlist("cookie")[:1]:
        for pair in field.split(";", COOKIES_MAX)[:COOKIES_MAX]:
            name, _, value = pair.strip(" \t").partition("=")
            if name == wanted:
                return value
    return None


def _find_grant(gateway: Gateway, connection: HTTPConnection) -> Grant:
    """Raises: AuthRequired, AuthFailed."""
    assert gateway.authority is not None
    assert gateway.logins is not None
    scheme, _, token = connection.headers.get("authorization", "").partition(" ")
    if scheme:
        if scheme.lower() != "bearer" or not token.strip():
            raise AuthRequired("Authorization is: Bearer <token>")
        return gateway.authority.admit(token.strip())
    if not _cookie_of(connection):
        raise AuthRequired("a token is needed: Authorization: Bearer <token>")
    login = find_login(gateway, connection)
    grant = None if login is None else gateway.logins.use(login)
    if grant is None:
        raise AuthFailed("this login has ended: log in again")
    connection.scope[_LOGIN] = login
    return grant
