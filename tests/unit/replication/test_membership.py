"""T3, the transaction that changes the in-sync set, and all its outcomes."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from tests.support.sim_event_loop import run_simulated
from tests.support.simulated_etcd import Loss, SimulatedEtcd
from toymq_py.errors import TermEnded
from toymq_py.replication.agreement import ClusterSettings, Member
from toymq_py.replication.kept_agreement import KeptAgreement
from toymq_py.replication.membership import InSyncSet

ME, OTHER, THIRD = "a" * 32, "b" * 32, "c" * 32
N1 = Member(ME, "n1", "a:1", "a:2")
Scenario = Callable[["Rig"], Awaitable[None]]


class Rig:
    """Node n1, which leads; its in-sync set, and etcd's."""

    def __init__(self, etcd: SimulatedEtcd, agreement: KeptAgreement, epoch: int) -> None:
        self.etcd = etcd
        self.agreement = agreement
        self.tool = etcd.agreement("tool", "c", "g0")
        self.epoch = epoch
        self.changed = 0
        self.in_sync = InSyncSet(agreement, ME, epoch, (ME,), epoch, self._changed)

    def _changed(self) -> None:
        self.changed += 1

    async def held(self) -> set[str]:
        found = (await self.tool.read()).in_sync
        assert found is not None
        return set(found.members)


def simulate(scenario: Scenario, seed: int = 1) -> None:
    async def begin() -> None:
        etcd = SimulatedEtcd(random.Random(seed))
        agreement = etcd.agreement("n1", "c", "g0")
        await agreement.create_settings(ClusterSettings("u", 2, 1))
        begun = await agreement.begin(N1, await agreement.grant(600))
        await scenario(Rig(etcd, agreement, begun.revision))

    run_simulated(begin, seed)


def test_a_replica_is_added_and_dropped() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.in_sync.add(OTHER)
        assert await rig.held() == {ME, OTHER}
        await rig.in_sync.add(OTHER)
        await rig.in_sync.drop(OTHER)
        await rig.in_sync.drop(OTHER)
        assert await rig.held() == {ME}
        assert (rig.in_sync.changes, rig.changed) == ({"added": 1, "dropped": 1}, 2)

    simulate(scenario)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("losses", [(first, second) for first in Loss for second in Loss])
def test_a_change_without_an_answer_is_sent_until_its_outcome_is_known(losses: tuple[Loss, Loss], seed: int) -> None:
    async def scenario(rig: Rig) -> None:
        rig.etcd.lose("n1", *losses)
        adding = asyncio.ensure_future(rig.in_sync.add(OTHER))
        while not adding.done():
            assert await rig.held() <= rig.in_sync.may_hold, "etcd holds what this leader does not wait for"
            await asyncio.sleep(0.1)
        adding.result()
        assert await rig.held() == {ME, OTHER} == set(rig.in_sync.members)
        rig.etcd.lose("n1", *losses)
        await rig.in_sync.drop(OTHER)
        for _ in range(80):
            assert await rig.held() == {ME}, "a late T3 of before must not happen after the drop has returned"
            await asyncio.sleep(0.1)

    simulate(scenario, seed)


@pytest.mark.parametrize("after_s", [0.5, 1.02, 2.5])
@pytest.mark.parametrize("loss", list(Loss))
def test_an_addition_that_was_given_up_is_settled_by_the_drop(loss: Loss, after_s: float) -> None:
    """The T3 of the addition may still be under way after its time-out. So the drop writes the set without the replica, though
    that is the value that the leader knows."""

    async def scenario(rig: Rig) -> None:
        rig.etcd.lose("n1", loss, loss, loss)
        adding = asyncio.ensure_future(rig.in_sync.add(OTHER))
        await asyncio.sleep(after_s)
        adding.cancel()
        await asyncio.gather(adding, return_exceptions=True)
        assert OTHER in rig.in_sync.may_hold
        rig.etcd._losses.clear()
        await rig.in_sync.drop(OTHER)
        assert rig.in_sync.may_hold == {ME}
        for _ in range(80):
            assert await rig.held() == {ME}
            await asyncio.sleep(0.1)

    simulate(scenario)


def test_another_epoch_ends_the_term() -> None:
    async def scenario(rig: Rig) -> None:
        state = await rig.tool.read()
        assert state.leader is not None
        rig.etcd.end_lease(state.leader.lease)
        with pytest.raises(TermEnded, match="no epoch"):
            await rig.in_sync.add(OTHER)
        n2 = Member(OTHER, "n2", "b:1", "b:2")
        await rig.tool.elect(n2, await rig.tool.grant(600), rig.epoch)
        with pytest.raises(TermEnded, match="leads epoch"):
            await rig.in_sync.drop(OTHER)
        assert await rig.held() == {ME}

    simulate(scenario)


def test_changes_take_turns() -> None:
    async def scenario(rig: Rig) -> None:
        await asyncio.gather(rig.in_sync.add(OTHER), rig.in_sync.add(THIRD), rig.in_sync.drop(OTHER))
        assert await rig.held() == {ME, THIRD}
        assert set(rig.in_sync.members) == {ME, THIRD}

    simulate(scenario)


def test_nothing_is_known_while_etcd_is_away() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.in_sync.add(OTHER)
        rig.etcd.away = True
        dropping = asyncio.ensure_future(rig.in_sync.drop(OTHER))
        await asyncio.sleep(30)
        assert not dropping.done()
        assert rig.in_sync.may_hold == {ME, OTHER}
        rig.etcd.away = False
        await dropping
        assert await rig.held() == {ME}

    simulate(scenario)
