"""A lease that is renewed as long as its node makes progress."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from tests.support.sim_event_loop import SimEventLoop
from tests.support.simulated_etcd import SimulatedEtcd
from toymq_py.errors import LeaseLost
from toymq_py.replication.lease_keeper import LeaseKeeper

TTL_S = 3.0


class Rig:
    def __init__(self, loop: SimEventLoop) -> None:
        self.loop = loop
        self.etcd = SimulatedEtcd(random.Random(1))
        self.keeper = LeaseKeeper(self.etcd.agreement("n1", "c", "g0"), TTL_S, loop.time)

    async def kept(self) -> "asyncio.Task[None]":
        await self.keeper.grant()
        return asyncio.ensure_future(self.keeper.keep())


def simulate(scenario: Callable[[Rig], Awaitable[None]]) -> None:
    loop = SimEventLoop(random.Random(1))

    async def run() -> None:
        await scenario(Rig(loop))

    try:
        loop.run_until_complete(run())
    finally:
        loop.close()


def test_a_lease_is_renewed_three_times_per_ttl() -> None:
    async def scenario(rig: Rig) -> None:
        keeping = await rig.kept()
        for _ in range(100):
            await asyncio.sleep(0.5)
            assert rig.keeper.remaining_s > TTL_S / 2
        assert not keeping.done()
        keeping.cancel()

    simulate(scenario)


def test_a_node_without_progress_loses_its_lease() -> None:
    async def scenario(rig: Rig) -> None:
        keeping = await rig.kept()
        await asyncio.sleep(10)
        hindrance: list[str] = ["the disk hangs"]
        rig.keeper.hindrance = lambda: hindrance[0] if hindrance else None
        await asyncio.sleep(TTL_S / 2)
        hindrance.clear()
        await asyncio.sleep(10)
        assert not keeping.done(), "it was over before the lease was"
        hindrance.append("the disk hangs")
        await asyncio.sleep(TTL_S + 1)
        assert rig.keeper.remaining_s < 0
        hindrance.clear()
        with pytest.raises(LeaseLost):
            await keeping

    simulate(scenario)


def test_a_renewal_without_an_answer_is_sent_again() -> None:
    async def scenario(rig: Rig) -> None:
        keeping = await rig.kept()
        rig.etcd.cut_off("n1")
        await asyncio.sleep(TTL_S / 2)
        rig.etcd.reconnect("n1")
        await asyncio.sleep(20)
        assert not keeping.done()
        keeping.cancel()

    simulate(scenario)


def test_a_paused_loop_learns_that_the_lease_is_lost() -> None:
    async def scenario(rig: Rig) -> None:
        keeping = await rig.kept()
        await asyncio.sleep(1.5)
        rig.loop.now += 60
        with pytest.raises(LeaseLost):
            await keeping

    simulate(scenario)


def test_a_long_opening_is_followed_by_a_renewal() -> None:
    """While recovery blocks the loop, another thread renews the lease."""

    async def scenario(rig: Rig) -> None:
        lease = await rig.keeper.grant()
        for _ in range(10):
            await asyncio.sleep(1)
            rig.etcd.renew(lease)
        keeping = asyncio.ensure_future(rig.keeper.keep())
        await asyncio.sleep(0.1)
        assert rig.keeper.remaining_s > TTL_S / 2, "it was renewed at once"
        keeping.cancel()

    simulate(scenario)
