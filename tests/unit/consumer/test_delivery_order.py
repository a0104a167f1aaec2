"""In which order a lessee of several topics got what it has not settled. ADR 0256."""

from tests.support.shares import examples
from toymq_py.consumer.delivery_order import DeliveryOrder

A, B, C = object(), object(), object()


def test_the_first_is_the_table_of_the_oldest_turn_that_is_not_settled() -> None:
    order = DeliveryOrder()
    assert order.first(late=False) is None
    turns = [order.delivered(table, 2) for table in (A, A, B, A)]
    assert turns == [1, 1, 2, 3], "a turn is a stretch of one table"
    order.settled(1, 3)
    assert order.first(late=False) is A
    order.settled(1, 1)
    assert order.first(late=False) is B
    order.settled(3, 2)
    order.settled(2, 2)
    assert order.first(late=False) is None


def test_a_turn_that_goes_on_behind_its_end_is_the_newest_still() -> None:
    order = DeliveryOrder()
    order.settled(order.delivered(A, 1), 1)
    assert order.delivered(A, 1) == 1
    assert (order.delivered(B, 1), order.first(late=False)) == (2, A)


def test_what_stood_behind_a_time_out_that_counted_is_not_first_while_its_lessee_is_late() -> None:
    order = DeliveryOrder()
    hung, behind = order.delivered(A, 1), order.delivered(B, 1)
    order.timed_out()
    order.settled(hung, 1)
    assert order.first(late=True) is None
    assert order.delivered(B, 1) == behind + 1, "behind a time-out a turn ends, also of the same table"
    again = order.delivered(A, 1)
    assert order.first(late=True) is B
    order.settled(behind + 1, 1)
    assert order.first(late=True) is A
    assert order.first(late=False) is B, "it has settled something, so it is at what it had first"
    order.timed_out()
    order.settled(behind, 1)
    order.settled(again, 1)
    assert order.first(late=True) is order.first(late=False) is None


def test_what_is_settled_twice_or_was_never_known_changes_nothing() -> None:
    """A table that is disowned says so, and settles later what it had."""
    order = DeliveryOrder()
    turn = order.delivered(A, 2)
    order.settled(turn, 2)
    order.settled(turn, 2)
    order.settled(0, 5)
    order.delivered(C, 1)
    assert order.first(late=False) is C


def test_memory_is_bounded_by_what_is_not_settled() -> None:
    order = DeliveryOrder()
    for _ in range(examples(1000)):
        for table in (A, B):
            order.settled(order.delivered(table, 1), 1)
        order.timed_out()
    assert not order._open
    assert not order._behind
