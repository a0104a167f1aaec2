"""What goes wrong in a simulated cluster."""

import asyncio
import errno
from collections.abc import Callable
from contextlib import suppress

from tests.simulation.cluster_hosts import SimHost, World
from tests.support.simulated_etcd import Loss, SimulatedEtcd
from toymq_py.errors import EtcdError
from toymq_py.replication.agreement import GroupState, Request, RequestKind
from toymq_py.replication.kept_agreement import KeptAgreement


def state_of(etcd: SimulatedEtcd, agreement: KeptAgreement) -> GroupState:
    """Of the group, as etcd has it at this moment."""
    keys = agreement._keys
    return keys.decode_state(etcd.get(keys.state))


class Faults:
    """What goes wrong. Each ``_on_…`` does one thing to a host, and returns what ends it."""

    def __init__(self, world: World, tool: KeptAgreement, only: tuple[str, ...]) -> None:
        self._world = world
        self._tool = tool
        self._only = only
        self._calm = False

    def heal(self) -> None:
        """No fault from here on."""
        self._calm = True
        self._world.network.cut.clear()
        self._world.network.heal()
        self._world.etcd.away, self._world.etcd.loss_chance = False, 0.0
        self._world.etcd._losses.clear()
        for host in self._world.hosts.values():
            self._world.etcd.reconnect(host.name)
            host.slow_s = 0.0
            host.disk.dies_after = None
            self._repair(host)
            if host.process is not None:
                host.process.loop.paused = False
            self._world.loop.call_later(0.2, host.start)

    def _repair(self, host: SimHost) -> None:
        """Another disk, or an operator who restarts what failed."""
        host.disk.heal()
        host.disk.capacity_bytes = None
        if host.had_faults:
            host.die("restart after faults", power=False, restart_s=0.1)
            host.had_faults = False

    async def next(self) -> None:
        """One thing goes wrong; what of it ends by itself may end after the next has begun."""
        rng, loop = self._world.rng, self._world.loop
        kinds = {name.removeprefix("_on_"): getattr(self, name) for name in dir(self) if name.startswith("_on_")}
        kind = rng.choice(self._only or sorted(kinds))
        leaders = [each for each in self._world.hosts.values() if each.process is not None and each.process.listener]
        host = rng.choice(leaders) if leaders and rng.random() < 0.5 else rng.choice(list(self._world.hosts.values()))
        self._world.happened[kind] += 1
        end = kinds[kind](host)
        if end is not None:
            loop.call_later(rng.choice((0.2, 1.0, 4.0, 8.0)) * rng.random(), lambda: None if self._calm else end())
        await asyncio.sleep(rng.choice((0.01, 0.3, 1.0, 3.0, 6.0)) * rng.random())

    def _on_kill(self, host: SimHost) -> None:
        host.die("kill", power=False)

    def _on_power(self, host: SimHost) -> None:
        host.die("cut", power=True)

    def _on_power_of_all(self, host: SimHost) -> None:
        for each in self._world.hosts.values():
            each.die("cut of all", power=True)

    def _on_job(self, host: SimHost) -> None:
        host.disk.dies_after = self._world.rng.randrange(12)
        host.disk.dies_on = self._world.rng.choice((("", ""), ("sync", ""), ("pwrite", ""), ("rename", "")))

    def _on_pause(self, host: SimHost) -> Callable[[], None] | None:
        process = host.process
        if process is None:
            return None
        process.loop.paused = True

        def resume() -> None:
            if host.process is process:
                process.loop.paused = False

        return resume

    def _on_partition(self, host: SimHost) -> Callable[[], None]:
        others = [each for each in self._world.hosts if each != host.name]
        if self._world.rng.random() < 0.5:
            others = [self._world.rng.choice(others)]
        cut = {(host.name, each) for each in others} if self._world.rng.random() < 0.7 else set()
        if not cut or self._world.rng.random() < 0.6:
            cut |= {(each, host.name) for each in others}
        self._world.network.cut |= cut

        def heal() -> None:
            self._world.network.cut -= cut
            self._world.network.heal()

        return heal

    def _on_isolation(self, host: SimHost) -> Callable[[], None]:
        """From everything but clients."""
        self._world.etcd.cut_off(host.name)
        heal = self._on_partition(host)

        def end() -> None:
            heal()
            self._world.etcd.reconnect(host.name)

        return end

    def _on_etcd_cut(self, host: SimHost) -> Callable[[], None]:
        self._world.etcd.cut_off(host.name)
        return lambda: self._world.etcd.reconnect(host.name)

    def _on_etcd_away(self, host: SimHost) -> Callable[[], None]:
        self._world.etcd.away = True

        def back() -> None:
            self._world.etcd.away = False

        return back

    def _on_lost_answers(self, host: SimHost) -> None:
        self._world.etcd.lose(host.name, *self._world.rng.choices(list(Loss), k=self._world.rng.randrange(1, 4)))

    def _on_lossy_etcd(self, host: SimHost) -> Callable[[], None]:
        self._world.etcd.loss_chance = self._world.rng.choice((0.1, 0.4))

        def end() -> None:
            self._world.etcd.loss_chance = 0.0

        return end

    def _on_lease(self, host: SimHost) -> None:
        leader = state_of(self._world.etcd, self._tool).leader
        if leader is not None:
            self._world.etcd.end_lease(leader.lease)

    def _on_bad_disk(self, host: SimHost) -> Callable[[], None]:
        host.had_faults = True
        rng = self._world.rng
        op = rng.choice(("sync", "sync", "pwrite", "rename", "sync_dir", "open", "truncate"))
        host.disk.fail(op, rng.randrange(1, 6), rng.choice((errno.EIO, errno.ENOSPC)), sticky=rng.random() < 0.3)
        return lambda: self._repair(host)

    def _on_full_disk(self, host: SimHost) -> Callable[[], None]:
        host.had_faults = True
        host.disk.capacity_bytes = host.disk.used_bytes + self._world.rng.choice((0, 8192))
        return lambda: self._repair(host)

    def _on_slow_disk(self, host: SimHost) -> Callable[[], None]:
        host.slow_s = self._world.rng.choice((0.1, 1.0, 6.0))

        def end() -> None:
            host.slow_s = 0.0

        return end

    def _on_reset(self, host: SimHost) -> None:
        if host.process is not None:
            for transport in host.process.transports:
                if self._world.rng.random() < 0.7:
                    transport.loop.call_soon(transport.abort)

    def _on_stop(self, host: SimHost) -> None:
        if host.process is not None and host.process.node is not None:
            host.process.loop.call_soon(host.process.node.stop)

    def _on_hand_over(self, host: SimHost) -> None:
        self._world.loop.create_task(self._ask_for_hand_over())

    async def _ask_for_hand_over(self) -> None:
        with suppress(EtcdError):
            await self._tool.ask(Request(RequestKind.HAND_OVER, None, 0), await self._tool.grant(30.0))
