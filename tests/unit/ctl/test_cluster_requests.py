"""An operator's requests to a cluster, on an etcd in memory, with a node that answers as the test says."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from tests.support.sim_event_loop import SimEventLoop
from tests.support.simulated_etcd import Loss, SimulatedEtcd
from toymq_py.errors import ConfigError, EtcdError
from toymq_py.replication.agreement import (
    REQUEST_TTL_S,
    Answer,
    ClusterSettings,
    InSync,
    Member,
    Request,
    RequestKind,
    Seat,
)
from toymq_py.replication.kept_agreement import KeptAgreement
from toymq_py.replication.kept_places import Picture
from toymq_py.replication.replica_file import ReplicaRecord, encode
from toymqctl import cluster_requests
from toymqctl.cluster_requests import NEW_LEADER_S, Refused

N1 = Member("1" * 32, "n1", "10.0.0.1:6789", "10.0.0.1:6791")
N2 = Member("2" * 32, "n2", "10.0.0.2:6789", "10.0.0.2:6791")


class World:
    """A cluster of n1, which leads, and n2, which is in sync; both have seats."""

    def __init__(self) -> None:
        self.etcd = SimulatedEtcd(random.Random(5))
        self.ctl = self.etcd.agreement("ctl", "c", "g0")
        self.nodes = self.etcd.agreement("nodes", "c", "g0")
        self.epoch = 0
        self.asked: list[Request] = []
        self.leases: dict[str, int] = {}

    async def begin(self) -> None:
        await self.nodes.create_settings(ClusterSettings("u", 2, 1))
        for member in (N1, N2):
            self.leases[member.name] = await self.nodes.grant(600)
            await self.nodes.put_seat(Seat(member, "5.0", "FOLLOWING", 0, 1), self.leases[member.name])
        self.epoch = (await self.nodes.begin(N1, self.leases["n1"])).revision
        await self.nodes.change_in_sync(self.epoch, self.epoch, [N1.replica, N2.replica])

    async def end(self, name: str) -> None:
        await self.nodes.revoke(self.leases[name])

    async def answer(self, *, accepted: bool = True, text: str = "yes", leads: Member | None = None) -> None:
        """Answer the next request as a node."""
        while (state := await self.nodes.read()).request is None:
            await self.nodes.changed(state.revision)
        self.asked.append(state.request)
        assert (await self.nodes.answer(Answer(state.request.revision, accepted, text))).done
        if leads is not None:
            if state.leader is not None:
                await self.nodes.hand_over(state.leader.epoch, leads.replica, await self.nodes.grant(5))
            assert state.in_sync is not None
            assert (await self.nodes.force(leads, self.leases[leads.name], state.in_sync.revision)).done


def simulate(scenario: Callable[[World], Coroutine[Any, Any, None]], *, begun: bool = True) -> None:
    async def whole() -> None:
        world = World()
        if begun:
            await world.begin()
        await scenario(world)

    loop = SimEventLoop(random.Random(5))
    try:
        loop.run_until_complete(whole())
    finally:
        loop.close()


async def test_of_nodes_that_etcd_knows_as_running_those_that_do_not_answer_are_found() -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    answers = replace(N1, url=f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    dead, gone = replace(N2, url="127.0.0.1:1"), Member("3" * 32, "n3", "127.0.0.1:1", "127.0.0.1:2")
    agreement = SimulatedEtcd(random.Random(5)).agreement("ctl", "c", "g0")
    await agreement.create_settings(ClusterSettings("u", 2, 1))
    leases = [await agreement.grant(600) for _ in range(3)]
    for member, lease in zip((answers, dead, gone), leases, strict=True):
        await agreement.put_seat(Seat(member, "5.0", "FOLLOWING", 0, 1), lease)
    await agreement.revoke(leases[2])
    async with server:
        assert (await cluster_requests.look_closely(agreement)).silent == {N2.replica: "Connection refused"}
    assert (await cluster_requests.look(agreement)).silent == {}


# -- init


def test_a_cluster_is_made_once_and_the_same_settings_are_no_error() -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(Refused, match="no cluster of this name"):
            await cluster_requests.look(world.ctl)
        settings, made = await cluster_requests.init(world.ctl, 3, None, 3.0)
        assert made
        assert (settings.replicas, settings.min_in_sync, settings.ttl_s) == (3, 2, 3.0)
        assert await cluster_requests.init(world.ctl, 3, 2, 3.0) == (settings, False)
        with pytest.raises(Refused, match="exists with --replicas 3 --min-in-sync 2 --ttl 3s"):
            await cluster_requests.init(world.ctl, 2, None, 3.0)
        assert (await cluster_requests.look(world.ctl)).settings == settings

    simulate(scenario, begun=False)


def test_a_pair_goes_on_alone_unless_told() -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(ConfigError, match="--min-in-sync 3 is more than --replicas 2"):
            await cluster_requests.init(world.ctl, 2, 3, 3.0)
        settings, _ = await cluster_requests.init(world.ctl, 2, None, 3.0)
        assert settings.min_in_sync == 1

    simulate(scenario, begun=False)


@pytest.mark.parametrize("loss", [Loss.ANSWER, Loss.REQUEST])
def test_a_cluster_whose_making_has_no_answer(loss: Loss) -> None:
    async def scenario(world: World) -> None:
        world.etcd.lose("ctl", loss)
        if loss is Loss.REQUEST:
            with pytest.raises(EtcdError):
                await cluster_requests.init(world.ctl, 2, None, 3.0)
        else:
            settings, made = await cluster_requests.init(world.ctl, 2, None, 3.0)
            assert made
            assert await world.ctl.settings() == settings

    simulate(scenario, begun=False)


# -- hand-over


@pytest.mark.parametrize(("name", "replica"), [(None, None), ("n2", N2.replica), (N2.replica, N2.replica)])
def test_the_leader_hands_over(name: str | None, replica: str | None) -> None:
    async def scenario(world: World) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(world.answer(text="to n2", leads=N2))
            text, leader = await cluster_requests.hand_over(world.ctl, name)
        assert text == "to n2"
        assert leader.member == N2
        assert leader.epoch > world.epoch
        (asked,) = world.asked
        state = await world.ctl.read()
        assert (asked.kind, asked.replica) == (RequestKind.HAND_OVER, replica)
        assert state.request is None

    simulate(scenario)


def test_a_hand_over_that_makes_no_sense_is_not_asked_for() -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(Refused, match="n1 leads already"):
            await cluster_requests.hand_over(world.ctl, "n1")
        with pytest.raises(Refused, match="no node has the name n3; known: n1, n2"):
            await cluster_requests.hand_over(world.ctl, "n3")
        await world.end("n1")
        with pytest.raises(Refused, match="there is no leader"):
            await cluster_requests.hand_over(world.ctl, "n2")

    simulate(scenario)


def test_a_node_may_decline() -> None:
    async def scenario(world: World) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(world.answer(accepted=False, text="no follower is in sync"))
            with pytest.raises(Refused, match="no follower is in sync"):
                await cluster_requests.hand_over(world.ctl, None)

    simulate(scenario)


def test_a_request_that_no_node_takes_goes() -> None:
    async def scenario(world: World) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(Refused, match=r"no node took the request|gone without an answer"):
            await cluster_requests.hand_over(world.ctl, None)
        assert loop.time() - began < REQUEST_TTL_S + 5
        assert (await world.ctl.read()).request is None

    simulate(scenario)


def test_a_cancelled_request_goes() -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await cluster_requests.hand_over(world.ctl, None)
        assert (await world.ctl.read()).request is None

    simulate(scenario)


def test_two_requests_do_not_mix() -> None:
    async def scenario(world: World) -> None:
        async with asyncio.TaskGroup() as group:
            first = group.create_task(cluster_requests.hand_over(world.ctl, None))
            await asyncio.sleep(0.5)
            with pytest.raises(Refused, match="another request waits"):
                await cluster_requests.hand_over(world.etcd.agreement("ctl2", "c", "g0"), None)
            group.create_task(world.answer(leads=N2))
        assert first.result()[1].member == N2

    simulate(scenario)


def test_a_leader_that_does_not_come() -> None:
    async def scenario(world: World) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            group.create_task(world.answer())
            with pytest.raises(Refused, match=f"no new leader within {NEW_LEADER_S:g} s"):
                await cluster_requests.hand_over(world.ctl, None)
        assert loop.time() - 1000 < NEW_LEADER_S + 10

    simulate(scenario)


# -- remove


def test_a_node_that_is_not_in_sync_is_forgotten() -> None:
    async def scenario(world: World) -> None:
        state = await world.nodes.read()
        assert state.in_sync is not None
        await world.nodes.change_in_sync(world.epoch, state.in_sync.revision, [N1.replica])
        with pytest.raises(Refused, match="n2 runs: stop it first"):
            await cluster_requests.remove(world.ctl, "n2")
        await world.end("n2")
        assert await cluster_requests.remove(world.ctl, "n2") == "forgotten"
        assert [seat.member for seat in (await cluster_requests.look(world.ctl)).seats] == [N1]

    simulate(scenario)


def test_of_a_node_in_sync_the_leader_is_asked_first() -> None:
    async def scenario(world: World) -> None:
        await world.end("n2")
        async with asyncio.TaskGroup() as group:
            group.create_task(world.answer(accepted=False, text="not now"))
            with pytest.raises(Refused, match="not now"):
                await cluster_requests.remove(world.ctl, "n2")
        assert len(await world.ctl.seats()) == 2
        async with asyncio.TaskGroup() as group:
            group.create_task(world.answer(text="dropped"))
            assert await cluster_requests.remove(world.ctl, "n2") == "dropped"
        assert [(each.kind, each.replica) for each in world.asked] == [(RequestKind.REMOVE, N2.replica)] * 2
        assert len(await world.ctl.seats()) == 1

    simulate(scenario)


def test_a_copy_in_sync_is_not_forgotten_without_a_leader() -> None:
    async def scenario(world: World) -> None:
        await world.end("n1")
        with pytest.raises(Refused, match="it may have messages that no other copy has"):
            await cluster_requests.remove(world.ctl, "n1")

    simulate(scenario)


# -- force


def test_a_node_is_forced_with_the_set_that_the_operator_saw() -> None:
    async def scenario(world: World) -> None:
        before = (await world.nodes.read()).in_sync
        assert before is not None
        await world.nodes.change_in_sync(world.epoch, before.revision, [N1.replica])
        await world.end("n1")
        seen = (await world.nodes.read()).in_sync
        assert seen is not None
        async with asyncio.TaskGroup() as group:
            group.create_task(world.answer(text="forced", leads=N2))
            text, leader = await cluster_requests.force(world.ctl, "n2")
        assert (text, leader.member) == ("forced", N2)
        (asked,) = world.asked
        assert (asked.kind, asked.replica, asked.in_sync_revision) == (RequestKind.FORCE, N2.replica, seen.revision)

    simulate(scenario)


def test_force_needs_a_group_without_a_leader_and_a_node_that_runs() -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(Refused, match="n1 leads: nothing has to be forced"):
            await cluster_requests.force(world.ctl, "n2")
        await world.end("n1")
        await world.end("n2")
        with pytest.raises(Refused, match="n2 does not run: start it first"):
            await cluster_requests.force(world.ctl, "n2")

    simulate(scenario)


def test_nothing_is_forced_before_a_node_has_led() -> None:
    async def scenario(world: World) -> None:
        agreement: KeptAgreement = world.nodes
        await agreement.create_settings(ClusterSettings("u", 2, 1))
        await agreement.put_seat(Seat(N2, "5.0", "LOOKING", None, 1), await agreement.grant(600))
        with pytest.raises(Refused, match="no node has led yet"):
            await cluster_requests.force(world.ctl, "n2")

    simulate(scenario, begun=False)


def test_of_two_replicas_with_one_name_that_which_runs_is_meant() -> None:
    async def scenario(world: World) -> None:
        new = Member("3" * 32, "n2", "a:1", "a:2")
        await world.end("n2")
        lease = await world.nodes.grant(600)
        await world.nodes.put_seat(Seat(new, "5.0", "JOINING", None, 2), lease)
        assert (await cluster_requests.look(world.ctl)).find("n2").member == new
        offered = f"^n2 runs: stop it first; of another node of this name, which does not run, give the id: {N2.replica}$"
        with pytest.raises(Refused, match=offered):
            await cluster_requests.remove(world.ctl, "n2")
        await world.nodes.revoke(lease)
        with pytest.raises(Refused, match=f"several replicas have the name n2: .*{N2.replica}, {new.replica}"):
            (await cluster_requests.look(world.ctl)).find("n2")
        assert (await cluster_requests.look(world.ctl)).find(new.replica).member == new

    simulate(scenario)


# -- adopt


FILE = encode(ReplicaRecord("u", "g0", N2.replica, 900))


def test_a_copy_is_adopted_when_all_nodes_are_stopped() -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(Refused, match="n1 leads: nothing has to be adopted"):
            await cluster_requests.adopt(world.ctl, FILE)
        await world.end("n1")
        with pytest.raises(Refused, match=r"stop all nodes first, and wait until they are gone: n2 runs$"):
            await cluster_requests.adopt(world.ctl, FILE)
        await world.end("n2")
        with pytest.raises(Refused, match="half copied"):
            await cluster_requests.adopt(world.ctl, encode(ReplicaRecord("u", "g0", N2.replica, 900, copying=True)))
        stale = world.nodes  # of a node that has read the settings before
        await stale.settings()
        settings = await cluster_requests.adopt(world.ctl, FILE)
        assert (settings.was, settings.adopted, settings.replicas, settings.min_in_sync) == ("u", N2.replica, 2, 1)
        assert settings.cluster != "u"
        cluster = await cluster_requests.look(world.ctl)
        assert (cluster.settings, cluster.state.in_sync, cluster.seats) == (settings, None, [])
        lease = await stale.grant(60)
        assert not (await stale.begin(N1, lease)).done, "it knows the cluster of before"
        await stale.settings()
        assert (await stale.begin(N2, lease)).done

    simulate(scenario)


def test_a_cluster_that_changes_meanwhile_is_not_overwritten() -> None:
    async def scenario(world: World) -> None:
        for name in ("n1", "n2"):
            await world.end(name)
        settings = await world.ctl.settings()
        assert settings is not None
        assert (await world.nodes.elect(N1, await world.nodes.grant(60), (await in_sync(world)).revision)).done
        assert not (await world.ctl.adopt(settings)).done, "a leader was elected"
        assert (await in_sync(world)).members == (N1.replica, N2.replica)

    simulate(scenario)


async def in_sync(world: World) -> InSync:
    state = await world.ctl.read()
    assert state.in_sync is not None
    return state.in_sync


def test_a_cluster_without_names_of_groups_has_one() -> None:
    picture = Picture("/")
    assert cluster_requests.groups_of(picture, None) == [None]
    assert cluster_requests.groups_of(picture, "b") == ["b"], "etcd has no cluster of this name, which is told elsewhere"
    picture._group("g0").made = True
    assert cluster_requests.groups_of(picture, None) == [None]
    with pytest.raises(Refused, match="there is no group b; there are g0"):
        cluster_requests.groups_of(picture, "b")
    cluster_requests.check_alone(picture, "init")
    picture._group("g0").placed = True
    assert cluster_requests.groups_of(picture, None) == ["g0"]
    picture._group("b").made = True
    picture._group("typo")
    assert cluster_requests.groups_of(picture, None) == ["b", "g0"]
    said = r"^this cluster has groups \(b, g0\): name one, `toymqctl cluster --group b remove n1`$"
    with pytest.raises(Refused, match=said):
        cluster_requests.check_alone(picture, "remove n1")
    with pytest.raises(Refused, match="`toymqctl cluster --group NAME init`"):
        cluster_requests.check_alone(picture, "init")
