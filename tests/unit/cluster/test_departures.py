"""A topic that goes: whatever call of the disk kills the leader that has it, it is in one group, with all that was acknowledged."""

import asyncio

import pytest

from tests.support.move_world import TOPIC, World, simulate
from tests.support.shares import one_in
from toymq_py.replication.kept_places import KeptPlaces

CALLS = 330
"""More than a move makes."""


async def asked(world: World, kept: KeptPlaces, to: str) -> None:
    record = await kept.record(TOPIC)
    assert record is not None
    assert (await kept.ask(TOPIC, record, to, None)).done


async def moved(world: World, kept: KeptPlaces, to: str) -> None:
    """Wait until the topic is in a group."""
    async with asyncio.timeout(120):
        while (record := await kept.record(TOPIC)) is None or record.group != to:  # noqa: ASYNC110 (of other tasks)
            await asyncio.sleep(0.1)


async def killed_while_it_moves(world: World, group: str, nth: int) -> int:
    """Returns: how many calls the disk of that group had in the move."""
    loop, kept = world.loop, world.kept("tool")
    clients = [loop.create_task(world.publisher(name, 10_000)) for name in ("p", "q")]
    consuming = loop.create_task(world.consumer())
    await asyncio.sleep(1.0)
    await world.topic(TOPIC)
    record = await kept.record(TOPIC)
    assert record is not None
    home = record.group
    to = "b" if home == "a" else "a"
    life = world.groups[home if group == "source" else to].life
    assert life is not None
    before = life.calls
    life.kills_in = nth
    await asked(world, kept, to)
    await moved(world, kept, to)
    calls = life.calls - before
    life.kills_in = None
    await asyncio.sleep(0.5)
    consuming.cancel()
    world.publishing = False
    await asyncio.gather(*clients)
    await world.check(to)
    assert len(world.stored) > 20
    return calls


@one_in(15)
def test_a_leader_that_has_the_topic_dies_at_any_call_of_its_disk(share: int) -> None:
    for nth in range(1, CALLS, share):
        simulate(lambda world, nth=nth: killed_while_it_moves(world, "source", nth), nth)  # type: ignore[misc]


def test_nothing_dies() -> None:
    async def scenario(world: World) -> None:
        print(await killed_while_it_moves(world, "source", 10**9))

    simulate(scenario)
