"""In which order a lessee of several topics got what it has not settled. ADR 0256."""

from tests.support.shares import examples
from toymq_py.consumer.delivery_order import DeliveryOrder

A, B, C = object(), object(), object()


def test_the_first_is_the_table_of_the_oldest_turn_that_is_not_settled() -> None:
    order = DeliveryOrder()
    assert order.first() is None
    turns = [order.delivered(table, 2) for table in (A, A, B, A)]
    assert turns == [1, 1, 2, 3], "a turn is a stretch of one table"
    order.settled(1, 3)
    assert order.first() == (A, None)
    order.settled(1, 1)
    assert order.first() == (B, None)
    order.settled(3, 2)
    order.settled(2, 2)
    assert order.first() is None


def test_a_turn_that_goes_on_behind_its_end_is_the_newest_still() -> None:
    order = DeliveryOrder()
    order.settled(order.delivered(A, 1), 1)
    assert order.delivered(A, 1) == 1
    assert (order.delivered(B, 1), order.first()) == (2, (A, None))


def test_what_stood_behind_a_time_out_that_counted_is_not_first_since_then() -> None:
    order = DeliveryOrder()
    hung, behind = order.delivered(A, 1), order.delivered(B, 1)
    since = order.timed_out()
    order.settled(hung, 1)
    assert order.first(since) is None
    assert order.delivered(B, 1) == since > behind, "behind a time-out a turn ends, also of the same table"
    assert order.first(since) == order.first() == (B, None)
    order.settled(since, 1)
    assert (order.first(since), order.first()) == (None, (B, None))


def test_what_was_delivered_first_long_ago_is_first() -> None:
    """Fresh messages of other topics, in whose company it is delivered again, would count in its place, each once."""
    order = DeliveryOrder()
    order.delivered(A, 1)
    new, old = order.delivered(B, 1, 20.0), order.delivered(C, 2, 10.0)
    assert order.delivered(C, 1) == old + 1
    assert order.first() == (C, 10.0)
    order.settled(old, 2)
    assert order.first() == (B, 20.0)
    order.settled(new, 1)
    assert order.first() == (A, None)
    order.delivered(B, 1, 0.0)
    assert order.first() == (B, 0.0), "that is not known behind a restart"


def test_what_is_settled_twice_or_was_never_known_changes_nothing() -> None:
    """A table that is disowned says so, and settles later what it had."""
    order = DeliveryOrder()
    turn = order.delivered(A, 2)
    order.settled(turn, 2)
    order.settled(turn, 2)
    order.settled(0, 5)
    order.delivered(C, 1)
    assert order.first() == (C, None)


def test_memory_is_bounded_by_what_is_not_settled() -> None:
    order = DeliveryOrder()
    for _ in range(examples(1000)):
        for table in (A, B):
            order.settled(order.delivered(table, 1), 1)
        order.timed_out()
        order.settled(order.delivered(A, 1, 5.0), 1)
    assert not order._fresh
    assert not order._again
