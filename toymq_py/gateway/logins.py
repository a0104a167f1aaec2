"""The dashboard's logins: random ids that stand for a token, in memory, each with an expiry.

ADR 0055. A browser sends a cookie to every port of its host and stores it in its profile, so it holds an id and not the token.
The table has digests of ids only. A restart of the broker ends all logins. Belongs to the event loop.
"""

import secrets
from collections.abc import Callable
from hashlib import sha256

from toymq_py.auth.tokens import Authority, Grant
from toymq_py.clock import Clock

LIFETIME_S = 12 * 3600.0
"""The life of a login from its start, used or not."""
IDLE_S = 3600.0
"""The life of a login from its last use; an open stream or WebSocket counts as use."""
LOGINS_PER_TOKEN = 64
"""Most logins of a token; one more ends the least recently used."""
ID_BYTES = 32
ID_CHARS = 43


class Login:
    """One login, made by ``Logins.begin``."""

    __slots__ = ("begun_at", "digest", "grant", "used_at")

    def __init__(self, grant: Grant, digest: bytes, now: float) -> None:
        self.grant = grant
        self.digest = digest
        self.begun_at = self.used_at = now


class Logins:
    """All logins with the tokens of one auth file. A revoked token ends its logins."""

    def __init__(self, authority: Authority, clock: Clock, ended: Callable[[], None]) -> None:
        """``ended`` is called when logins end early: requests that wait under them check their rights again."""
        self._authority = authority
        self._clock = clock
        self._ended = ended
        self._logins: dict[bytes, Login] = {}
        authority.on_change.append(self._drop_gone)

    def __len__(self) -> int:
        return len(self._logins)

    def begin(self, grant: Grant) -> str:
        """Start a login. Returns: its id, which is not stored."""
        now = self._clock.monotonic()
        self._logins = {digest: login for digest, login in self._logins.items() if _lives(login, now)}
        own = [login for login in self._logins.values() if login.grant.digest == grant.digest]
        if len(own) >= LOGINS_PER_TOKEN:
            del self._logins[min(own, key=lambda login: login.used_at).digest]
        login_id = secrets.token_urlsafe(ID_BYTES)
        login = Login(grant, _digest(login_id), now)
        self._logins[login.digest] = login
        return login_id

    def find(self, login_id: str) -> Login | None:
        """Find a login by its id. The lookup is by digest, so its time tells nothing about other ids."""
        if len(login_id) != ID_CHARS or not login_id.isascii():
            return None
        return self._logins.get(_digest(login_id))

    def use(self, login: Login) -> Grant | None:
        """The current rights of a login; None when it has ended. Restarts its idle time."""
        now = self._clock.monotonic()
        if login.digest not in self._logins:
            return None
        if not _lives(login, now):
            del self._logins[login.digest]
            return None
        login.used_at = now
        return self._authority.present(login.grant)

    def end(self, login: Login) -> None:
        """End a login. Idempotent."""
        if self._logins.pop(login.digest, None) is not None:
            self._ended()

    def _drop_gone(self) -> None:
        """End the logins of revoked tokens; they do not revive when a token is restored."""
        present = self._authority.present
        self._logins = {digest: login for digest, login in self._logins.items() if present(login.grant) is not None}


def _lives(login: Login, now: float) -> bool:
    return now - login.begun_at < LIFETIME_S and now - login.used_at < IDLE_S


def _digest(login_id: str) -> bytes:
    return sha256(login_id.encode()).digest()
