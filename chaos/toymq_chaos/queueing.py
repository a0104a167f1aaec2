"""The load of a work queue, which uses the broker's features beyond publish, subscribe and ack. Contract: delivery.md.

    jobs    delays, ttls, producer sequences; three workers of one shared consumer, one of which polls, and an auditor; a
            message is a dead letter after three attempts or by NACK, is read in ``jobs.dlq`` and sent back (REDRIVE)
    ev.*    topics that appear and are deleted, under patterns
    lanes   groups of messages; three workers of one keyed consumer, one of which polls
    full    a backlog that rejects, its limit changed while it is full; PURGE
    ring    a backlog that drops the oldest, by messages, bytes and age

It runs clients of ``workload``, and some of its own, in the same ``World``.
"""

import asyncio
import json
import random
from collections import deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Literal

from toymq_chaos.history import Recorder, Result
from toymq_chaos.workload import SEQUENCED, Asked, Client, Habits, Message, Publisher, Subscriber, World
from toymq_py.consumer_options import Mode
from toymq_py.errors import ConnectionLost
from toymq_py.protocol import (
    ClosedPush,
    Config,
    Create,
    Delete,
    ErrReply,
    JsonReply,
    MessagePush,
    OkReply,
    Pull,
    Purge,
    Redrive,
)

JOBS, FULL, RING, LANES = "jobs", "full", "ring", "lanes"
LETTERS = JOBS + ".dlq"
EVENTS, EVENT_TOPICS = "ev.*", ("ev.0", "ev.1", "ev.2")
WORKER, AUDITOR, READER, EVERYONE, ORDERLY = "worker", "auditor", "reader", "everyone", "orderly"
TOPICS = (JOBS, LETTERS, FULL, RING, LANES, *EVENT_TOPICS)
"""All topics."""
MAX_ATTEMPTS = 3
SETTINGS = {
    JOBS: {"max_attempts": str(MAX_ATTEMPTS), "nack_backoff_min": "10", "nack_backoff_max": "40"},
    FULL: {"backlog_max_messages": "8"},
    RING: {"backlog_max_messages": "8", "when_full": "drop-oldest"},
    LANES: {"max_attempts": "0", "nack_backoff_min": "10", "nack_backoff_max": "40"},
    # The reader acks each letter at once; retention must not remove it before the operator redrives it.
    LETTERS: {"retain_acked_for": "86400000"},
}
CHANGES = (
    (FULL, "backlog_max_messages", ("2", "8", "20", "default")), (FULL, "backlog_max_bytes", ("3000", "default")),
    (RING, "backlog_max_messages", ("2", "8", "20")), (RING, "backlog_max_bytes", ("9000", "default")),
    (RING, "retain_max_bytes", ("8000", "default")), (RING, "retain_max_age", ("50", "1000", "default")),
    (RING, "when_full", ("drop-oldest", "reject")), (JOBS, "nack_backoff_max", ("40", "80")),
)  # fmt: skip
"""Settings that change while the broker runs: topic, setting, values."""
DECLARED = (
    (RING, None, "drop"), (EVENTS, None, "delete"), (JOBS, WORKER, "share"), (EVENTS, EVERYONE, "share"),
    (LANES, ORDERLY, "keyed"),
)  # fmt: skip
"""Topic or pattern, consumer, note of "declare" events."""
DELAYS_MS = (None, None, None, 20, 150, 400)
TTLS_MS = (None, None, None, 100, 86_400_000)
GROUPS = ("red", "green", "blue")
PAYLOAD_BYTES = (0, 3, 40, 900, 2500)
CHORES = ("redrive", "config", "config", "settings", "purge", "delete")
"""Work of the operator until the faults are over; afterwards it only redrives."""
REDRIVE_S = 0.3
"""Interval of redrives at the end."""
NEEDED = frozenset((
    (JOBS, WORKER), (JOBS, AUDITOR), (LETTERS, READER), (FULL, AUDITOR), (RING, AUDITOR), (EVENTS, EVERYONE), (LANES, ORDERLY),
    ("", "operator"),
))  # fmt: skip
"""Subscriptions, and the operator's start, that ``World.subscribed`` awaits before anything is published."""


def messages(name: str, rng: random.Random) -> Iterator[Message]:
    """Yield messages without end. A publisher whose name ends with an odd digit numbers its messages as a producer."""
    sequenced = int(name[-1]) % 2 == 1
    n = 0
    while True:
        payload = rng.randbytes(rng.choice(PAYLOAD_BYTES))
        topic = rng.choice((JOBS, JOBS, JOBS, FULL, RING, LANES, LANES, *EVENT_TOPICS))
        group = rng.choice(GROUPS) if topic == LANES else None
        delay_ms, ttl_ms = (rng.choice(DELAYS_MS), rng.choice(TTLS_MS)) if topic == JOBS else (None, None)
        if sequenced and not topic.startswith("ev"):
            yield Message(topic, SEQUENCED + name, b"%d " % n + payload, delay_ms, ttl_ms, n, group)
        else:
            yield Message(topic, f"{name}-{n}", payload, delay_ms, ttl_ms, group=group)
        n += 1


def declare(recorder: Recorder) -> None:
    """Record in the history, for the checker, which topics drop messages or are deleted, and which consumers are shared or
    keyed."""
    for topic, consumer, note in DECLARED:
        recorder("supervisor", "declare", topic=topic, consumer=consumer, note=note)


def clients(
    world: World, rng: random.Random, habits: Habits, publishers: int, count: int | None
) -> "tuple[list[Publisher], list[Subscriber | Operator]]":
    """Make the publishers, which end after ``count`` messages each or when the faults end, and the clients that go on after
    that."""
    habits = replace(habits, give_up=0.5)
    poison = replace(habits, forget=0.1, nack=0.3, dead=0.03)
    letters = replace(habits, forget=0.0, nack=0.0)
    anyhow: Mode = rng.choice(("shared", "keyed"))  # keys of events are unique, so both mean the same

    def drawn(name: str, seed: random.Random) -> Iterator[Message]:
        for n, message in enumerate(messages(name, seed)):
            if n == count or (count is None and world.calm):
                return
            yield message

    def own() -> random.Random:
        return random.Random(rng.random())

    senders = [Publisher(world, f"q{n}", own(), drawn(f"q{n}", own()), habits) for n in range(publishers)]
    others: list[Subscriber | Operator] = [
        Subscriber(world, f"w{n}-jobs", own(), JOBS, WORKER, poison, mode="shared") for n in range(2)
    ]
    others += [
        Puller(world, "w2-jobs", own(), JOBS, WORKER, poison),
        Subscriber(world, "auditor-jobs", own(), JOBS, AUDITOR, poison),
        Subscriber(world, "reader-jobs.dlq", own(), LETTERS, READER, letters),
        Subscriber(world, "auditor-full", own(), FULL, AUDITOR, habits),
        Subscriber(world, "auditor-ring", own(), RING, AUDITOR, habits),
        Subscriber(world, "e0-ev", own(), EVENTS, EVERYONE, habits, mode=anyhow),
        Puller(world, "e1-ev", own(), EVENTS, EVERYONE, habits, mode=rng.choice((None, anyhow))),
        *(Subscriber(world, f"o{n}-lanes", own(), LANES, ORDERLY, habits, mode="keyed") for n in range(2)),
        Puller(world, "o2-lanes", own(), LANES, ORDERLY, habits, mode="keyed"),
        Operator(world, "operator", own()),
    ]
    return senders, others


class Puller(Subscriber):
    """A worker without a subscription: leases messages with PULL, sometimes waiting for them."""

    async def _use(self, client: Client, asked: deque[Asked]) -> None:
        world, habits, rng = self._world, self._habits, self._rng
        leased: list[MessagePush] = []
        self._known = False
        try:
            while not client.lost:
                wait_ms = rng.choice((0, 30, 300))
                asked.append(Asked("pull", world.recorder.now_ns(), self._topic))
                client.send(Pull(self._topic, self._consumer, rng.choice((1, 3, 50)), wait_ms, mode=self._mode))
                leaves = not world.calm and rng.random() < habits.leave
                if leaves:
                    await asyncio.sleep(rng.random() * wait_ms / 1000)
                while asked and asked[-1].op == "pull" and not client.lost:
                    if leaves:
                        return
                    await client.something()
                    self._hear(client, asked, leased)
                for push in leased:
                    asked += self._handle(client, push)
                leased.clear()
                if not wait_ms:
                    await asyncio.sleep(0.05 * rng.random())
                    self._hear(client, asked, leased)
        finally:
            if asked and asked[-1].op == "pull":
                self._note(client, "unknown", asked.pop())
                for push in leased:
                    self._delivered(client, push)

    def _hear(self, client: Client, asked: deque[Asked], leased: list[MessagePush]) -> None:
        while client.heard:
            reply = client.heard.popleft()
            if isinstance(reply, ClosedPush):
                continue
            if isinstance(reply, MessagePush):
                leased.append(reply)
                continue
            answered = asked.popleft()
            if answered.op != "pull" or leased or not self._known:  # empty pulls are not recorded
                self._answered(client, reply, answered)
            if answered.op == "pull":
                self._known = True
                for push in leased:
                    self._delivered(client, push)


class Operator:
    """A client that creates topics, changes settings, purges, deletes and redrives."""

    def __init__(self, world: World, name: str, rng: random.Random) -> None:
        self._world = world
        self._name = name
        self._rng = rng
        self._made = False
        self._chores: list[str] = []

    async def run(self) -> None:
        connection = 0
        while True:
            connection += 1
            client = Client(f"{self._name}.{connection}")
            await self._world.connect(client)
            try:
                await self._use(client)
            except (ConnectionLost, TimeoutError):
                pass
            finally:
                client.transport.abort()
                self._world.recorder(client.name, "disconnect")

    def _next_chore(self) -> str:
        """Return the next chore, such as a PURGE: all in random order before any repeats. The caller removes a chore when it is
        done, so that one which a kill interrupted comes again."""
        if not self._chores:
            self._chores = self._rng.sample(CHORES, len(CHORES))
        return self._chores[-1]

    async def _use(self, client: Client) -> None:
        world, rng = self._world, self._rng
        while not self._made:
            self._made = all([made async for made in self._make(client)])
        world.subscribed("", "operator")
        while True:
            await asyncio.sleep(REDRIVE_S if world.calm else 0.3 * rng.random())
            chore = None if world.calm else self._next_chore()
            match chore or "redrive":
                case "config":
                    await self._configure(client, *rng.choice([(t, s, rng.choice(values)) for t, s, values in CHANGES]))
                case "settings":
                    await self._look(client, *rng.choice([(t, s) for t, s, _ in CHANGES]))
                case "redrive":
                    ids, most = (None, None) if world.calm else rng.choice(((None, None), (((0, 3),), None), (None, 2)))
                    await self._do(client, "redrive", Redrive(LETTERS, ids, most))
                case "purge":
                    await self._do(client, "purge", Purge(FULL))
                case _:
                    topic = rng.choice(EVENT_TOPICS)
                    await self._do(client, "delete", Delete(topic))
            if chore is not None:
                self._chores.pop()

    async def _make(self, client: Client) -> AsyncIterator[bool]:
        for topic, settings in SETTINGS.items():
            await client.ask(Create(topic))
            for name, value in settings.items():
                yield await self._configure(client, topic, name, value)

    async def _configure(self, client: Client, topic: str, name: str, value: str) -> bool:
        sent_ns = self._world.recorder.now_ns()
        result: Result = "unknown"
        try:
            reply = await client.ask(Config(topic, {name: value}))
            result = "ok" if isinstance(reply, JsonReply) else "err"
        finally:
            self._world.recorder(client.name, "config", result, topic=topic, key=name, note=value, sent_ns=sent_ns)
        return result == "ok"

    async def _look(self, client: Client, topic: str, name: str) -> None:
        sent_ns = self._world.recorder.now_ns()
        reply = await client.ask(Config(topic))
        if isinstance(reply, JsonReply):
            value = str(json.loads(reply.body).get(name, "default"))
            self._world.recorder(client.name, "settings", topic=topic, key=name, note=value, sent_ns=sent_ns)

    async def _do(self, client: Client, op: Literal["redrive", "purge", "delete"], command: Redrive | Purge | Delete) -> None:
        """Send a command and record its result, except a refusal or a redrive that moved nothing."""
        sent_ns = self._world.recorder.now_ns()
        result: Result = "unknown"
        count = None
        try:
            reply = await client.ask(command)
            if isinstance(reply, OkReply):
                result, count = "ok", reply.value
            else:
                assert isinstance(reply, ErrReply)
                result = "unknown" if reply.code in ("STORAGE_FAILED", "DISK_FULL", "INTERNAL") else "err"
        finally:
            if result == "unknown" or (result == "ok" and (count or op != "redrive")):
                self._world.recorder(client.name, op, result, topic=command.topic, sent_ns=sent_ns, count=count)
