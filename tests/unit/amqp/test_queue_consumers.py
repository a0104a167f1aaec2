"""Which consumer of a queue may take: priorities, and a single active one."""

import pytest

from toymq_py.amqp.errors import AmqpError
from toymq_py.amqp.queue_consumers import QueueConsumers


class FakeConsumer:
    """A consumer that takes while it has credit."""

    def __init__(self, priority: int = 0, *, is_exclusive: bool = False, lives: bool = True) -> None:
        self.priority = priority
        self.is_exclusive = is_exclusive
        self.lives = lives
        self.credit = True
        self.active = False
        self.woken = 0
        self.order: QueueConsumers | None = None

    def activate(self) -> bool:
        self.active = self.lives
        return self.lives

    def wake(self) -> bool:
        self.woken += 1
        return self.credit

    def drop(self) -> None: ...

    def tell(self) -> None: ...


def test_alike_consumers_have_no_order() -> None:
    its = QueueConsumers("q", "/", single_active=False)
    consumers = [FakeConsumer(3), FakeConsumer(3)]
    assert [its.add(one) for one in consumers] == [True, True]
    assert [one.order for one in consumers] == [None, None]


def test_a_lower_one_waits_while_a_higher_one_has_credit() -> None:
    its = QueueConsumers("q", "/", single_active=False)
    low, middle, high = FakeConsumer(-1), FakeConsumer(), FakeConsumer(1)
    for one in (low, middle, high):
        its.add(one)
    assert [one.order for one in (low, middle, high)] == [its] * 3
    assert [its.must_wait(one) for one in (low, middle, high)] == [True, True, False]
    high.credit = False
    before = low.woken
    its.pass_on()
    assert (low.woken, its.must_wait(middle), its.must_wait(low)) == (before + 1, False, True)
    middle.credit = False
    assert its.must_wait(low) is False
    assert its.remove(high)
    assert its.remove(middle)
    assert low.order is None


def test_a_higher_one_that_goes_lets_the_lower_take() -> None:
    its = QueueConsumers("q", "/", single_active=False)
    low, high = FakeConsumer(), FakeConsumer(1)
    its.add(low)
    its.add(high)
    assert its.must_wait(low)
    its.remove(high)
    assert (low.woken, its.must_wait(low), len(its)) == (1, False, 1)
    assert its.remove(high) is False


def test_one_is_active_and_the_highest_follows() -> None:
    its = QueueConsumers("q", "/", single_active=True)
    first, second, dead, high, third = (
        FakeConsumer(), FakeConsumer(), FakeConsumer(9, lives=False), FakeConsumer(5), FakeConsumer(),
    )  # fmt: skip
    assert [its.add(one) for one in (first, second, dead, high, third)] == [True, False, False, False, False]
    its.remove(third)
    assert not high.active
    its.remove(first)
    assert [one.active for one in (second, dead, high)] == [False, False, True]
    assert len(its) == 2, "the dead one is gone"
    its.remove(high)
    assert second.active


def test_none_follows_in_a_queue_that_goes() -> None:
    its = QueueConsumers("q", "/", single_active=True)
    first, second = FakeConsumer(), FakeConsumer()
    its.add(first)
    its.add(second)
    assert its.take_all() == [first, second]
    assert (its.remove(first), second.active, len(its)) == (False, False, 0)


@pytest.mark.parametrize("single_active", [False, True])
def test_an_exclusive_one_is_alone(single_active: bool) -> None:
    its = QueueConsumers("q", "/", single_active=single_active)
    its.add(FakeConsumer(is_exclusive=not single_active))
    with pytest.raises(AmqpError, match="in exclusive use"):
        its.add(FakeConsumer(is_exclusive=single_active))
    assert len(its) == 1
