"""The world of the chaos harness's clients (``toymq_chaos.workload``) on a cluster of real nodes, of one group or several.

For the checker, an epoch of the topic's group is a life of a broker: a client belongs to the epoch that its node told when it
connected, and a higher epoch ends the life before, as does the topic's move to another group. Each topic has its own checker
and its own clients: a publisher, an exclusive consumer that makes dead letters, two clients that share a keyed consumer, one
that reads the dead letters, and one that redrives them. Belongs to one event loop.
"""

import asyncio
import json
import random
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import cycle
from typing import Any, Literal, NamedTuple, cast

import toymq
from tests.support.cluster_rig import MONOTONIC, WAIT_S, ClusterNode, ClusterRig
from toymq_chaos.checker import Checker
from toymq_chaos.history import Event, Recorder
from toymq_chaos.queueing import REDRIVE_S, Operator
from toymq_chaos.verdict import Verdict
from toymq_chaos.workload import Client, Habits, Message, Publisher, Subscriber
from toymq_py.consumer_options import Mode
from toymq_py.errors import ConnectionLost
from toymq_py.names import DEAD_LETTERS
from toymq_py.protocol import Cluster, Command, JsonReply, Redrive

Groups = Mapping[str, ClusterRig]
"""The nodes of each group, by its name."""

TOPICS = ("t", "u")
EXCLUSIVE, KEYED, READER = "c", "k", "r"
KEYS = ("red", "green", "blue")
"""Group keys of messages."""
HABITS = Habits(forget=0.01, nack=0.01, sync=0.1, leave=0.001, stop_reading=0.0, cut_frame=0.002, rate=150.0)
VISIBILITY_S = 3.0
REPLICA_TIMEOUT_S = 1.5
OPTIONS = (
    "--visibility", f"{VISIBILITY_S:g}s", "--retain-acked-for", "24h", "--segment-bytes", "64KiB", "--max-attempts", "0",
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
    """A record read from a replica that was opened alone."""

    key: str
    digest: str


class _Topic:
    """What clients of a topic have seen of it."""

    def __init__(self, name: str, home: str) -> None:
        self.name = name
        self.home = home
        """Its group."""
        self.life: tuple[str, int] | None = None
        """Group and epoch."""
        self.stored = 0
        """Publishes with OK or DUP."""
        self.answered_at = 0.0
        """When the last one was."""
        self.checker = Checker(ack_window_ns=int(ACK_WINDOW_S * 1e9))
        self.history: list[Event] = []

    @property
    def needed(self) -> set[tuple[str, str]]:
        """The subscriptions that the topic's clients must have, as (topic, consumer)."""
        return {(self.name, EXCLUSIVE), (self.name, KEYED), (self.name + DEAD_LETTERS, READER)}


class ClusterWorld:
    """A ``workload.World`` on a cluster. A context manager: its clients publish and consume until ``drain``."""

    def __init__(self, groups: Groups, seed: int, share: int = 1) -> None:
        """Topics are created in the groups in turn. ``share``: a short test publishes only one in ``share`` of the messages,
        since they are most of its cost."""
        self._share = share
        self._habits = replace(HABITS, rate=HABITS.rate / share)
        self._groups = groups
        self._seed = seed
        self._began = MONOTONIC()
        self.rng = random.Random(f"harms {seed}")
        """Of what is done to it."""
        self.topics = {name: _Topic(name, home) for name, home in zip(TOPICS, cycle(groups), strict=False)}
        self.recorder = Recorder(self._now_ns, self._take)
        self.calm = False
        self.ends_in_order: Literal["epoch", "move"] | None = None
        """The next end of an epoch is a hand-over, or the next end of a topic's life its move: no ack may be lost."""
        self.longest_gap_s = 0.0
        """Between two answers to publishes to a topic, since it was last set to 0."""
        self._active_at = 0.0
        self._epochs = dict.fromkeys(groups, 0)
        self._leaders: dict[str, ClusterNode] = {}  # by group
        self._used: dict[str, ClusterNode] = {}  # by client
        self._needed = set[tuple[str, str]]().union(*(topic.needed for topic in self.topics.values()))
        self._subscribed: set[tuple[str, str]] = set()
        self._all_subscribed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._publishing: list[asyncio.Task[None]] = []

    @property
    def stored(self) -> int:
        """The number of publishes that got OK or DUP."""
        return sum(topic.stored for topic in self.topics.values())

    # -- as ``workload.World``

    async def ready(self) -> None:
        await self._all_subscribed.wait()

    def subscribed(self, topic: str, consumer: str) -> None:
        self._subscribed.add((topic, consumer))
        if self._subscribed >= self._needed:
            self._all_subscribed.set()

    async def connect(self, client: Client) -> None:
        """Connect a client to the node that leads the group with the client's topic, by the highest epoch that was told. The
        connection may be lost at once. Like the real clients, it tries the node that was just lost last."""
        while not await self._connect(client):  # noqa: ASYNC110 (of another process)
            await asyncio.sleep(0.02)
        self.recorder(client.name, "connect")

    async def _connect(self, client: Client) -> bool:
        """Try to connect a client. Returns: whether a connection was made, even if it is lost by now."""
        user = client.name.partition(".")[0]
        topic = self._topic_of(client.name)
        home = topic.home
        lost = self._used.pop(user, None)
        nodes = sorted(
            self._groups[home].nodes.values(), key=lambda node: (node is lost, node is not self._leaders.get(home))
        )  # fmt: skip
        for node in nodes:
            if (await self._epoch_of(Client("probe"), node, topic)) < max(self._epochs[home], 1):
                continue
            self._used[user] = node
            epoch = await self._epoch_of(client, node, topic, stays=True)
            if epoch < self._epochs[home] or topic.home != home or epoch == 0:
                client.lost = True  # of a leader that is over, or of none, or where the topic was before
                return True
            known, self._epochs[home], self._leaders[home] = self._epochs[home], epoch, node
            if topic.life != (home, epoch):
                told = f"group {home}, epoch {epoch}"
                if topic.life is not None:
                    # beside a move a leader may lose its lease on a busy machine
                    moved = "move" if topic.life[0] != home and known in (0, epoch) else "epoch"
                    how = "stop" if self.ends_in_order == moved else "kill"
                    self.recorder("broker", how, topic=topic.name, note=f"before {told}")
                topic.life = home, epoch
                visibility_ms = int(VISIBILITY_S * 1000)
                self.recorder("broker", "start", topic=topic.name, visibility_ms=visibility_ms, note=told)
            return True
        return False

    async def _epoch_of(self, client: Client, node: ClusterNode, topic: _Topic, *, stays: bool = False) -> int:
        """Ask a node which epoch it leads; 0 if none, if it does not answer, or if the topic has moved. The connection is
        closed then, unless ``stays``."""
        loop, epoch, home = asyncio.get_running_loop(), 0, topic.home
        transport: asyncio.Transport | None = None
        try:
            with suppress(OSError, ConnectionLost):  # a TimeoutError is an OSError
                async with asyncio.timeout(ANSWER_S):
                    found, _ = await loop.create_connection(lambda: _Patient(client), node.host, node.port)
                    transport = cast(asyncio.Transport, found)
                    told = await _epoch_led(node)
                    if told and len(self._groups) > 1:
                        place = (await _asked(client, Cluster())).get("topics", {}).get(topic.name)
                        if topic.home != home or place not in (None, home):
                            told = 0
                            topic.home = place if topic.home == home else topic.home
                    epoch = told
        finally:  # the end of the world cancels it
            if transport is None:
                client.transport = cast(asyncio.Transport, _NoTransport())
                client.lost = True
            elif not (epoch and stays):
                transport.abort()
        return epoch

    # -- what happens

    def _now_ns(self) -> int:
        return int((MONOTONIC() - self._began) * 1e9)

    def _topic_of(self, name: str) -> _Topic:
        """Return the topic of a client, which is the end of the client's name."""
        return self.topics[name.partition(".")[0].rpartition("-")[2]]

    def _take(self, event: Event) -> None:
        if event.process in ("nemesis", "world"):
            concerned = list(self.topics.values())
        elif event.topic is not None:
            concerned = [self.topics[event.topic.removesuffix(DEAD_LETTERS)]]
        else:
            concerned = [self._topic_of(event.process)]
        now = MONOTONIC()
        if event.op in ("pub", "deliver"):
            self._active_at = now
        for topic in concerned:
            if event.op == "pub" and event.result in ("ok", "dup"):
                topic.stored += 1
                if topic.answered_at and (gap_s := now - topic.answered_at) > max(self.longest_gap_s, SMALL_GAP_S):
                    self.longest_gap_s = gap_s
                topic.answered_at = now
            topic.checker.feed(event)
            topic.history.append(event)

    def _messages(self, name: str, topic: str) -> Iterator[Message]:
        rng = random.Random(f"{name} {self._seed}")
        number = 0
        while not self.calm:
            payload = rng.randbytes(rng.choice((0, 10, 300, 3000)))
            yield Message(topic, f"{name}-{number}", payload, group=rng.choice((None, *KEYS)))
            number += 1

    async def __aenter__(self) -> "ClusterWorld":
        for topic in self.topics.values():
            if len(self._groups) > 1:
                async with await toymq.connect(self._groups[topic.home].urls, timeout_s=WAIT_S, wait_s=WAIT_S) as client:
                    await client.create(topic.name, {"group": topic.home})
            self._start(topic.name)
        return self

    def _start(self, topic: str) -> None:
        """Start a topic's clients."""
        start = asyncio.get_running_loop().create_task

        def of(name: str) -> tuple[ClusterWorld, str, random.Random]:
            return self, name, random.Random(f"{name} {self._seed}")

        def subscribe(name: str, of_topic: str, consumer: str, habits: Habits, mode: Mode | None = None) -> None:
            self._tasks.append(start(Subscriber(*of(name), of_topic, consumer, habits, mode).run()))

        self.recorder("supervisor", "declare", topic=topic, consumer=KEYED, note="keyed")
        self._publishing.append(start(Publisher(*of(f"p-{topic}"), self._messages(f"p-{topic}", topic), self._habits).run()))
        subscribe(f"{EXCLUSIVE}-{topic}", topic, EXCLUSIVE, replace(HABITS, dead=0.01))
        for number in range(2):
            subscribe(f"{KEYED}{number}-{topic}", topic, KEYED, HABITS, "keyed")
        subscribe(f"{READER}-{topic}", topic + DEAD_LETTERS, READER, HABITS)
        self._tasks.append(start(_Redriver(*of(f"redriver-{topic}"), topic).run()))

    async def __aexit__(self, *_: object) -> None:
        for task in (*self._tasks, *self._publishing):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._publishing, return_exceptions=True)

    async def more(self, count: int = 100) -> None:
        """Wait until ``count`` more publishes are stored (in a short test only its share), divided among the topics."""
        wanted = {topic: topic.stored + count // self._share // len(self.topics) for topic in self.topics.values()}
        until = MONOTONIC() + WAIT_S
        while any(topic.stored < least for topic, least in wanted.items()):
            for task in (*self._tasks, *self._publishing):
                if task.done():
                    task.result()
            logs = "\n".join(rig.logs() for rig in self._groups.values()) if MONOTONIC() > until else ""
            assert MONOTONIC() < until, f"{[topic.name for topic in wanted if topic.stored < wanted[topic]]} stands\n{logs}"
            await asyncio.sleep(0.02)

    async def drain(self) -> Verdict:
        """End the publishers, and wait until all messages are delivered and acked. Returns: the checkers' verdict."""
        self.calm = True
        async with asyncio.timeout(2 * WAIT_S):
            await asyncio.gather(*self._publishing)
            while (left_s := self._active_at + QUIET_S - MONOTONIC()) > 0:  # noqa: ASYNC110 (moved by each event)
                await asyncio.sleep(left_s)
        self.recorder("world", "drained")
        await self.__aexit__()
        total = Verdict()
        for topic in self.topics.values():
            total.add(topic.checker.verdict())
        return total

    def owed(self, group: str) -> dict[tuple[str, int], Read]:
        """Return what each replica of a group must have: every message of its topics that was stored or delivered, by topic and
        id."""
        return {
            (event.topic or "", event.id or 0): Read(event.key or "", event.digest or "")
            for topic in self.topics.values()
            for event in topic.history
            if topic.home == group and (event.op == "deliver" or (event.op == "pub" and event.result in ("ok", "dup")))
        }


async def _epoch_led(node: ClusterNode) -> int:
    """Return the epoch that a node leads; 0 if it does not lead. It does not ask STATS, which needs all groups, of which one
    may be away. Raises: OSError, TimeoutError."""
    reader, writer = await asyncio.open_connection(node.host, node.http_port)
    try:
        writer.write(b"GET /healthz HTTP/1.0\r\nhost: localhost\r\n\r\n")
        body = (await reader.read()).partition(b"\r\n\r\n")[2]
    finally:
        writer.close()
    found = json.loads(body or b"{}")
    return int(found["epoch"]) if found.get("role") == "leader" else 0


async def _asked(client: Client, command: Command) -> Any:
    """Send a command and return the JSON of the answer; None for an error. Raises: ConnectionLost, TimeoutError."""
    reply = await client.ask(command)
    return json.loads(reply.body) if isinstance(reply, JsonReply) else {}


class _Redriver(Operator):
    """Redrives a topic's dead letters again and again, over a new connection each time."""

    def __init__(self, world: ClusterWorld, name: str, rng: random.Random, topic: str) -> None:
        super().__init__(world, name, rng)
        self._topic = topic

    async def _use(self, client: Client) -> None:
        await self._do(client, "redrive", Redrive(self._topic + DEAD_LETTERS))
        await asyncio.sleep(REDRIVE_S)


class _Patient(asyncio.Protocol):
    """Passes received data on to a client, and ends the connection when none comes for a while."""

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
    """The transport of a client whose connection was refused."""

    def abort(self) -> None:
        """Do nothing: there is no connection."""

    def is_closing(self) -> bool:
        return True
