"""Logins of AMQP connections, and what they may do: the tokens of the broker.

Contract: amqp.md, "Model" (users); docs/security.md; ADR 0163. The password of a user is a token; the user's name is for the
log alone. With EXTERNAL the client's certificate has the token's name. Without an auth file everything is allowed, as
for other protocols.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from toymq_py.amqp.errors import ACCESS_REFUSED, AmqpError
from toymq_py.amqp.fields import Reader
from toymq_py.auth import audit
from toymq_py.auth.tokens import Authority, Grant
from toymq_py.errors import AuthFailed, AuthRequired

logger = logging.getLogger("toymq_py.amqp")

PASSWORD_BYTES_MAX = 4096
USER_CHARS_MAX = 256
"""Characters that are kept of a user's name without an auth file. No ``user-id``, a short string, is as long."""


class OpenRights:
    """All rights, as clients have at a broker without tokens."""

    name: str | None = None
    is_admin = True

    def __init__(self, user: str = "") -> None:
        """``user``: the name that the client logged in with."""
        self._user = user

    @property
    def user(self) -> str:
        """The name of the user: the only value that the property ``user-id`` of a publish may have."""
        return self._user

    def check(self) -> None:
        """Check that the token is still valid."""

    def renew(self) -> str | None:
        """Apply a changed table of tokens. Returns: why the connection has to end, None if it need not."""
        return None

    def publish(self, topic: str) -> None:
        """Check the right to publish. Raises: AmqpError (ACCESS_REFUSED)."""

    def publish_by(self, exchange: str) -> None:
        """Check the right to publish to an exchange at all, a right to publish to any topic: others would learn from
        ``mandatory`` what is bound to it. Raises: AmqpError (ACCESS_REFUSED)."""

    def subscribe(self, topic: str) -> None:
        """Check the right to subscribe. Raises: AmqpError (ACCESS_REFUSED)."""

    def administer(self, about: Mapping[str, str]) -> None:
        """Check the right to administer. ``about``: what would change, by kind. Raises: AmqpError (ACCESS_REFUSED)."""

    def declare(self, topic: str) -> None:
        """Check the right to a passive or repeated declaration of a queue: any right to the queue suffices. Raises: AmqpError
        (ACCESS_REFUSED)."""

    def declare_exchange(self, name: str) -> None:
        """Check the right to declare an existing exchange again, as publishers do first. Admins have it, and tokens with a
        right to publish to any topic, whatever the exchange is bound to. Raises: AmqpError (ACCESS_REFUSED)."""


class TokenRights(OpenRights):
    """The rights of a token."""

    def __init__(self, authority: Authority, grant: Grant, address: str | None, *, by_certificate: bool = False) -> None:
        super().__init__()
        self._by_certificate = by_certificate
        self._authority = authority
        self._grant = grant
        self._address = address

    @property
    def name(self) -> str:  # type: ignore[override]
        return self._grant.name

    @property
    def user(self) -> str:
        return self._grant.name

    @property
    def is_admin(self) -> bool:  # type: ignore[override]
        return self._grant.admin

    def check(self) -> None:
        if self._grant.expires_ns is not None:
            with _recorded(self._address, self.name):
                self._authority.check_time(self._grant)

    def renew(self) -> str | None:
        before = self._grant
        try:
            with _recorded(self._address, self.name):
                self._renew()
        except AuthFailed as error:
            return str(error)
        return None if self._grant.allows_all_of(before) else "it may read less now"

    def _renew(self) -> None:
        self._grant = self._authority.renew(self._grant)
        if self._by_certificate and not self._grant.certificate:
            raise AuthFailed("certificates do not stand for it any more")

    def publish(self, topic: str) -> None:
        self._need("publish", {"topic": topic}, self._grant.may_publish(topic))

    def publish_by(self, exchange: str) -> None:
        self._need("publish", {"exchange": exchange}, bool(self._grant.publish.texts))

    def subscribe(self, topic: str) -> None:
        self._need("subscribe", {"topic": topic}, self._grant.may_subscribe(topic))

    def administer(self, about: Mapping[str, str]) -> None:
        self._need("administer", about, self._grant.admin)

    def declare(self, topic: str) -> None:
        self._need("declare", {"topic": topic}, self._grant.sees(topic) or self._grant.may_publish(topic))

    def declare_exchange(self, name: str) -> None:
        self._need("declare", {"exchange": name}, self._grant.admin or bool(self._grant.publish.texts))

    def _need(self, action: str, about: Mapping[str, str], is_granted: bool) -> None:
        if not is_granted:
            audit.record(action, "FORBIDDEN", token=self.name, address=self._address, via="amqp", about=about)
            what = f"access to '{next(iter(about.values()))[:100]}' refused for token '{self.name}': it may not {action} there"
            raise AmqpError(ACCESS_REFUSED, what)


class Login:
    """Logs clients in by SASL."""

    def __init__(self, authority: Authority | None) -> None:
        """``authority``: checks tokens; None allows everything."""
        self._authority = authority

    @staticmethod
    def mechanisms(names: Sequence[str] | None) -> str:
        """The SASL mechanisms to offer. ``names``: the names in the client's certificate; None without a certificate."""
        return "PLAIN AMQPLAIN" if names is None else "PLAIN AMQPLAIN EXTERNAL"

    def log_in(
        self, mechanism: str, response: bytes, names: Sequence[str] | None, address: str | None
    ) -> OpenRights:
        """Log a client in by its SASL response. ``names``: as for ``mechanisms``.

        Returns: the client's rights. Raises: ValueError for a malformed response, AmqpError, AuthFailed.
        """
        if mechanism == "EXTERNAL" and names is not None:
            return self._by_certificate(response, names, address)
        try:
            user, password = _credentials(mechanism, response)
        except AmqpError:
            audit.record("login", AuthRequired.code, token=None, address=address, via="amqp")
            raise
        if len(password) > PASSWORD_BYTES_MAX:
            with _recorded(address):
                raise AuthFailed(f"the password has {len(password)} bytes, {PASSWORD_BYTES_MAX} are the most")
        name = user.decode("utf-8", "replace")
        logger.debug("login of user %r", name[:100])
        if self._authority is None:
            return OpenRights(name[:USER_CHARS_MAX])
        return self.rights_of(password.decode("utf-8", "surrogateescape"), address)

    def _by_certificate(self, response: bytes, names: Sequence[str], address: str | None) -> OpenRights:
        """Log in by the client's certificate. Raises: AuthFailed."""
        asked = response.decode("utf-8", "replace")
        if self._authority is None:
            return OpenRights(asked[:USER_CHARS_MAX] or next(iter(names), ""))
        with _recorded(address):
            grant = self._authority.certified(names)
            if asked not in ("", grant.name):
                raise AuthFailed(f"the client's certificate stands for {grant.name}, not for {asked[:100]!a}", token=grant.name)
        logger.debug("login by the certificate of %s", grant.name)
        return TokenRights(self._authority, grant, address, by_certificate=True)

    def rights_of(self, token: str, address: str | None) -> OpenRights:
        """The rights of a token. Raises: AuthFailed."""
        if self._authority is None:
            return OpenRights()
        with _recorded(address):
            return TokenRights(self._authority, self._authority.admit(token), address)


@contextmanager
def _recorded(address: str | None, token: str | None = None) -> Iterator[None]:
    """Record in the audit trail a login that is refused, or that ends because its token does."""
    try:
        yield
    except AuthFailed as error:
        audit.record("login", error.code, token=token or error.token, address=address, via="amqp")
        raise


def _credentials(mechanism: str, response: bytes) -> tuple[bytes, bytes]:
    """Decode user and password from a SASL response. Raises: ValueError, AmqpError."""
    if mechanism == "PLAIN":
        parts = response.split(b"\0")
        if len(parts) != 3:
            raise ValueError("a PLAIN response has a user and a password, each behind a zero byte")
        return parts[1], parts[2]
    if mechanism == "AMQPLAIN":
        found = Reader(len(response).to_bytes(4) + response).table()
        user, password = (str(found.get(name, "")).encode() for name in ("LOGIN", "PASSWORD"))
        return user, password
    if mechanism == "EXTERNAL":
        raise AmqpError(ACCESS_REFUSED, "mechanism 'EXTERNAL' wants a client certificate: connect to --amqps (--tls-client-ca)")
    raise AmqpError(ACCESS_REFUSED, f"mechanism '{mechanism[:40]}' is not supported: use PLAIN or AMQPLAIN")
