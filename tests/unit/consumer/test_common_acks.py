"""The ids that all consumers have acked. Contract: delivery.md, "Backlog limits"; ADR 0043."""

import random

import pytest

from toymq_py.consumer.ack_set import AckSet
from toymq_py.consumer.common_acks import CommonAcks, WatchedAcks


def followed(count: int) -> tuple[CommonAcks, list[WatchedAcks]]:
    """Return so many empty ack sets, and their intersection, which watches them."""
    common = CommonAcks()
    sets = [WatchedAcks(AckSet(0), common.added) for _ in range(count)]
    common.track(sets)
    return common, sets


@pytest.mark.parametrize("seed", range(20))
def test_it_is_the_intersection(seed: int) -> None:
    rng = random.Random(seed)
    common, sets = followed(rng.randint(1, 6))
    held: list[set[int]] = [set() for _ in sets]
    for _ in range(200):
        which, first = rng.randrange(len(sets)), rng.randrange(100)
        last = first + rng.choice((0, 0, 1, 5, 60))
        sets[which].add(first, last)
        held[which].update(range(first, last + 1))
        common_ids = set.intersection(*held)
        assert common.unacked(160) == 160 - len(common_ids & set(range(160)))
        span = common.next_unacked(0, 160)
        assert (span[0] if span else 160) == next(at for at in range(161) if at not in common_ids)


def test_an_ack_does_not_ask_a_hundred_others_for_each_range(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found in review: 100 consumers that ack every second id, then all, held the loop for over a second."""
    common, sets = followed(100)
    asked = 0
    plain = WatchedAcks.next_held

    def next_held(self: WatchedAcks, from_id: int, limit: int) -> int:
        nonlocal asked
        asked += 1
        return plain(self, from_id, limit)

    monkeypatch.setattr(WatchedAcks, "next_held", next_held)
    for each in sets:
        for msg_id in range(1, 200, 2):
            each.add(msg_id, msg_id)
    assert common.floor == 0
    assert asked < 100 * 100 * 3, "an ack of one id asks two or three"
    asked = 0
    for each in sets:
        each.add(0, 199)
    assert common.floor == 200
    assert asked < 100 * (100 + 200), "an ack of 200 asks no more than there are ranges and others"
