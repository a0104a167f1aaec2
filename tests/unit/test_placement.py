"""Which worker process has a topic."""

from collections import Counter

import pytest

from toymq_py.errors import BadArgument, Moved, PlacementUnknown
from toymq_py.heartbeat import standstill
from toymq_py.placement import BOUND, Placement, choose_group, score, spread, worker_of


@pytest.mark.parametrize(("topic", "among_2", "among_4"), [("orders", 0, 2), ("mail", 0, 0), ("events", 1, 2)])
def test_stored_topics_are_found_again(topic: str, among_2: int, among_4: int) -> None:
    """The results must never change: another one would hide stored topics."""
    assert (worker_of(topic, 2), worker_of(topic, 4)) == (among_2, among_4)


def test_a_dead_letter_topic_is_with_its_origin() -> None:
    names = [f"topic{number}" for number in range(100)]
    assert [worker_of(f"{name}.dlq", 8) for name in names] == [worker_of(name, 8) for name in names]


def test_topics_are_spread_evenly() -> None:
    counts = Counter(worker_of(f"topic{number}", 4) for number in range(4_000))
    assert sorted(counts) == [0, 1, 2, 3]
    assert max(counts.values()) < 1.1 * min(counts.values()), counts


def test_one_more_worker_takes_topics_and_moves_no_other() -> None:
    for number in range(1_000):
        assert worker_of(f"topic{number}", 5) in (worker_of(f"topic{number}", 4), 4)


def test_alone_a_broker_has_every_topic() -> None:
    alone = Placement()
    assert (alone.is_divided, alone.moved("t"), list(alone.places())) == (False, None, [])
    assert alone.place_of("t") == alone.here
    alone.admit("t")
    alone.gone("t")
    with pytest.raises(BadArgument, match="group=a: this broker is of no group"):
        alone.admit("t", "a")


def test_a_worker_refuses_a_topic_of_another() -> None:
    placement = Placement(1, ("h:1", "h:2 http://h:3/"))
    assert (placement.is_divided, placement.passes_on, list(placement.places()), placement.here) == (True, True, [0, 1], 1)
    placement.admit("events")
    assert placement.place_of("orders") == 0
    with pytest.raises(Moved, match=r"h:1 \(worker 0\) has the topic orders"):
        placement.admit("orders")
    assert placement.described(None) == {"worker": 1, "workers": [["h:1"], ["h:2", "http://h:3/"]]}


def test_of_a_worker_that_stands_still_the_others_say_so_and_its_topics_are_refused_by_name() -> None:
    """A client that follows MOVED repeats its publishes at the worker, and waits for it; any other client gets the reason at
    once."""
    still, pids = {0}, [77, 78]
    placement = Placement(1, ("h:1", "h:2"), pids=pids, stands_still=still.__contains__)
    assert placement.problem_of(0) == standstill(77)
    error = placement.moved("orders")
    assert isinstance(error, PlacementUnknown)
    assert str(error) == f"worker 0 has the topic orders, and {standstill(77)}"
    assert str(error.moved) == f"h:1 (worker 0) has the topic orders, and {standstill(77)}"
    pids[0] = 0
    assert placement.problem_of(0) == "", "it was ended, and another one begins"
    pids[0] = 77
    still.clear()
    assert placement.problem_of(0) == ""
    assert isinstance(placement.moved("orders"), Moved)
    still.add(1)
    assert placement.problem_of(1) == "", "it says so, so it does not"


def test_a_worker_tells_the_others_that_its_partitioned_topics_change() -> None:
    shared = [0, 0]
    own, other = Placement(1, ("h:1", "h:2"), changes=shared), Placement(0, ("h:1", "h:2"), changes=shared)
    found = [other.change_of(1)]
    for over in (False, False, True, True, False, True):
        own.changing(over)
        found.append(other.change_of(1))
    assert found == [0, None, None, 2, 2, None, 4]
    Placement(1, ("h:1", "h:2"), changes=shared).changing(False)  # killed then
    own.changing(False)
    own.changing(True)
    assert (other.change_of(1), other.change_of(0)) == (6, 0)
    Placement().changing(False)
    assert Placement().change_of(0) is None


def test_groups_with_room_are_chosen_by_the_hash() -> None:
    idle = dict.fromkeys("abc", 0.0)
    assert [choose_group(name, idle) for name in ("orders", "mail", "events")] == [
        max("abc", key=lambda group: score(group, name)) for name in ("orders", "mail", "events")
    ]
    assert choose_group("orders.dlq", idle) == choose_group("orders", idle)
    for number in range(100):
        assert choose_group(f"t{number}", {"a": 100.0, "b": 10.0, "c": 10.0}) in ("b", "c")
    assert {choose_group(f"t{number}", {"a": BOUND, "b": 1.0, "c": 0.75}) for number in range(100)} == {"a", "b", "c"}


def test_without_room_the_least_loaded_is_chosen() -> None:
    assert choose_group("t", {"a": 2.0, "b": 1.0, "c": 1.0}, load=100.0) == "b"


def test_partitions_are_spread_evenly_over_the_groups() -> None:
    names = [f"orders#{number}" for number in range(8)]
    assert Counter(spread(names, {"a": 0, "b": 0}).values()) == {"a": 4, "b": 4}
    assert Counter(spread(names, {"a": 0, "b": 0, "c": 0}).values()).most_common()[-1][1] == 2
    assert spread(names[:2], {"a": 5, "b": 0}) == {"orders#0": "b", "orders#1": "b"}, "those that have less catch up"
    assert {place for number in range(20) for place in spread([f"t{number}#0"], {"a": 0, "b": 0}).values()} == {"a", "b"}
