"""Commands for a topic that may be partitioned: applied to each partition, once, with one answer."""

from typing import Any

import pytest

from tests.support.broker_rig import BrokerRig
from toymq_py import partition_operations as operations
from toymq_py.consumer_options import Start
from toymq_py.errors import BadArgument, NoSuchConsumer, NoSuchTopic, OutOfRange, RequestError


class Told:
    """Records an operation's callbacks."""

    def __init__(self) -> None:
        self.counts: list[int] = []
        self.errors: list[OSError | RequestError | None] = []

    def done(self, error: OSError | RequestError | None) -> None:
        self.errors.append(error)

    def counted(self, count: int, error: OSError | RequestError | None) -> None:
        self.counts.append(count)
        self.errors.append(error)


@pytest.fixture
def rig() -> BrokerRig:
    rig = BrokerRig()
    operations.create(rig.broker, "orders", {"partitions": "3", "ttl": "60000"}, lambda error: None)
    rig.loop.advance(0)
    for number in range(3):
        rig.publish(f"orders#{number}", *[b"x"] * (number + 1))
    return rig


def test_messages_are_counted_over_all(rig: BrokerRig) -> None:
    told = Told()
    operations.purge(rig.broker, "orders", told.counted)
    rig.loop.advance(0)
    assert (told.counts, told.errors) == ([6], [None])
    operations.delete(rig.broker, "orders", told.counted)
    rig.loop.advance(0)
    assert told.errors == [None, None]
    with pytest.raises(NoSuchTopic):
        operations.purge(rig.broker, "orders", told.counted)


def test_settings_are_those_that_all_have(rig: BrokerRig) -> None:
    told = Told()
    operations.configure(rig.broker, "orders#1", {"ttl": "5000"}, told.done)
    operations.configure(rig.broker, "orders", {"visibility": "9000"}, told.done)
    rig.loop.advance(0)
    assert told.errors == [None, None]
    assert operations.settings_of(rig.broker, "orders") == {"partitions": 3, "visibility": 9000}
    assert operations.settings_of(rig.broker, "orders#1") == {"visibility": 9000, "ttl": 5000}
    for changes, says in (({"partitions": "4"}, "fixed at creation"), ({"ttl": "x"}, "invalid ttl")):
        with pytest.raises(BadArgument, match=says):
            operations.configure(rig.broker, "orders", changes, told.done)
    assert operations.describe(rig.broker, "orders")["messages"] == 6
    assert operations.describe(rig.broker, "orders#2")["messages"] == 3


def test_a_consumer_that_some_have_is_forgotten_there(rig: BrokerRig) -> None:
    told = Told()
    rig.subscribe("orders#1")
    operations.forget(rig.broker, "orders", "c", told.done)
    rig.loop.advance(0)
    assert told.errors == [None]
    operations.forget(rig.broker, "orders", "c", told.done)
    rig.loop.advance(0)
    assert isinstance(told.errors[1], NoSuchConsumer)


def test_what_is_of_one_partition_is_refused_for_all(rig: BrokerRig) -> None:
    told = Told()
    with pytest.raises(BadArgument, match=r"^7 is an id, and each partition has its own: name one, such as orders#0, or "):
        operations.check_seek(rig.broker, "orders", Start("id", 7))
    operations.check_seek(rig.broker, "orders#1", Start("id", 7))
    for more in ({"ids": [(0, 1)], "max_count": None}, {"ids": None, "max_count": 3}):
        with pytest.raises(BadArgument, match=r"of one partition: name its dead letters, such as orders#0\.dlq$"):
            operations.redrive(rig.broker, "orders.dlq", done=told.counted, **more)  # type: ignore[arg-type]
    with pytest.raises(BadArgument, match="orders#1 is a partition of orders: delete orders, or purge orders#1"):
        operations.delete(rig.broker, "orders#1", told.counted)


def test_dead_letters_of_all_go_back(rig: BrokerRig) -> None:
    told = Told()
    for number in (0, 2):
        rig.take(rig.subscribe(f"orders#{number}"))
        rig.nack(f"orders#{number}", 0, 0, dead=True)
    rig.advance(1)
    operations.redrive(rig.broker, "orders.dlq", None, None, told.counted)
    rig.loop.advance(0)
    assert (told.counts, told.errors) == ([2], [None]), "the partition without dead letters is no error"


def test_an_error_of_one_partition_is_told(rig: BrokerRig) -> None:
    told = Told()

    def begin(name: str, done: Any) -> None:
        done(OutOfRange(0, "x") if name == "orders#1" else None)

    operations.for_each_with(rig.broker, "orders", begin, told.done)
    (error,) = told.errors
    assert isinstance(error, OutOfRange)
