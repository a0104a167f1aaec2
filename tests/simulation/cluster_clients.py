"""Clients of a simulated cluster, and a ledger of what they were told, which later answers must never contradict."""

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Iterator
from typing import Protocol

from tests.simulation.cluster_plan import Plan
from toymq_chaos.workload import Client
from toymq_py.broker import Broker
from toymq_py.errors import NotEnoughReplicas
from toymq_py.protocol import Ack, DupReply, ErrReply, MessagePush, OkReply, Publish, Subscribe, encode_command
from toymq_py.topic import Topic

TOPICS = ("t", "u")
MANY = 60
"""A publisher that has made so many messages goes on more slowly: a world costs what its messages cost."""
PATIENCE_S = 4.0
"""A client that hears nothing for so long looks for another node."""


class World(Protocol):
    calm: bool
    ledger: "Ledger"
    plan: Plan

    def connect(self, client: Client) -> Awaitable[int]:
        """Connect to a node that serves. Returns: the epoch that it leads."""


class Ledger:
    """What clients were told. Every method raises AssertionError when a new answer contradicts an earlier one."""

    def __init__(self) -> None:
        self.keys: dict[tuple[str, int], bytes] = {}
        """Of all that was acknowledged or delivered, by topic and id."""
        self._ids: dict[tuple[str, bytes], int] = {}
        self.acknowledged: set[tuple[str, int]] = set()
        self._delivered: set[tuple[str, int]] = set()
        self.acks_sent: set[tuple[str, int]] = set()
        self._acked: dict[tuple[str, int], int] = {}
        self._given: dict[str, dict[int, tuple[int, int]]] = {}
        self._first_ok_at: dict[int, float] = {}  # by epoch
        self.refused = 0

    def told(self, topic: str, msg_id: int, key: bytes, what: str) -> None:
        known = self.keys.setdefault((topic, msg_id), key)
        assert known == key, f"{what}: {topic} {msg_id} is {key!r}, and it was {known!r}: one id of two messages"
        id_before = self._ids.setdefault((topic, key), msg_id)
        assert id_before == msg_id, f"{what}: {key!r} of {topic} is {msg_id}, and it was {id_before}: one message with two ids"

    def ok(self, topic: str, msg_id: int, key: bytes, epoch: int, sent_at: float, *, is_duplicate: bool) -> None:
        """Note the OK of a publish. ``sent_at``: when the publish was sent."""
        self.told(topic, msg_id, key, f"epoch {epoch}, {'DUP' if is_duplicate else 'OK'}")
        self.acknowledged.add((topic, msg_id))
        if is_duplicate:
            return
        self._first_ok_at.setdefault(epoch, asyncio.get_running_loop().time())
        for other, at in self._first_ok_at.items():
            is_behind = other > epoch and at < sent_at
            assert not is_behind, f"epoch {epoch}: OK to what was sent when epoch {other} had said OK: two leaders"
        given = self._given.setdefault(topic, {})
        low, high = given.get(epoch, (msg_id, msg_id))
        given[epoch] = low, high = min(low, msg_id), max(high, msg_id)
        for other, (their_low, their_high) in given.items():
            overlaps = (other < epoch and their_high >= low) or (other > epoch and their_low <= high)
            assert not overlaps, f"{topic}: epoch {epoch} gave {low} to {high}, and epoch {other} {their_low} to {their_high}"

    def delivered(self, topic: str, msg_id: int, key: bytes, epoch: int) -> None:
        self.told(topic, msg_id, key, f"epoch {epoch}, delivery")
        self._delivered.add((topic, msg_id))
        acked = self._acked.get((topic, msg_id))
        assert acked is None or acked > epoch, f"epoch {epoch}: {topic} {msg_id} came again: epoch {acked} had its ack synced"

    def acked(self, topic: str, msg_id: int, epoch: int) -> None:
        """Note an answered ack with ``sync=1``: in this and later epochs the message must not be delivered again."""
        self._acked[topic, msg_id] = max(epoch, self._acked.get((topic, msg_id), 0))

    def undelivered(self) -> list[tuple[str, int]]:
        return sorted(self.acknowledged - self._delivered)

    def all_delivered(self) -> bool:
        return self.acknowledged <= self._delivered

    def check(self, broker: Broker, where: str) -> None:
        """Check that a copy has all that clients were told."""
        found = {topic.name: dict(_records(topic)) for topic in broker.topics.values()}
        for (topic, msg_id), key in self.keys.items():
            what = "acknowledged" if (topic, msg_id) in self.acknowledged else "delivered"
            assert topic in found, f"{where} lacks topic {topic}, {what} {msg_id}; {broker.unopened}"
            log = broker.topics[topic].log
            is_removed = msg_id < log.first_id or any(first <= msg_id <= last for first, last in log.removed)
            if is_removed and (topic, msg_id) in self.acks_sent:
                continue  # on a full disk, what its consumer has acked
            has = found[topic].get(msg_id)
            assert has is not None, f"{where} lacks {topic} {msg_id}, {what}"
            assert has == key, f"{where} has {has!r} as {topic} {msg_id}, {what} as {key!r}"


def _records(topic: Topic) -> Iterator[tuple[int, bytes]]:
    """Yield the id and key of each record."""
    at = topic.log.first_id
    while at < topic.log.committed_id:
        run, row, following = topic.log.read(at, 1000)
        if run is not None:
            yield from zip(run.ids[row : row + following - at], run.keys[row : row + following - at], strict=True)
        at = following


class Publisher:
    """Publishes until the world is calm; repeats, with the same key, what got no OK."""

    def __init__(self, world: World, name: str, rng: random.Random) -> None:
        self._world = world
        self._name = name
        self._rng = rng
        self._made = 0
        self._open: deque[tuple[str, bytes, bytes]] = deque()
        self._may_be_stored: set[bytes] = set()

    async def run(self) -> None:
        while self._open or not self._world.calm or self._made == 0:
            client = Client(self._name)
            epoch = await self._world.connect(client)
            try:
                await self._use(client, epoch)
            finally:
                client.transport.abort()
            await asyncio.sleep(0.05)

    def _fill(self, window: int) -> None:
        rng = self._rng
        while len(self._open) < window:
            key = b"%s-%d" % (self._name.encode(), self._made)
            self._open.append((rng.choice(TOPICS), key, rng.randbytes(rng.choice((0, 20, 200, 2000)))))
            self._made += 1

    async def _use(self, client: Client, epoch: int) -> None:
        rng = self._rng
        while not client.lost:
            if not self._world.calm or self._made == 0:
                self._fill(rng.choice((1, 1, 2, 4)))
            if not self._open:
                return
            if not await self._publish(client, epoch):
                return
            pause_s = rng.choice(self._world.plan.pauses_s) * rng.random()
            await asyncio.sleep(pause_s if self._made < MANY else 10 * pause_s)

    async def _publish(self, client: Client, epoch: int) -> bool:
        """Publish all messages without an OK. Returns: whether all were stored."""
        flying = list(self._open)
        sent_at = asyncio.get_running_loop().time()
        client.write(b"".join(encode_command(Publish(topic, [key], [body])) for topic, key, body in flying))
        highest: dict[str, int] = {}
        refused = 0
        for at, each in enumerate(flying):
            topic, key, _ = each
            reply = await heard(client)
            if isinstance(reply, OkReply):
                before = highest.get(topic, -1)
                assert reply.value > before, f"{topic}: {key!r} got {reply.value}, and one sent before it {before}"
                highest[topic] = reply.value
                self._world.ledger.ok(topic, reply.value, key, epoch, sent_at, is_duplicate=False)
                self._open.remove(each)
            elif isinstance(reply, DupReply):
                assert key in self._may_be_stored, f"{topic}: {key!r} is a duplicate, and no publish of it may have been stored"
                self._world.ledger.ok(topic, reply.msg_id, key, epoch, sent_at, is_duplicate=True)
                self._open.remove(each)
            elif isinstance(reply, ErrReply):
                refused += 1
                if reply.code != NotEnoughReplicas.code:
                    self._may_be_stored.add(key)
            else:
                self._may_be_stored.update(key for _, key, _ in flying[at:])
                return False
        self._world.ledger.refused += refused
        return not refused


class Consumer:
    """Reads a topic and acks its messages, some with ``sync=1``."""

    def __init__(self, world: World, name: str, rng: random.Random, topic: str) -> None:
        self._world = world
        self._name = name
        self._rng = rng
        self._topic = topic

    async def run(self) -> None:
        while True:
            client = Client(self._name)
            epoch = await self._world.connect(client)
            try:
                await self._use(client, epoch)
            finally:
                client.transport.abort()
            await asyncio.sleep(0.05)

    async def _use(self, client: Client, epoch: int) -> None:
        rng, ledger, topic = self._rng, self._world.ledger, self._topic
        asked: deque[int | None] = deque([None])  # ids of acks with sync
        client.send(Subscribe(topic, "c", window=rng.choice((1, 10, 100))))
        while True:
            reply = await heard(client)
            if isinstance(reply, MessagePush):
                ledger.delivered(topic, reply.msg_id, reply.key, epoch)
                if self._world.calm or rng.random() < 0.95:
                    sync = rng.random() < 0.3
                    ledger.acks_sent.add((topic, reply.msg_id))
                    client.send(Ack(topic, "c", ((reply.msg_id, reply.msg_id),), sync))
                    asked.append(reply.msg_id if sync else None)
            elif isinstance(reply, OkReply) and asked:
                msg_id = asked.popleft()
                if msg_id is not None and reply.value:
                    ledger.acked(topic, msg_id, epoch)
            else:
                return


async def heard(client: Client) -> object:
    """Return the next reply; None when the connection is lost or silent."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not client.heard and not client.lost:
                await client.something()
    except TimeoutError:
        return None
    return client.heard.popleft() if client.heard else None
