"""Topics of a directory: opening, consumer state, settings, positions, a failing disk. Contracts: delivery.md, storage.md."""

import errno
import json
import logging
import os
import random
import stat
from pathlib import Path

import pytest

from tests.support.broker_rig import DIR, BrokerRig
from tests.support.fake_clock import FakeClock
from tests.support.sim_loop import SimLoop
from toymq_py.broker import Broker
from toymq_py.config.options import BrokerOptions
from toymq_py.errors import (
    DataDirectoryError,
    NoSuchConsumer,
    OutOfRange,
    StorageFailed,
    TooManyConsumers,
    TooManyTopics,
)
from toymq_py.model import Start
from toymq_py.storage import offsets
from toymq_py.storage.commit.batch import CommitState
from toymq_py.storage.fs import RealFileSystem
from toymq_py.storage.offline.backup import back_up, restore
from toymq_py.storage.offline.repair import repair
from toymq_py.storage.offsets import OffsetsState
from toymq_py.storage.segment import segment_name
from toymq_py.topic.publisher import Refused

FIRST = segment_name(0)


# -- opening


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


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"colour": 1}', b'{"visibility": -1}', b"\xff"])
def test_settings_that_cannot_be_read_close_that_topic_alone(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    rig = BrokerRig()
    rig.publish("t", b"x")
    rig.publish("other", b"x")
    rig.put("topics/t/topic.json", data)
    rig.reopen()
    assert "topics/t/topic.json" in caplog.text
    with pytest.raises(StorageFailed, match=r"topic\.json"):
        rig.publish("t", b"y")
    with pytest.raises(StorageFailed):
        rig.broker.topic("t")
    assert rig.change("create", "t") == "STORAGE_FAILED"
    assert rig.publish("other", b"y")[0].first_id == 1
    assert [(found["topic"], found["state"]) for found in rig.broker.describe(None)] == [("other", "ok"), ("t", "failed")]
    assert [found["topic"] for found in rig.broker.describe("t*"[:1])] == ["t"]
    assert [found["topic"] for found in rig.broker.describe("*")] == ["other", "t"]
    rig.put("topics/t/topic.json", b'{"visibility": 5}')
    rig.reopen()
    assert rig.broker.topic("t").settings.visibility == 5, "mended, and nothing was lost"
    assert rig.broker.topic("t").log.committed_id == 1


def test_strict_recovery_does_not_start_without_a_topic() -> None:
    rig = BrokerRig(strict_recovery=True)
    rig.publish("t", b"x")
    rig.put("topics/t/topic.json", b"{")
    with pytest.raises(DataDirectoryError, match=r"topics/t/topic\.json"):
        rig.reopen()


def test_a_log_that_the_disk_refuses_closes_that_topic_alone() -> None:
    rig = BrokerRig()
    rig.publish("t", b"x")
    rig.publish("other", b"x")
    rig.disk = rig.disk.kill()
    rig.disk.fail("pread", 1, errno.EIO, sticky=True, path="/t/")
    rig.restart()
    (refused,) = rig.publish("t", b"y")
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, StorageFailed)
    assert not isinstance(rig.publish("other", b"y")[0], Refused)
    assert {found["topic"]: found["state"] for found in rig.broker.describe(None)} == {"other": "ok", "t": "failed"}
    rig.reopen()
    assert rig.broker.topic("t").log.committed_id == 1


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


def with_hole(**options: object) -> BrokerRig:
    rig = BrokerRig(**options)
    rig.publish("t", b"a", b"b" * 50, b"c")
    rig.disk.open(f"{DIR}/topics/t/{FIRST}").pwrite(b"\xff", 31 + 60)
    return rig


def test_a_hole_degrades_the_topic_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    rig = with_hole()
    rig.publish("other", b"x")
    with caplog.at_level(logging.ERROR):
        rig.reopen()
    assert (rig.broker.topic("t").state, rig.broker.topic("other").state) == ("degraded", "ok")
    assert "topic t is degraded: 1 records are lost" in caplog.text
    assert rig.take(rig.subscribe("t")) == [(0, 1), (2, 1)]
    described = rig.broker.topic("t").describe()
    assert (described["lost"], described["messages"], described["state"]) == (1, 2, "degraded")


def test_strict_recovery_does_not_start_on_a_hole() -> None:
    rig = with_hole(strict_recovery=True)
    with pytest.raises(DataDirectoryError, match="records 1 to 1 are lost, and --strict-recovery"):
        rig.reopen()


def test_an_id_is_never_used_twice_although_the_log_lost_its_end() -> None:
    rig = BrokerRig()
    rig.publish("t", b"a", b"b", b"c")
    rig.take(rig.subscribe("t"))
    rig.ack("t", 0, 1)
    rig.disk.open(f"{DIR}/topics/t/{FIRST}").truncate(31)
    rig.reopen()
    assert rig.broker.topic("t").log.lost == [(1, 2)]
    assert rig.publish("t", b"d")[0].first_id == 3
    assert rig.take(rig.subscribe("t")) == [(3, 1)]
    assert segment_name(3) in rig.files("t")


# -- consumer state across restarts


def test_the_previous_generation_serves_when_the_present_one_is_damaged(caplog: pytest.LogCaptureFixture) -> None:
    rig = BrokerRig()
    rig.publish("t", b"a", b"b", b"c")
    rig.take(rig.subscribe("t"))
    rig.ack("t", 0, 0)
    rig.ack("t", 1, 1)
    rig.put("topics/t/offsets.json", b"x")
    with caplog.at_level(logging.ERROR):
        rig.reopen()
    assert "offsets from its previous generation" in caplog.text
    assert [msg_id for msg_id, _ in rig.take(rig.subscribe("t"))] == [1, 2], "a redelivery, never a loss"


def test_with_both_generations_gone_consumers_begin_at_the_first_id(caplog: pytest.LogCaptureFixture) -> None:
    rig = BrokerRig()
    rig.publish("t", b"a", b"b")
    rig.take(rig.subscribe("t"))
    rig.ack("t", 0, 0)
    rig.ack("t", 1, 1)
    for name in ("offsets.json", "offsets.json.prev"):
        rig.put(f"topics/t/{name}", b"x")
    with caplog.at_level(logging.ERROR):
        rig.reopen()
    assert "offsets from nothing: both generations are damaged" in caplog.text
    assert rig.take(rig.subscribe("t", "new", start="latest")) == [(0, 1), (1, 1)], "whatever start says"


def test_a_consumer_that_makes_no_sense_is_dropped_and_said(caplog: pytest.LogCaptureFixture) -> None:
    rig = BrokerRig(retain_acked_for_ms=0)
    for n in range(5):
        rig.publish("t", b"%d" % n * 2000)
    rig.take(rig.subscribe("t"))
    rig.ack("t", 0, 0)
    state = offsets.load(rig.disk, f"{DIR}/topics/t").state
    broken = {**state.consumers, "bad": {"since_ns": 1}}
    rig.put("topics/t/offsets.json", offsets.encode(OffsetsState(state.first_id, state.next_id, broken)))
    rig.reopen()
    assert "consumer bad: " in caplog.text
    assert list(rig.broker.topic("t").consumers) == ["c"]
    rig.advance(100)
    rig.publish("t", b"x" * 3000, b"y" * 3000)  # a roll, and retention after it
    rig.take(rig.subscribe("t"))
    assert rig.ack("t", 1, 6) == 6


def test_a_consumer_beyond_the_log_is_cut_to_it(caplog: pytest.LogCaptureFixture) -> None:
    rig = BrokerRig()
    rig.publish("t", b"a", b"b")
    consumer = {"since_ns": 1, "start": 0, "has_acked": True, "last_acked": 9, "acked_above": [], "attempts": []}
    rig.put("topics/t/offsets.json", offsets.encode(OffsetsState(0, 2, {"c": consumer})))
    rig.reopen()
    assert "was cut to what the log holds" in caplog.text
    rig.publish("t", b"c")
    assert rig.take(rig.subscribe("t")) == [(2, 1)]


def test_attempts_survive_a_restart() -> None:
    rig = BrokerRig()
    rig.publish("t", b"poison")
    for attempt in (1, 2, 3):
        assert rig.take(rig.subscribe("t")) == [(0, attempt)]
        rig.flush("t")
        rig.reopen()


def test_subscribers_that_come_and_go_within_one_commit_get_what_was_published() -> None:
    """The tail in memory took up rows again behind a part that it had left out, and gave them the ids of that part."""
    rig = BrokerRig()
    topic = rig.broker.topic_or_new("t")
    subscription = rig.subscribe("t")
    topic.publisher.publish([b""], [b"zero"])
    subscription.close()
    topic.publisher.publish([b""], [b"one"])
    subscription = rig.subscribe("t")
    topic.publisher.publish([b""], [b"two"])
    rig.loop.drain()
    got = {}
    while (delivery := subscription.take(1 << 20)) is not None:
        for row in range(delivery.start, delivery.stop):
            got[delivery.records.ids[row]] = delivery.records.payloads[row]
    assert got == {0: b"zero", 1: b"one", 2: b"two"}


# -- a disk that refuses


def test_records_that_the_disk_refuses_stay_unacked_and_come_after_a_restart() -> None:
    rig = BrokerRig()
    for n in range(6):
        rig.publish("t", b"%d" % n * 1500)
    rig.reopen()
    subscription = rig.subscribe("t")
    second = rig.broker.topic("t").log.segments[1].base_id
    third = rig.broker.topic("t").log.segments[2].base_id
    rig.disk.fail("pread", 1, errno.EIO, sticky=True, path=segment_name(second))
    readable = [msg_id for msg_id in range(6) if not second <= msg_id < third]
    assert [msg_id for msg_id, _ in rig.take(subscription)] == readable
    assert rig.ack("t", 0, 5) == len(readable), "what was not delivered is not acked"
    assert rig.broker.topic("t").state == "degraded"
    assert rig.broker.topic("t").describe()["consumers"][0]["backlog"] == third - second
    rig.reopen()
    assert [msg_id for msg_id, _ in rig.take(rig.subscribe("t"))] == list(range(second, third))


def test_records_found_damaged_count_as_acked_for_everyone() -> None:
    rig = BrokerRig()
    rig.publish("t", b"a", b"b" * 50, b"c")
    one = rig.subscribe("t", "one", visibility_s=5)
    assert len(rig.take(one)) == 3
    two = rig.subscribe("t", "two")
    rig.disk.open(f"{DIR}/topics/t/{FIRST}").pwrite(b"\xff", 31 + 60)
    rig.broker.topic("t").log.tail.clear()
    assert rig.take(two) == [(0, 1), (2, 1)]
    rig.advance(6)
    assert rig.take(one) == [(0, 2), (2, 1)], "the redelivery passes it too"
    for name in ("one", "two"):
        rig.ack("t", 0, 2, name)
    assert [consumer["backlog"] for consumer in rig.broker.topic("t").describe()["consumers"]] == [0, 0]


def test_a_redelivery_may_meet_the_damage_first() -> None:
    rig = BrokerRig()
    rig.publish("t", *[b"%d" % n * 50 for n in range(5)])
    subscription = rig.subscribe("t", visibility_s=5)
    assert len(rig.take(subscription)) == 5
    rig.broker.topic("t").log.tail.clear()
    for position in (80 + 50, 160 + 50):
        rig.disk.open(f"{DIR}/topics/t/{FIRST}").pwrite(b"\xff", position)
    rig.advance(6)
    assert [msg_id for msg_id, _ in rig.take(subscription)] == [0, 3, 4]


# -- settings


def test_create_confirms_what_is_equal_and_refuses_what_is_not() -> None:
    rig = BrokerRig()
    assert rig.change("create", "t", visibility="5000") == "OK"
    assert json.loads(rig.disk.read_file(f"{DIR}/topics/t/topic.json")) == {"visibility": 5000}
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
    assert "topic.json" not in rig.files("t"), "only when they differ from the defaults"


def test_settings_that_cannot_be_stored_are_not_taken() -> None:
    rig = BrokerRig()
    rig.publish("t", b"x")
    rig.disk.fail("rename", 1, errno.EIO, path="topic.json")
    assert rig.change("configure", "t", visibility="7000") == "STORAGE"
    assert rig.broker.topic("t").settings.visibility is None
    assert rig.change("configure", "t", visibility="7000") == "OK"


def test_changes_that_are_pipelined_each_see_the_one_before() -> None:
    rig = BrokerRig()
    rig.publish("t", b"x")
    answers: list[object] = []
    rig.broker.configure("t", {"visibility": "1"}, answers.append)
    rig.broker.configure("t", {"dedupe_keys": "2"}, answers.append)
    rig.broker.create("t", {"visibility": "1", "dedupe_keys": "2"}, answers.append)
    rig.broker.configure("t", {"visibility": "3"}, answers.append)
    rig.loop.drain()
    assert answers == [None] * 4
    assert rig.broker.topic("t").settings.to_json() == {"visibility": 3, "dedupe_keys": 2}


def test_fewer_dedupe_keys_forget_the_oldest() -> None:
    rig = BrokerRig()
    for n in range(3):
        rig.publish("t", b"x", key=b"k%d" % n)
    assert rig.change("configure", "t", dedupe_keys="1") == "OK"
    assert rig.publish("t", b"x", key=b"k2")[0].duplicate
    assert not rig.publish("t", b"x", key=b"k0")[0].duplicate
    assert rig.change("configure", "t", dedupe_keys="0") == "OK"
    assert not rig.publish("t", b"x", key=b"k0")[0].duplicate, "switched off"


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


def test_seek_forward_back_and_out_of_range() -> None:
    rig = BrokerRig()
    rig.publish("t", *[b"x"] * 5)
    topic = rig.broker.topic("t")
    subscription = rig.subscribe("t")
    assert len(rig.take(subscription)) == 5
    rig.ack("t", 0, 4)
    assert topic.seek("c", Start("id", 2)) == 2
    assert rig.ended == ["SEEK"]
    assert subscription.take(100) is None, "an ended subscription takes nothing"
    assert [msg_id for msg_id, _ in rig.take(rig.subscribe("t"))] == [2, 3, 4]
    assert topic.seek("c", Start("latest")) == 5
    assert rig.take(rig.subscribe("t")) == []
    assert topic.seek("new", Start("id", 4)) == 4, "SEEK makes a consumer"
    assert [msg_id for msg_id, _ in rig.take(rig.subscribe("t", "new"))] == [4]
    for target in (6, 1 << 60):
        with pytest.raises(OutOfRange, match=r"^0 "):
            topic.seek("c", Start("id", target))
    with pytest.raises(NoSuchConsumer):
        topic.forget("nobody")


def test_a_new_consumer_starts_where_it_says() -> None:
    rig = BrokerRig()
    for n in range(4):
        rig.publish("t", b"%d" % n)
        rig.clock.advance(1)
    at_ms = rig.clock.wall_ns() // 1_000_000 - 2500

    def first(name: str, start: str) -> list[int]:
        return [msg_id for msg_id, _ in rig.take(rig.subscribe("t", name, start=start))][:1]

    assert first("a", "earliest") == [0]
    assert first("b", "2") == [2]
    assert first("c", "latest") == []
    assert first("d", "999") == [], "beyond the end is the end"
    assert first("e", f"@{at_ms}") == [2]
    assert first("f", "@0") == [0]


# -- numbers


def test_describe_is_exact() -> None:
    rig = BrokerRig()
    rig.publish("t", *[b"x"] * 6)
    subscription = rig.subscribe("t", window=4)
    assert len(rig.take(subscription)) == 4
    topic = rig.broker.topic("t")
    topic.nack("c", [(3, 3)], 60)
    rig.ack("t", 0, 1)
    rig.clock.advance(5)
    (consumer,) = topic.describe()["consumers"]
    assert consumer == {
        "consumer": "c", "mode": "exclusive", "has_acked": True, "last_acked": 1, "ready": 2, "inflight": 1, "scheduled": 1,
        "backlog": 3, "oldest_unacked_age_s": 5.0, "sessions": 1, "paused": False, "attempts_max": 1, "attempts_max_id": 2,
    }  # fmt: skip
    stats = rig.broker.stats()
    assert (stats["publish_total"], stats["deliver_total"], stats["ack_total"], stats["nack_total"]) == (6, 4, 2, 1)
    assert stats["time_ms"] == rig.clock.wall_ns() // 1_000_000
    assert stats["limits"]["max_topics"] == rig.broker.options.max_topics
    assert stats["disk_low"] is False
    assert [described["topic"] for described in rig.broker.describe(None)] == ["t"]


def test_the_message_that_was_delivered_most_often_is_told() -> None:
    rig = BrokerRig(max_attempts=0)
    rig.publish("t", *[b"x"] * 3)
    subscription = rig.subscribe("t")

    def told() -> tuple[int, int | None]:
        (consumer,) = rig.broker.topic("t").describe()["consumers"]
        return consumer["attempts_max"], consumer["attempts_max_id"]

    assert told() == (0, None)
    rig.take(subscription)
    assert told() == (1, 0)
    for attempt in range(2, 150):
        rig.broker.topic("t").nack("c", [(1, 1)], 0)
        assert [msg_id for msg_id, _ in rig.take(subscription)] == [1]
        assert told() == (attempt, 1)
    rig.flush("t")
    rig.reopen()
    assert told()[1] == 1, "after a restart, too"
    rig.take(rig.subscribe("t"))
    rig.ack("t", 1, 1)
    assert told()[1] == 0
    assert rig.broker.stats()["limits"]["max_attempts"] == 0


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


def modes(root: Path) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in [root, *root.rglob("*")]}


def served(data: Path) -> tuple[Broker, SimLoop]:
    clock = FakeClock()
    loop = SimLoop(clock, random.Random(1))
    options = BrokerOptions(data_dir=str(data), min_free_bytes=0, segment_bytes=4096)
    broker = Broker(options, fs=RealFileSystem(), scheduler=loop, clock=clock)
    broker.open(1)
    return broker, loop


def test_what_it_makes_is_its_owners_alone_whatever_the_umask(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = tmp_path / "data"
    before = os.umask(0)
    try:
        broker, loop = served(data)
        done: list[object] = []
        broker.create("orders", {"ttl": "5000000"}, done.append)
        broker.directory.store_document("webhooks.json", b"{}", done.append)
        for _ in range(4):
            broker.topics["orders"].publisher.publish([b"k"], [b"x" * 3000])
            broker.topics["orders"].publisher.publish([b""], [b"x" * 3000])
            loop.drain()
        broker.topics["orders"].flush_offsets(done.append)
        loop.advance(1)
        assert done == [None, None, None]
        broker.close()
        back_up(RealFileSystem(), str(data), str(tmp_path / "backup"), pid=1, wall_ns=1)
        restore(RealFileSystem(), str(tmp_path / "backup"), str(tmp_path / "new"), pid=1)
        log = next((tmp_path / "new/topics/orders").glob("*.log"))
        log.write_bytes(b"!" + log.read_bytes()[1:])
        assert list(repair(RealFileSystem(), str(tmp_path / "new"), pid=1))
    finally:
        os.umask(before)
    assert {path.suffix for path in data.rglob("*.*")} >= {".log", ".idx", ".json"}
    assert modes(data) | modes(tmp_path / "backup") | modes(tmp_path / "new") == {0o600, 0o700}
    assert "other users" not in caplog.text


def test_a_directory_that_others_can_read_is_left_and_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = tmp_path / "data"
    for directory in (data, data / "topics"):
        directory.mkdir(mode=0o755)
        directory.chmod(0o755)
    broker, _ = served(data)
    broker.close()
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        f"{data}: other users of this machine can read it, an older version made it so: `chmod -R go= {data}`"
    ]
    assert modes(data / "topics") == {0o755}
    (data / "topics").chmod(0o700)
    caplog.clear()
    served(data)[0].close()
    assert not caplog.records, "others do not get below it"
