"""The publishes and acks that a channel holds until tx.commit."""

import pytest

from toymq_py.amqp.errors import PRECONDITION_FAILED, AmqpError
from toymq_py.amqp.publishing import Held
from toymq_py.amqp.transaction import BYTES_MAX, CALL_BYTES, CALLS_MAX, Transaction


def test_all_is_done_at_the_commit_in_its_order_and_nothing_after_a_rollback() -> None:
    held = Held()
    transaction, done = Transaction(held), list[int]()
    for number in range(3):
        transaction.add(lambda number=number: done.append(number), 5)  # type: ignore[misc]
    assert (done, held.in_transactions) == ([], 3 * (5 + CALL_BYTES))
    transaction.begin_commit()
    transaction.end_commit()
    assert (done, held.in_transactions) == ([0, 1, 2], 0)
    transaction.add(lambda: done.append(9), 5)
    transaction.roll_back()
    transaction.begin_commit()
    assert (done, held.in_transactions) == ([0, 1, 2], 0)


@pytest.mark.parametrize(("calls", "size"), [(CALLS_MAX, 0), (4, BYTES_MAX // 4)])
def test_it_is_bounded(calls: int, size: int) -> None:
    transaction = Transaction(Held())
    for _ in range(calls):
        transaction.add(lambda: None, size)
    with pytest.raises(AmqpError, match="commit before"):
        transaction.add(lambda: None, 1)
    transaction.roll_back()
    transaction.add(lambda: None, BYTES_MAX)


def test_a_publish_that_failed_fails_its_commit_and_no_later_one() -> None:
    transaction = Transaction(Held())
    transaction.add(lambda: None, 0)
    transaction.begin_commit()
    transaction.failed = AmqpError(PRECONDITION_FAILED, "the queue is full")
    with pytest.raises(AmqpError, match="not all of the transaction is stored: the queue is full"):
        transaction.end_commit()
    transaction.begin_commit()
    transaction.end_commit()
