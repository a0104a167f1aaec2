"""The incarnation of a topic: when it is made, what keeps it, what ends it. ADR 0135."""

import errno
import json

import pytest

from tests.support.broker_rig import DIR, BrokerRig
from toymq_py.config.options import TopicSettings
from toymq_py.storage import topic_settings

PATH = f"{DIR}/topics/t"


def asked(rig: BrokerRig, topic: str = "t") -> str | None:
    """The incarnation, as OFFSETS answers it."""
    queue, done = rig.broker.topic(topic).settings_queue, []
    queue.identify(lambda: done.append(queue.incarnation))
    rig.loop.drain()
    assert len(done) == 1, "answered once"
    return done[0]


def test_a_question_makes_it_before_it_is_answered() -> None:
    rig = BrokerRig()
    rig.publish("t", b"x")
    assert "topic.json" not in rig.files("t"), "publishing costs nothing"
    assert rig.broker.topic("t").describe()["incarnation"] is None, "looking writes nothing"
    found = asked(rig)
    assert found is not None
    rig.reopen(power_cut=True)
    assert (asked(rig), rig.broker.topic("t").describe()["incarnation"]) == (found, found)


def test_questions_at_once_make_one() -> None:
    rig = BrokerRig()
    rig.publish("t", b"x")
    queue, told = rig.broker.topic("t").settings_queue, []
    for _ in range(3):
        queue.identify(lambda: told.append(queue.incarnation))
    rig.loop.drain()
    assert len(told) == 3
    assert len({*told, topic_settings.load(rig.disk, PATH).incarnation}) == 1


def test_an_old_directory_gets_one_and_keeps_its_settings() -> None:
    rig = BrokerRig()
    rig.publish("t", b"x")
    rig.broker.close()
    topic_settings.store(rig.disk, PATH, TopicSettings(visibility=7000))
    rig.restart()
    found = asked(rig)
    rig.reopen(power_cut=True)
    assert rig.broker.topic("t").settings == TopicSettings(visibility=7000)
    assert (asked(rig), found is None) == (found, False)


def test_purge_and_settings_keep_it_and_a_topic_made_anew_has_another() -> None:
    rig = BrokerRig()
    assert rig.change("create", "t", visibility="5000") == "OK"
    found = asked(rig)
    rig.publish("t", b"x")
    assert rig.change("configure", "t", visibility="default") == "OK"
    rig.purge("t")
    rig.reopen()
    assert asked(rig) == found
    rig.delete("t")
    rig.publish("t", b"x")
    assert asked(rig) not in (None, found)


def test_a_repeated_create_writes_nothing() -> None:
    rig = BrokerRig()
    assert rig.change("create", "t") == "OK"
    rig.disk.fail("rename", 1, errno.EIO, path="topic.json")
    assert rig.change("create", "t") == "OK"


@pytest.mark.parametrize("operation", ["pwrite", "sync", "rename"])
def test_a_full_disk_leaves_the_question_without_one_until_there_is_room(operation: str) -> None:
    rig = BrokerRig()
    rig.publish("t", b"x")
    rig.disk.fail(operation, 1, errno.ENOSPC, path="topic.json")
    assert asked(rig) is None
    found = asked(rig)
    rig.reopen(power_cut=True)
    assert (asked(rig), found is None) == (found, False)


def test_settings_that_cannot_be_trusted_are_not_overwritten_by_a_question() -> None:
    rig = BrokerRig()
    assert rig.change("create", "t", retain_max_bytes="1000000") == "OK"
    rig.broker.close()
    rig.put("topics/t/topic.json", b"{")
    rig.restart()
    assert asked(rig) is None
    assert rig.disk.read_file(f"{PATH}/topic.json") == b"{"
    assert rig.change("configure", "t", retain_max_bytes="1000000") == "OK"
    assert asked(rig) is not None


def test_an_incarnation_of_another_form_is_damage() -> None:
    rig = BrokerRig()
    assert rig.change("create", "t") == "OK"
    rig.broker.close()
    state = json.loads(rig.disk.read_file(f"{PATH}/topic.json"))["settings"]
    for wrong in ("", "0" * 15, "G" * 16, 7, "0" * 16 + "\n"):
        rig.put("topics/t/topic.json", topic_settings.encode("settings", state | {"incarnation": wrong}))
        found = topic_settings.load(rig.disk, PATH)
        assert (found.incarnation, "invalid incarnation" in str(found.problem)) == (None, True), wrong
