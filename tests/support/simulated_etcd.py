"""An etcd in memory, in the time of the running loop, with revisions, transactions, leases and a watch; and faults between it
and one client.

    etcd = SimulatedEtcd(random.Random(seed))
    n1 = etcd.agreement("n1", "c", "g0")       # as EtcdAgreement
    etcd.lose("n1", Loss.ANSWER)               # n1's next transaction happens, and n1 hears nothing
    etcd.cut_off("n1"); etcd.reconnect("n1")

Under ``SimEventLoop`` the same seed gives the same run. Every wait is a timer of the loop, drawn from the seed.
"""

import asyncio
import enum
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from toymq_py.errors import EtcdError, EtcdWentBack, LeaseLost
from toymq_py.replication.agreement import DEFAULT_TTL_S, Outcome
from toymq_py.replication.etcd_client import CALLS_PER_TTL
from toymq_py.replication.kept_agreement import KeptAgreement
from toymq_py.replication.key_values import Check, Compare, Found, KeyRange, KeyValue, News, Put, Transaction

WAYS_S = (0.0, 0.0002, 0.001, 0.004)
"""How long a request or an answer is on its way; drawn."""
LATE_S = (0.01, 5.0)
"""How long after its caller gave up a request still arrives, with ``Loss.LATE``: from, to."""
EXPIRY_S = 0.5
"""etcd looks for leases that have ended this often."""

T = TypeVar("T")


class Loss(enum.Enum):
    """What goes wrong with a client's call; the caller gets ``EtcdError``."""

    REQUEST = "it never arrives"
    ANSWER = "it is done, and its answer is lost"
    LATE = "it arrives after its caller gave up"


@dataclass
class _Lease:
    ttl_s: float
    ends_at: float
    keys: set[str] = field(default_factory=set)


class SimulatedEtcd:
    """The server. ``revision``: that of the last change. ``away``: no client reaches the server."""

    def __init__(self, rng: random.Random, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """``loop``: the server's loop; None: the loop of its callers. A client's loop may stop."""
        self.rng = rng
        self._loop = loop
        self.revision = 1
        self.away = False
        self.loss_chance = 0.0
        """Of each call of any client: one of ``Loss``, drawn."""
        self.slow_s = self.watch_lag_s = 0.0
        """At most so much longer is each way of a call, and each piece of news."""
        self.on_transaction: Callable[[str, Transaction, bool], None] = lambda client, transaction, done: None
        """Called when a client sends a transaction, and when one is done."""
        self._keys: dict[str, KeyValue] = {}
        self._changes: list[tuple[int, str]] = []
        self._versions: dict[tuple[int, str], KeyValue] = {}
        self._leases: dict[int, _Lease] = {}
        self._next_lease = 7000
        self._cut_off: set[str] = set()
        self._losses: dict[str, list[Loss]] = {}
        self._waiting: dict[asyncio.Future[None], None] = {}  # in order

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._loop or asyncio.get_running_loop()

    def client(self, name: str) -> "SimulatedClient":
        return SimulatedClient(self, name)

    def agreement(self, name: str, cluster: str, group: str) -> KeptAgreement:
        """Return the ``Agreement`` for a node. A node that restarts needs a new one."""
        return KeptAgreement(self.client(name), cluster, group)

    # -- what goes wrong

    def lose(self, client: str, *losses: Loss) -> None:
        """Set what goes wrong with the next transactions of a client, in turn. Reads and leases are not affected."""
        self._losses.setdefault(client, []).extend(losses)

    def cut_off(self, client: str) -> None:
        """Let no call of a client arrive, and none of its watch's news."""
        self._cut_off.add(client)

    def reconnect(self, client: str) -> None:
        self._cut_off.discard(client)

    def reaches(self, client: str) -> bool:
        return not self.away and client not in self._cut_off

    def be_well(self) -> None:
        """End all faults; what is late still arrives."""
        self.away = False
        self.loss_chance = self.slow_s = self.watch_lag_s = 0.0
        self._cut_off.clear()
        self._losses.clear()

    def end_lease(self, lease: int) -> None:
        """End a lease as if its time were over. No error when it does not exist."""
        self._end_lease(lease)

    def wipe(self) -> None:
        """Replace the server by an empty etcd at the same address."""
        self.revision = 1
        self._keys.clear()
        self._changes.clear()
        self._leases.clear()

    def keys(self) -> dict[str, bytes]:
        """Return what is stored, for assertions."""
        return {key: each.value for key, each in sorted(self._keys.items())}

    def next_loss(self, client: str, *, transaction: bool) -> Loss | None:
        if transaction and (planned := self._losses.get(client)):
            return planned.pop(0)
        return self.rng.choice(list(Loss)) if self.rng.random() < self.loss_chance else None

    # -- what etcd does

    def get(self, keys: KeyRange) -> Found:
        found = tuple(self._keys[key] for key in sorted(self._keys) if keys.start <= key < keys.end)
        return Found(found, self.revision)

    def commit(self, transaction: Transaction, client: str = "") -> Outcome:
        """Carry out a transaction. Raises: LeaseLost."""
        for change in transaction.changes:  # etcd looks before it compares or writes
            if isinstance(change, Put) and change.lease and change.lease not in self._leases and self._holds(transaction):
                raise LeaseLost(f"lease {change.lease:x}")
        if not self._holds(transaction):
            return Outcome(done=False, revision=self.revision)
        touched = [each for each in transaction.changes if isinstance(each, Put) or each.key in self._keys]
        if touched:
            self.revision += 1
        for change in touched:
            if isinstance(change, Put):
                self._put(change)
            else:
                self._delete(change.key)
        self.tell()
        outcome = Outcome(done=True, revision=self.revision)
        self.on_transaction(client, transaction, True)
        return outcome

    def grant(self, ttl_s: float) -> int:
        self._next_lease += 1
        ttl_s = math.ceil(ttl_s)
        self._leases[self._next_lease] = _Lease(ttl_s, 0)
        self.renew(self._next_lease)
        return self._next_lease

    def renew(self, lease: int) -> None:
        """Renew a lease. Raises: LeaseLost."""
        if (found := self._leases.get(lease)) is None:
            raise LeaseLost(f"lease {lease:x} has ended")
        found.ends_at = self.loop.time() + found.ttl_s
        self.loop.call_at(found.ends_at + self.rng.uniform(0, EXPIRY_S), self._look_at_lease, lease, found)

    def revoke(self, lease: int) -> None:
        self._end_lease(lease)

    def changed_since(self, keys: KeyRange, since: int) -> bool:
        return any(revision > since and keys.start <= key < keys.end for revision, key in reversed(self._changes))

    def news_since(self, keys: KeyRange, since: int) -> News:
        """Return what has changed in a range of keys after a revision."""
        found = [each for each in self._changes if each[0] > since and keys.start <= each[1] < keys.end]
        changes = tuple(self._versions.get(each) or (each[1], each[0]) for each in found)
        return News(changes, max((each[0] for each in found), default=since))

    async def news(self) -> None:
        """Wait for any change."""
        future = asyncio.get_running_loop().create_future()
        self._waiting[future] = None
        try:
            await future
        finally:
            self._waiting.pop(future, None)

    # -- parts

    def _holds(self, transaction: Transaction) -> bool:
        return all(self._passes(each) for each in transaction.compares)

    def _passes(self, compare: Compare) -> bool:
        found = self._keys.get(compare.key)
        if compare.check is Check.ABSENT:
            return found is None
        if compare.check is Check.PRESENT:
            return found is not None
        if compare.check is Check.CREATED_AT:
            return (found.created if found else 0) == compare.revision
        return (found.changed if found else 0) == compare.revision

    def _put(self, put: Put) -> None:
        before = self._keys.get(put.key)
        self._forget_lease_of(put.key)
        created = before.created if before else self.revision
        self._keys[put.key] = KeyValue(put.key, put.value, created, self.revision, put.lease)
        if put.lease:
            self._leases[put.lease].keys.add(put.key)
        self._changes.append((self.revision, put.key))
        self._versions[self.revision, put.key] = self._keys[put.key]

    def _delete(self, key: str) -> None:
        self._forget_lease_of(key)
        del self._keys[key]
        self._changes.append((self.revision, key))

    def _forget_lease_of(self, key: str) -> None:
        found = self._keys.get(key)
        if found is not None and found.lease in self._leases:
            self._leases[found.lease].keys.discard(key)

    def _look_at_lease(self, lease: int, found: _Lease) -> None:
        if self._leases.get(lease) is found and found.ends_at <= self.loop.time():
            self._end_lease(lease)

    def _end_lease(self, lease: int) -> None:
        found = self._leases.pop(lease, None)
        if found is not None and found.keys:
            self.revision += 1
            for key in sorted(found.keys):
                self._delete(key)
            self.tell()

    def tell(self) -> None:
        """Wake the watches: something changed, or a client was closed."""
        for future in list(self._waiting):
            if not future.done():
                future.set_result(None)


class SimulatedClient:
    """The ``KeyValues`` of one client."""

    def __init__(self, etcd: SimulatedEtcd, name: str) -> None:
        self._etcd = etcd
        self._name = name
        self._ttl_s = DEFAULT_TTL_S
        self._highest = 0
        self._closed = False

    def bound(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s

    async def get(self, keys: KeyRange) -> Found:
        at_least = self._highest
        found = await self._call(lambda: self._etcd.get(keys))
        self._look_at(found.revision, at_least)
        return found

    async def commit(self, transaction: Transaction) -> Outcome:
        at_least = self._highest
        self._etcd.on_transaction(self._name, transaction, False)
        outcome = await self._call(lambda: self._etcd.commit(transaction, self._name), transaction=True)
        self._look_at(outcome.revision, at_least)
        return outcome

    async def grant(self, ttl_s: float) -> int:
        return await self._call(lambda: self._etcd.grant(ttl_s))

    async def renew(self, lease: int) -> None:
        await self._call(lambda: self._etcd.renew(lease))

    async def revoke(self, lease: int) -> None:
        await self._call(lambda: self._etcd.revoke(lease))

    async def changed(self, keys: KeyRange, since: int) -> None:
        limit = asyncio.timeout(self._ttl_s)
        try:
            async with limit:
                while not (self._etcd.reaches(self._name) and self._etcd.changed_since(keys, since)):
                    self._check_open()
                    await self._etcd.news()
                await asyncio.sleep(self._etcd.rng.choice(WAYS_S) + self._etcd.watch_lag_s * self._etcd.rng.random())
        except TimeoutError:
            return

    async def news(self, keys: KeyRange, since: int) -> News:
        """Return what had changed when the answer was sent; while it was under way, more may have changed."""
        found = News((), since)
        limit = asyncio.timeout(self._ttl_s)
        try:
            async with limit:
                while not (self._etcd.reaches(self._name) and self._etcd.changed_since(keys, since)):
                    self._check_open()
                    await self._etcd.news()
                found = self._etcd.news_since(keys, since)
            await asyncio.sleep(self._etcd.rng.choice(WAYS_S) + self._etcd.watch_lag_s * self._etcd.rng.random())
        except TimeoutError:
            return News((), since)
        return found

    async def close(self) -> None:
        self._closed = True
        self._etcd.tell()

    # -- parts

    async def _call(self, act: Callable[[], T], *, transaction: bool = False) -> T:
        """Send a call to the server and return its answer, within a third of the TTL. A call that was sent arrives even if its
        caller is cancelled or dead.

        Raises: EtcdError; what ``act`` raises, when the answer arrives.
        """
        etcd, limit_s = self._etcd, self._ttl_s / CALLS_PER_TTL
        loss = etcd.next_loss(self._name, transaction=transaction)
        there_s, back_s = self._way_s(), self._way_s()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def arrive() -> None:
            if loss is not Loss.LATE and (self._closed or not etcd.reaches(self._name)):
                return
            outcome: T | LeaseLost
            try:
                outcome = act()
            except LeaseLost as error:
                outcome = error
            if loss is None and not loop.is_closed():
                loop.call_later(back_s, hear, outcome)

        def hear(outcome: T | LeaseLost) -> None:
            if not etcd.reaches(self._name) or answer.done():
                return
            if isinstance(outcome, LeaseLost):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)

        if loss is not Loss.REQUEST:
            etcd.loop.call_later(limit_s + etcd.rng.uniform(*LATE_S) if loss is Loss.LATE else there_s, arrive)
        try:
            async with asyncio.timeout(limit_s):
                return await answer
        except TimeoutError:
            raise EtcdError(f"no answer: {loss.value if loss is not None else 'etcd is not reached'}") from None

    def _check_open(self) -> None:
        if self._closed:
            raise EtcdError("the client is closed")

    def _way_s(self) -> float:
        way_s, slow_s = self._etcd.rng.choice(WAYS_S), self._etcd.slow_s
        return way_s + slow_s * self._etcd.rng.random() if slow_s else way_s

    def _look_at(self, revision: int, at_least: int) -> None:
        if revision < at_least:
            raise EtcdWentBack(f"revision {revision}, and {at_least} before")
        self._highest = max(self._highest, revision)
