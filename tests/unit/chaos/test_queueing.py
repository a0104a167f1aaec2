"""Messages and settings of the work queue's load."""

import random
from itertools import islice

from toymq_chaos.queueing import CHANGES, EVENT_TOPICS, JOBS, SETTINGS, TOPICS, messages
from toymq_chaos.workload import SEQUENCED


def test_messages_come_from_their_seed_and_are_numbered() -> None:
    one, same = (list(islice(messages("q1", random.Random(3)), 200)) for _ in range(2))
    assert one == same
    assert {message.topic for message in one} <= set(TOPICS)
    assert len({(message.topic, message.told_key) for message in one}) == len(one)


def test_only_every_second_publisher_has_sequences_and_none_on_topics_that_are_deleted() -> None:
    assert not any(message.seq is not None for message in islice(messages("q0", random.Random(1)), 200))
    numbered = list(islice(messages("q1", random.Random(1)), 200))
    for message in numbered:
        assert (message.seq is None) == (message.topic in EVENT_TOPICS)
        assert message.key.startswith(SEQUENCED) == (message.seq is not None)


def test_only_jobs_are_delayed_or_expire() -> None:
    for message in islice(messages("q0", random.Random(2)), 300):
        assert message.topic == JOBS or (message.delay_ms, message.ttl_ms) == (None, None)


def test_settings_that_change_are_those_of_known_topics() -> None:
    assert {topic for topic, _, _ in CHANGES} <= set(SETTINGS) <= set(TOPICS)
