"""Nodes of one group in simulated time, with an etcd in memory; fake links and brokers record what is asked of them.

    def scenario(rig): ...
    simulate(scenario, tmp_path, monkeypatch)

A node's directory is real, so that ``replica.json`` survives a kill. Two nodes are linked while the leader runs and they are
not in ``cut``.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.simulation.world import VirtualClock
from tests.support.sim_event_loop import SimEventLoop
from tests.support.simulated_etcd import SimulatedEtcd
from toymq_py.errors import TermEnded
from toymq_py.replication import term as term_module
from toymq_py.replication.agreement import Agreement, ClusterSettings, GroupState, Member
from toymq_py.replication.content_digests import ContentDigests
from toymq_py.replication.follower_link import EndReason, FollowEnd
from toymq_py.replication.leader_links import FollowerLag
from toymq_py.replication.link_options import Identity, LinkOptions
from toymq_py.replication.node import Node
from toymq_py.replication.replica_file import ReplicaFile, ReplicaRecord
from toymq_py.replication.stream import Stream
from toymq_py.replication.term import Surroundings, TermOptions
from toymq_py.replication.tickets import Tickets
from toymq_py.storage.fs import RealFileSystem

CLUSTER, GROUP = "orders", "g0"
UUID = "0e2f1c6a-0000-4000-8000-000000000001"
TTL_S = 3.0


class FakeOffice:
    """A fake ``Office`` that records what is asked of it."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.refuses: str | None = None
        self.delivers_until = 0.0
        self.trouble: str | None = None
        self.opening_s = 0.1
        self.error: Exception | None = None
        self._serving = asyncio.Event()

    async def open(self, stream: Stream, tickets: Tickets, lease: int) -> None:
        self.said.append("open")
        await asyncio.sleep(self.opening_s)
        if self.error is not None:
            raise self.error

    async def serve(self) -> None:
        self.said.append("serve")
        await self._serving.wait()

    def refuse_publishes(self, reason: str | None) -> None:
        self.refuses = reason

    def deliver_until(self, at: float) -> None:
        self.delivers_until = at

    def disk_trouble(self, stall_s: float) -> str | None:
        return self.trouble

    async def retire(self, *, in_haste: bool) -> None:
        self.said.append("retire in haste" if in_haste else "retire")
        self._serving.set()
        await asyncio.sleep(0.05)

    def abandon(self) -> None:
        if "abandon" not in self.said:
            self.said.append("abandon")


class FakeLinks:
    """The part of ``LeaderLinks`` that a term uses. Followers join at once, by transaction T3."""

    rig: "NodeRig"

    def __init__(self, *, me: Identity, epoch: int, changes: term_module.Term, members: tuple[str, ...], **_: object) -> None:
        self.me = me
        self.epoch = epoch
        self.changes = changes
        self.required = set(members) - {me.replica}
        self.joined: dict[str, FollowerLag] = {}
        self.said_bye = self.closed = False
        self.ended: asyncio.Future[EndReason] = asyncio.get_running_loop().create_future()

    def start(self) -> None:
        self.rig.links[self.me.replica] = self

    def lags(self) -> list[FollowerLag]:
        return list(self.joined.values())

    async def drop_absent(self, replica: str) -> None:
        if replica in self.required - self.joined.keys():
            await self.changes.drop(replica)
            self.required.discard(replica)

    async def drop_members(self) -> None:
        for replica in sorted(self.required - self.joined.keys()):
            await self.changes.drop(replica)
            self.required.discard(replica)

    async def join(self, replica: str, name: str) -> None:
        await self.changes.drop(replica)
        self.required.add(replica)
        await self.changes.add(replica)
        self.joined[replica] = FollowerLag(replica, name, 0, 0.0, "in sync")

    async def leave(self, replica: str) -> None:
        if self.joined.pop(replica, None) is not None and not (self.closed or self.said_bye):
            await self.changes.drop(replica)
            self.required.discard(replica)

    async def say_bye(self) -> bool:
        self.said_bye = True
        self._end(EndReason.BYE)
        return True

    def close(self) -> None:
        self.closed = True
        self.rig.links.pop(self.me.replica, None)
        self._end(EndReason.LOST)

    def _end(self, reason: EndReason) -> None:
        if not self.ended.done():
            self.ended.set_result(reason)


class FakeLink:
    """A fake ``Follows``: joins the leader's ``FakeLinks``, and stays until these end or the two nodes are ``cut``."""

    def __init__(self, rig: "NodeRig", running: "Running") -> None:
        self._rig = rig
        self._running = running
        self.state = ""
        self.digests = running.digests
        self.followed: list[tuple[str, int]] = []

    async def follow(self, leader: object, epoch: int) -> FollowEnd:
        assert isinstance(leader, Member)
        me = self._running.member
        self.followed.append((leader.name, epoch))
        links = self._rig.links.get(leader.replica)
        if links is None or links.epoch != epoch or {leader.name, me.name} <= self._rig.cut:
            return FollowEnd(EndReason.LOST, "refused")
        if self._running.file.record.promised > epoch:
            links.changes.fenced(self._running.file.record.promised)
            return FollowEnd(EndReason.FENCED, "promised more")
        self._running.file.change(promised=epoch)
        self.state = "copying"
        joining = asyncio.ensure_future(links.join(me.replica, me.name))
        try:
            await asyncio.wait((joining, links.ended), return_when=asyncio.FIRST_COMPLETED)
            if joining.done() and joining.exception() is None:
                self.state = "following"
                return FollowEnd(await asyncio.shield(links.ended), "it has ended")
            return FollowEnd(EndReason.LOST, "it ended before")
        finally:
            self.state = ""
            joining.cancel()
            self._rig.loop.create_task(_quietly(links.leave(me.replica)))


async def _quietly(work: Awaitable[None]) -> None:
    with suppress(TermEnded):
        await work


class Running:
    """One life of a node's process."""

    def __init__(self, rig: "NodeRig", name: str) -> None:
        root = rig.directory / name
        root.mkdir(exist_ok=True)
        fs, loop = RealFileSystem(), rig.loop
        file = ReplicaFile.load(fs, str(root))
        if file is None:
            file = ReplicaFile.create(fs, str(root), ReplicaRecord(UUID, GROUP, name[1:].zfill(32)))
        self.file = file
        self.member = Member(file.record.replica, name, f"{name}:1", f"{name}:2")
        self.office = FakeOffice()
        self.digests = ContentDigests(fs, str(root), VirtualClock(loop))
        self.link = FakeLink(rig, self)
        self.agreement: Agreement = rig.etcd.agreement(name, CLUSTER, GROUP)
        around = Surroundings(
            self.agreement, rig.settings, self.member, Identity(UUID, GROUP, self.member.replica, name), self.office, fs,
            str(root), VirtualClock(loop), loop, rig.offload, LinkOptions(), TermOptions(0.5, 2.0),
        )  # fmt: skip
        self.node = Node(around, file, self.link)
        self.task = loop.create_task(self.node.run())
        self.task.add_done_callback(lambda task: task.cancelled() or task.exception())  # a test looks, or does not care

    def die(self) -> None:
        """Die as by SIGKILL: nothing of the process goes on, but its lease lives on in etcd."""
        self.task.cancel()

    @property
    def ended_by(self) -> BaseException | None:
        assert self.task.done(), f"{self.member.name} is {self.node.state}"
        return self.task.exception()


class _Inline:
    def offload(self, job: Callable[[], None], done: Callable[[], None]) -> None:
        job()
        done()


class NodeRig:
    """Nodes, by name, that share an etcd."""

    def __init__(self, directory: Path, loop: SimEventLoop, seed: int, replicas: int, min_in_sync: int) -> None:
        self.directory = directory
        self.loop = loop
        self.etcd = SimulatedEtcd(random.Random(seed))
        self.settings = ClusterSettings(UUID, replicas, min_in_sync, TTL_S)
        self.links: dict[str, FakeLinks] = {}
        self.cut: set[str] = set()
        """Two names whose nodes do not reach each other."""
        self.offload = _Inline()
        self.tool = self.etcd.agreement("tool", CLUSTER, GROUP)

    def start(self, name: str) -> Running:
        return Running(self, name)

    async def state(self) -> GroupState:
        return await self.tool.read()

    async def until(self, holds: Callable[[], bool], what: str, within_s: float = 60.0) -> None:
        until = self.loop.time() + within_s
        while not holds():
            assert self.loop.time() < until, f"not within {within_s:g} s: {what}"
            await asyncio.sleep(0.02)

    async def led_by(self, running: Running, in_sync: int = 1) -> None:
        """Wait until this node leads, and ``in_sync`` copies are in sync."""
        node = running.node
        await self.until(
            lambda: node.state == "LEADING" and node.term is not None and len(node.term.in_sync.members) == in_sync,
            f"{running.member.name} leads with {in_sync} in sync, not {node.state} {node.waits_for}",
        )


async def pair(rig: NodeRig) -> tuple[Running, Running]:
    """n1 leads, n2 follows in sync."""
    n1 = rig.start("n1")
    await rig.led_by(n1)
    n2 = rig.start("n2")
    await rig.led_by(n1, in_sync=2)
    await rig.until(lambda: n2.node.state == "FOLLOWING", "n2 follows")
    return n1, n2


Run = Callable[..., None]
"""Runs a scenario: the fixture ``run`` of the tests."""
Scenario = Callable[[NodeRig], Awaitable[None]]


def simulate(
    scenario: Scenario, directory: Path, monkeypatch: pytest.MonkeyPatch, *, seed: int = 1, replicas: int = 2,
    min_in_sync: int = 1,
) -> None:  # fmt: skip
    """Run a scenario on an event loop of its own."""
    loop = SimEventLoop(random.Random(seed))
    loop.steps_left = 2_000_000
    random.seed(seed)
    monkeypatch.setattr(term_module, "LeaderLinks", FakeLinks)

    async def run() -> None:
        rig = NodeRig(directory, loop, seed, replicas, min_in_sync)
        FakeLinks.rig = rig
        await rig.tool.create_settings(rig.settings)
        try:
            await scenario(rig)
        finally:
            while others := asyncio.all_tasks() - {asyncio.current_task()}:  # one that ends may begin another
                for task in others:
                    task.cancel()
                await asyncio.gather(*others, return_exceptions=True)

    try:
        loop.run_until_complete(run())
    finally:
        loop.close()
