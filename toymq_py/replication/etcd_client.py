"""etcd's keys, transactions, leases and watch as JSON of its v3 gateway. Contract: replication.md, section 3; ADR 0105.

Reads are linearizable. An answer whose revision is lower than one seen before the call is an error: it comes from an etcd that
was restored from a backup, or from another one. Answers about leases are exempt: their revision is that of the member's own
copy.
"""

import asyncio
import math
import ssl
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from toymq_py.errors import ConfigError, EtcdError, EtcdWentBack, LeaseLost
from toymq_py.metrics import BY_NAME, Histogram
from toymq_py.replication.agreement import DEFAULT_TTL_S, Outcome
from toymq_py.replication.etcd_members import EtcdMembers, EtcdStream, parse_endpoint
from toymq_py.replication.kept_agreement import KeptAgreement
from toymq_py.replication.key_values import Check, Compare, Delete, Found, KeyRange, KeyValue, News, Put, Transaction

T = TypeVar("T")

CALLS_PER_TTL = 3
"""A call ends within this part of the TTL, and a lease is renewed so often."""

PAGE_KEYS = 1000
"""The keys of a range that are read at a time: with the longest names they fit into an answer
(``etcd_http.ANSWER_BYTES_MAX``)."""

_COMPARED = {
    Check.ABSENT: ("CREATE", "EQUAL", "create_revision"),
    Check.PRESENT: ("CREATE", "GREATER", "create_revision"),
    Check.CREATED_AT: ("CREATE", "EQUAL", "create_revision"),
    Check.CHANGED_AT: ("MOD", "EQUAL", "mod_revision"),
}


@dataclass(frozen=True, slots=True)
class EtcdOptions:
    """The addresses of etcd, and the files for TLS to it.

    Attributes:
        urls: the members' URLs, ``http://host:port`` or ``https://host:port``.
        ca: a PEM file with the CA that signed the members' certificates; None for the operating system's CAs.
        cert, key: PEM files, if etcd asks for a client certificate. User names and passwords of etcd are not supported.
    """

    urls: Sequence[str]
    ca: str | None = None
    cert: str | None = None
    key: str | None = None


class EtcdAgreement(KeptAgreement):
    """The agreement of a group in etcd: implements ``Agreement``."""

    def __init__(self, options: EtcdOptions, cluster: str, group: str) -> None:
        """Raises: ConfigError on an invalid name, URL or certificate. Reads the certificates, so it may block."""
        self.client = EtcdClient(options)
        super().__init__(self.client, cluster, group)


class EtcdClient:
    """Implements ``KeyValues`` over etcd's JSON gateway. Used on one event loop; calls may overlap."""

    def __init__(self, options: EtcdOptions) -> None:
        """Raises: ConfigError. Reads the certificates."""
        endpoints = [parse_endpoint(url) for url in options.urls]
        if not endpoints:
            raise ConfigError("no URL of etcd")
        self._members = EtcdMembers(endpoints, _tls(options) if any(each.tls for each in endpoints) else None)
        self._ttl_s = DEFAULT_TTL_S
        self._highest = 0  # revision of a read or a transaction that was answered
        self._watch: _Watch | None = None
        self.request_s = Histogram(BY_NAME["etcd_request_seconds"])
        """The durations of calls that were answered."""
        self.failures = 0
        """The number of calls without an answer that can be trusted."""
        self._silent_since: float | None = None  # a call began that had no answer, nor has one since

    def bound(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s

    @property
    def silent_s(self) -> float:
        """For how many seconds no call was answered; 0 when the last one was."""
        return 0.0 if self._silent_since is None else asyncio.get_running_loop().time() - self._silent_since

    async def get(self, keys: KeyRange) -> Found:
        """Read a range, linearizably, page by page; all pages are read at the revision of the first."""
        at_least = self._highest

        def accept(answer: dict[str, Any]) -> tuple[tuple[KeyValue, ...], bool, int]:
            found = tuple(_key_value(each) for each in answer.get("kvs", []))
            more = answer.get("more", False)
            if type(more) is not bool or (not found if more else len(found) != _number(answer.get("count", "0"))):
                raise EtcdError("not all of the keys")
            return found, more, self._revision(answer, at_least)

        asked = {"key": _base64(keys.start), "range_end": _base64(keys.end), "limit": str(PAGE_KEYS)}
        found, more, revision = await self._call("/v3/kv/range", asked, accept)
        while more:
            asked |= {"key": _base64(found[-1].key + "\0"), "revision": str(revision)}
            page, more, _ = await self._call("/v3/kv/range", asked, accept)
            found += page
        return Found(found, revision)

    async def commit(self, transaction: Transaction) -> Outcome:
        at_least = self._highest

        def accept(answer: dict[str, Any]) -> Outcome:
            done = answer.get("succeeded", False)
            if type(done) is not bool or len(answer.get("responses", [])) != (len(transaction.changes) if done else 0):
                raise EtcdError("the answer to another transaction")
            return Outcome(done, self._revision(answer, at_least))

        body = {
            "compare": [_compare(each) for each in transaction.compares],
            "success": [_change(each) for each in transaction.changes],
        }
        return await self._call("/v3/kv/txn", body, accept, twice=False)

    async def grant(self, ttl_s: float) -> int:
        """Get a new lease. Returns: its id. A lease whose answer was lost expires by itself."""
        return await self._call("/v3/lease/grant", {"TTL": str(math.ceil(ttl_s))}, _lease)

    async def renew(self, lease: int) -> None:
        def accept(answer: dict[str, Any]) -> None:
            if _lease(answer) != lease:
                raise EtcdError("the answer to another renewal")
            if _number(answer.get("TTL", "0")) <= 0:
                raise LeaseLost(f"lease {lease:x} has ended")

        await self._call("/v3/lease/keepalive", {"ID": str(lease)}, accept)

    async def revoke(self, lease: int) -> None:
        try:
            await self._call("/v3/lease/revoke", {"ID": str(lease)}, lambda answer: None)
        except LeaseLost:
            return

    async def changed(self, keys: KeyRange, since: int) -> None:
        """Return when a key of the range changed after ``since``, or early. Keeps the watch for the next call, and moves it to
        the member that answers calls."""
        limit = asyncio.timeout(self._ttl_s)
        try:
            async with limit:
                watch = self._watch
                if watch is None or not watch.covers(keys, since, self._members):
                    self._end_watch()
                    watch = self._watch = await self._open_watch(keys, since)
                while watch.changed <= since:
                    await watch.step()
                    watch.told.clear()  # its caller reads again
        except OSError:
            if not limit.expired():
                self._end_watch(failed=True)  # the caller's read finds the next member
        except EtcdError:
            self._end_watch(failed=True)
            raise

    async def news(self, keys: KeyRange, since: int) -> News:
        """Wait for changes of the range after ``since``, and return them (``KeyValues.news``). Keeps the watch for the next
        call."""
        watch = self._watch
        try:
            async with asyncio.timeout(self._ttl_s):
                if watch is None or not watch.covers(keys, since, self._members) or watch.given > since:
                    self._end_watch()
                    watch = self._watch = await self._open_watch(keys, since)
                while not watch.told:
                    await watch.step()
        except TimeoutError:
            return News((), since)
        except OSError as error:
            self._end_watch(failed=True)
            raise EtcdError(f"etcd's watch ended: {error}") from error
        except EtcdError:
            self._end_watch(failed=True)
            raise
        return watch.take()

    async def close(self) -> None:
        self._members.close()

    # -- parts

    async def _call(self, path: str, body: object, accept: Callable[[dict[str, Any]], T], *, twice: bool = True) -> T:
        def trusted(answer: dict[str, Any]) -> T:
            try:
                return accept(answer)
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                raise EtcdError(f"the answer is not understood: {error!r}") from None

        began = asyncio.get_running_loop().time()
        try:
            answer = await self._members.call(path, body, self._ttl_s / CALLS_PER_TTL, trusted, twice=twice)
        except LeaseLost:
            self._silent_since = None
            raise
        except EtcdError:
            self.failures += 1
            self._silent_since = began if self._silent_since is None else self._silent_since
            raise
        self._silent_since = None
        self.request_s.observe(asyncio.get_running_loop().time() - began)
        return answer

    def _revision(self, answer: dict[str, Any], at_least: int) -> int:
        revision = _number(answer["header"]["revision"])
        if revision < max(at_least, 1):
            raise EtcdWentBack(f"revision {revision}, and {at_least} before: was etcd restored?")
        self._highest = max(self._highest, revision)
        return revision

    async def _open_watch(self, keys: KeyRange, since: int) -> "_Watch":
        body = {"key": _base64(keys.start), "range_end": _base64(keys.end), "start_revision": str(since + 1)}
        limit_s = self._ttl_s / CALLS_PER_TTL
        return _Watch(await self._members.open_stream("/v3/watch", {"create_request": body}, limit_s), keys, since)

    def _end_watch(self, *, failed: bool = False) -> None:
        if self._watch is not None:
            self._watch.stream.close()
            if failed:
                self._members.ask_next(self._watch.stream.endpoint)
            self._watch = None


class _Watch:
    """A running watch. ``changed``: the highest revision that it reported; ``told``: reported changes that ``take`` has not
    returned yet; ``given``: the highest revision that ``take`` returned."""

    def __init__(self, stream: EtcdStream, keys: KeyRange, since: int) -> None:
        self.stream = stream
        self.changed = self.given = since
        self.told: list[KeyValue | tuple[str, int]] = []
        self._keys = keys
        self._since = since

    def covers(self, keys: KeyRange, since: int, members: EtcdMembers) -> bool:
        return self._keys == keys and self._since <= since and self.stream.endpoint == members.asked

    async def step(self) -> None:
        """Wait for the next message; a cancelled call loses nothing. Raises: OSError when the watch has ended; EtcdError."""
        message = await self.stream.next()
        if message.get("canceled"):  # such as of a revision that etcd has compacted away
            raise ConnectionAbortedError("etcd ended the watch")
        try:
            told = [_event(event) for event in message.get("events", [])]
        except (ValueError, LookupError, TypeError) as error:
            raise EtcdError(f"etcd's watch: {error!r}") from None
        self.changed = max((self.changed, *(each[1] if isinstance(each, tuple) else each.changed for each in told)))
        self.told += told

    def take(self) -> News:
        """Return, and forget, the reported changes."""
        news, self.told, self.given = News(tuple(self.told), self.changed), [], self.changed
        return news


def _tls(options: EtcdOptions) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.ca)
        if options.cert is not None:
            context.load_cert_chain(options.cert, options.key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"certificates for etcd: {error}") from None
    return context


# -- JSON: whole numbers are strings, keys and values are base64, what is 0, empty or false is left out


def _base64(text: str) -> str:
    return b64encode(text.encode()).decode()


def _number(text: object) -> int:
    """Parse a number of etcd's JSON. Raises: ValueError."""
    if not isinstance(text, str) or not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ValueError(f"{text!a} instead of a number")
    return int(text)


def _lease(answer: dict[str, Any]) -> int:
    if (lease := _number(answer.get("ID"))) <= 0 or answer.get("error"):
        raise EtcdError("the answer names no lease")
    return lease


def _key_value(found: dict[str, Any]) -> KeyValue:
    return KeyValue(
        b64decode(found["key"], validate=True).decode(),
        b64decode(found.get("value", ""), validate=True),
        _number(found["create_revision"]),
        _number(found["mod_revision"]),
        _number(found.get("lease", "0")),
    )


def _event(event: dict[str, Any]) -> KeyValue | tuple[str, int]:
    """Parse an event of a watch: the written key, or the name and revision of a removed one."""
    found = event["kv"]
    if event.get("type", "PUT") == "DELETE":
        return b64decode(found["key"], validate=True).decode(), _number(found["mod_revision"])
    return _key_value(found)


def _compare(compare: Compare) -> dict[str, str]:
    target, result, field = _COMPARED[compare.check]
    return {"key": _base64(compare.key), "target": target, "result": result, field: str(compare.revision)}


def _change(change: Put | Delete) -> dict[str, dict[str, str]]:
    if isinstance(change, Delete):
        return {"request_delete_range": {"key": _base64(change.key)}}
    value = b64encode(change.value).decode()
    return {"request_put": {"key": _base64(change.key), "value": value, "lease": str(change.lease)}}
