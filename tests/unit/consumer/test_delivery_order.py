"""The order in which a lessee of several topics got its messages. ADR 0256."""

from tests.support.shares import examples
from toymq_py.consumer import DeliveryOrder

A, B, C = "a", "b", "c"


def test_the_first_is_the_table_of_the_oldest_turn_that_is_not_settled() -> None:
    order = DeliveryOrder()
    assert order.first() is None
    one, two, three = order.delivered(A, 0, 0, 2), order.delivered(B, 0, 0, 1), order.delivered(A, 0, 0, 1)
    assert order.first() == A
    order.settled(one, 1)
    assert order.first() == A
    order.settled(one, 1)
    assert order.first() == B
    order.settled(three, 1)
    assert order.first() == B
    order.settled(two, 1)
    assert order.first() is None


def test_a_turn_that_goes_on_behind_its_end_is_the_newest_still() -> None:
    order = DeliveryOrder()
    order.settled(order.delivered(A, 0, 0, 1), 1)
    assert order.delivered(A, 0, 0, 1) == 1
    assert (order.delivered(B, 0, 0, 1), order.first()) == (2, A)


def test_what_stood_behind_a_time_out_that_counted_is_not_first_since_then() -> None:
    order = DeliveryOrder()
    hung, behind = order.delivered(A, 0, 0, 1), order.delivered(B, 0, 0, 1)
    since = order.end_turn()
    order.settled(hung, 1)
    assert order.first(since) is None
    assert order.delivered(B, 0, 0, 1) == since > behind, "behind a time-out a turn ends, also of the same table"
    assert order.first(since) == order.first() == B
    order.settled(since, 1)
    assert (order.first(since), order.first()) == (None, B)


def test_what_is_settled_twice_or_was_never_known_changes_nothing() -> None:
    """A lease table that is disowned reports this, and later settles its messages once more."""
    order = DeliveryOrder()
    turn = order.delivered(A, 0, 0, 2)
    order.settled(turn, 2)
    order.settled(turn, 2)
    order.settled(0, 5)
    order.delivered(C, 0, 0, 1)
    assert order.first() == C


def test_memory_is_bounded_by_what_is_not_settled() -> None:
    order = DeliveryOrder()
    for _ in range(examples(1000)):
        for table in (A, B):
            order.settled(order.delivered(table, 0, 0, 1), 1)
        order.end_turn()
        order.settled(order.delivered(A, 0, 0, 1), 1)
    assert not order._turns
