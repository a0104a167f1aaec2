"""The transactions of replication, on etcd in memory and on a real one: both must do the same.

Contract: replication.md, section 3. A scenario makes its agreements by name; each has a cluster of its own.
"""

import asyncio
import itertools
import random
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.support.etcd import EtcdCluster, running_etcd
from tests.support.requirements import require
from tests.support.sim_event_loop import SimEventLoop
from tests.support.simulated_etcd import SimulatedEtcd
from toymq_py.errors import LeaseLost
from toymq_py.replication.agreement import (
    Agreement,
    Answer,
    ClusterSettings,
    HandOver,
    InSync,
    LeaderKey,
    Member,
    Request,
    RequestKind,
    Seat,
)
from toymq_py.replication.etcd_client import EtcdAgreement, EtcdOptions

N1 = Member("1" * 32, "n1", "10.0.0.1:6789", "10.0.0.1:6791")
N2 = Member("2" * 32, "n2", "10.0.0.2:6789", "10.0.0.2:6791")
SETTINGS = ClusterSettings("6f1b", replicas=2, min_in_sync=1, ttl_s=2.0)
NO_LEASE = 4711

Connect = Callable[[str], Agreement]
Scenario = Callable[[Connect], Coroutine[Any, Any, None]]
Run = Callable[[Scenario], None]
CLUSTERS = itertools.count()


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with running_etcd(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


@pytest.fixture(params=["simulated", pytest.param("etcd", marks=require("etcd"))])
def run(request: pytest.FixtureRequest) -> Run:
    if request.param == "etcd":
        return lambda scenario: asyncio.run(_with_etcd(request.getfixturevalue("etcd"), scenario))
    return _simulated


def _simulated(scenario: Scenario) -> None:
    loop = SimEventLoop(random.Random(7))
    etcd = SimulatedEtcd(random.Random(8))
    try:
        loop.run_until_complete(scenario(lambda name: etcd.agreement(name, "c", "g0")))
    finally:
        loop.close()


async def _with_etcd(etcd: EtcdCluster, scenario: Scenario) -> None:
    cluster = f"c{next(CLUSTERS)}"
    made: list[Agreement] = []

    def connect(_: str) -> Agreement:
        made.append(EtcdAgreement(EtcdOptions(etcd.urls), cluster, "g0"))
        return made[-1]

    try:
        async with asyncio.timeout(30):
            await scenario(connect)
    finally:
        for each in made:
            await each.close()


async def leading(connect: Connect, in_sync: tuple[Member, ...] = (N1,)) -> tuple[Agreement, int, int]:
    """Make a cluster that n1 leads. Returns: its agreement, its epoch, its lease."""
    agreement = connect("n1")
    assert (await agreement.create_settings(SETTINGS)).done
    lease = await agreement.grant(3)
    begun = await agreement.begin(N1, lease)
    assert begun.done
    if in_sync != (N1,):
        assert (await agreement.change_in_sync(begun.revision, begun.revision, [each.replica for each in in_sync])).done
    return agreement, begun.revision, lease


def test_settings_are_written_once(run: Run) -> None:
    async def scenario(connect: Connect) -> None:
        agreement = connect("ctl")
        assert await agreement.settings() is None
        assert (await agreement.create_settings(SETTINGS)).done
        assert not (await agreement.create_settings(ClusterSettings("other", 3, 2))).done
        assert await agreement.settings() == SETTINGS

    run(scenario)


def test_t1_begins_a_group_and_is_its_epoch(run: Run) -> None:
    async def scenario(connect: Connect) -> None:
        agreement, epoch, lease = await leading(connect)
        state = await agreement.read()
        assert state.leader == LeaderKey(N1, epoch, lease)
        assert state.in_sync == InSync((N1.replica,), 0, epoch)
        assert state.revision >= epoch

    run(scenario)


def test_adopt_begins_anew_without_a_leader_and_t1_knows_which_cluster_it_begins(run: Run) -> None:
    async def scenario(connect: Connect) -> None:
        agreement, epoch, lease = await leading(connect)
        tool, late = connect("ctl"), connect("n2")
        assert await tool.settings() == await late.settings() == SETTINGS
        anew = replace(SETTINGS, cluster="77aa", was=SETTINGS.cluster, adopted=N1.replica)
        assert not (await tool.adopt(anew)).done, "n1 leads"
        await agreement.revoke(lease)
        assert (await tool.adopt(anew)).done
        assert await agreement.settings() == anew
        state = await agreement.read()
        assert (state.leader, state.in_sync) == (None, None)
        assert not (await tool.adopt(replace(anew, cluster="88bb"))).done, "the settings have changed since"
        lease = await agreement.grant(3)
        assert not (await late.begin(N2, lease)).done, "n2 has read other settings"
        assert not (await agreement.elect(N1, lease, epoch)).done
        assert (await agreement.begin(N1, lease)).done

    run(scenario)


def test_t1_needs_settings_and_no_in_sync_set(run: Run) -> None:
    async def scenario(connect: Connect) -> None:
        agreement = connect("n1")
        lease = await agreement.grant(3)
        assert not (await agreement.begin(N1, lease)).done, "without settings"
        assert (await agreement.create_settings(SETTINGS)).done
        assert (await agreement.begin(N1, lease)).done
        assert not (await agreement.begin(N2, lease)).done, "a second time"
        await agreement.revoke(lease)
        state = await agreement.read()
        assert state.leader is None
        assert state.in_sync is not None
        assert not (await agreement.begin(N2, await agreement.grant(3))).done, "with an in-sync set"

    run(scenario)


def test_t2_elects_one_of_two(run: Run) -> None:
    async def scenario(connect: Connect) -> None:
        first, epoch, lease = await leading(connect, (N1, N2))
        second = connect("n2")
        state = await second.read()
        assert state.in_sync is not None
        second_lease = await second.grant(3)
        assert not (await second.elect(N2, second_lease, state.in_sync.revision)).done, "there is a leader"
        await first.revoke(lease)
        assert not (await second.elect(N2, second_lease, epoch)).done, "of another in-sync set"
        elected = await second.elect(N2, second_lease, state.in_sync.revision)
        assert elected.done
        assert elected.revision > epoch
        assert not (await first.elect(N1, await first.grant(3), state.in_sync.revision)).done
        state = await first.read()
        assert state.leader == LeaderKey(N2, elected.revision, second_lease)

    run(scenario)


@pytest.mark.parametrize("call", ["begin", "elect", "force"])
def test_a_lease_that_is_gone_makes_no_leader_and_changes_nothing(run: Run, call: str) -> None:
    async def scenario(connect: Connect) -> None:
        agreement = connect("n1")
        await agreement.create_settings(SETTINGS)
        if call != "begin":
            lease = await agreement.grant(3)
            assert (await agreement.begin(N2, lease)).done
            await agreement.revoke(lease)
        before = await agreement.read()
        revision = [] if before.in_sync is None else [before.in_sync.revision]
        with pytest.raises(LeaseLost):
            await getattr(agreement, call)(N1, NO_LEASE, *revision)
        assert await agreement.read() == before

    run(scenario)


def test_compares_come_before_the_lease(run: Run) -> None:
    async def scenario(connect: Connect) -> None:
        agreement, epoch, _ = await leading(connect)
        assert not (await agreement.elect(N2, NO_LEASE, epoch)).done

    run(scenario)


def test_t3_compares_epoch_and_set(run: Run) -> None:
    async def scenario(connect: Connect) -> None:
        agreement, epoch, _ = await leading(connect)
        both = [N1.replica, N2.replica]
        assert not (await agreement.change_in_sync(epoch - 1, epoch, both)).done, "another epoch"
        assert not (await agreement.change_in_sync(epoch, epoch - 1, both)).done, "another set"
        changed = await agreement.change_in_sync(epoch, epoch, both)
        assert changed.done
        assert (await agreement.read()).in_sync == InSync(tuple(both), epoch, changed.revision)
        assert not (await agreement.change_in_sync(epoch, epoch, [N1.replica])).done, "of the set before"
        same = await agreement.change_in_sync(epoch, changed.revision, both)
        assert same.done, "the value that it has"
        assert same.revision > changed.revision

    run(scenario)


def test_t4_leaves_the_place_and_names_a_successor(run: Run) -> None:
    async def scenario(connect: Connect) -> None:
        agreement, epoch, _ = await leading(connect, (N1, N2))
        lease = await agreement.grant(5)
        assert not (await agreement.hand_over(epoch - 1, N2.replica, lease)).done
        assert (await agreement.hand_over(epoch, N2.replica, lease)).done
        state = await agreement.read()
        assert state.leader is None
        assert state.hand_over == HandOver(N2.replica, epoch)
        assert not (await agreement.hand_over(epoch, N2.replica, lease)).done, "a second time"
        await agreement.revoke(lease)
        assert (await agreement.read()).hand_over is None

    run(scenario)


def test_t6_leads_alone(run: Run) -> None:
    async def scenario(connect: Connect) -> None:
        agreement, epoch, lease = await leading(connect)
        forced_lease = await agreement.grant(3)
        assert not (await agreement.force(N2, forced_lease, epoch)).done, "there is a leader"
        await agreement.revoke(lease)
        assert not (await agreement.force(N2, forced_lease, epoch - 1)).done, "another set"
        forced = await agreement.force(N2, forced_lease, epoch)
        assert forced.done
        state = await agreement.read()
        assert state.leader == LeaderKey(N2, forced.revision, forced_lease)
        assert state.in_sync == InSync((N2.replica,), 0, forced.revision)

    run(scenario)


def test_a_leader_goes_with_its_lease_and_the_watch_tells(run: Run) -> None:
    async def scenario(connect: Connect) -> None:
        agreement, _, lease = await leading(connect)
        other = connect("n2")
        state = await other.read()
        loop = asyncio.get_running_loop()
        began = loop.time()
        while (now := await other.read()).leader is not None:
            await other.changed(now.revision)
        assert 2.0 <= loop.time() - began <= 6.0
        assert now.revision > state.revision
        with pytest.raises(LeaseLost):
            await agreement.renew(lease)

    run(scenario)


def test_a_renewed_lease_lives_on(run: Run) -> None:
    async def scenario(connect: Connect) -> None:
        agreement = connect("n1")
        lease = await agreement.grant(2)
        for _ in range(3):
            await asyncio.sleep(1)
            await agreement.renew(lease)
        await agreement.revoke(lease)
        await agreement.revoke(lease)  # no error
        with pytest.raises(LeaseLost):
            await agreement.renew(lease)

    run(scenario)


def test_a_watch_tells_of_changes_before_and_after_it_began(run: Run) -> None:
    async def scenario(connect: Connect) -> None:
        agreement, epoch, _ = await leading(connect)
        other = connect("n2")
        loop = asyncio.get_running_loop()
        began = loop.time()
        await other.changed(epoch - 1)
        assert loop.time() - began < 1.0, "what happened before"
        for number in range(3):
            revision = (await other.read()).revision
            async with asyncio.TaskGroup() as group:
                watch = group.create_task(other.changed(revision))
                await asyncio.sleep(0.1)
                assert not watch.done(), f"nothing has happened, {number}"
                began = loop.time()
                state = await agreement.read()
                assert state.in_sync is not None
                await agreement.change_in_sync(epoch, state.in_sync.revision, [N1.replica])
            assert loop.time() - began < 1.0, number

    run(scenario)


def test_a_watch_without_news_ends_after_the_ttl_and_can_be_cancelled(run: Run) -> None:
    async def scenario(connect: Connect) -> None:
        agreement, epoch, _ = await leading(connect)
        assert await agreement.settings() == SETTINGS  # its TTL bounds the watch
        revision = (await agreement.read()).revision
        loop = asyncio.get_running_loop()
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await agreement.changed(revision)
        began = loop.time()
        await agreement.put_seat(Seat(N2, "5.0", "LOOKING", None, 1), await agreement.grant(3))
        await agreement.changed(revision)
        assert 1.9 < loop.time() - began < 4.0, "a seat is no news"
        await agreement.change_in_sync(epoch, epoch, [N1.replica])
        began = loop.time()
        await agreement.changed(revision)
        assert loop.time() - began < 1.0

    run(scenario)


def test_a_request_is_taken_once_and_answered(run: Run) -> None:
    async def scenario(connect: Connect) -> None:
        agreement, epoch, _ = await leading(connect)
        operator = connect("ctl")
        asked = await operator.ask(Request(RequestKind.FORCE, N2.replica, epoch), await operator.grant(30))
        assert asked.done
        assert not (await operator.ask(Request(RequestKind.HAND_OVER, None, epoch), await operator.grant(30))).done
        request = (await agreement.read()).request
        assert request == Request(RequestKind.FORCE, N2.replica, epoch, asked.revision)
        assert not (await agreement.answer(Answer(asked.revision - 1, accepted=True, text="another"))).done
        answer = Answer(asked.revision, accepted=False, text="no")
        assert (await agreement.answer(answer)).done
        assert not (await agreement.answer(answer)).done
        state = await operator.read()
        assert (state.request, state.answer) == (None, answer)

    run(scenario)


def test_the_last_words_of_a_node_stay(run: Run) -> None:
    async def scenario(connect: Connect) -> None:
        agreement = connect("n1")
        lease = await agreement.grant(3)
        leads = Seat(N1, "5.0", "LEADING", None, 17)
        follows = Seat(N2, "5.0", "FOLLOWING", 12, 18)
        await agreement.put_seat(follows, await agreement.grant(3))
        await agreement.put_seat(leads, lease)
        assert await agreement.seats() == [leads, follows]
        await agreement.revoke(lease)
        gone, there = await agreement.seats()
        assert (gone.present, there.present) == (False, True)
        assert gone.member == N1
        await agreement.forget_seat(N1.replica)
        await agreement.forget_seat(N1.replica)
        assert await agreement.seats() == [follows]

    run(scenario)


def test_groups_and_clusters_do_not_see_each_other() -> None:
    async def scenario() -> None:
        etcd = SimulatedEtcd(random.Random(1))
        agreements = [etcd.agreement("n", *name) for name in (("c", "g0"), ("c", "g1"), ("d", "g0"), ("c2", "g0"))]
        first = agreements[0]
        await first.create_settings(SETTINGS)
        lease = await first.grant(3)
        await first.begin(N1, lease)
        await first.put_seat(Seat(N1, "5.0", "LEADING", None, 1), lease)
        for other in agreements[1:]:
            state = await other.read()
            assert (state.leader, state.in_sync) == (None, None)
            assert await other.seats() == []
        assert [await each.settings() for each in agreements] == [SETTINGS, None, None, None]

    loop = SimEventLoop(random.Random(1))
    loop.run_until_complete(scenario())
    loop.close()
