"""The newest records of a log in memory. Contract: storage.md, "Segments"."""

from toymq_py.records import Records
from toymq_py.storage.tail_cache import AHEAD_RUNS, TailBudget, TailCache


def run_of(first_id: int, count: int, size: int = 10) -> Records:
    return Records(range(first_id, first_id + count), [0] * count, [b""] * count, [b"x" * size] * count, None)


def test_thousands_of_topics_read_nothing_ahead() -> None:
    budget = TailBudget()
    tails = [TailCache(budget) for _ in range(1000)]
    tails[0].enable(True)
    assert tails[0].ahead_bytes() * AHEAD_RUNS * 2 == budget.share()
    for tail in tails:
        tail.enable(True)
    assert tails[0].ahead_bytes() == 0


def test_a_tail_keeps_its_share_of_the_memory() -> None:
    budget = TailBudget()
    tail = TailCache(budget)
    tail.enable(enabled=True)
    tail.enable(enabled=True)
    assert budget.topics == 1
    for n in range(1000):
        tail.push(run_of(n * 10, 10, 10_000))
    assert tail.bytes <= budget.share()
    assert tail.find(0) is None, "the oldest goes first"
    assert tail.find(9_999) is not None
    assert tail.find(10_000) is None
    tail.push(run_of(20_000, 1))
    assert tail.find(9_999) is None, "ids that do not follow start it anew"
    tail.push(run_of(20_001, 1, 20_000_000))
    assert tail.find(20_001) is not None, "one run is kept in any case"
    tail.enable(enabled=False)
    assert (tail.bytes, budget.topics, tail.find(20_001)) == (0, 0, None)


def test_many_topics_share_the_memory() -> None:
    budget = TailBudget()
    budget.topics = 1000
    assert budget.share() * 1000 <= TailBudget.TOTAL_BYTES_MAX
    budget.topics = 1
    assert budget.share() == TailBudget.TOPIC_BYTES_MAX
