"""Injects faults into a simulated cluster: at once, or at a certain moment of the protocol."""

import asyncio
import errno
import json
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from tests.simulation.cluster_hosts import SimHost, World
from tests.simulation.cluster_plan import Step
from tests.support.simulated_etcd import Loss, SimulatedEtcd
from toymq_py.errors import EtcdError
from toymq_py.replication.agreement import GroupState, Request, RequestKind
from toymq_py.replication.kept_agreement import KeptAgreement
from toymq_py.replication.key_values import Delete, Put, Transaction

WAIT_S = 5.0
"""For a moment that does not come."""
STATES = ("connecting", "copying", "catching up", "joining", "opening")
DEADLY = (
    ("", ""), ("sync", ""), ("sync", ".log"), ("pwrite", ".log"), ("truncate", ""), ("rename", ""), ("rename", ".log"),
    ("rename", "replica.json.tmp"), ("rename", "offsets.json.tmp"), ("sync_dir", ""), ("unlink", ""), ("", "/spool/stream"),
)  # fmt: skip
"""Where a process dies in the middle of a job: at a call of this kind, on a path that ends so."""
End = Callable[[], None]


def state_of(etcd: SimulatedEtcd, agreement: KeptAgreement) -> GroupState:
    """Return the state of the group that etcd has at this moment."""
    keys = agreement._keys
    return keys.decode_state(etcd.get(keys.state))


@dataclass(slots=True)
class _Armed:
    """A step that waits for its moment. ``came``: set when the moment has come."""

    step: Step
    rng: random.Random
    came: "asyncio.Future[None]"


class Faults:
    """Injects the faults of a plan. Each method ``_on_…`` does one thing to a host, and may return what ends it."""

    def __init__(self, world: World, tool: KeptAgreement) -> None:
        self._world = world
        self._tool = tool
        self._calm = False
        self._armed: _Armed | None = None
        self._members = 0  # of the in-sync set
        self._rng = random.Random(0)  # of the step
        self._kinds = {name.removeprefix("_on_"): getattr(self, name) for name in dir(self) if name.startswith("_on_")}

    def heal(self) -> None:
        """End all faults; none happens from here on."""
        world = self._world
        self._calm = True
        world.network.cut.clear()
        world.network.heal()
        world.etcd.be_well()
        for host in world.hosts.values():
            host.slow_s = 0.0
            host.disk.dies_after = None
            self._repair(host)
            if host.process is not None:
                host.process.loop.paused = False
            world.loop.call_later(0.2, host.start)

    def _repair(self, host: SimHost) -> None:
        """Replace a host's failed disk, or restart what failed, as an operator does."""
        host.disk.heal()
        host.disk.capacity_bytes = None
        if host.had_faults:
            host.die("restart after faults", power=False, restart_s=0.1)
            host.had_faults = False

    # -- when

    async def do(self, step: Step) -> None:
        """Wait for the moment of a step, carry it out, and rest. A fault that ends by itself may end after the next step has
        begun."""
        self._rng = rng = random.Random(step.seed)
        if step.when:
            await self._until(step, rng)
        else:
            self._strike(step, rng)
        await asyncio.sleep(step.rest_s)

    async def _until(self, step: Step, rng: random.Random) -> None:
        self._armed = armed = _Armed(step, rng, self._world.loop.create_future())
        if step.provoked_by:
            self._act(step.provoked_by, rng.choice(("leader", "follower")), rng)
        if step.when in STATES:
            self._world.machines.after_pass = self._look
        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT_S):
                await armed.came
        self._world.machines.after_pass = self._armed = None

    def _look(self) -> None:
        """Carry the waiting step out if the state that it waits for has come."""
        armed = self._armed
        if armed is not None and self._is(armed.step.when):
            self._come(armed, None)

    def _come(self, armed: "_Armed", client: str | None) -> None:
        self._world.machines.after_pass = self._armed = None
        if not armed.came.done():  # its time is over in this instant
            armed.came.set_result(None)
        self._strike(armed.step, armed.rng, client)

    def _is(self, moment: str) -> bool:
        for host in self._world.hosts.values():
            node = host.process.node if host.process is not None else None
            if node is not None and node.state == "JOINING" and not node._link.state and moment == "connecting":
                return True
            if node is not None and node.term is not None:
                if moment == "opening" and node.state == "OPENING":
                    return True
                if any(link.state.value == moment for link in node.term.links._links.values()):
                    return True
        return False

    def transaction(self, client: str, transaction: Transaction, *, done: bool) -> None:
        """Note that a client sends a transaction, or that etcd has done it; a step that waits for this is carried out at
        once."""
        moment = f"{self._name_of(transaction, done=done)} {'done' if done else 'sent'}"
        armed = self._armed
        if armed is not None and armed.step.when == moment:
            self._come(armed, client)

    def _name_of(self, transaction: Transaction, *, done: bool) -> str:
        """Name a transaction as in ``Step.when``; T1 counts as T2."""
        keys = self._tool._keys
        puts = {change.key: change for change in transaction.changes}
        if isinstance(puts.get(keys.leader), Delete):
            return "T4"
        if keys.leader in puts:
            self._members = 1 if done and keys.in_sync in puts else self._members
            return "T2"
        change = puts.get(keys.in_sync)
        if isinstance(change, Put):
            members = len(json.loads(change.value)["members"])
            before, self._members = self._members, members if done else self._members
            return "T3 add" if members > before else "T3 drop" if members < before else ""
        return ""

    # -- what

    def _strike(self, step: Step, rng: random.Random, client: str | None = None) -> None:
        for kind, target in step.acts:
            self._act(kind, target, rng, client)

    def _act(self, kind: str, target: str, rng: random.Random, client: str | None = None) -> None:
        self._rng = rng
        host = self._host(target, rng, client)
        self._world.happened[kind] += 1
        end = self._kinds[kind](host)
        if end is not None:
            after_s = rng.choice((0.2, 1.0, 4.0, 8.0)) * rng.random()
            self._world.loop.call_later(after_s, lambda: None if self._calm else end())

    def _host(self, target: str, rng: random.Random, client: str | None) -> SimHost:
        hosts = list(self._world.hosts.values())
        leader = self._world.hosts.get(client or "")
        if leader is None:
            key = state_of(self._world.etcd, self._tool).leader
            leader = self._world.hosts[key.member.name] if key is not None else None
        if target == "leader" and leader is not None:
            return leader
        if target == "follower":
            hosts = [each for each in hosts if each is not leader]
        return rng.choice(hosts)

    def _another(self, host: SimHost) -> str:
        return self._rng.choice([each for each in self._world.hosts if each != host.name])

    # -- processes

    def _on_kill(self, host: SimHost) -> None:
        host.die("kill", power=False)

    def _on_power(self, host: SimHost) -> None:
        host.die("cut", power=True)

    def _on_power_of_all(self, host: SimHost) -> None:
        for each in self._world.hosts.values():
            each.die("cut of all", power=True, restart_s=6.0 if each is host else None)

    def _on_job(self, host: SimHost) -> None:
        host.disk.dies_on = self._rng.choice(DEADLY)
        host.disk.dies_after = self._rng.randrange(12 if host.disk.dies_on[0] in ("", "sync", "pwrite") else 3)

    def _on_pause(self, host: SimHost) -> End | None:
        process = host.process
        if process is None:
            return None
        process.loop.paused = True

        def resume() -> None:
            if host.process is process:
                process.loop.paused = False

        return resume

    def _on_long_pause(self, host: SimHost) -> None:
        """Pause a process for longer than a lease."""
        resume = self._on_pause(host)
        if resume is not None:
            self._world.loop.call_later(self._rng.uniform(3.0, 6.0), resume)

    def _on_stop(self, host: SimHost) -> None:
        if host.process is not None and host.process.node is not None:
            host.process.loop.call_soon(host.process.node.stop)

    def _on_clock(self, host: SimHost) -> None:
        host.clock_ns += round(self._rng.choice((-600, -5, 5, 600)) * 1e9)
        if host.process is not None:
            host.process.clock.jumped_ns = host.clock_ns

    # -- the network

    def _cut(self, cut: set[tuple[str, str]]) -> End:
        self._world.network.cut |= cut

        def heal() -> None:
            self._world.network.cut -= cut
            self._world.network.heal()

        return heal

    def _on_partition(self, host: SimHost) -> End:
        others = [each for each in self._world.hosts if each != host.name]
        if self._rng.random() < 0.5:
            others = [self._rng.choice(others)]
        return self._cut({(host.name, each) for each in others} | {(each, host.name) for each in others})

    def _on_cut_from(self, host: SimHost) -> End:
        """Cut what a host sends, in one direction only."""
        return self._cut({(host.name, each) for each in self._world.hosts if each != host.name})

    def _on_cut_to(self, host: SimHost) -> End:
        return self._cut({(self._another(host), host.name)})

    def _on_isolation(self, host: SimHost) -> End:
        """Cut a host off from everything but clients."""
        self._world.etcd.cut_off(host.name)
        heal = self._on_partition(host)

        def end() -> None:
            heal()
            self._world.etcd.reconnect(host.name)

        return end

    def _on_reset(self, host: SimHost) -> None:
        host.reset_links()

    # -- etcd

    def _on_etcd_cut(self, host: SimHost) -> End:
        self._world.etcd.cut_off(host.name)
        return lambda: self._world.etcd.reconnect(host.name)

    def _on_etcd_away(self, host: SimHost) -> End:
        self._world.etcd.away = True

        def back() -> None:
            self._world.etcd.away = False

        return back

    def _on_etcd_slow(self, host: SimHost) -> End:
        self._world.etcd.slow_s = self._rng.choice((0.05, 0.3, 0.8))

        def end() -> None:
            self._world.etcd.slow_s = 0.0

        return end

    def _on_watch_lag(self, host: SimHost) -> End:
        self._world.etcd.watch_lag_s = self._rng.choice((0.3, 2.0))

        def end() -> None:
            self._world.etcd.watch_lag_s = 0.0

        return end

    def _on_lost_answers(self, host: SimHost) -> None:
        self._world.etcd.lose(host.name, *self._rng.choices(list(Loss), k=self._rng.randrange(1, 4)))

    def _on_late_requests(self, host: SimHost) -> None:
        """Delay a host's next transaction to etcd, and lose those that follow soon after it."""
        self._world.etcd.lose(host.name, Loss.LATE, *[Loss.REQUEST] * self._rng.randrange(3))

    def _on_lossy_etcd(self, host: SimHost) -> End:
        self._world.etcd.loss_chance = self._rng.choice((0.1, 0.4))

        def end() -> None:
            self._world.etcd.loss_chance = 0.0

        return end

    def _on_lease(self, host: SimHost) -> None:
        leader = state_of(self._world.etcd, self._tool).leader
        if leader is not None:
            self._world.loop.call_soon(self._world.etcd.end_lease, leader.lease)

    def _on_hand_over(self, host: SimHost) -> None:
        self._world.loop.create_task(self._ask_for_hand_over())

    async def _ask_for_hand_over(self) -> None:
        with suppress(EtcdError):
            await self._tool.ask(Request(RequestKind.HAND_OVER, None, 0), await self._tool.grant(30.0))

    # -- disks

    def _on_bad_disk(self, host: SimHost) -> End:
        host.had_faults = True
        rng = self._rng
        op = rng.choice(("sync", "sync", "pwrite", "rename", "sync_dir", "open", "truncate"))
        host.disk.fail(op, rng.randrange(1, 6), rng.choice((errno.EIO, errno.ENOSPC)), sticky=rng.random() < 0.3)
        return lambda: self._repair(host)

    def _on_full_disk(self, host: SimHost) -> End:
        host.had_faults = True
        host.disk.capacity_bytes = host.disk.used_bytes + self._rng.choice((0, 8192))
        return lambda: self._repair(host)

    def _on_slow_disk(self, host: SimHost) -> End:
        host.slow_s = self._rng.choice((0.1, 0.1, 1.0, 6.0))

        def end() -> None:
            host.slow_s = 0.0

        return end

    def _on_slow_disks(self, host: SimHost) -> End:
        ends = [self._on_slow_disk(each) for each in self._world.hosts.values()]

        def end() -> None:
            for each in ends:
                each()

        return end
