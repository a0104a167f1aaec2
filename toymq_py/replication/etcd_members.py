"""Chooses which member of an etcd cluster to ask, over which connection, and checks whether its answer can be trusted.

Contract: replication.md, section 3. The member that answered last is asked first, the next one on a failure. An idempotent
request is tried at all members within the time limit. Others are sent once: without an answer the outcome is unknown.
"""

import asyncio
import json
import ssl
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

from toymq_py.errors import ConfigError, EtcdError, EtcdWentBack, LeaseLost
from toymq_py.names import check_host
from toymq_py.replication.etcd_http import Answer, Endpoint, HttpConnection, HttpError

DEFAULT_PORT = 2379
NO_LEASE = "requested lease not found"
"""etcd's text for LeaseLost; the code beside it (5) stands for other errors, too."""
SAID_CHARS_MAX = 200
"""Most characters of etcd's text in an error."""
HTTP_OK = 200

T = TypeVar("T")


def parse_endpoint(url: str) -> Endpoint:
    """Parse a member's URL, ``http://host:port`` or ``https://host:port``. Raises: ConfigError."""
    invalid = ConfigError(f"{url[:SAID_CHARS_MAX]!a} is not the URL of an etcd member: write http://host:{DEFAULT_PORT}")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise invalid from None
    extra = parts.username is not None or parts.path not in ("", "/") or parts.query or parts.fragment
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or extra or not url.isprintable() or " " in url:
        raise invalid
    return Endpoint(check_host(parts.hostname), port or DEFAULT_PORT, url, parts.scheme == "https")


class EtcdMembers:
    """Sends requests to etcd. Used on one event loop; calls may overlap. Connections are kept for later calls."""

    def __init__(self, endpoints: Sequence[Endpoint], tls: ssl.SSLContext | None) -> None:
        """``tls``: the TLS context for https URLs; None without one."""
        self._endpoints = endpoints
        self._tls = tls
        self._asked = 0
        self._idle: list[HttpConnection] = []  # to the member that is asked
        self._busy: set[HttpConnection] = set()
        self._cluster_id: str | None = None
        self._closed = False

    @property
    def asked(self) -> Endpoint:
        """The member that is asked first."""
        return self._endpoints[self._asked]

    def ask_next(self, failed: Endpoint) -> None:
        """Ask the next member from now on, if ``failed`` is the one asked first."""
        if failed == self.asked:
            self._asked = (self._asked + 1) % len(self._endpoints)
            for connection in self._idle:
                connection.close()
            self._idle.clear()

    async def call(self, path: str, body: object, limit_s: float, accept: Callable[[dict[str, Any]], T], *, twice: bool) -> T:
        """Send a request and return what its answer says.

        Args:
            limit_s: the time limit of the whole call.
            accept: converts the JSON object of an answer. Raises: EtcdError if it cannot be trusted; LeaseLost.
            twice: the request is idempotent.

        Raises: LeaseLost; EtcdWentBack when a member's answer shows that, and no other member answers; EtcdError, which names
            each member and its failure.
        """
        failures = _Failures(path)
        data = json.dumps(body).encode()
        part_s = limit_s / len(self._endpoints)
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + limit_s
        for _ in self._endpoints:
            endpoint, sent = self.asked, False
            try:
                async with asyncio.timeout_at(min(loop.time() + part_s, ends_at)):
                    connection = await self._connection()
                sent = True
                async with asyncio.timeout_at(min(loop.time() + part_s, ends_at) if twice else ends_at):
                    return accept(self.check(await self._exchange(connection, path, data)))
            except LeaseLost:
                raise
            except (OSError, EtcdError) as error:  # a TimeoutError is an OSError
                failures.add(endpoint, error)
                self.ask_next(endpoint)
            if sent and not twice:
                break
        raise failures.error()

    async def open_stream(self, path: str, body: object, limit_s: float) -> "EtcdStream":
        """Send a request with an endless answer. ``limit_s``: the time limit until the answer begins. Raises: EtcdError."""
        failures = _Failures(path)
        data = json.dumps(body).encode()
        for _ in self._endpoints:
            endpoint = self.asked
            try:
                async with asyncio.timeout(limit_s / len(self._endpoints)):
                    return await self._begin_stream(path, data)
            except (OSError, EtcdError) as error:
                failures.add(endpoint, error)
                self.ask_next(endpoint)
        raise failures.error()

    def check(self, content: bytes) -> dict[str, Any]:
        """Parse an answer, or one line of it, to a JSON object. Raises: EtcdError if it is not one, or of another etcd
        cluster."""
        try:
            answer = json.loads(content)
            result = answer.get("result", answer)
            cluster_id = str(result["header"]["cluster_id"])
        except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
            raise EtcdError(f"the answer is not understood: {content[:SAID_CHARS_MAX]!a}") from None
        if self._cluster_id is None:
            self._cluster_id = cluster_id
        if cluster_id != self._cluster_id:
            raise EtcdError(f"another etcd cluster answers: {cluster_id!a}, and {self._cluster_id!a} before")
        found: dict[str, Any] = result
        return found

    def close(self) -> None:
        """End the connections. Calls under way raise EtcdError."""
        self._closed = True
        for connection in [*self._idle, *self._busy]:
            connection.close()
        self._idle.clear()

    # -- connections

    async def _connection(self) -> HttpConnection:
        """A connection to the member that is asked first. It is busy until the end of ``_exchange``, or ``drop``. Raises:
        OSError."""
        if self._closed:
            raise ConnectionAbortedError("the client is closed")
        while self._idle:
            if (idle := self._idle.pop()).usable:
                self._busy.add(idle)
                return idle
            idle.close()
        endpoint = self.asked
        connection = await HttpConnection.open(endpoint, self._tls if endpoint.tls else None)
        if self._closed:
            connection.close()
            raise ConnectionAbortedError("the client is closed")
        self._busy.add(connection)
        return connection

    async def _exchange(self, connection: HttpConnection, path: str, data: bytes) -> bytes:
        """Send a request, and return the body of the answer. Raises: OSError; EtcdError for an error answer."""
        whole = False
        try:
            answer = await connection.post(path, data)
            content = await answer.content()
            whole = answer.kept_alive
        finally:
            self._busy.discard(connection)
            if whole and connection.endpoint == self.asked and not self._closed:
                self._idle.append(connection)
            else:
                connection.close()  # what comes over it now may be the answer to this call
        if answer.status != HTTP_OK:
            raise _refusal(answer.status, content)
        return content

    async def _begin_stream(self, path: str, data: bytes) -> "EtcdStream":
        connection = await self._connection()
        try:
            answer = await connection.post(path, data)
            refused = answer.status != HTTP_OK and _refusal(answer.status, await answer.content())
        except BaseException:
            self.drop(connection)
            raise
        if refused:
            self.drop(connection)
            raise refused
        return EtcdStream(self, connection, answer)

    def drop(self, connection: HttpConnection) -> None:
        """Close a busy connection."""
        self._busy.discard(connection)
        connection.close()


class EtcdStream:
    """An endless answer of etcd, such as that of a watch."""

    def __init__(self, members: EtcdMembers, connection: HttpConnection, answer: Answer) -> None:
        self._members = members
        self._connection = connection
        self._answer = answer
        self.endpoint = connection.endpoint

    async def next(self) -> dict[str, Any]:
        """The next JSON object; a cancelled call loses nothing. Raises: OSError at the end; EtcdError."""
        line = await self._answer.line()
        if line is None:
            raise HttpError("etcd ended the answer")
        return self._members.check(line)

    def close(self) -> None:
        self._members.drop(self._connection)


def _refusal(status: int, content: bytes) -> EtcdError:
    """The error for an error answer, with the answer's text."""
    try:
        said = json.loads(content)["error"]
    except (ValueError, RecursionError, LookupError, TypeError):
        said = content
    if isinstance(said, str) and said.endswith(NO_LEASE):
        return LeaseLost(f"etcd: {NO_LEASE}")
    return EtcdError(f"HTTP {status}, {said[:SAID_CHARS_MAX]!a}" if isinstance(said, str | bytes) else f"HTTP {status}")


class _Failures:
    """Collects the failure of each member, for the error of the call."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._failures: list[str] = []
        self._kind = EtcdError

    def add(self, endpoint: Endpoint, error: BaseException) -> None:
        reason = "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
        if isinstance(error, EtcdWentBack):
            self._kind = EtcdWentBack
        self._failures.append(f"{endpoint.url}: {reason}")

    def error(self) -> EtcdError:
        return self._kind(f"etcd does not answer {self._path}: {'; '.join(self._failures)}")
