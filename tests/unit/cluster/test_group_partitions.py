"""Partitioned topics over groups: created completely or not at all, or completed by a repeated command, whatever etcd, leaders
and commands do."""

import asyncio
import random
from contextlib import suppress

import pytest

from tests.support.partition_world import CLUSTER, GROUPS, World, simulate
from tests.support.shares import seeds
from tests.support.troubled_groups import settle, trouble_groups
from toymq_py.errors import BeingDeleted, NameBusy, PlacementUnknown, StorageFailed
from toymq_py.partitions import Partitioned
from toymq_py.replication.kept_places import KeptPlaces
from toymq_py.storage.partitions_file import StoredPartitions

TOPICS = ("x", "y")
COUNTS = (2, 5)


async def whole(world: World, topic: str) -> None:
    """Check that CREATE, DELETE and CREATE complete whatever is there."""
    for verb, count in (("CREATE", 3), ("DELETE", 0), ("CREATE", 4)):
        for attempt in range(20):
            at = GROUPS[attempt % len(GROUPS)]
            answer = await world.command(verb, at, topic, count)
            assert answer != "LOST"
            if answer == "OK" or (verb == "DELETE" and answer == "NO_SUCH_TOPIC"):
                break
            if verb == "CREATE" and answer in ("EXISTS", "PLACEMENT_UNKNOWN"):  # of another number, or going
                await world.command("DELETE", at, topic)
            await asyncio.sleep(0.2)
        else:
            raise AssertionError((verb, topic, answer))
        if verb == "DELETE":
            await asyncio.sleep(5.0)
            assert (world.stored(topic), world.records(topic)) == ([], [])
            assert not any(topic in group.partitioned.by_name for group in world.groups.values())
        else:
            assert set(world.stored(topic)) == world.names(topic, count)
            assert len(world.stored(topic)) == count, "each in one group"
            for group in world.groups.values():
                assert group.placement is not None
                assert group.partitioned.by_name[topic].count == count
                assert group.partitioned.find(topic) is not None
                for name in world.names(topic, count):
                    assert name in world.groups[str(group.placement.place_of(name))].topics()


async def troubled(world: World, rng: random.Random) -> None:
    """Let clients create and delete at all groups, while etcd and leaders fail."""

    async def client() -> None:
        for _ in range(12):
            await asyncio.sleep(rng.choice((0.0, 0.01, 0.2)))
            verb = rng.choice(("CREATE", "CREATE", "DELETE"))
            answer = await world.command(verb, rng.choice(GROUPS), rng.choice(TOPICS), rng.choice(COUNTS))
            assert answer in ("OK", "EXISTS", "NO_SUCH_TOPIC", "PLACEMENT_UNKNOWN", "MOVED", "LOST"), answer

    harms = ("lose", "lose", "cut", "lead", "lead", "lag", "away")
    await asyncio.gather(client(), client(), client(), trouble_groups(world.groups, world.etcd, rng, harms, 10))
    await settle(world.groups, world.etcd)
    for topic in TOPICS:
        await whole(world, topic)


@pytest.mark.parametrize("seed", seeds(10, 30))
def test_a_repeat_completes_what_was_interrupted(seed: int) -> None:
    simulate(lambda world: troubled(world, random.Random(seed)), seed)


@pytest.mark.parametrize("verb", ["CREATE", "DELETE"])
@pytest.mark.parametrize("victim", ["a", "b"])
def test_a_leader_is_killed_at_each_step(verb: str, victim: str) -> None:
    """The command is sent to a, the home group; the victim dies when so many transactions have reached etcd."""
    nth = 0
    while True:
        nth += 1
        killed = False

        async def scenario(world: World, nth: int = nth) -> None:
            nonlocal killed
            if verb == "DELETE":
                assert await world.command("CREATE", "a", "x", 6) == "OK"
            seen = 0
            over = asyncio.Event()

            def count(client: str, transaction: object, done: bool) -> None:
                nonlocal seen
                seen += done
                if seen == nth:
                    over.set()

            world.etcd.on_transaction = count
            async with asyncio.TaskGroup() as tasks:
                command = tasks.create_task(world.command(verb, "a", "x", 6))
                waits = tasks.create_task(over.wait())
                await asyncio.wait([command, waits], return_when=asyncio.FIRST_COMPLETED)
                if over.is_set() and not command.done():
                    killed = True
                    await world.groups[victim].lead()
                waits.cancel()
            answers = []
            for _ in range(20):
                answers.append(await world.command(verb, "c", "x", 6))
                if answers[-1] in ("OK", "NO_SUCH_TOPIC"):
                    break
                await asyncio.sleep(0.2)
            expected = sorted(world.names("x", 6)) if verb == "CREATE" else []
            assert world.stored("x") == expected, (nth, answers)
            await whole_again(world)

        async def whole_again(world: World) -> None:
            await asyncio.sleep(2.0)
            await world.command("DELETE", "b", "x")
            await whole(world, "x")

        simulate(scenario, nth)
        if not killed:
            break
    assert nth > 2, "nothing was tried"


def test_partitions_are_spread_and_known_everywhere_at_the_ok() -> None:
    async def scenario(world: World) -> None:
        world.etcd.watch_lag_s = 5.0
        assert await world.command("CREATE", "b", "x", 6) == "OK"
        assert [len(group.topics()) for group in world.groups.values()] == [2, 2, 2]
        for group in world.groups.values():
            assert group.partitioned.by_name["x"].count == 6
        assert await world.command("CREATE", "c", "x", 6) == "OK"
        assert await world.command("CREATE", "a", "x", 5) == "EXISTS"
        assert await world.command("DELETE", "a", "x") == "OK"
        assert await world.command("CREATE", "c", "x", 9) == "OK", "whatever the watch says still"
        for group in world.groups.values():
            assert group.partitioned.by_name["x"].count == 9
        assert len(world.stored("x")) == 9

    simulate(scenario)


async def without_a_leader(world: World, group: str) -> None:
    leader = (await world.etcd.agreement("tool", CLUSTER, group).read()).leader
    assert leader is not None
    await world.etcd.agreement("tool", CLUSTER, group).revoke(leader.lease)
    world.groups[group].placement = None
    await asyncio.sleep(1.0)


def test_nothing_is_made_while_a_group_has_no_leader() -> None:
    """Found: the other groups got all partitions, for good."""

    async def scenario(world: World) -> None:
        await without_a_leader(world, "a")
        replies: list[bytes] = []
        world.groups["b"].run("CREATE", "x", 6, replies.append)
        await asyncio.sleep(1.0)
        assert replies == [
            b"ERR PLACEMENT_UNKNOWN group a has no leader, and would get no partition of x: start its nodes (`toymqctl cluster"
            b" --group a`), and repeat CREATE x when it has one; nothing was done\n"
        ]
        assert (world.stored("x"), world.records("x")) == ([], [])
        assert await world.command("CREATE", "c", "x", 6, "b") == "PLACEMENT_UNKNOWN", "be it for another group"
        assert world.records("x") == []
        await world.groups["a"].lead()
        await asyncio.sleep(1.0)
        assert await world.command("CREATE", "b", "x", 6) == "OK"
        assert [len(group.topics()) for group in world.groups.values()] == [2, 2, 2]

    simulate(scenario)


def test_what_is_left_to_make_waits_for_all_groups_too() -> None:
    async def scenario(world: World) -> None:
        stored = StoredPartitions(Partitioned("x", 6, {}))
        epoch = world.groups["b"].placement.epoch  # type: ignore[union-attr]
        kept = KeptPlaces(world.etcd.client("tool"), CLUSTER, "b")
        assert (await kept.divide(stored, None, "b", epoch)).done, "its leader was killed then"
        await without_a_leader(world, "a")
        assert await world.command("CREATE", "b", "x", 6) == "PLACEMENT_UNKNOWN"
        assert world.stored("x") == []
        await world.groups["a"].lead()
        await asyncio.sleep(1.0)
        assert await world.command("CREATE", "c", "x", 6) == "OK"
        assert [len(group.topics()) for group in world.groups.values()] == [2, 2, 2]

    simulate(scenario)


def test_all_partitions_are_in_a_group_that_is_named() -> None:
    async def scenario(world: World) -> None:
        assert await world.command("CREATE", "a", "x", 4, "c") == "OK"
        assert [len(group.topics()) for group in world.groups.values()] == [0, 0, 4]
        record = (await KeptPlaces(world.etcd.client("tool"), CLUSTER, "a").records_of("x"))["x"]
        assert record.group == "c", "its home, too: the others can be taken out of the cluster"
        assert await world.command("CREATE", "b", "x", 4, "c") == "OK", "it is confirmed"
        assert await world.command("CREATE", "b", "x", 4) == "OK"
        assert await world.command("CREATE", "b", "x", 4, "b") == "EXISTS"
        assert await world.command("CREATE", "b", "y", 4, "d") == "BAD_ARGUMENT", "there is none"
        assert await world.command("DELETE", "a", "x") == "OK"
        assert world.records("x") == []

    simulate(scenario)


def test_each_leader_counts_the_partitions_and_not_the_whole() -> None:
    """Found: after the news from etcd's watch the leader of the home group counted the whole topic, too."""

    async def scenario(world: World) -> None:
        for name in TOPICS:
            assert await world.command("CREATE", "b", name, 6) == "OK"
        await asyncio.sleep(1.0)
        for group in world.groups.values():
            assert group.placement is not None
            assert group.placement.rows()["group_topics"] == {("a",): 4.0, ("b",): 4.0, ("c",): 4.0}, group.name
        await world.groups["b"].lead()
        await asyncio.sleep(1.0)
        assert world.groups["b"].placement.rows()["group_topics"][("b",)] == 4.0  # type: ignore[union-attr]

    simulate(scenario)


def test_what_is_not_made_yet_is_refused() -> None:
    async def scenario(world: World) -> None:
        placement = world.groups["a"].placement
        assert placement is not None
        with pytest.raises(PlacementUnknown, match="partition x#1 is not made yet: CREATE or DELETE x again"):
            placement.admit("x#1")
        assert await world.command("CREATE", "a", "x", 2) == "OK"
        with pytest.raises(PlacementUnknown, match="x is partitioned, and is just being made or deleted"):
            placement.admit("x")
        world.groups["a"].run("DELETE", "x", 0, lambda reply: None)
        with pytest.raises(BeingDeleted, match="x is being deleted"):
            world.groups["a"].partitioned.find("x")
        await asyncio.sleep(2.0)
        for group in world.groups.values():
            with pytest.raises(PlacementUnknown, match="x is being deleted, and that was interrupted: repeat DELETE x"):
                group.partitioned.find("x")
        assert await world.command("CREATE", "b", "x", 2) == "PLACEMENT_UNKNOWN"
        assert await world.command("DELETE", "b", "x") == "OK"

    simulate(scenario)


def test_a_plain_topic_stays() -> None:
    async def scenario(world: World) -> None:
        group = world.groups["b"]
        assert group.placement is not None
        with suppress(NameBusy):
            group.placement.admit("x", "b")
        await asyncio.sleep(1.0)
        group.disk.mkdir("/data/topics/x")
        assert await world.command("CREATE", "a", "x", 2) == "EXISTS"
        group.disk.rmdir("/data/topics/x")  # its record was written, and its leader killed before it made the topic
        assert await world.command("CREATE", "a", "x", 2) == "OK"
        assert len(world.stored("x")) == 2

    simulate(scenario)


def test_etcd_that_has_forgotten_all_is_told_again() -> None:
    async def scenario(world: World) -> None:
        assert await world.command("CREATE", "a", "x", 5) == "OK"
        before = {group.name: group.topics() for group in world.groups.values()}
        world.etcd.wipe()
        for group in world.groups.values():
            await group.lead()
        await asyncio.sleep(1.0)
        assert {group.name: group.topics() for group in world.groups.values()} == before
        assert await world.command("CREATE", "b", "x", 5) == "OK"
        assert {group.name: group.topics() for group in world.groups.values()} == before
        await whole(world, "y")
        assert await world.command("DELETE", "c", "x") == "OK"
        assert world.stored("x") == []

    simulate(scenario)


def test_groups_whose_table_is_lost_as_well_refuse_the_topic_until_a_create() -> None:
    async def scenario(world: World) -> None:
        assert await world.command("CREATE", "a", "x", 6) == "OK"
        before = {group.name: group.topics() for group in world.groups.values()}
        world.etcd.wipe()
        for group in world.groups.values():
            group.disk.unlink("/data/partitions.json")
            await group.lead()
        await asyncio.sleep(1.0)
        for group in world.groups.values():
            with pytest.raises(StorageFailed, match="CREATE x partitions=N brings it back"):
                group.partitioned.is_whole("x")
        assert await world.command("CREATE", "b", "x", 2) == "EXISTS", "it has partitions with larger numbers"
        assert await world.command("CREATE", "b", "x", 6) == "OK"
        assert {group.name: group.topics() for group in world.groups.values()} == before
        assert not any(group.partitioned.lost for group in world.groups.values())
        assert await world.command("DELETE", "c", "x") == "OK"
        assert world.stored("x") == []

    simulate(scenario)
