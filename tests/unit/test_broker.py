"""Topics of a directory: their state, settings, limits, shutdown. Contracts: delivery.md, storage.md."""

import errno
import json

import pytest

from tests.support.broker_rig import DIR, BrokerRig
from toymq_py.consumer_options import Start
from toymq_py.errors import (
    BeingPlaced,
    DataDirectoryError,
    DiskLow,
    Moved,
    TooManyConsumers,
    TooManyTopics,
    TopicExists,
)
from toymq_py.placement import Placement
from toymq_py.storage.commit.batch import CommitState
from toymq_py.storage.offline.verify import verify_topic


class Elsewhere(Placement):
    """A placement in which other groups have the topics whose names begin with b; ``waits``: topics still to be placed."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []
        self.released: list[str] = []

    def moved(self, topic: str) -> Moved | None:
        return Moved(f"h:1 (group b) has the topic {topic}") if topic.startswith("b") else None

    def admit(self, topic: str, group: str | None = None) -> None:
        if group == "b":
            raise TopicExists(f"{topic} is in group a, not in b")
        if topic in self.waits:
            raise BeingPlaced(topic, lambda call: None)
        super().admit(topic)

    def gone(self, topic: str) -> None:
        self.released.append(topic)


# -- opening


def test_a_topic_that_is_stored_here_and_elsewhere_stays_closed(caplog: pytest.LogCaptureFixture) -> None:
    rig = BrokerRig()
    rig.publish("both", b"x")
    rig.publish("ours", b"x")
    rig.reopen(placement=Elsewhere())
    assert list(rig.broker.topics) == ["ours"]
    assert "topic both is stored here, and stays closed: h:1 (group b) has the topic both" in caplog.text
    for act in (lambda: rig.broker.topic("both"), lambda: rig.publish("both", b"y")):
        with pytest.raises(Moved, match="h:1"):
            act()
    assert [each["topic"] for each in rig.broker.describe("both")] == ["both"]
    rig.reopen(placement=Placement())
    assert rig.broker.topic("both").log.messages() == 1, "nothing of it was touched"


def test_many_that_are_stored_elsewhere_too_are_one_line_with_the_way_out(caplog: pytest.LogCaptureFixture) -> None:
    """Found: each start logged a line for every partition, and none named a remedy."""
    rig = BrokerRig()
    for number in range(7):
        rig.publish(f"b{number}", b"x")
    rig.reopen(placement=Elsewhere())
    path = rig.broker.directory.path
    remedy = f"copy what you need, `toymq dump {path} NAME`; then, with the broker stopped, move it out of {path}/topics"
    said = "topics b0, b1, b2, b3, b4 and 2 more are stored here, and stay closed: others have them"
    assert [record.message for record in caplog.records] == [f"{said}; {remedy}"]
    problems = [topic["problem"] for topic in rig.broker.describe(None)]
    assert len(problems) == 7
    assert all(problem.endswith(remedy) for problem in problems), "toymqctl doctor tells it of each"


def test_what_is_not_placed_is_not_made_and_what_goes_is_told() -> None:
    placement = Elsewhere()
    placement.waits.append("new")
    rig = BrokerRig(placement=placement, max_topics=1)
    with pytest.raises(BeingPlaced, match="new is being placed in a group"):
        rig.publish("new", b"x")
    assert not rig.broker.topics
    rig.publish("t", b"x")
    with pytest.raises(TopicExists, match="t is in group a, not in b"):
        rig.broker.create("t", {"group": "b"}, lambda error: None)
    rig.broker.create("t", {"group": "a"}, lambda error: None)
    with pytest.raises(TooManyTopics):
        rig.publish("u", b"x")
    assert placement.released == ["u"]
    rig.broker.delete("t", lambda messages, error: None)
    rig.loop.drain()
    assert placement.released == ["u", "t"]


def test_what_is_left_of_deleted_topics_goes_and_strangers_stay() -> None:
    rig = BrokerRig()
    rig.publish("t", b"x")
    for name in (".deleted-3", "lost+found", "-strange"):
        rig.disk.mkdir(f"{DIR}/topics/{name}")
    rig.put("topics/.deleted-3/00000000000000000000.log", b"old")
    rig.put("topics/a-file", b"not a topic")
    rig.reopen()
    assert list(rig.broker.topics) == ["t"]
    left = rig.disk.snapshot()
    assert not [path for path in left if ".deleted" in path]
    assert f"{DIR}/topics/a-file" in left
    assert f"{DIR}/topics/lost+found/" in left


def test_a_publish_to_a_low_disk_creates_no_topic() -> None:
    rig = BrokerRig(min_free_bytes=102_400)
    rig.disk.capacity_bytes = rig.disk.used_bytes + 90_000
    for name in ("first", "second"):
        with pytest.raises(DiskLow, match=r"less than 100KiB are free \(--min-free-bytes\)"):
            rig.broker.topic_to_publish(name)
    assert not rig.broker.topics, "nothing that --max-topics counts"
    rig.disk.capacity_bytes = rig.disk.used_bytes + 204_800
    rig.clock.advance(0.1)
    assert rig.broker.topic_to_publish("first").name == "first"


def test_a_directory_that_cannot_be_opened() -> None:
    rig = BrokerRig()
    rig.publish("t", b"x")
    after = rig.disk.kill()
    after.fail("listdir", 1, errno.EIO, path="topics")
    with pytest.raises(DataDirectoryError, match="cannot open"):
        BrokerRig(disk=after)
    assert BrokerRig(disk=after).broker.topic("t").log.committed_id == 1, "the lock was given back"
    after = after.kill()
    after.fail("mkdir", 1, errno.EROFS)
    with pytest.raises(DataDirectoryError, match="cannot make"):
        BrokerRig(disk=after, data_dir="/data/new")


# -- settings


def test_create_confirms_what_is_equal_and_refuses_what_is_not() -> None:
    rig = BrokerRig()
    assert rig.change("create", "t", visibility="5000") == "OK"
    assert json.loads(rig.disk.read_file(f"{DIR}/topics/t/topic.json"))["settings"] == {
        "topic": "t", "incarnation": rig.broker.topic("t").settings_queue.incarnation, "visibility": 5000,
    }  # fmt: skip
    assert rig.change("create", "t", visibility="5000") == "OK"
    assert rig.change("create", "t") == "OK", "only what is named is compared"
    assert rig.change("create", "t", visibility="6000") == "EXISTS"
    assert rig.change("create", "t", visibility="default") == "EXISTS"
    assert rig.change("create", "u", colour="1") == "BAD_ARGUMENT"
    assert "u" not in rig.broker.topics
    rig.reopen(power_cut=True)
    assert rig.broker.topic("t").context.policy.visibility_s == 5


def test_config_changes_and_unsets() -> None:
    rig = BrokerRig()
    assert rig.change("configure", "t", visibility="1") == "NO_SUCH_TOPIC"
    rig.publish("t", b"x")
    assert rig.change("configure", "t", visibility="7000", dedupe_keys="3") == "OK"
    assert rig.change("configure", "t", visibility="7000") == "OK"
    assert rig.change("configure", "t", visibility="x") == "BAD_ARGUMENT"
    rig.reopen(power_cut=True)
    assert rig.broker.topic("t").settings.to_json() == {"visibility": 7000, "dedupe_keys": 3}
    assert rig.change("configure", "t", visibility="default", dedupe_keys="default") == "OK"
    stored = json.loads(rig.disk.read_file(f"{DIR}/topics/t/topic.json"))["settings"]
    assert stored.keys() == {"topic", "incarnation"}, "only settings that differ from the defaults"


def test_limits_of_topics_and_consumers() -> None:
    rig = BrokerRig(max_topics=2, max_consumers=1)
    rig.publish("a", b"")
    rig.publish("b", b"")
    with pytest.raises(TooManyTopics, match="--max-topics"):
        rig.publish("c", b"")
    assert rig.change("create", "c") == "TOO_MANY_TOPICS"
    rig.subscribe("a", "one")
    with pytest.raises(TooManyConsumers, match="--max-consumers"):
        rig.subscribe("a", "two")
    with pytest.raises(TooManyConsumers):
        rig.broker.topic("a").seek("two", Start("earliest"))
    assert rig.delete("a") == 1
    rig.publish("c", b"")


# -- positions


# -- numbers


def test_topics_by_pattern() -> None:
    rig = BrokerRig()
    for name in ("a.x", "a.y", "a.dlq", "b"):
        rig.publish(name, b"")

    def names(pattern: str | None) -> list[str]:
        return [described["topic"] for described in rig.broker.describe(pattern)]

    assert names(None) == ["a.dlq", "a.x", "a.y", "b"]
    assert names("a.*") == ["a.x", "a.y"]
    assert names("b") == ["b"]
    assert names("c") == []


def test_shutting_down_flushes_everything() -> None:
    rig = BrokerRig()
    outcome = rig.broker.topic_or_new("t").publisher.publish([b""], [b"x"])[0]
    subscription = rig.subscribe("t")
    rig.loop.drain()
    rig.take(subscription)
    rig.broker.topic("t").ack("c", [(0, 0)])
    rig.broker.stop_deliveries()
    assert rig.ended == ["SHUTTING_DOWN"]
    done: list[bool] = []
    rig.broker.finish(lambda: done.append(True))
    rig.loop.advance(0)
    assert done == [True]
    assert outcome.commit.state is CommitState.DONE
    rig.broker.close()
    rig.broker.close()
    rig.reopen(power_cut=True)
    assert rig.take(rig.subscribe("t")) == []


def test_shutting_down_without_topics() -> None:
    rig = BrokerRig()
    done: list[bool] = []
    rig.broker.finish(lambda: done.append(True))
    rig.loop.advance(0)
    assert done == [True]


def stop(rig: BrokerRig) -> None:
    rig.broker.stop_deliveries()
    rig.broker.finish(rig.broker.close)
    rig.loop.advance(0)


@pytest.mark.parametrize("consumer", [False, True])
@pytest.mark.parametrize("damage", ["a flipped bit", "a zeroed file", "no file"])
def test_a_record_that_is_missing_after_a_clean_stop_is_lost_and_not_torn(damage: str, consumer: bool) -> None:
    """Found: the record was cut off as part of an unacknowledged one; its id was used again and its dedupe key forgotten."""
    rig = BrokerRig()
    if consumer:
        rig.subscribe("t").close()
        rig.advance(1)
    for n in range(3):
        rig.publish("t", b"message %d" % n, key=b"key %d" % n)
    stop(rig)
    (name,) = rig.segment_files("t")
    data = bytearray(rig.disk.snapshot()[f"{DIR}/topics/t/{name}"])
    if damage == "a flipped bit":
        data[data.index(b"message 2")] ^= 1
        rig.put(f"topics/t/{name}", bytes(data))
    elif damage == "a zeroed file":
        rig.put(f"topics/t/{name}", bytes(len(data)))
    else:
        rig.disk.unlink(f"{DIR}/topics/t/{name}")
    lost = 1 if damage == "a flipped bit" else 3
    for _ in range(3):
        assert verify_topic(rig.disk, f"{DIR}/topics/t", "t").lost == lost
        rig.restart()
        assert (rig.numbers("t")["state"], rig.numbers("t")["lost"]) == ("degraded", lost)
        rig.publish("t", b"after", key=b"later")
        assert rig.broker.topic("t").next_id == 4, "no id is used twice"
        rig.advance(10)
        stop(rig)


def test_a_clean_stop_writes_only_the_offsets_that_are_behind() -> None:
    rig = BrokerRig()
    rig.publish("t", b"x")
    rig.publish("u", b"x")
    stop(rig)
    assert {"offsets.json", "has-offsets"} <= set(rig.files("t"))
    rig.restart()
    rig.publish("u", b"y")
    stop(rig)
    assert ("offsets.json.prev" in rig.files("t"), "offsets.json.prev" in rig.files("u")) == (False, True)
    rig.put("topics/t/offsets.json", b"junk")
    rig.restart()
    rig.publish("t", b"z")
    stop(rig)
    assert rig.disk.read_file(f"{DIR}/topics/t/offsets.json.damaged") == b"junk", "what the damage says stays"
    rig.restart()
    assert rig.broker.topic("t").state == "degraded"


def test_a_topic_that_was_refused_does_not_appear_after_a_restart() -> None:
    """Found: its directory was created before its settings failed to be stored."""
    rig = BrokerRig()
    rig.disk.fail("pwrite", 1, errno.ENOSPC, path="topic.json")
    assert rig.change("create", "t", max_attempts="4") == "STORAGE"
    assert "t" not in rig.broker.topics
    rig.reopen()
    assert "t" not in rig.broker.topics
    assert rig.change("create", "t", max_attempts="4") == "OK"
