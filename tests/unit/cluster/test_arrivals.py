"""A topic moves to this group: whichever disk call kills the leader that takes it, one group has it, with all that was
acknowledged."""

import asyncio

from tests.support.move_world import DIRECTORY, TOPIC, World, asked, killed_while_it_moves, moved, simulate
from tests.support.shares import one_in

CALLS = 400
"""More than a move makes."""


@one_in(120)
def test_a_leader_that_wants_the_topic_dies_at_any_call_of_its_disk(share: int) -> None:
    for nth in range(1, CALLS, share):
        simulate(lambda world, nth=nth: killed_while_it_moves(world, "target", nth), nth)  # type: ignore[misc]


def test_it_comes_in_fewer_calls_than_those_that_are_tried() -> None:
    async def scenario(world: World) -> None:
        assert await killed_while_it_moves(world, "target", 10**9) < CALLS

    simulate(scenario)


def test_a_disk_without_room_gets_no_topic_and_the_others_go_on() -> None:
    async def scenario(world: World) -> None:
        clients, consuming = await world.begin()
        kept = world.kept("tool")
        record = await kept.record(TOPIC)
        assert record is not None
        to = "b" if record.group == "a" else "a"
        disk = world.groups[to].disk
        disk.capacity_bytes = disk.used_bytes + 4096
        await asked(world, kept, to)
        await asyncio.sleep(3.0)
        assert await kept.record(TOPIC) == record
        assert not disk.is_dir(f"{DIRECTORY}/topics/{TOPIC}"), "half a copy is removed"
        disk.capacity_bytes = None
        await moved(world, kept, to)
        consuming.cancel()
        world.publishing = False
        await asyncio.gather(*clients)
        await world.check(to)

    simulate(scenario)


def test_what_cannot_come_is_said_and_not_tried_again() -> None:
    async def scenario(world: World) -> None:
        clients, consuming = await world.begin()
        consuming.cancel()
        world.publishing = False
        await asyncio.gather(*clients)
        kept = world.kept("tool")
        record = await kept.record(TOPIC)
        assert record is not None
        life, topic = await world.topic(TOPIC)
        topic.committer.poison("a test")
        to = "b" if record.group == "a" else "a"
        await asked(world, kept, to)
        await asyncio.sleep(3.0)
        move = await kept.move(TOPIC)
        assert move is not None
        assert move.refused == f"{TOPIC} is failed: see `toymqctl describe {TOPIC}`"
        assert life.alive
        revision = move.revision
        await asyncio.sleep(30.0)
        again = await kept.move(TOPIC)
        assert again is not None
        assert again.revision == revision

    simulate(scenario)
