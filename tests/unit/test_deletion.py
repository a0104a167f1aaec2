"""DELETE, and what is left of a topic. Contract: storage.md, "Retention" (its last paragraph)."""

import errno
import gc
import weakref

import pytest

from tests.support.broker_rig import BrokerRig
from toymq_py.errors import (
    NoSuchTopic,
)
from toymq_py.storage.commit.batch import CommitState
from toymq_py.storage.segment import segment_name

FIRST = segment_name(0)


def test_delete_counts_and_a_new_topic_begins_anew() -> None:
    rig = BrokerRig()
    rig.publish("t", b"a", b"b", key=b"k")
    rig.subscribe("t")
    rig.flush("t")
    assert rig.delete("t") == 1
    assert rig.ended == ["DELETED"]
    with pytest.raises(NoSuchTopic):
        rig.broker.topic("t")
    outcome = rig.publish("t", b"c", key=b"k")[0]
    assert (outcome.first_id, outcome.duplicate) == (0, False)
    rig.reopen(power_cut=True)
    assert rig.broker.topic("t").log.committed_id == 1
    assert not rig.broker.topic("t").consumers
    assert not [path for path in rig.disk.snapshot() if ".deleted" in path]


def test_delete_of_a_topic_that_never_was_on_disk() -> None:
    rig = BrokerRig()
    rig.broker.topic_or_new("t")
    assert rig.delete("t") == 0


def test_delete_gives_back_the_segment_that_was_made_ahead() -> None:
    """Found by the soak: the file was held open for ever, and with it its space and a descriptor."""
    rig = BrokerRig(segment_bytes=2 << 20)
    before = rig.disk.used_bytes
    rig.publish("t", bytes(1_700_000))
    rig.loop.advance(0)
    assert any(name.startswith("next-") for name in rig.files("t")), "the next segment was to be made ahead"
    assert rig.delete("t") == 1
    assert rig.disk.used_bytes == before


def test_a_deleted_topic_is_let_go_of() -> None:
    """Nothing waits for the end of its retention time, with the topic in hand."""
    rig = BrokerRig(retain_acked_for_ms=24 * 3_600_000)
    rig.publish("t", b"a")
    subscription = rig.subscribe("t", visibility_s=10)
    assert rig.take(subscription)
    rig.ack("t", 0, 0)
    topic = weakref.ref(rig.broker.topic("t"))
    del subscription
    rig.delete("t")
    rig.woken.clear()
    rig.advance(20)
    gc.collect()
    assert topic() is None, "something keeps it"


def test_delete_waits_for_the_commit_in_flight() -> None:
    rig = BrokerRig()
    outcome = rig.broker.topic_or_new("t").publisher.publish([b""], [b"a"])[0]
    answers: list[int] = []
    rig.broker.delete("t", lambda count, error: answers.append(count))
    refused = rig.broker.topics["t"].publisher.publish([b""], [b"b"])[0]
    assert isinstance(refused.error, NoSuchTopic)
    rig.loop.advance(0)
    assert outcome.commit.state is CommitState.DONE
    assert answers == [1]


def test_a_topic_that_is_being_deleted_takes_nothing() -> None:
    rig = BrokerRig()
    rig.publish("t", b"a")
    rig.broker.delete("t", lambda count, error: None)
    assert rig.change("configure", "t", visibility="1") == "NO_SUCH_TOPIC"


def test_create_and_delete_of_a_topic_that_is_being_deleted() -> None:
    rig = BrokerRig()
    rig.publish("t", b"a")
    rig.broker.delete("t", lambda count, error: None)
    with pytest.raises(NoSuchTopic, match="being deleted"):
        rig.broker.delete("t", lambda count, error: None)
    assert rig.change("create", "t") == "EXISTS"
    told: list[object] = []
    rig.loop.advance(0)
    assert rig.change("create", "t") == "OK", "it is gone by now"
    topic = rig.broker.topic("t")
    rig.broker.delete("t", lambda count, error: None)
    topic.flush_offsets(told.append)
    assert isinstance(told[0], NoSuchTopic)


def test_delete_behind_a_change_of_settings() -> None:
    rig = BrokerRig()
    rig.publish("t", b"a")
    told: list[object] = []
    rig.broker.configure("t", {"visibility": "1"}, told.append)
    rig.broker.delete("t", lambda count, error: told.append(count))
    rig.loop.advance(0)
    assert told == [None, 1]
    assert not rig.files("t")


def test_a_delete_that_fails_leaves_the_data_and_the_name() -> None:
    rig = BrokerRig()
    rig.publish("t", b"a", b"b")
    rig.disk.fail("rename", 1, errno.EIO, path="topics/t")
    assert rig.delete("t") == "Input/output error"
    with pytest.raises(NoSuchTopic):  # nothing new is written over what is there
        rig.publish("t", b"c")
    rig.reopen()
    assert rig.broker.topic("t").log.committed_id == 2
    assert rig.delete("t") == 2


def test_what_cannot_be_unlinked_goes_at_the_next_start() -> None:
    rig = BrokerRig()
    rig.publish("t", b"a")
    rig.disk.fail("unlink", 1, errno.EIO)
    assert rig.delete("t") == 1
    assert [path for path in rig.disk.snapshot() if ".deleted" in path]
    rig.publish("t", b"new")
    rig.reopen()
    assert not [path for path in rig.disk.snapshot() if ".deleted" in path]
    assert rig.broker.topic("t").log.committed_id == 1
