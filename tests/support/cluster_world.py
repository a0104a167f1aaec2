"""The world of the chaos harness's clients (``toymq_chaos.workload``) on a cluster of real nodes.

To the checker the lives of a broker are a cluster's epochs: a client counts for the epoch that the node told when it connected,
and a higher one that is told ends the life before. Belongs to one event loop.
"""

import asyncio
import json
import random
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple, cast

from tests.support.cluster_rig import MONOTONIC, WAIT_S, ClusterNode, ClusterRig
from toymq_chaos.checker import Checker
from toymq_chaos.history import Event, Recorder
from toymq_chaos.verdict import Verdict
from toymq_chaos.workload import Client, Habits, Message, Publisher, Subscriber
from toymq_py.errors import ConnectionLost
from toymq_py.protocol import JsonReply, Stats

TOPICS = ("t", "u")
CONSUMERS = ("c0", "c1")
PUBLISHERS = ("p0", "p1")
HABITS = Habits(forget=0.01, nack=0.01, sync=0.1, leave=0.001, stop_reading=0.0, cut_frame=0.002, rate=150.0)
VISIBILITY_S = 3.0
REPLICA_TIMEOUT_S = 1.5
OPTIONS = (
    "--visibility", f"{VISIBILITY_S:g}s", "--retain-acked-for", "24h", "--segment-bytes", "64KiB",
    "--replica-timeout", f"{REPLICA_TIMEOUT_S * 1000:.0f}ms",
)  # fmt: skip
"""Of the nodes."""
ANSWER_S = 2.0
"""A node that does not answer for so long is not the one to connect to. One that waits for an election answers before."""
PATIENCE_S = 2.5
"""A connection on which nothing comes for so long is given up: its node may be cut off."""
ACK_WINDOW_S = 1.0
"""Acks of so long before the end of an epoch may be lost: the flush of a busy machine, and the way to the followers."""
SMALL_GAP_S = 0.02
QUIET_S = VISIBILITY_S + 1.5
"""Nothing comes for so long: everything was delivered, and acked."""


class Read(NamedTuple):
    """A record of a replica, opened alone."""

    key: str
    digest: str


class ClusterWorld:
    """A ``workload.World``. A context manager: its clients publish and consume until ``drain``."""

    def __init__(self, rig: ClusterRig, seed: int) -> None:
        self._rig = rig
        self._seed = seed
        self._began = MONOTONIC()
        self._checker = Checker(ack_window_ns=int(ACK_WINDOW_S * 1e9))
        self.history: list[Event] = []
        self.recorder = Recorder(self._now_ns, self._take)
        self.calm = False
        self.ends_in_order = False
        """The next end of an epoch is a hand-over: no ack may be lost."""
        self.longest_gap_s = 0.0
        """Between two answers to publishes, since it was last set to 0."""
        self.stored = 0
        """Publishes with OK or DUP."""
        self._answered_at = 0.0
        self._active_at = 0.0
        self._epoch = 0
        self._leader: ClusterNode | None = None
        self._used: dict[str, ClusterNode] = {}  # by client
        self._subscribed: set[tuple[str, str]] = set()
        self._all_subscribed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._publishing: list[asyncio.Task[None]] = []

    # -- as ``workload.World``

    async def ready(self) -> None:
        await self._all_subscribed.wait()

    def subscribed(self, topic: str, consumer: str) -> None:
        self._subscribed.add((topic, consumer))
        if len(self._subscribed) == len(TOPICS) * len(CONSUMERS):
            self._all_subscribed.set()

    async def connect(self, client: Client) -> None:
        """Connect to a node that says that it leads, of the highest epoch that was told. It may be lost at once. As with the
        product's clients, the node that was just lost comes last."""
        while not await self._connect(client):  # noqa: ASYNC110 (of another process)
            await asyncio.sleep(0.02)
        self.recorder(client.name, "connect")

    async def _connect(self, client: Client) -> bool:
        """Returns: whether there is a connection, alive or lost."""
        user = client.name.partition(".")[0]
        lost = self._used.pop(user, None)
        nodes = sorted(self._rig.nodes.values(), key=lambda node: (node is lost, node is not self._leader))
        for node in nodes:
            if (await self._epoch_of(Client("probe"), node)) < max(self._epoch, 1):
                continue
            self._used[user] = node
            epoch = await self._epoch_of(client, node, stays=True)
            if epoch > self._epoch:
                if self._epoch:
                    self.recorder("broker", "stop" if self.ends_in_order else "kill", note=f"epoch {self._epoch}")
                self._epoch, self._leader = epoch, node
                self.recorder("broker", "start", visibility_ms=int(VISIBILITY_S * 1000), note=f"epoch {epoch}")
            elif epoch < self._epoch:
                client.lost = True  # of a leader that is over, or of none
            return True
        return False

    async def _epoch_of(self, client: Client, node: ClusterNode, *, stays: bool = False) -> int:
        """What a node leads as it says; 0: nothing, or it says nothing. The connection ends, unless it ``stays``."""
        loop, epoch = asyncio.get_running_loop(), 0
        transport: asyncio.Transport | None = None
        with suppress(OSError, ConnectionLost):  # a TimeoutError is an OSError
            async with asyncio.timeout(ANSWER_S):
                found, _ = await loop.create_connection(lambda: _Patient(client), node.host, node.port)
                transport = cast(asyncio.Transport, found)
                reply = await client.ask(Stats())
            if isinstance(reply, JsonReply):
                epoch = int(json.loads(reply.body)["cluster"]["epoch"])
        if transport is None:
            client.transport = cast(asyncio.Transport, _NoTransport())
            client.lost = True
        elif not (epoch and stays):
            transport.abort()
        return epoch

    # -- what happens

    def _now_ns(self) -> int:
        return int((MONOTONIC() - self._began) * 1e9)

    def _take(self, event: Event) -> None:
        now = MONOTONIC()
        if event.op in ("pub", "deliver"):
            self._active_at = now
        if event.op == "pub" and event.result in ("ok", "dup"):
            self.stored += 1
            if self._answered_at and (gap_s := now - self._answered_at) > max(self.longest_gap_s, SMALL_GAP_S):
                self.longest_gap_s = gap_s
            self._answered_at = now
        self._checker.feed(event)
        self.history.append(event)

    def _messages(self, name: str) -> Iterator[Message]:
        rng = random.Random(f"{name} {self._seed}")
        number = 0
        while not self.calm:
            yield Message(rng.choice(TOPICS), f"{name}-{number}", rng.randbytes(rng.choice((0, 10, 300, 3000))))
            number += 1

    async def __aenter__(self) -> "ClusterWorld":
        start = asyncio.get_running_loop().create_task
        for name in PUBLISHERS:
            rng = random.Random(f"publisher {name} {self._seed}")
            self._publishing.append(start(Publisher(self, name, rng, self._messages(name), HABITS).run()))
        for topic in TOPICS:
            for consumer in CONSUMERS:
                rng = random.Random(f"subscriber {consumer} {topic} {self._seed}")
                subscriber = Subscriber(self, f"{consumer}-{topic}", rng, topic, consumer, HABITS)
                self._tasks.append(start(subscriber.run()))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in (*self._tasks, *self._publishing):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._publishing, return_exceptions=True)

    async def more(self, count: int = 100) -> None:
        """Wait until so many more publishes are stored."""
        wanted, until = self.stored + count, MONOTONIC() + WAIT_S
        while self.stored < wanted:
            for task in (*self._tasks, *self._publishing):
                if task.done():
                    task.result()
            assert MONOTONIC() < until, f"{count} more were waited for\n{self._rig.logs()}"
            await asyncio.sleep(0.02)

    async def drain(self) -> Verdict:
        """End the publishers, wait until all was delivered and acked. Returns: the checker's verdict."""
        self.calm = True
        async with asyncio.timeout(2 * WAIT_S):
            await asyncio.gather(*self._publishing)
            while (left_s := self._active_at + QUIET_S - MONOTONIC()) > 0:  # noqa: ASYNC110 (moved by each event)
                await asyncio.sleep(left_s)
        self.recorder("world", "drained")
        await self.__aexit__()
        return self._checker.verdict()

    def owed(self) -> dict[tuple[str, int], Read]:
        """What each replica must have: all that was stored or delivered, by topic and id."""
        return {
            (event.topic or "", event.id or 0): Read(event.key or "", event.digest or "")
            for event in self.history
            if event.op == "deliver" or (event.op == "pub" and event.result in ("ok", "dup"))
        }


class _Patient(asyncio.Protocol):
    """Passes on to a client what comes, and ends the connection when nothing does."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._client.connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        self._wait()
        self._client.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        self._client.connection_lost(exc)

    def _wait(self) -> None:
        self._stop()
        self._timer = asyncio.get_running_loop().call_later(PATIENCE_S, self._client.transport.abort)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class _NoTransport:
    """Of a client whose connection was refused."""

    def abort(self) -> None:
        """Nothing to end."""

    def is_closing(self) -> bool:
        return True
