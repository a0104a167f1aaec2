"""Tokens of an auth file and their rights.

Contract: clients.md, "Command lines" (the auth file); reliability.md, "Security"; ADR 0021. Serves TCP sessions and the HTTP
gateway. Never keeps, shows or logs a token, only its SHA-256 digest. Belongs to the event loop.
"""

import hmac
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from hashlib import sha256
from typing import Any

from toymq_py.clock import SystemClock
from toymq_py.errors import AuthFailed, BadName, ConfigError
from toymq_py.names import DEAD_LETTERS, TopicPattern, check_name, check_topic_or_pattern, whole_name
from toymq_py.text_files import parse_toml, read_text

ANSWERS_MAX = 4096
"""Most names whose answers a grant caches; a client's random names must not fill the memory."""

_DIGEST = re.compile(r"[0-9a-fA-F]{64}\Z")
_TABLE = re.compile(r"\s*\[\[\s*token\s*\]\]")
_KEYS = ("name", "sha256", "publish", "subscribe", "admin", "expires", "certificate")


class _Patterns:
    """The topic patterns of one right. Caches the answers for legal names, which are short."""

    __slots__ = ("_answers", "_patterns", "texts")

    def __init__(self, texts: Sequence[str]) -> None:
        """Raises: BadName."""
        self.texts = tuple(texts)
        self._patterns = [TopicPattern(text) for text in texts]
        self._answers: dict[str, bool] = {}

    def cover(self, topic_or_pattern: str) -> bool:
        """Whether one of the patterns covers a topic or pattern; False for an illegal name."""
        answer = self._answers.get(topic_or_pattern)
        if answer is None:
            try:
                check_topic_or_pattern(topic_or_pattern)
            except BadName:
                return False
            if len(self._answers) >= ANSWERS_MAX:
                self._answers.clear()
            names = {topic_or_pattern, whole_name(topic_or_pattern)}  # the right to a topic is one to its partitions
            answer = any(pattern.covers(name) for pattern in self._patterns for name in names)
            self._answers[topic_or_pattern] = answer
        return answer


@dataclass(frozen=True, slots=True, eq=False)
class Grant:
    """The rights of one token. Immutable: a changed file makes new ones. ``name`` is for logs."""

    name: str
    digest: bytes = field(repr=False)
    """SHA-256 of the token."""
    publish: _Patterns = field(repr=False)
    subscribe: _Patterns = field(repr=False)
    admin: bool
    """Whether the token may CREATE, CONFIG, DELETE, PURGE, SEEK, FORGET and REDRIVE every topic."""
    expires_ns: int | None = field(default=None, repr=False)
    """When the token expires, in nanoseconds since the epoch; None: never."""
    certificate: bool = field(default=False, repr=False)
    """Whether a client certificate with its name stands for the token, where a protocol can say so (AMQP's SASL EXTERNAL)."""

    def may_publish(self, topic: str) -> bool:
        return self.publish.cover(topic)

    def may_subscribe(self, topic_or_pattern: str) -> bool:
        """Whether SUB, PULL, ACK, NACK, TOUCH, FETCH and OFFSETS are allowed. One pattern of the token must cover all that a
        given pattern matches.

        An admin may also read the dead letters of each topic that it may subscribe to, as REDRIVE could send them back there.
        """
        origin = topic_or_pattern.removesuffix(DEAD_LETTERS)
        return self.subscribe.cover(topic_or_pattern) or (
            self.admin and origin != topic_or_pattern and self.subscribe.cover(origin)
        )

    def sees(self, topic: str) -> bool:
        """Whether DESCRIBE, TOPICS and STATS show the topic: with the right to subscribe, or to administer."""
        return self.admin or self.subscribe.cover(topic)

    def allows_all_of(self, before: "Grant") -> bool:
        """Whether this grant allows every subscription that the grant ``before`` allowed."""
        letters_too = self.admin or not before.admin or not before.subscribe.texts
        return letters_too and all(map(self.may_subscribe, before.subscribe.texts))


EVERYTHING = Grant("*", b"", _Patterns([">"]), _Patterns([">"]), admin=True)
"""The rights of this broker's own processes among themselves. No token can have this name."""


class Authority:
    """The current table of tokens, replaced when the auth file changes."""

    def __init__(self, grants: Sequence[Grant], wall_ns: Callable[[], int] = SystemClock.wall_ns) -> None:
        """``wall_ns`` returns the time in nanoseconds since the epoch, for expiry."""
        self._wall_ns = wall_ns
        self._grants = tuple(grants)
        self._expired: frozenset[bytes] = frozenset()
        self.on_change: list[Callable[[], None]] = []
        """Called after ``replace`` and by ``look_at_time``. A grant that is kept beyond a request must then be replaced by
        its ``present`` one."""

    def admit(self, token: str) -> Grant:
        """The grant of a token. Raises: AuthFailed."""
        grant = self.find(token)
        if grant is None:
            raise AuthFailed("this token is not in the auth file")
        self.check_time(grant)
        return grant

    def check_time(self, grant: Grant) -> None:
        """Check the expiry of a token. Raises: AuthFailed when the token has expired."""
        if grant.expires_ns is not None and self._wall_ns() >= grant.expires_ns:
            at = datetime.fromtimestamp(grant.expires_ns // 1_000_000_000, UTC)
            raise AuthFailed(f"the token {grant.name} expired at {at:%Y-%m-%dT%H:%M:%SZ}", token=grant.name)

    def look_at_time(self) -> float | None:
        """Call ``on_change`` if tokens have expired since the last call. Returns: seconds until the next expiry, if any."""
        now = self._wall_ns()
        ends = {grant.digest: grant.expires_ns - now for grant in self._grants if grant.expires_ns is not None}
        before, self._expired = self._expired, frozenset(digest for digest, left_ns in ends.items() if left_ns <= 0)
        if not self._expired <= before:
            self._notify()
        return min((left_ns / 1e9 for left_ns in ends.values() if left_ns > 0), default=None)

    @property
    def grants(self) -> Sequence[Grant]:
        """All tokens, expired ones among them, in the order of the file."""
        return self._grants

    def expiring(self) -> list[Grant]:
        """Tokens with an expiry, past or future."""
        return [grant for grant in self._grants if grant.expires_ns is not None]

    def find(self, token: str) -> Grant | None:
        """Find the grant of a token, expired or not. Compares every digest in constant time, even after a match."""
        digest = sha256(token.encode(errors="surrogatepass")).digest()
        found = None
        for grant in self._grants:
            if hmac.compare_digest(grant.digest, digest):
                found = grant
        return found

    def present(self, grant: Grant) -> Grant | None:
        """The current grant of the same token; None when the token is gone or expired."""
        try:
            return self.renew(grant)
        except AuthFailed:
            return None

    def renew(self, grant: Grant) -> Grant:
        """The current grant of the same token. Raises: AuthFailed with the reason, when the token is gone or expired."""
        present = next((other for other in self._grants if other.digest == grant.digest), None)
        if present is None:
            raise AuthFailed("this token is no longer in the auth file")
        self.check_time(present)
        return present

    def named(self, name: str) -> Grant:
        """The current rights of the token with a name. Raises: AuthFailed."""
        found = next((grant for grant in self._grants if grant.name == name), None)
        if found is None:
            raise AuthFailed("this token is no longer in the auth file")
        self.check_time(found)
        return found

    def certified(self, names: Sequence[str]) -> Grant:
        """The rights of the token whose name a client's certificate has. Raises: AuthFailed when there is none, or several."""
        found = [grant for grant in self._grants if grant.certificate and grant.name in names]
        if len(found) != 1:
            shown = ", ".join(names)[:200] or "no name"
            several = f"names several tokens: {', '.join(grant.name for grant in found)}"
            why = several if found else "names no token that has certificate = true"
            raise AuthFailed(f"the client's certificate ({shown}) {why}")
        self.check_time(found[0])
        return found[0]

    def replace(self, grants: Sequence[Grant]) -> None:
        """Replace the table of tokens."""
        self._grants = tuple(grants)
        self._notify()

    def _notify(self) -> None:
        for changed in self.on_change:
            changed()


def read_grants(path: str) -> tuple[Grant, ...]:
    """The grants of an auth file. Blocks. Raises: ConfigError, with the file, the line and the field."""
    return parse_grants(read_text(path, "the auth file"), path)


def parse_grants(text: str, path: str) -> tuple[Grant, ...]:
    """Parse the text of an auth file; ``path`` is for errors.

    Raises: ConfigError, without values of the file, which may be a token in the wrong place.
    """
    found = parse_toml(text, f"the auth file {path}")
    unknown = [name for name in found if name != "token"]
    if unknown:
        raise ConfigError(f"{path}: unknown name {unknown[0]!r}; the file has [[token]] tables only")
    tables = found.get("token", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ConfigError(f"{path}: invalid token: write tables that begin with [[token]]")
    if not tables:
        raise ConfigError(f"{path} has no [[token]]: no client could connect")
    lines = text.splitlines()
    starts = [number for number, line in enumerate(lines, 1) if _TABLE.match(line)]
    grants: list[Grant] = []
    for number, table in enumerate(tables):
        try:
            grant = _grant(table)
            _check_unique(grant, grants)
        except _BadField as bad:
            where = f"token {number + 1}"
            if len(starts) == len(tables):  # written as usual, not inline
                where = f"line {_line_of(bad.field, lines, starts[number])}"
            raise ConfigError(f"{path}, {where}: {bad}") from None
        grants.append(grant)
    return tuple(grants)


class _BadField(Exception):
    """An invalid value of ``field`` in the auth file."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field


def _grant(table: dict[str, Any]) -> Grant:
    for key in table:
        if key not in _KEYS:
            raise _BadField(key, f"unknown name {key!r}; a token has {', '.join(_KEYS)}")
    name, digest, admin = table.get("name"), table.get("sha256"), table.get("admin", False)
    if name is None:
        raise _BadField("name", 'name is missing: write name = "billing", which the log shows')
    try:
        check_name("token", name if isinstance(name, str) else "")
    except BadName as error:
        raise _BadField("name", f"name: {error}") from None
    if digest is None:
        raise _BadField("sha256", "sha256 is missing: write the token's SHA-256 digest, 64 hexadecimal digits")
    if not isinstance(digest, str) or _DIGEST.match(digest) is None:
        raise _BadField("sha256", "invalid sha256: write the token's SHA-256 digest, 64 hexadecimal digits")
    for key in ("admin", "certificate"):
        if not isinstance(table.get(key, False), bool):
            raise _BadField(key, f"invalid {key}: write true or false")
    assert isinstance(name, str)
    return Grant(
        name, bytes.fromhex(digest), _patterns(table, "publish"), _patterns(table, "subscribe"), admin, _expires_ns(table),
        table.get("certificate", False),
    )  # fmt: skip


def _expires_ns(table: dict[str, Any]) -> int | None:
    expires = table.get("expires")
    if expires is None:
        return None
    if isinstance(expires, date) and not isinstance(expires, datetime):
        expires = datetime(expires.year, expires.month, expires.day, tzinfo=UTC)
    if not isinstance(expires, datetime) or expires.tzinfo is None:
        raise _BadField(
            "expires", "invalid expires: write a day, 2027-01-31, or a time with its zone, 2027-01-31T12:00:00Z, without quotes"
        )
    return int(expires.timestamp()) * 1_000_000_000


def _patterns(table: dict[str, Any], key: str) -> _Patterns:
    texts = table.get(key, [])
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise _BadField(key, f"invalid {key}: write a list of topics and patterns, [\"orders\", \"events.>\"]")
    for number, text in enumerate(texts, 1):
        try:
            check_topic_or_pattern(text)
        except BadName as error:
            raise _BadField(key, f"{key}, number {number}: {error}") from None
    return _Patterns(texts)


def _check_unique(grant: Grant, before: Sequence[Grant]) -> None:
    for other in before:
        if other.name == grant.name:
            raise _BadField("name", f"name: there are two tokens {grant.name}")
        if other.digest == grant.digest:
            raise _BadField("sha256", f"sha256: {other.name} and {grant.name} are the same token")


def _line_of(field: str, lines: Sequence[str], start: int) -> int:
    """The line of a field in the table that begins at line ``start``; ``start`` when the field is missing."""
    for number, line in enumerate(lines[start:], start + 1):
        if _TABLE.match(line):
            break
        if line.partition("=")[0].strip().strip("\"'") == field:
            return number
    return start
