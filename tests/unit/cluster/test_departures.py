"""A topic moves to another group: whichever disk call kills the leader that gives it up, one group has it, with all that was
acknowledged."""

from tests.support.broker_rig import DIR
from tests.support.move_world import World, killed_while_it_moves, simulate
from tests.support.shares import one_in
from tests.support.tiers import filled
from toymq_py.cluster.departures import is_evicted, list_files

CALLS = 400
"""More than a move makes."""


@one_in(120)
def test_a_leader_that_has_the_topic_dies_at_any_call_of_its_disk(share: int) -> None:
    for nth in range(1, CALLS, share):
        simulate(lambda world, nth=nth: killed_while_it_moves(world, "source", nth), nth)  # type: ignore[misc]


def test_it_moves_in_fewer_calls_than_those_that_are_tried() -> None:
    async def scenario(world: World) -> None:
        assert await killed_while_it_moves(world, "source", 10**9) < CALLS

    simulate(scenario)


def test_a_topic_whose_history_is_in_a_bucket_alone_stays() -> None:
    rig, _ = filled()
    assert rig.broker.moves.refusal("t") is None
    assert rig.change("configure", "t", tier_local_bytes="0") == "OK"
    rig.rounds(4)
    assert rig.away()
    assert rig.broker.moves.refusal("t") == (
        "t has segments in the bucket of --tier alone, which stays with this group"
    )
    assert any(is_evicted(rig.disk, DIR, path) for path in list_files(rig.disk, DIR, "t", held=True)), "also one that just left"


def test_what_may_change_is_sent_while_the_topic_is_held_alone() -> None:
    rig, _ = filled()
    early, all_of_it = (set(list_files(rig.disk, DIR, "t", held=held)) for held in (False, True))
    assert {path.rpartition(".")[2] for path in early} == {"log", "idx"}
    assert len({path for path in early if path.endswith(".log")}) == 2, "the sealed ones"
    assert {path.rpartition("/")[2] for path in all_of_it - early} >= {"offsets.json", "topic.json", f"{10:020}.log"}
    assert not list_files(rig.disk, DIR, "none", held=True)
