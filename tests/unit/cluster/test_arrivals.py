"""A topic comes: whatever call of the disk kills the leader that wants it, one group has it, with all that was acknowledged."""

from tests.support.move_world import World, killed_while_it_moves, simulate
from tests.support.shares import one_in

CALLS = 400
"""More than a move makes."""


@one_in(40)
def test_a_leader_that_wants_the_topic_dies_at_any_call_of_its_disk(share: int) -> None:
    for nth in range(1, CALLS, share):
        simulate(lambda world, nth=nth: killed_while_it_moves(world, "target", nth), nth)  # type: ignore[misc]


def test_it_comes_in_fewer_calls_than_those_that_are_tried() -> None:
    async def scenario(world: World) -> None:
        assert await killed_while_it_moves(world, "target", 10**9) < CALLS

    simulate(scenario)
