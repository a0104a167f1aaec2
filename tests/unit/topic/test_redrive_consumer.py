"""The consumer ``#redrive`` of a dead-letter topic. Contract: delivery.md, "Attempts"; ADR 0023."""

from tests.support.broker_rig import BrokerRig
from tests.support.dead_letters import dead
from toymq_py.storage.offsets import OffsetsState
from toymq_py.topic.redrive_consumer import RANGES_MAX, REDRIVER


def letters(count: int) -> BrokerRig:
    rig = BrokerRig(segment_bytes=1 << 20)
    rig.broker.topic_or_new("t").publisher.publish([b""] * count, [b"x"] * count)
    rig.loop.drain()
    return rig


def test_it_counts_what_is_new_and_knows_what_went_back() -> None:
    redrive_consumer = letters(9).broker.topic("t").redrive_consumer
    assert not redrive_consumer.has_acked(2)
    assert redrive_consumer.ack([2, 3, 5]) == 3
    assert redrive_consumer.ack([3, 4]) == 1
    assert [n for n in range(9) if redrive_consumer.has_acked(n)] == [2, 3, 4, 5]


def test_describe_shows_the_first_ranges_of_what_is_retained() -> None:
    rig = letters(2 * RANGES_MAX + 10)
    redrive_consumer = rig.broker.topic("t").redrive_consumer
    assert redrive_consumer.describe() == {"letters": 2 * RANGES_MAX + 10, "redriven": [], "redriven_total": 0}
    redrive_consumer.ack(range(1, 2 * RANGES_MAX + 10, 2))
    ranges = redrive_consumer.describe()["redriven"]
    assert (len(ranges), ranges[0], ranges[-1]) == (RANGES_MAX, (1, 1), (2 * RANGES_MAX - 1, 2 * RANGES_MAX - 1))
    assert redrive_consumer.describe()["letters"] == RANGES_MAX + 5, "exact, though not all ranges are shown"


def test_a_letter_that_is_discarded_is_settled_and_one_to_come_is_not() -> None:
    rig = letters(5)
    redrive_consumer = rig.broker.topic("t").redrive_consumer
    redrive_consumer.ack([3])
    assert redrive_consumer.discard([(0, 1), (3, 99)]) == 3
    assert [n for n in range(5) if redrive_consumer.has_acked(n)] == [0, 1, 3, 4]
    assert redrive_consumer.discard([(7, 9)]) == 0
    rig.publish("t", *[b"x"] * 5)
    assert (redrive_consumer.waiting(), redrive_consumer.has_acked(7)) == (6, False)


def test_what_waits_is_what_is_retained_and_did_not_go_back() -> None:
    rig = letters(9)
    topic = rig.broker.topic("t")
    topic.redrive_consumer.ack([1, 2, 7])
    assert topic.redrive_consumer.waiting() == 6
    topic.purge(lambda count, error: None)
    rig.loop.drain()
    assert topic.redrive_consumer.waiting() == 0, "a purge left none"


def test_it_pins_segments_only_where_no_other_consumer_does() -> None:
    redrive_consumer = letters(3).broker.topic("t").redrive_consumer
    nothing = OffsetsState()
    assert redrive_consumer.pinning(nothing, []) == (nothing, []), "without a REDRIVE it is not there"
    me = redrive_consumer.consumer()
    raw = me.snapshot().to_json()
    alone = OffsetsState(consumers={REDRIVER: raw})
    assert redrive_consumer.pinning(alone, []) == (alone, [me])
    with_others = OffsetsState(consumers={REDRIVER: raw, "audit": raw})
    assert redrive_consumer.pinning(with_others, [me])[0].consumers == {"audit": raw}


def test_what_went_back_is_known_after_a_restart_and_clients_do_not_see_it() -> None:
    rig = dead(3)
    assert rig.redrive("t.dlq", [(1, 1)]) == (1, None)
    rig.flush("t.dlq")
    rig.reopen()
    topic = rig.broker.topic("t.dlq")
    assert topic.redrive_consumer.has_acked(1)
    assert topic.describe()["consumers"] == []
    assert rig.redrive("t.dlq") == (2, None)
