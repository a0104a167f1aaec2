"""Moved messages whose acks are not durable yet, and how a restart finds them. ADR 0033."""

import errno

from tests.support.broker_rig import BrokerRig

LARGE = b"x" * 3000
"""One of them to a segment."""


def with_letters(count: int) -> BrokerRig:
    """Return a broker with so many stored dead letters of "t"; messages that all consumers have acked are not kept."""
    rig = BrokerRig(max_attempts=1, retain_acked_for_ms=0, segment_bytes=4096)
    rig.publish("t", *[LARGE] * count)
    assert len(rig.take(rig.subscribe("t"))) == count
    rig.nack("t", 0, count - 1)
    rig.flush("t")
    rig.flush("t.dlq")
    return rig


def test_what_came_back_and_was_acked_stays_until_its_letter_is_stored_as_gone() -> None:
    """Found by queue seed 2233: a redriven record's segment, and its dedupe key, were removed before the ack of ``#redrive``
    was stored."""
    rig = with_letters(2)
    rig.disk.fail("pwrite", 1, errno.EIO, sticky=True, path="t.dlq/offsets")
    assert rig.redrive("t.dlq") == (2, "STORAGE")
    assert rig.take(rig.subscribe("t")) == [(2, 1), (3, 1)]
    rig.ack("t", 2, 3)
    rig.publish("t", LARGE)
    rig.advance(10)
    assert rig.broker.topic("t").log.first_id == 2, "they alone tell that they came back"
    rig.reopen()
    assert rig.redrive("t.dlq") == (0, None)
    rig.flush("t")
    assert rig.broker.topic("t").log.first_id == 4, "now it is stored, and they may go"
    assert rig.redrive("t.dlq") == (0, None)


def test_what_came_back_before_a_kill_is_known_at_the_start() -> None:
    rig = with_letters(2)
    rig.disk.fail("pwrite", 1, errno.EIO, sticky=True, path="t.dlq/offsets")
    rig.redrive("t.dlq", [(0, 0)])
    rig.reopen()
    assert rig.broker.topic("t.dlq").describe()["redriven"] == [(0, 0)]
    assert rig.broker.topic("t.dlq").describe()["redriven_total"] == 0, "not since the start"
    assert rig.take(rig.subscribe("t")) == [(2, 1)]
    rig.ack("t", 2, 2)
    rig.publish("t", LARGE)
    rig.advance(10)
    assert rig.broker.topic("t").log.first_id == 3
    assert rig.redrive("t.dlq") == (1, None), "the other one"


def test_a_letter_of_a_topic_that_was_deleted_is_no_witness() -> None:
    rig = with_letters(1)
    assert rig.redrive("t.dlq") == (1, None)
    rig.delete("t.dlq")
    rig.take(sub := rig.subscribe("t"))
    rig.clock.advance(1)
    rig.nack("t", 1, 1)
    sub.close()
    rig.flush("t")
    rig.flush("t.dlq")
    rig.reopen()
    assert rig.broker.topic("t.dlq").describe()["redriven"] == [], "of the same id, and another one"
    assert rig.redrive("t.dlq") == (1, None)


def test_a_letter_that_was_acked_stays_until_its_message_is_stored_as_done() -> None:
    """Found by queue seed 197: a dead letter's segment was removed before the ack of its message was stored, so the message
    became a second letter."""
    rig = BrokerRig(max_attempts=1, retain_acked_for_ms=0, segment_bytes=4096)
    rig.publish("t", LARGE, LARGE, LARGE)
    assert len(rig.take(rig.subscribe("t", window=2))) == 2
    rig.flush("t")
    rig.disk.fail("pwrite", 1, errno.EIO, sticky=True, path="topics/t/offsets")
    rig.nack("t", 0, 1)
    assert rig.take(rig.subscribe("t.dlq")) == [(0, 1), (1, 1)]
    rig.ack("t.dlq", 0, 1)
    rig.advance(10)
    assert rig.broker.topic("t.dlq").log.first_id == 0
    rig.reopen()
    consumer = rig.broker.topic("t").consumers["c"]
    assert consumer.floor == 2, "what became a letter is done"
    rig.advance(10)
    assert rig.broker.topic("t.dlq").log.first_id == 2, "that is stored, and they may go"
    rig.reopen()
    assert rig.broker.topic("t").consumers["c"].floor == 2
    assert rig.broker.topic("t.dlq").log.committed_id == 2


def test_a_dead_letter_topic_that_is_deleted_keeps_nothing_where_its_letters_went() -> None:
    rig = with_letters(2)
    rig.disk.fail("pwrite", 1, errno.EIO, sticky=True, path="t.dlq/offsets")
    rig.redrive("t.dlq")
    assert rig.take(rig.subscribe("t")) == [(2, 1), (3, 1)]
    rig.ack("t", 2, 3)
    rig.publish("t", LARGE)
    assert rig.broker.topic("t").log.first_id == 2
    rig.delete("t.dlq")
    rig.advance(1)
    assert rig.broker.topic("t").log.first_id == 4


def test_on_a_full_disk_nothing_is_kept_for_that() -> None:
    """Acked records occupy the space that the offsets need."""
    rig = with_letters(2)
    rig.disk.fail("pwrite", 1, errno.ENOSPC, sticky=True, path="offsets")
    rig.redrive("t.dlq")
    assert rig.take(rig.subscribe("t")) == [(2, 1), (3, 1)]
    rig.broker.topic("t").ack("c", [(2, 3)])
    rig.publish("t", LARGE)
    rig.advance(10)
    assert rig.broker.topic("t").log.first_id == 4
