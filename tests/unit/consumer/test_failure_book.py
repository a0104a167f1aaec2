"""The last failure of each message: a bounded map of id ranges, compared with a dict."""

from random import Random

import pytest

from toymq_py.consumer import failure_book
from toymq_py.consumer.failure_book import ENTRY_BYTES, Failed, FailureBook, FailureBudget
from toymq_py.failure import failure_of


def failed(text: str) -> Failed:
    failure = failure_of(text)
    assert failure is not None
    return failure, 0


@pytest.mark.parametrize("seed", range(20))
def test_it_knows_what_a_dict_knows(seed: int) -> None:
    rng = Random(seed)
    budget = FailureBudget()
    book, model = FailureBook(budget), dict[int, Failed]()
    for step in range(300):
        first = rng.randrange(60)
        last = first + rng.choice((0, 0, 1, 5, 30))
        if rng.random() < 0.5:
            book.add(first, last, value := failed(f"step {step}"))
            model |= dict.fromkeys(range(first, last + 1), value)
        else:
            book.discard(first, last)
            model = {msg_id: value for msg_id, value in model.items() if not first <= msg_id <= last}
        assert {msg_id: found for msg_id in range(100) if (found := book.find(msg_id)) is not None} == model
        assert bool(book) == bool(model)
    book.discard(0, 1000)
    assert budget.bytes == 0


def test_the_oldest_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_book, "CONSUMER_BYTES_MAX", 3 * (ENTRY_BYTES + 1))
    budget = FailureBudget()
    book = FailureBook(budget)
    for msg_id in (5, 1, 9, 7, 3):
        book.add(msg_id, msg_id, failed("x"))
    assert [msg_id for msg_id in range(10) if book.find(msg_id) is not None] == [3, 7, 9]
    assert budget.bytes == 3 * (ENTRY_BYTES + 1)


def test_all_together_are_bounded_and_what_is_deleted_gives_its_room_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_book, "TOTAL_BYTES_MAX", 2 * (ENTRY_BYTES + 1))
    budget = FailureBudget()
    first, second = FailureBook(budget), FailureBook(budget)
    for msg_id in range(2):
        first.add(msg_id, msg_id, failed("x"))
    second.add(0, 0, failed("x"))
    assert (len(first), len(second)) == (2, 0), "nothing of its own makes room for it"
    del first
    second.add(0, 0, failed("x"))
    assert len(second) == 1
    assert budget.bytes == ENTRY_BYTES + 1


def test_a_range_is_one_entry_however_wide() -> None:
    budget = FailureBudget()
    book = FailureBook(budget)
    book.add(0, 2**40, failed("x"))
    assert (len(book), budget.bytes) == (1, ENTRY_BYTES + 1)
    book.discard(7, 7)
    assert len(book) == 2
    assert book.find(7) is None
    assert book.find(2**40) == book.find(0) == failed("x")
