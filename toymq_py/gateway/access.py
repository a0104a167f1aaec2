"""Authentication and authorization of requests: tokens, login cookies, and the check for pages of other sites (CSRF).

Contract: gateway.md; clients.md, "auth file"; ADR 0024, ADR 0055. A token comes as ``Authorization: Bearer``, or by the cookie
of a login. Every request looks its grant up again, so a reload or a logout takes effect at once.
"""

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection

from toymq_py.auth import audit
from toymq_py.auth.holder import acting_token
from toymq_py.auth.quotas import Seat
from toymq_py.auth.tokens import EVERYTHING, Grant
from toymq_py.broker import Done
from toymq_py.disk_errors import storage_error
from toymq_py.errors import AuthFailed, AuthRequired, BadArgument, Forbidden, RequestError, TooManyConnections
from toymq_py.gateway.bodies import SEAT
from toymq_py.gateway.http_heads import EVERY_TOKEN, INTERNAL, LOGIN_OF
from toymq_py.gateway.http_request import query_of
from toymq_py.gateway.logins import Login
from toymq_py.gateway.operations import Need
from toymq_py.gateway.request_context import Gateway
from toymq_py.names import check_topic_or_pattern

COOKIE = "toymq_login"
SECURE_COOKIE = "__Host-toymq_login"
"""Over TLS: with this prefix a browser stores and sends it over TLS only, and no other host or path can set it."""
COOKIES_MAX = 200
"""Cookies of a request that are read; browsers keep fewer for a host."""
UNFORGEABLE = ("authorization", "x-requested-with")
"""Headers that a page can send to another site only after a CORS preflight, which this broker refuses."""
BROWSERS = ("Mozilla/", "Opera/")
BROWSER_HEADERS = frozenset(("accept-language", "referer", "sec-fetch-mode", "sec-fetch-dest", "upgrade-insecure-requests"))
CREATE_TOPIC = "createTopic"
"""Action in the audit trail for a new topic, whatever request made it."""
REQUEST = "request"
"""Action in the audit trail for a request that is refused before its operation is looked for."""
_asked: ContextVar[Sequence[tuple[HTTPConnection, list[str]]]] = ContextVar("asked", default=())
"""The request in progress and the topics that it made; emptied when it ends."""
_GRANT = "toymq.grant"
_LOGIN = "toymq.login"
_ACTS_ON = "toymq.acts_on"
_TURNED_AWAY = "toymq.turned_away"
ABOUT = frozenset(("topic", "queue", "q", "consumer", "group", "name", "connection"))
"""Parameters of path and query that the audit trail records."""


def check_site(gateway: Gateway, connection: HTTPConnection, *, safe: bool) -> None:
    """Refuse requests that a page of another site sends with its visitor's cookies (CSRF). For a request over TLS, a page
    loaded without TLS counts as another site, since it may have been altered on its way.

    Raises: Forbidden, with the name of the visitor's token.
    """
    try:
        _check_site(connection, safe=safe)
    except Forbidden as error:
        login = find_login(gateway, connection)
        error.token = None if login is None else login.grant.name
        raise


def _check_site(connection: HTTPConnection, *, safe: bool) -> None:
    headers = connection.headers
    scheme, _, host = headers.get("origin", "").partition("://")
    over_tls = connection.scope["scheme"] in ("https", "wss")
    if (origin := headers.get("origin")) is not None and (host != headers.get("host") or (over_tls and scheme != "https")):
        raise Forbidden(f"Origin {origin[:200]} is another site: call the API from a page of this broker, or with a token")
    if safe:
        return
    site = headers.get("sec-fetch-site")
    if site is not None and site not in ("same-origin", "none"):
        raise Forbidden(f"Sec-Fetch-Site {site[:50]}: a page of another site may not change anything here")
    if any(name in headers for name in UNFORGEABLE):
        return
    if site == "none" and connection.scope["type"] == "http" and connection.scope["method"] == "GET":
        raise Forbidden(
            "Sec-Fetch-Site none: a link in a mail may have sent this, and an address typed by hand looks the same. A GET that "
            "takes messages needs a page of this broker, a token or the header X-Requested-With"
        )
    if origin is None and site is None and _is_browser(headers):
        raise Forbidden("a browser that sends no Origin must send a token or the header X-Requested-With to change anything")


def _is_browser(headers: Headers) -> bool:
    """Whether a page in a browser may have sent the request. No page can make a browser omit all the headers that are checked
    here, nor change ``User-Agent`` without a CORS preflight."""
    return headers.get("user-agent", "").startswith(BROWSERS) or not BROWSER_HEADERS.isdisjoint(headers.keys())


def identify(gateway: Gateway, connection: HTTPConnection) -> bool:
    """Count a new connection for the token of its first request, before the request runs, so that its work counts for the
    token's share of the turns. A bad token is reported later, by ``check_rights``. Returns: whether the token is known."""
    seat: Seat | None = connection.scope.get("state", {}).get(SEAT)
    if gateway.authority is None or seat is None or seat.token is not None or "authorization" not in connection.headers:
        return False
    try:
        grant = _find_grant(gateway, connection)
        seat.identify(grant.name, admin=grant.admin)
    except TooManyConnections as error:
        connection.scope[_TURNED_AWAY] = error.with_traceback(None)
    except RequestError:
        return False
    return seat.token is not None


def check_rights(
    gateway: Gateway, connection: HTTPConnection, needs: Need | None, topic: Callable[[], str] = lambda: ""
) -> str:
    """Authenticate a request and check its rights. ``grant_of`` returns its grant from then on.

    Args:
        topic: returns the topic that the request needs rights for. It is called after the authentication, so that a client
            without a token learns nothing about its parameters, and 401 comes before 400 and 409.

    Returns: the topic. Raises: AuthRequired, AuthFailed, Forbidden, TooManyConnections, and what ``topic`` raises.
    """
    if gateway.authority is None or needs is None:
        return ""
    grant = _find_grant(gateway, connection)
    seat: Seat | None = connection.scope.get("state", {}).get(SEAT)
    if seat is not None:
        if (turned_away := connection.scope.get(_TURNED_AWAY)) is not None:
            raise turned_away
        seat.identify(grant.name, admin=grant.admin)
        acting_token.set(seat.token)  # for the task of this request
    connection.scope[_GRANT] = grant
    check_grant(grant, needs, name := topic())
    return name


def check_grant(grant: Grant, needs: Need, name: str) -> None:
    """Check the rights of a token. Raises: Forbidden; BadName for an invalid topic name."""
    may = {"publish": grant.may_publish, "subscribe": grant.may_subscribe, "describe": grant.sees}
    if needs in may and not may[needs](name):
        raise Forbidden(f"token {grant.name} may not {needs} {check_topic_or_pattern(name)}")
    if needs == "admin" and not grant.admin:
        raise Forbidden(f"token {grant.name} lacks the right admin")


def present_grant(gateway: Gateway, connection: HTTPConnection) -> Grant | None:
    """The current rights of a request that streams or waits; None when its token or login has ended."""
    login: Login | None = connection.scope.get(_LOGIN)
    if login is not None and gateway.logins is not None:
        return gateway.logins.use(login)
    grant = grant_of(connection)
    return None if gateway.authority is None or grant is None else gateway.authority.present(grant)


def check_again(gateway: Gateway, connection: HTTPConnection, needs: Need, name: str) -> None:
    """Check a request's rights again, after its body arrived or while it streams; ``grant_of`` then returns the current rights.

    Raises: AuthFailed, Forbidden.
    """
    if grant_of(connection) is not None:
        present = present_grant(gateway, connection)
        if present is None:
            raise AuthFailed("this token or login was revoked or has expired: log in again")
        connection.scope[_GRANT] = present
        check_grant(present, needs, name)


def check_topic(connection: HTTPConnection, needs: Need, name: str) -> None:
    """Check the rights for a topic that the body names. Raises: Forbidden."""
    grant = grant_of(connection)
    if grant is not None:
        check_grant(grant, needs, name)


def grant_of(connection: HTTPConnection) -> Grant | None:
    """The rights of a request; None without authentication."""
    grant: Grant | None = connection.scope.get(_GRANT)
    return grant


class topics_made_by:
    """A context manager: topics that are created within it are recorded in the audit trail as made by this request. ``as``
    gives the list of their names. Tasks and timers that outlive the block inherit its context but record nothing. A class,
    since contextlib's generator costs more, and every publish enters one."""

    __slots__ = ("_asked", "_before")

    def __init__(self, connection: HTTPConnection) -> None:
        self._asked: list[tuple[HTTPConnection, list[str]]] = [(connection, [])]

    def __enter__(self) -> list[str]:
        self._before = _asked.set(self._asked)
        return self._asked[0][1]

    def __exit__(self, *_: object) -> None:
        self._asked.clear()
        _asked.reset(self._before)


def audit_new_topic(name: str) -> Done:
    """Record a new topic in the audit trail once it is stored. A hook for ``Broker.on_topic_created``."""
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
    """Write a line of the audit trail.

    Args:
        result: ``OK``, a status, or the refusal; the refusal of an expired token names that token.
        about: what was acted on; by default what ``acts_on`` noted, and the parameters of path and query in ``ABOUT``. The
            query of an unauthenticated client is not parsed: a refusal must not cost more than the request.
    """
    grant = grant_of(connection)
    token = None if grant is None else grant.name
    if isinstance(result, RequestError):
        token, result = token or result.token, result.code
    if about is None:
        query = {} if grant is None and result in audit.REFUSED else _query_shown(connection)
        about = {name: str(value) for name, value in (*connection.path_params.items(), *query.items()) if name in ABOUT}
        about |= connection.scope.get(_ACTS_ON, {})
    client = connection.client
    audit.record(
        action, result, token=token, address=None if client is None else client.host,
        via="websocket" if connection.scope["type"] == "websocket" else "http", about=about,
    )  # fmt: skip


def acts_on(connection: HTTPConnection, **about: str) -> None:
    """Note the objects that a request's body names, for its line of the audit trail."""
    connection.scope[_ACTS_ON] = about


def refused(
    gateway: Gateway, connection: HTTPConnection, action: str, error: RequestError, about: Mapping[str, str] | None = None
) -> None:
    """Count an error that a client is told, and record it in the audit trail if it is a refusal. ``about``: as for
    ``audit_request``."""
    gateway.broker.metrics.refused(error.code)
    if error.code in audit.REFUSED:
        audit_request(connection, action, error, about)


def may_go_on(gateway: Gateway, connection: HTTPConnection, action: str, needs: Need, name: str) -> bool:
    """Whether a stream or WebSocket still has the right it needs. If not, for example because its token or login ended, the
    audit trail records that as the end of ``action``."""
    try:
        check_again(gateway, connection, needs, name)
    except RequestError as error:
        refused(gateway, connection, action, error)
        return False
    return True


def _query_shown(connection: HTTPConnection) -> Mapping[str, str]:
    try:
        return query_of(connection.scope)
    except BadArgument:  # the result that is recorded
        return {}


def cookie_name(connection: HTTPConnection) -> str:
    """Name of the login cookie on this connection."""
    return SECURE_COOKIE if connection.scope["scheme"] in ("https", "wss") else COOKIE


def find_login(gateway: Gateway, connection: HTTPConnection) -> Login | None:
    """The login of a request's cookie; it may have ended."""
    login_id = _cookie_of(connection)
    return None if gateway.logins is None or login_id is None else gateway.logins.find(login_id)


def is_internal(connection: HTTPConnection) -> bool:
    """Whether a request comes from another worker of this broker, for itself or for a client."""
    return bool(connection.scope.get("state", {}).get(INTERNAL))


def login_of(gateway: Gateway, connection: HTTPConnection) -> Login | None:
    """The login of a request, unless it has ended; used before passing the request to a worker that does not know the login."""
    if gateway.logins is None or "authorization" in connection.headers:
        return None
    login = find_login(gateway, connection)
    return None if login is None or gateway.logins.use(login) is None else login


def _cookie_of(connection: HTTPConnection) -> str | None:
    """The login cookie of a request. Parsed by hand: the standard library's parser takes seconds for hostile cookies."""
    wanted = cookie_name(connection)
    for field in connection.headers.getlist("cookie")[:1]:
        for pair in field.split(";", COOKIES_MAX)[:COOKIES_MAX]:
            name, _, value = pair.strip(" \t").partition("=")
            if name == wanted:
                return value
    return None


def _find_grant(gateway: Gateway, connection: HTTPConnection) -> Grant:
    """Return the rights of a request's token or login. Raises: AuthRequired, AuthFailed."""
    assert gateway.authority is not None
    assert gateway.logins is not None
    name: str | None = connection.scope.get("state", {}).get(LOGIN_OF)
    if name is not None:
        return gateway.authority.named(name) if name != EVERY_TOKEN else EVERYTHING
    scheme, _, token = connection.headers.get("authorization", "").partition(" ")
    if scheme:
        if scheme.lower() != "bearer" or not token.strip():
            raise AuthRequired("invalid Authorization header: write Authorization: Bearer <token>")
        return gateway.authority.admit(token.strip())
    if not _cookie_of(connection):
        raise AuthRequired("a token is required: send Authorization: Bearer <token>")
    login = find_login(gateway, connection)
    grant = None if login is None else gateway.logins.use(login)
    if grant is None:
        raise AuthFailed("this login has ended: log in again")
    connection.scope[_LOGIN] = login
    return grant
