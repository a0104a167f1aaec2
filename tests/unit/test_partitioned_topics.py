"""CREATE and DELETE of a partitioned topic: complete or without effect, wherever the process is killed or the power is cut."""

import errno
import random
import re
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.support.broker_rig import DIR, BrokerRig
from tests.support.sim_disk import SimDisk
from toymq_py import partition_operations
from toymq_py.errors import (
    BadArgument,
    BeingDeleted,
    DataDirectoryError,
    Forbidden,
    IsPartitioned,
    NoSuchTopic,
    RequestError,
    ShuttingDown,
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
    """Check that the topic is there completely, or not at all."""
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
    with pytest.raises(IsPartitioned, match="4 partitions of orders, orders#0 to orders#3: name one") as error:
        rig.broker.topic("orders")
    assert error.value.partitions == 4
    with pytest.raises(IsPartitioned, match=r"orders#0\.dlq to orders#3\.dlq: name one"):
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


def test_a_shutdown_within_a_delete_is_told_as_one_and_the_next_start_completes_it() -> None:
    """Found: the DELETE was answered STORAGE_FAILED, though the disk had no fault."""
    rig = BrokerRig()
    create(rig, partitions="4")
    errors: list[OSError | RequestError | None] = []
    partition_operations.delete(rig.broker, "orders", lambda count, error: errors.append(error))
    rig.broker.stop_deliveries()
    rig.loop.advance(0)
    (error,) = errors
    assert isinstance(error, ShuttingDown)
    assert str(error) == "some of orders may be deleted, and the broker is shutting down: its next start deletes the rest"
    with pytest.raises(ShuttingDown):
        rig.broker.topic_or_new("orders")
    rig.reopen()
    assert "orders" not in rig.broker.partitioned.by_name
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


def test_a_create_at_any_step_of_a_delete_waits_for_its_end() -> None:
    """Found: once the table was written without the topic, a CREATE ran beside the DELETE, and neither, nor a command that
    waited for either, was ever answered."""
    for steps in range(1000):
        rig = BrokerRig()
        create(rig, partitions="2")
        told: list[object] = []
        partition_operations.delete(rig.broker, "orders", lambda count, error, told=told: told.append(error))  # type: ignore[misc]
        is_over = not all(rig.loop.step() for _ in range(steps))
        try:
            partition_operations.create(rig.broker, "orders", {"partitions": "2"}, told.append)
        except BeingDeleted as busy:
            busy.when_done(lambda told=told: told.append(None))  # type: ignore[misc]
        rig.loop.drain()
        assert told == [None, None]
        if is_over:
            break
    assert steps > 4


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


def without_table(*, count: str = "4", **settings: str) -> BrokerRig:
    """Return a broker with partitions, whose table is lost."""
    rig = BrokerRig()
    create(rig, partitions=count, **settings)
    for number in range(int(count)):
        rig.publish(f"orders#{number}", b"%d" % number, key=b"k")
    rig.disk = rig.disk.kill()
    rig.disk.unlink(f"{DIR}/partitions.json")
    rig.restart()
    return rig


def test_without_the_table_nothing_takes_the_name_of_a_partitioned_topic(caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise a retried publish would be stored twice, and the messages in the partitions would be hidden."""
    rig = without_table()
    said = r"up to orders#3, and partitions\.json does not know the topic: CREATE orders partitions=N .* at least 4"
    assert [record.levelname for record in caplog.records if "CREATE orders partitions=N" in record.message] == ["ERROR"]
    broker = rig.broker
    for name in ("orders", "orders.dlq", "orders#4", "orders#0.dlq"):
        for use in (broker.topic, broker.topic_or_new, broker.topic_to_publish, broker.partitioned.pattern_of):
            if name in ("orders", "orders.dlq") or use != broker.partitioned.pattern_of:
                with pytest.raises((StorageFailed, Forbidden), match=rf"{said}|dead letters, which the broker alone"):
                    use(name)
    with pytest.raises(StorageFailed, match=said):
        rig.poll("orders")
    with pytest.raises(StorageFailed, match=said):
        create(rig)
    with pytest.raises(StorageFailed, match=said):
        delete(rig)
    with pytest.raises(BadArgument, match="orders#0 is a partition of orders"):
        partition_operations.delete(broker, "orders#0", lambda count, error: None)
    listed = {row["topic"]: row.get("problem") for row in broker.describe(None)}
    assert re.search(said, listed.pop("orders"))
    assert listed == dict.fromkeys(NAMES), "partitions are served by their names"
    assert [published.duplicate for published in rig.publish("orders#0", b"0", key=b"k")] == [True]


@pytest.mark.parametrize("power_cut", [False, True])
def test_create_brings_a_lost_topic_back_with_what_is_in_it(power_cut: bool) -> None:
    rig = without_table(visibility="60000")
    with pytest.raises(TopicExists, match="at least 4"):
        create(rig, partitions="3")
    assert create(rig, partitions="4") == "OK"
    for _ in range(2):
        check_whole(rig, visibility=60_000)
        assert not rig.broker.unopened
        assert [rig.broker.topic(name).next_id for name in NAMES] == [1] * 4
        rig.reopen(power_cut=power_cut)
    assert delete(rig) == 4
    rig.publish("orders", b"plain")


def test_a_create_that_fails_removes_nothing_of_a_lost_topic() -> None:
    """Also a CREATE with other settings than the partitions have removes nothing: it brings the topic back."""
    for op in ("open", "pwrite", "sync", "rename", "sync_dir"):
        rig = without_table()
        fault = rig.disk.fail(op, 1, errno.EIO)
        assert create(rig, partitions="4") == "STORAGE"
        assert fault.fired
        rig.disk.heal()
        with pytest.raises(StorageFailed, match="CREATE orders partitions=N"):
            rig.broker.topic_or_new("orders")
        assert create(rig, partitions="4", visibility="5") == "EXISTS"
        rig.reopen()
        check_whole(rig)
        assert [rig.broker.topic(name).next_id for name in NAMES] == [1] * 4


def test_a_partition_that_is_lost_too_is_made_with_the_settings_of_the_create() -> None:
    rig = without_table(visibility="60000")
    rig.disk = rig.disk.kill()
    rig.disk.rename(f"{DIR}/topics/orders#3", f"{DIR}/lost")
    rig.restart()
    assert create(rig, partitions="4", visibility="60000") == "OK"
    check_whole(rig, visibility=60_000)


def test_a_plain_topic_beside_partitions_of_its_name_is_served_until_it_is_deleted(caplog: pytest.LogCaptureFixture) -> None:
    """An older broker could create such a topic."""
    rig = without_table()
    rig.disk = rig.disk.kill()
    rig.disk.mkdir(f"{DIR}/topics/orders")
    rig.restart()
    assert "before that, DELETE the topic orders without partitions, which is served" in caplog.text
    rig.publish("orders", b"x")
    with pytest.raises(TopicExists, match="orders exists and is not partitioned: delete it first"):
        create(rig, partitions="4")
    assert delete(rig) == 1
    with pytest.raises(StorageFailed, match="CREATE orders partitions=N"):
        rig.publish("orders", b"x")
    assert create(rig, partitions="4") == "OK"


def test_the_worker_of_the_plain_name_sees_the_partitions_of_the_others(caplog: pytest.LogCaptureFixture) -> None:
    """Found: the worker has no partition itself, so it would have created a plain topic. A worker that has a table is not asked
    twice: another one may be in the middle of a DELETE."""
    root, workers = "/data/d/workers", 3
    placements = [Placement(worker, ["a:1", "b:2", "c:3"]) for worker in range(workers)]
    names = [f"t{number}" for number in range(100)]
    name = next(name for name in names if worker_of(name, workers) == 0 and worker_of(f"{name}#0", workers) == 1)
    disk = SimDisk(random.Random(1))
    for path in ("/data", DIR, root, f"{root}/1", f"{root}/1/topics", f"{root}/1/topics/{name}#0"):
        disk.mkdir(path)
    rig = BrokerRig(disk=disk, placement=placements[0], data_dir=f"{root}/0")
    with pytest.raises(StorageFailed, match=f"CREATE {name} partitions=N"):
        rig.broker.topic_or_new(name)
    assert create(rig, name, partitions="1") == "OK"
    rig.reopen(placement=placements[0])
    assert not rig.broker.partitioned.lost
    assert "partitions=N" not in caplog.text[caplog.text.index("partitions=N") + 20 :]
    others = BrokerRig(disk=rig.disk.kill(), placement=placements[2], data_dir=f"{root}/2").broker.partitioned
    assert not others.lost, "it passes the name on to the worker of the plain name, which knows"


@pytest.mark.parametrize(
    ("outcomes", "answer"),
    [
        ([], None), ([None, None], None), ([None, "gone"], None), ([None, "gone", "full"], "full"), (["gone", "gone"], "gone"),
    ],
)  # fmt: skip
def test_for_each(outcomes: list[str | None], answer: str | None) -> None:
    """The error that something is missing counts only if all partitions return it."""
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
