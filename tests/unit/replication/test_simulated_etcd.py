"""Faults between the etcd in memory and one client: lost requests, lost answers, late requests, a cut."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from tests.support.sim_event_loop import run_simulated
from tests.support.simulated_etcd import LATE_S, Loss, SimulatedEtcd
from toymq_py.errors import EtcdError, LeaseLost
from toymq_py.replication.agreement import ClusterSettings, Member
from toymq_py.replication.kept_agreement import KeptAgreement

N1 = Member("1" * 32, "n1", "a:1", "a:2")
SETTINGS = ClusterSettings("u", 2, 1, ttl_s=3.0)


def simulate(scenario: Callable[[SimulatedEtcd, KeptAgreement, int], Awaitable[None]], seed: int = 3) -> None:
    """Run a scenario with an etcd, an agreement and the epoch of n1."""

    async def begin() -> None:
        etcd = SimulatedEtcd(random.Random(seed))
        agreement = etcd.agreement("n1", "c", "g0")
        await agreement.create_settings(SETTINGS)
        begun = await agreement.begin(N1, await agreement.grant(60))
        await scenario(etcd, agreement, begun.revision)

    run_simulated(begin, seed)


@pytest.mark.parametrize(("loss", "happens"), [(Loss.REQUEST, False), (Loss.ANSWER, True)])
def test_a_lost_transaction_happens_or_not(loss: Loss, happens: bool) -> None:
    async def scenario(etcd: SimulatedEtcd, agreement: KeptAgreement, epoch: int) -> None:
        etcd.lose("n1", loss)
        before = await agreement.read()
        with pytest.raises(EtcdError):
            await agreement.change_in_sync(epoch, epoch, [N1.replica])
        assert ((await agreement.read()).revision > before.revision) is happens

    simulate(scenario)


def test_a_late_transaction_happens_after_a_read_that_did_not_show_it() -> None:
    async def scenario(etcd: SimulatedEtcd, agreement: KeptAgreement, epoch: int) -> None:
        etcd.lose("n1", Loss.LATE)
        with pytest.raises(EtcdError):
            await agreement.change_in_sync(epoch, epoch, [N1.replica, "2" * 32])
        assert (await agreement.read()).revision == epoch
        await asyncio.sleep(LATE_S[1])
        state = await agreement.read()
        assert state.in_sync is not None
        assert state.in_sync.members == (N1.replica, "2" * 32)
        etcd.lose("n1", Loss.LATE)
        with pytest.raises(EtcdError):
            await agreement.change_in_sync(epoch, state.in_sync.revision, [N1.replica])
        assert (await agreement.change_in_sync(epoch, state.in_sync.revision, [N1.replica, "3" * 32])).done
        await asyncio.sleep(LATE_S[1])
        state = await agreement.read()
        assert state.in_sync is not None
        assert state.in_sync.members == (N1.replica, "3" * 32), "of two with one revision, one happens"

    simulate(scenario)


def test_a_client_that_is_cut_off_hears_nothing_while_its_lease_runs_out() -> None:
    async def scenario(etcd: SimulatedEtcd, agreement: KeptAgreement, epoch: int) -> None:
        lease = await agreement.grant(3)
        await agreement.revoke((await agreement.read()).leader.lease)  # type: ignore[union-attr]
        elected = await agreement.elect(N1, lease, epoch)
        assert elected.done
        other = etcd.agreement("n2", "c", "g0")
        etcd.cut_off("n1")
        loop = asyncio.get_running_loop()
        began = loop.time()
        for call in (agreement.read(), agreement.renew(lease), agreement.change_in_sync(epoch, epoch, [])):
            with pytest.raises(EtcdError) as caught:
                await call
            assert not isinstance(caught.value, LeaseLost)
        await agreement.changed(elected.revision)
        assert loop.time() - began > 3.5, "a silent watch ends after the TTL"
        assert (await other.read()).leader is None
        etcd.reconnect("n1")
        with pytest.raises(LeaseLost):
            await agreement.renew(lease)
        etcd.away = True
        with pytest.raises(EtcdError):
            await other.read()

    simulate(scenario)


def test_an_etcd_that_was_wiped_is_noticed() -> None:
    async def scenario(etcd: SimulatedEtcd, agreement: KeptAgreement, _: int) -> None:
        etcd.wipe()
        with pytest.raises(EtcdError, match="before"):
            await agreement.read()
        assert (await etcd.agreement("n1", "c", "g0").read()).in_sync is None

    simulate(scenario)


def test_what_was_sent_arrives_though_its_sender_is_dead() -> None:
    async def scenario(etcd: SimulatedEtcd, agreement: KeptAgreement, epoch: int) -> None:
        etcd.lose("n1", Loss.LATE)
        sending = asyncio.ensure_future(agreement.change_in_sync(epoch, epoch, [N1.replica, "2" * 32]))
        await asyncio.sleep(0)
        sending.cancel()
        await asyncio.sleep(2 * LATE_S[1])
        state = await agreement.read()
        assert state.in_sync is not None
        assert len(state.in_sync.members) == 2

    simulate(scenario)


def test_a_slow_etcd_does_what_it_answers_too_late() -> None:
    async def scenario(etcd: SimulatedEtcd, agreement: KeptAgreement, epoch: int) -> None:
        etcd.slow_s = 3.0
        done: list[bool] = []
        etcd.on_transaction = lambda client, _, is_done: done.append(is_done)
        silent = 0
        for _ in range(20):
            try:
                await agreement.change_in_sync(epoch, epoch, [N1.replica])
            except EtcdError:
                silent += 1
        etcd.be_well()
        await asyncio.sleep(3.0)
        assert silent > 10
        assert done.count(False) == 20
        assert (await agreement.read()).revision == epoch + 1
        assert done.count(True) == 1, "the others compare a revision that is over"

    simulate(scenario)


def test_news_may_lag() -> None:
    async def scenario(etcd: SimulatedEtcd, agreement: KeptAgreement, epoch: int) -> None:
        etcd.watch_lag_s = 2.0
        slowest_s = 0.0
        for turn in range(5):
            revision = (await agreement.read()).revision
            watching = asyncio.ensure_future(agreement.changed(revision))
            began = asyncio.get_running_loop().time()
            await agreement.change_in_sync(epoch, revision, [N1.replica] if turn % 2 else [N1.replica, "2" * 32])
            await watching
            slowest_s = max(slowest_s, asyncio.get_running_loop().time() - began)
        assert 0.5 < slowest_s < 2.1

    simulate(scenario)


def test_one_seed_is_one_run() -> None:
    def trace(seed: int) -> list[str]:
        said: list[str] = []

        async def scenario(etcd: SimulatedEtcd, agreement: KeptAgreement, epoch: int) -> None:
            etcd.loss_chance = 0.3
            loop = asyncio.get_running_loop()
            for _ in range(30):
                try:
                    said.append(f"{(await agreement.change_in_sync(epoch, epoch, [])).done}")
                except EtcdError as error:
                    said.append(str(error))
                said.append(f"{loop.time():.6f}")

        simulate(scenario, seed)
        return said

    assert trace(1) == trace(1) != trace(2)
    assert {"True", "False"} & set(trace(1))
    assert len(set(trace(1))) > 30
