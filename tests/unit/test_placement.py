"""Which worker has a topic."""

from collections import Counter

import pytest

from toymq_py.placement import worker_of


@pytest.mark.parametrize(("topic", "among_2", "among_4"), [("orders", 0, 2), ("mail", 0, 0), ("events", 1, 2)])
def test_stored_topics_are_found_again(topic: str, among_2: int, among_4: int) -> None:
    """Fixed: another result loses sight of what is stored."""
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
