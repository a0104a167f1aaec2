"""Changes of a topic's settings are made one at a time. Contract: delivery.md, "Per-topic settings"."""

import errno

from tests.support.broker_rig import BrokerRig


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
