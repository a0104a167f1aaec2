"""CREATE and DELETE of a partitioned topic: whole or not there, wherever the process is killed or cut off from power."""

import errno
import random
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.support.broker_rig import DIR, BrokerRig
from toymq_py import partition_operations
from toymq_py.errors import (
    BeingDeleted,
    DataDirectoryError,
    IsPartitioned,
    NoSuchTopic,
    RequestError,
    StorageFailed,
    TopicExists,
)
from toymq_py.partitioned_topics import for_each
from toymq_py.placement import Placement, worker_of

NAMES = [f"orders#{number}" for number in range(4)]
OPS = ("open", "pwrite", "sync", "rename", "mkdir", "sync_dir", "unlink", "rmdir")


def create(rig: BrokerRig, name: str = "orders", **settings: str) -> str:
    answers: list[str] = []

    def done(error: OSError | RequestError | None) -> None:
        answers.append("OK" if error is None else str(getattr(error, "code", "STORAGE")))

    with suppress(BeingDeleted):
        partition_operations.create(rig.broker, name, settings, done)
    rig.loop.advance(0)
    return answers[0]


def delete(rig: BrokerRig, name: str = "orders") -> int | str:
    answers: list[int | str] = []
    partition_operations.delete(rig.broker, name, lambda count, error: answers.append(count if error is None else str(error)))
    rig.loop.advance(0)
    return answers[0]


def check_whole(rig: BrokerRig, **settings: int) -> None:
    """All of it is there, or nothing."""
    there = "orders" in rig.broker.partitioned.by_name
    assert sorted(name for name in rig.broker.topics if name.startswith("orders#")) == (NAMES if there else [])
    for name in NAMES if there else []:
        assert rig.broker.topic(name).settings.to_json() == settings


def test_a_topic_is_made_with_its_partitions_and_stays() -> None:
    rig = BrokerRig()
    assert create(rig, partitions="4", visibility="60000") == "OK"
    check_whole(rig, visibility=60_000)
    for again in (rig.reopen, lambda: rig.reopen(power_cut=True)):
        again()
        check_whole(rig, visibility=60_000)
        assert create(rig, partitions="4", visibility="60000") == "OK"
        assert create(rig, partitions="4", visibility="5") == "EXISTS"
        assert create(rig) == "OK"
    with pytest.raises(TopicExists, match="orders exists with partitions=4, not 8: the number is fixed at creation"):
        create(rig, partitions="8")
    with pytest.raises(IsPartitioned, match="4 is the number of partitions of orders: name one, from orders#0 to") as error:
        rig.broker.topic("orders")
    assert error.value.partitions == 4
    with pytest.raises(IsPartitioned, match=r"name one, from orders#0\.dlq to orders#3\.dlq"):
        rig.broker.topic_or_new("orders.dlq")
    for name in ("orders#4", "other#0", "orders#4.dlq"):
        with pytest.raises(NoSuchTopic, match=f"there is no partition {name}"):
            rig.broker.topic_or_new(name)


def test_a_plain_topic_of_the_name_stays_plain() -> None:
    rig = BrokerRig()
    rig.publish("orders", b"x")
    with pytest.raises(TopicExists, match="orders exists and is not partitioned"):
        create(rig, partitions="4")
    check_whole(rig)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("end", ["kill", "power cut"])
def test_killed_at_each_step_of_create(op: str, end: str) -> None:
    """The nth call of each kind fails, and the process ends there."""
    nth = 0
    while True:
        nth += 1
        rig = BrokerRig()
        fault = rig.disk.fail(op, nth, errno.EIO)
        answer = create(rig, partitions="4", visibility="60000")
        rig.disk.heal()
        rig.reopen(power_cut=end == "power cut")
        check_whole(rig, visibility=60_000)
        if answer == "OK":
            assert "orders" in rig.broker.partitioned.by_name, "what was answered OK is there"
        assert create(rig, partitions="4", visibility="60000") == "OK", "a repeat completes it"
        check_whole(rig, visibility=60_000)
        if not fault.fired:
            break
    assert nth > 1 or op in ("rmdir", "unlink"), "nothing was tried"


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("end", ["kill", "power cut"])
def test_killed_at_each_step_of_delete(op: str, end: str) -> None:
    nth = 0
    while True:
        nth += 1
        rig = BrokerRig()
        create(rig, partitions="4")
        for number, name in enumerate(NAMES):
            rig.publish(name, b"%d" % number)
        fault = rig.disk.fail(op, nth, errno.EIO)
        with suppress(RequestError):
            delete(rig)
        gone = "orders" not in rig.broker.partitioned.by_name
        rig.disk.heal()
        rig.reopen(power_cut=end == "power cut")
        check_whole(rig)
        if gone:
            assert not any("#" in name for name in rig.broker.topics), "what was deleted does not come back"
        elif "orders" in rig.broker.partitioned.by_name:
            assert delete(rig) == 4, "nothing was removed yet"
        if not fault.fired:
            break
    assert nth > 1 or op == "mkdir", "nothing was tried"


def test_what_could_not_be_removed_is_refused_until_a_restart() -> None:
    rig = BrokerRig()
    create(rig, partitions="4")
    rig.disk.fail("rename", 4, errno.EIO)  # of the table, and of two partitions before
    assert "could not be deleted" in str(delete(rig))
    with pytest.raises(StorageFailed, match=r"orders could not be deleted .*: a restart of the broker completes it"):
        rig.broker.topic_or_new("orders")
    assert create(rig, "other", partitions="2") == "OK", "and what is stored next says so still"
    rig.reopen()
    assert list(rig.broker.partitioned.by_name) == ["other"]
    check_whole(rig)


def test_a_failed_create_leaves_nothing() -> None:
    rig = BrokerRig()
    rig.disk.fail("open", 3, errno.ENOSPC, sticky=True, path="orders#")
    assert create(rig, partitions="4") == "STORAGE"
    assert (list(rig.broker.topics), rig.broker.partitioned.by_name) == ([], {})
    rig.disk.heal()
    rig.publish("orders", b"x")
    rig.reopen()
    assert list(rig.broker.topics) == ["orders"], "the name is free"


def test_too_many_partitions_leave_nothing() -> None:
    rig = BrokerRig(max_topics=3)
    assert create(rig, partitions="4") == "TOO_MANY_TOPICS"
    assert (list(rig.broker.topics), rig.broker.partitioned.by_name) == ([], {})
    assert create(rig, partitions="3") == "OK"


def test_delete_takes_the_dead_letters_along_and_a_new_topic_begins_anew() -> None:
    rig = BrokerRig()
    create(rig, partitions="4")
    rig.publish("orders#1", b"a", b"b")
    rig.take(rig.subscribe("orders#1"))
    rig.nack("orders#1", 0, 0, dead=True)
    rig.advance(1)
    assert rig.broker.topic("orders#1.dlq").next_id == 1
    assert delete(rig) == 3
    assert not rig.broker.topics
    rig.publish("orders", b"plain")
    assert rig.broker.topic("orders").next_id == 1


def test_what_comes_meanwhile_waits() -> None:
    rig = BrokerRig()
    told: list[str] = []
    partition_operations.create(rig.broker, "orders", {"partitions": "4"}, lambda error: told.append("made"))
    with pytest.raises(BeingDeleted, match="orders is being made: send it again in a moment") as busy:
        rig.broker.topic_or_new("orders")
    busy.value.when_done(lambda: told.append("go on"))
    rig.loop.drain()
    assert sorted(told) == ["go on", "made"]
    partition_operations.delete(rig.broker, "orders", lambda count, error: told.append("deleted"))
    with pytest.raises(BeingDeleted, match="orders is being deleted"):
        rig.broker.topic_or_new("orders")
    rig.loop.drain()
    assert told[-1] == "deleted"
    assert rig.broker.topic_or_new("orders").name == "orders"


def test_no_partition_comes_back_while_its_topic_is_being_deleted() -> None:
    rig = BrokerRig()
    create(rig, partitions="4")
    partition_operations.delete(rig.broker, "orders", lambda count, error: None)
    refused = 0
    while rig.loop.step():
        for name in NAMES:
            if name not in rig.broker.topics:
                with pytest.raises(RequestError, match=r"orders is being deleted|there is no partition"):
                    rig.broker.topic_or_new(name)
                refused += 1
    assert refused > len(NAMES)
    assert not rig.broker.topics


def test_changes_at_once_share_writes_and_both_stay() -> None:
    rig = BrokerRig()
    told: list[object] = []
    for name in ("one", "two", "three"):
        partition_operations.create(rig.broker, name, {"partitions": "2"}, told.append)
    rig.loop.drain()
    assert told == [None] * 3
    rig.reopen()
    assert sorted(rig.broker.partitioned.by_name) == ["one", "three", "two"]


def test_a_worker_makes_the_partitions_that_are_placed_with_it() -> None:
    rig = BrokerRig()
    rig.broker.placement = Placement(1, ["a:1", "b:2"])
    assert create(rig, partitions="4") == "OK"
    mine = [name for name in NAMES if worker_of(name, 2) == 1]
    assert sorted(rig.broker.topics) == mine
    assert 0 < len(mine) < 4
    assert rig.broker.partitioned.members("orders") == mine


def test_a_lost_partition_is_made_anew_with_the_settings(caplog: pytest.LogCaptureFixture) -> None:
    rig = BrokerRig()
    create(rig, partitions="4", visibility="60000")
    disk = rig.disk = rig.disk.kill()
    disk.rename(f"{DIR}/topics/orders#2", f"{DIR}/lost")
    rig.restart()
    check_whole(rig, visibility=60_000)
    assert "partition orders#2 was not made yet, or is lost: it is made empty" in caplog.text


def test_a_damaged_table_is_no_empty_one() -> None:
    rig = BrokerRig()
    create(rig, partitions="4")
    rig.put("partitions.json", b"{")
    text = r"is damaged: not a checked partitions file.*\(partitions\.json: see `toymq verify` and `toymq repair`\)"
    with pytest.raises(DataDirectoryError, match=text):
        rig.reopen()


@pytest.mark.parametrize(
    ("outcomes", "answer"),
    [
        ([], None), ([None, None], None), ([None, "gone"], None), ([None, "gone", "full"], "full"), (["gone", "gone"], "gone"),
    ],
)  # fmt: skip
def test_for_each(outcomes: list[str | None], answer: str | None) -> None:
    """An error that says that something is missing counts where all say so."""
    errors: dict[str | None, OSError | RequestError | None] = {
        None: None, "gone": NoSuchTopic("gone"), "full": OSError(errno.ENOSPC, "full"),
    }  # fmt: skip
    random.Random(1).shuffle(outcomes)
    told: list[OSError | RequestError | None] = []

    def begin(name: str, done: Callable[[OSError | RequestError | None], None]) -> None:
        error = errors[outcomes[int(name)]]
        if isinstance(error, NoSuchTopic):
            raise error
        done(error)

    for_each([str(at) for at in range(len(outcomes))], begin, told.append, lacking=NoSuchTopic)
    assert told == [errors[answer]]
