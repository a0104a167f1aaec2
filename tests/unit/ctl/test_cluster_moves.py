"""The requests and the output of ``toymqctl cluster move``, on an etcd in memory: there is no leader to carry them out."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.support.elections import CLUSTER, elect
from tests.support.sim_event_loop import SimEventLoop
from tests.support.simulated_etcd import Loss, SimulatedEtcd
from toymq_py.partitions import Partitioned
from toymq_py.replication.kept_places import KeptPlaces, Move
from toymq_py.storage.partitions_file import StoredPartitions
from toymqctl import cluster_moves
from toymqctl.cluster_requests import Refused


class Rig:
    """Groups a and b, of which a has the topic t."""

    def __init__(self) -> None:
        self.etcd = SimulatedEtcd(random.Random(1))
        self.said: list[str] = []
        self.kept = self.of("a", "tool")

    def of(self, group: str, client: str) -> KeptPlaces:
        return KeptPlaces(self.etcd.client(client), CLUSTER, group)

    async def begin(self) -> None:
        self.epochs, self.leases = {}, dict[str, int]()
        for group in ("a", "b"):
            _, self.leases[group] = await elect(self.etcd, group, 1)
            leader = (await self.etcd.agreement("x", CLUSTER, group).read()).leader
            assert leader is not None
            self.epochs[group] = leader.epoch
            await self.of(group, group).mark_placed(leader.epoch)
        await self.of("a", "a").claim(["t"], "a", self.epochs["a"])

    async def move(self, topic: str, to: str) -> str:
        return await cluster_moves.move(self.kept, topic, to, self.said.append)

    async def pending(self) -> Move:
        found = await self.kept.move("t")
        assert found is not None
        return found


def run(scenario: Callable[[Rig], Coroutine[Any, Any, None]]) -> None:
    async def begin() -> None:
        rig = Rig()
        await rig.begin()
        await scenario(rig)

    loop = SimEventLoop(random.Random(2))
    try:
        loop.run_until_complete(begin())
    finally:
        loop.close()


def test_it_waits_until_the_topic_is_there_also_of_another_command() -> None:
    async def scenario(rig: Rig) -> None:
        commands = [asyncio.get_running_loop().create_task(rig.move("t", "b")) for _ in range(2)]
        await asyncio.sleep(5.0)
        assert not any(each.done() for each in commands)
        record, move = await rig.kept.record("t"), await rig.pending()
        assert record is not None
        a = rig.of("a", "a")
        assert (await a.give("t", record.revision, rig.epochs["a"], "b", rig.epochs["b"], move.revision)).done
        said = await asyncio.gather(*commands, return_exceptions=True)
        assert "t is in group b" in said
        assert rig.said == ["t goes from group a to b"]

    run(scenario)


@pytest.mark.parametrize("group", ["a", "b"])
@pytest.mark.parametrize("before", [True, False])
def test_a_group_without_a_leader_is_said_once_while_the_move_waits_for_it(group: str, *, before: bool) -> None:
    """Found: the command waited for ever without a message."""

    async def scenario(rig: Rig) -> None:
        if before:
            rig.etcd.end_lease(rig.leases[group])
        moving = asyncio.get_running_loop().create_task(rig.move("t", "b"))
        await asyncio.sleep(1.0)
        waits = [line for line in rig.said if "no leader" in line]
        assert len(waits) == int(before)
        rig.etcd.end_lease(rig.leases[group])
        await asyncio.sleep(30.0)
        (said,) = (line for line in rig.said if "no leader" in line)
        assert said.startswith(f"group {group} has no leader: the move waits for it, and goes on by itself once it has one")
        assert not moving.done()
        assert (await rig.pending()).to == "b"
        moving.cancel()

    run(scenario)


def test_a_move_is_given_up_where_the_topic_is() -> None:
    async def scenario(rig: Rig) -> None:
        moving = asyncio.get_running_loop().create_task(rig.move("t", "b"))
        await asyncio.sleep(1.0)
        assert await rig.move("t", "a") == "t stays in group a: its move to b is given up"
        with pytest.raises(Refused, match="t was not moved: it was deleted, or the move was given up"):
            await moving
        assert await rig.move("t", "a") == "t is in group a"

    run(scenario)


def test_what_a_leader_refuses_is_said_once_and_can_be_asked_for_again() -> None:
    async def scenario(rig: Rig) -> None:
        moving = asyncio.get_running_loop().create_task(rig.move("t", "b"))
        await asyncio.sleep(1.0)
        await rig.of("b", "b").attempt("t", await rig.pending(), rig.epochs["b"], refused="t is degraded")
        with pytest.raises(Refused, match="t is degraded"):
            await moving
        assert await rig.kept.move("t") is None

    run(scenario)


def test_an_answer_that_is_lost_is_no_failure() -> None:
    async def scenario(rig: Rig) -> None:
        rig.etcd.lose("tool", Loss.ANSWER)
        moving = asyncio.get_running_loop().create_task(rig.move("t", "b"))
        await asyncio.sleep(5.0)
        assert not moving.done()
        assert (await rig.pending()).to == "b"
        moving.cancel()

    run(scenario)


@pytest.mark.parametrize(
    ("topic", "to", "why"),
    [
        ("none", "b", "no group has a topic none"), ("t", "c", "there is no group c; there are a, b"),
        ("t.dlq", "b", "t.dlq goes with t: move that"),
    ],
)  # fmt: skip
def test_what_cannot_be_moved_is_refused_at_once(topic: str, to: str, why: str) -> None:
    async def scenario(rig: Rig) -> None:
        with pytest.raises(Refused, match=why):
            await rig.move(topic, to)
        assert not [key for key in rig.etcd.keys() if "/moves/" in key]  # noqa: SIM118 (a method)

    run(scenario)


def test_a_group_that_has_topics_says_what_to_do_with_them() -> None:
    """Found: for partitions the advice was to move them, which is refused."""

    async def scenario(rig: Rig) -> None:
        b = rig.of("b", "b")
        rig.etcd.end_lease(rig.leases["b"])
        await rig.of("a", "a").divide(StoredPartitions(Partitioned("p", 2)), None, "a", rig.epochs["a"])
        await rig.of("a", "a").claim(["p#0", "p#0.dlq", "p#1"], "b", rig.epochs["a"])
        with pytest.raises(Refused) as refused:
            await cluster_moves.remove_group(b, "b")
        assert str(refused.value) == (
            "group b has partitions of p, which are not moved: start it, make a topic in place of p in another group (`toymqctl"
            " create NAME --partitions N group=a`), publish there, let the consumers drain p, and delete it (`toymqctl delete"
            " p`)"
        )
        await rig.of("a", "a").claim(["u", "u.dlq"], "b", rig.epochs["a"])
        with pytest.raises(Refused) as refused:
            await cluster_moves.remove_group(b, "b")
        assert str(refused.value).startswith(
            "group b has topics: u; start it, and move them to another group (`toymqctl cluster move u a`) or delete them"
            " (`toymqctl delete u`); group b has partitions of p, which"
        )

    run(scenario)


@pytest.mark.parametrize(
    ("topic", "what"),
    [("p", "p is partitioned"), ("p#1", "p#1 is a partition of p"), ("p#1.dlq", "p#1.dlq is a partition of p")],
)
def test_a_partitioned_topic_and_a_part_of_it_are_refused_with_one_remedy(topic: str, what: str) -> None:
    """Found: the move of a whole partitioned topic was written into etcd and refused by a leader in other words; that of a
    partition got no remedy."""

    async def scenario(rig: Rig) -> None:
        await rig.of("a", "a").divide(StoredPartitions(Partitioned("p", 2)), None, "a", rig.epochs["a"])
        with pytest.raises(Refused) as refused:
            await rig.move(topic, "b")
        remedy = "CREATE spreads those of a new topic over all groups, or makes them in the one of group=; publish there,"
        assert str(refused.value) == f"{what}, whose partitions stay in their groups: {remedy} and delete p when it is drained"
        assert not [key for key in rig.etcd.keys() if "/moves/" in key]  # noqa: SIM118 (a method)

    run(scenario)
