"""Which message of each key is next. Contract: delivery.md, "mode"."""

import pytest

from toymq_py.consumer import key_lanes
from toymq_py.consumer.key_lanes import KeyLanes


def lanes_of(*entered: tuple[int, bytes]) -> tuple[KeyLanes, list[bool], list[str]]:
    told: list[str] = []
    lanes = KeyLanes(0, lambda: told.append("turn"))
    return lanes, [lanes.enter(*each) for each in entered], told


def test_the_first_of_each_key_is_the_head() -> None:
    lanes, heads, _ = lanes_of((0, b"K"), (1, b"K"), (2, b"L"), (3, b"K"))
    assert heads == [True, False, True, False]
    assert (lanes.keys, lanes.waiting) == (2, 2)
    assert lanes.enter(0, b"K"), "a head stays one"
    assert not lanes.enter(3, b"K")
    assert lanes.waiting == 2, "what is entered again waits once"


def test_an_ack_of_the_head_gives_the_next_its_turn() -> None:
    lanes, _, told = lanes_of((0, b"K"), (1, b"K"), (2, b"K"), (3, b"L"))
    lanes.acked(0, 0)
    assert (lanes.turns, lanes.waiting, told) == ([1], 1, ["turn"])
    lanes.turns.clear()
    lanes.acked(0, 5)
    assert lanes.turns == [2]
    assert lanes.keys == 1, "a key without messages is forgotten"
    lanes.acked(0, 5)
    assert lanes.keys == lanes.waiting == 0


def test_a_message_that_is_due_late_waits_by_its_id() -> None:
    lanes, _, _ = lanes_of((1, b"K"), (5, b"K"), (3, b"K"))
    lanes.acked(1, 1)
    lanes.acked(3, 3)
    assert lanes.turns == [3, 5]


def test_it_is_full_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_lanes, "WAITING_MAX", 2)
    lanes, _, _ = lanes_of((0, b"K"), (1, b"K"))
    assert not lanes.full
    lanes.enter(2, b"K")
    assert lanes.full
    lanes.acked(0, 0)
    assert not lanes.full


def test_memory_follows_what_is_open_not_the_keys_that_were() -> None:
    lanes, _, _ = lanes_of()
    for msg_id in range(10_000):
        lanes.enter(msg_id, b"%d" % msg_id)
        lanes.acked(msg_id, msg_id)
    assert lanes.keys == lanes.waiting == len(lanes.turns) == 0
