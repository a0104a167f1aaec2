"""After several kills in a row, each consumer's first message counts an attempt before it is delivered. ADR 0249."""

from typing import Any

import pytest

from tests.support.broker_rig import BrokerRig
from toymq_py.consumer_options import Mode
from toymq_py.storage.unclean_ends import FILE_NAME
from toymq_py.topic import Subscription
from toymq_py.topic.careful_start import CAREFUL_S, LOOK_S

MAX_ATTEMPTS = 4
STORED_S = LOOK_S / 2
"""The simulated disk is faster."""


def killed_twice(messages: int = 5, **more: Any) -> tuple[BrokerRig, Subscription]:
    """Return a broker after two kills, and a session of a consumer from before."""
    rig = BrokerRig(max_attempts=MAX_ATTEMPTS)
    rig.publish("t", *(b"%d" % number for number in range(messages)))
    rig.subscribe("t", **more)
    rig.flush("t")
    rig.reopen(again=True)
    rig.reopen(again=True)
    return rig, rig.subscribe("t", **more)


def ids(rig: BrokerRig, subscription: Subscription) -> list[int]:
    return [msg_id for msg_id, _ in rig.take(subscription)]


@pytest.mark.parametrize("mode", ["exclusive", "shared", "keyed"])
@pytest.mark.parametrize("window", [1, 100])
@pytest.mark.parametrize("poison", [0, 3])
def test_a_message_that_kills_the_broker_at_once_becomes_a_dead_letter(mode: Mode, window: int, poison: int) -> None:
    """Found: the broker died the moment the message was delivered, before its attempt was stored, so the message was
    redelivered for ever."""
    rig = BrokerRig(max_attempts=MAX_ATTEMPTS)
    rig.publish("t", *(b"%d" % number for number in range(6)))
    rig.subscribe("t", mode=mode, window=window)
    rig.flush("t")
    for _ in range(2 + MAX_ATTEMPTS + 1):
        rig.reopen(again=True)
        session = rig.subscribe("t", mode=mode, window=window)
        got = ids(rig, session)
        for _ in range(40):
            if poison in got:
                break
            for msg_id in got:
                rig.ack("t", msg_id, msg_id)
            rig.advance(LOOK_S)
            got = ids(rig, session)
        else:
            break
    rig.advance(1)
    assert rig.broker.directory.unclean_ends > MAX_ATTEMPTS
    assert rig.broker.topics["t.dlq"].log.committed_id == 1, "the poison, and nothing healthy"
    assert rig.broker.topics["t"].describe()["consumers"][0]["backlog"] == 0


@pytest.mark.parametrize("way", ["session", "poll"])
@pytest.mark.parametrize("poison", ["a.p", "a.r"])
def test_of_a_pattern_the_message_that_kills_the_broker_takes_no_other_topics_along(way: str, poison: str) -> None:
    """Found: in each topic the first message counted an attempt, and became a dead letter with it."""
    topics = ("a.p", "a.q", "a.r")
    rig = BrokerRig(max_attempts=MAX_ATTEMPTS)
    for topic in topics:
        rig.publish(topic, b"0", b"1")
    rig.follow("a.*")
    for topic in topics:
        rig.flush(topic)

    def life() -> bool:
        """Run one worker that handles one message after the other. Returns: whether the poison came."""
        rig.reopen(again=True)
        session = rig.follow("a.*") if way == "session" else None
        for _ in range(200):
            deliveries = rig.poll("a.*").take(1, 1 << 20) if session is None else [session.take(1 << 20)]
            for delivery in deliveries:
                if delivery is not None:
                    assert len(delivery) == 1
                    if (delivery.topic, delivery.first_id) == (poison, 1):
                        return True
                    rig.ack(delivery.topic, delivery.first_id, delivery.first_id)
            rig.advance(LOOK_S)
        return False

    for _ in range(2):
        rig.reopen(again=True)
        rig.follow("a.*")
    assert sum(life() for _ in range(MAX_ATTEMPTS + 1)) == MAX_ATTEMPTS
    letters = {name: topic.log.committed_id for name, topic in rig.broker.topics.items() if name.endswith(".dlq")}
    assert letters == {f"{poison}.dlq": 1}, "the poison, and nothing healthy"


def test_one_message_at_a_time_each_when_its_attempt_is_stored_and_all_when_it_is_over() -> None:
    rig, session = killed_twice()
    assert ids(rig, session) == [], "it waits for the disk"
    rig.advance(STORED_S)
    assert ids(rig, session) == [0]
    assert ids(rig, session) == []
    rig.ack("t", 0, 0)
    ids(rig, session)
    rig.advance(STORED_S)
    assert ids(rig, session) == [1]
    assert rig.broker.metrics.deliver_total == 2
    rig.advance(CAREFUL_S)
    assert session in rig.woken
    assert ids(rig, session) == [2, 3, 4], "a slow handler does not hold the others"


def test_a_new_consumer_and_one_behind_a_single_kill_begin_as_always() -> None:
    rig, _ = killed_twice()
    assert ids(rig, rig.subscribe("t", "new")) == [0, 1, 2, 3, 4]
    rig.reopen()
    assert ids(rig, rig.subscribe("t")) == [0, 1, 2, 3, 4]


def test_a_clean_stop_ends_the_row() -> None:
    rig, _ = killed_twice()
    assert rig.broker.directory.unclean_ends == 2
    rig.broker.stop_deliveries()
    ended: list[bool] = []
    rig.broker.finish(lambda: ended.append(True))
    rig.advance(1)
    rig.broker.close()
    assert ended
    assert not rig.disk.exists(f"{rig.options.data_dir}/{FILE_NAME}")


def test_what_its_client_acks_meanwhile_does_not_come() -> None:
    """The client got the message before the kill."""
    rig, session = killed_twice()
    assert ids(rig, session) == []
    rig.ack("t", 0, 0)
    rig.advance(STORED_S)
    ids(rig, session)
    rig.advance(STORED_S)
    assert ids(rig, session) == [1]


def test_a_taker_that_goes_meanwhile_leaves_the_message_to_the_next() -> None:
    rig, session = killed_twice(mode="shared")
    assert ids(rig, session) == []
    session.close()
    rig.advance(LOOK_S)
    assert ids(rig, rig.subscribe("t", mode="shared")) == [0]


def test_a_poll_that_goes_meanwhile_leaves_the_message_uncounted() -> None:
    rig, session = killed_twice()
    session.close()
    poll = rig.poll("t")
    assert poll.take(10, 1 << 20) == []
    rig.advance(STORED_S)
    poll.close()
    rig.advance(LOOK_S)
    (delivery,) = rig.poll("t").take(10, 1 << 20)
    assert (delivery.first_id, delivery.attempt) == (0, 1)


def test_a_poll_that_does_not_wait_is_not_told_nothing_and_is_woken_at_the_end() -> None:
    """Found: a lease over HTTP was answered 204 while messages were there."""
    rig, session = killed_twice(messages=1)
    session.close()
    poll = rig.poll("t")
    assert poll.take(10, 1 << 20) == []
    assert poll.is_examining
    rig.advance(STORED_S)
    (delivery,) = poll.take(10, 1 << 20)
    assert delivery.first_id == 0
    other = rig.poll("t")
    assert other.take(10, 1 << 20) == []
    assert other.is_examining
    rig.advance(CAREFUL_S)
    assert other.take(10, 1 << 20) == []
    assert not other.is_examining, "now it knows that there is nothing"


def test_a_full_disk_holds_nothing_back() -> None:
    rig, session = killed_twice()
    path = f"{rig.options.data_dir}/topics/t/offsets.json"
    rig.disk.capacity_bytes, before = 0, rig.disk.read_file(path)
    assert ids(rig, session) == []
    rig.advance(STORED_S)
    assert rig.disk.read_file(path) == before, "the attempt is not stored"
    assert ids(rig, session) == [0]
