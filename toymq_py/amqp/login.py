"""Logins of AMQP connections, and what they may do: the tokens of the broker.

Contract: amqp.md, "Model" (users); docs/security.md. The password of a user is a token; the user's name is for the log alone.
Without an auth file everything is allowed, as everywhere.
"""

import logging
from collections.abc import Callable

from toymq_py.amqp.errors import ACCESS_REFUSED, AmqpError
from toymq_py.amqp.fields import Reader
from toymq_py.auth import audit
from toymq_py.auth.tokens import Authority, Grant
from toymq_py.errors import AuthFailed, RequestError

logger = logging.getLogger("toymq_py.amqp")

PASSWORD_BYTES_MAX = 4096


class OpenRights:
    """All rights, of a broker without tokens."""

    name: str | None = None
    is_admin = True

    def check(self) -> None:
        """Whether the token is still one."""

    def renew(self) -> str | None:
        """The table of tokens has changed. Returns: why the connection is to end."""
        return None

    def publish(self, topic: str) -> None:
        """Raises: AmqpError (ACCESS_REFUSED)."""

    def subscribe(self, topic: str) -> None:
        """Raises: AmqpError (ACCESS_REFUSED)."""

    def administer(self, topic: str) -> None:
        """Raises: AmqpError (ACCESS_REFUSED)."""


class TokenRights(OpenRights):
    """The rights of a token."""

    def __init__(self, authority: Authority, grant: Grant, address: str | None) -> None:
        self._authority = authority
        self._grant = grant
        self._address = address

    @property
    def name(self) -> str:  # type: ignore[override]
        return self._grant.name

    @property
    def is_admin(self) -> bool:  # type: ignore[override]
        return self._grant.admin

    def check(self) -> None:
        if self._grant.expires_ns is not None:
            self._authority.check_time(self._grant)

    def renew(self) -> str | None:
        before = self._grant
        try:
            self._grant = self._authority.renew(before)
        except AuthFailed as error:
            return str(error)
        return None if self._grant.allows_all_of(before) else "it may read less now"

    def publish(self, topic: str) -> None:
        self._need("publish", topic, self._grant.may_publish)

    def subscribe(self, topic: str) -> None:
        self._need("subscribe", topic, self._grant.may_subscribe)

    def administer(self, topic: str) -> None:
        self._need("administer", topic, lambda _: self._grant.admin)

    def _need(self, action: str, topic: str, may: Callable[[str], bool]) -> None:
        if not may(topic):
            audit.record(action, "FORBIDDEN", token=self.name, address=self._address, via="amqp", about={"topic": topic})
            what = f"access to '{topic[:100]}' in vhost '/' refused for token '{self.name}': it may not {action} there"
            raise AmqpError(ACCESS_REFUSED, what)


class Login:
    """The SASL mechanisms of a broker."""

    mechanisms = ("PLAIN", "AMQPLAIN")

    def __init__(self, authority: Authority | None) -> None:
        """``authority``: checks tokens; None allows everything."""
        self._authority = authority

    def token_of(self, mechanism: str, response: bytes) -> str:
        """The password of a login. Raises: ValueError for a response of another form, AmqpError."""
        if mechanism == "PLAIN":
            parts = response.split(b"\0")
            if len(parts) != 3:
                raise ValueError("a PLAIN response has a user and a password, each behind a zero byte")
            user, password = parts[1:]
        elif mechanism == "AMQPLAIN":
            found = Reader(len(response).to_bytes(4) + response).table()
            user, password = (str(found.get(name, "")).encode() for name in ("LOGIN", "PASSWORD"))
        else:
            raise AmqpError(ACCESS_REFUSED, f"mechanism '{mechanism[:40]}' is not supported: use PLAIN or AMQPLAIN")
        if len(password) > PASSWORD_BYTES_MAX:
            raise ValueError(f"a password has {PASSWORD_BYTES_MAX} bytes at most")
        logger.debug("login of user %r", user.decode("utf-8", "replace")[:100])
        return password.decode("utf-8", "surrogateescape")

    def rights_of(self, token: str, address: str | None) -> OpenRights:
        """Raises: AuthFailed."""
        if self._authority is None:
            return OpenRights()
        try:
            return TokenRights(self._authority, self._authority.admit(token), address)
        except AuthFailed as error:
            about: RequestError = error
            audit.record("login", about.code, token=error.token, address=address, via="amqp")
            raise
