"""Names of queues as names of topics. ADR 0123."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toymq_py.amqp.names import DIGEST_PREFIX, PREFIX, topic_of
from toymq_py.names import is_topic_name


def queue_of(topic: str) -> str | None:
    """The queue of a topic; None where only its declaration has the name."""
    if topic.startswith(DIGEST_PREFIX):
        return None
    if not topic.startswith(PREFIX):
        return topic
    escaped = topic.removeprefix(PREFIX).encode()
    try:
        found = re.sub(rb"-([0-9a-f]{2})", lambda match: bytes((int(match[1], 16),)), escaped).decode()
    except UnicodeDecodeError:
        return topic
    return found if topic_of(found) == topic else topic


@given(st.text(max_size=255), st.text(max_size=255))
def test_two_queues_have_two_topics(first: str, second: str) -> None:
    topics = topic_of(first), topic_of(second)
    assert all(map(is_topic_name, topics))
    assert (topics[0] == topics[1]) is (first == second)
    assert queue_of(topics[0]) in (first, None)


@pytest.mark.parametrize("name", ["orders", "a.b-c_d", "q.dlq", "amq.gen-x", "x" * 196])
def test_an_ordinary_name_is_itself(name: str) -> None:
    assert topic_of(name) == queue_of(name) == name


@pytest.mark.parametrize(
    ("queue", "topic"),
    [
        ("celery@h.celery.pidbox", "_amqp-celery-40h.celery.pidbox"), ("_amqp-a", "_amqp-_amqp-2da"),
        ("a/b é", "_amqp-a-2fb-20-c3-a9"),
        ("", "_amqp-"), ("-a", "_amqp--2da"),
    ],
)  # fmt: skip
def test_other_names_are_escaped(queue: str, topic: str) -> None:
    assert topic_of(queue) == topic
    assert queue_of(topic) == queue


def test_a_name_that_would_be_too_long_is_known_by_its_digest() -> None:
    assert topic_of(" " * 255).startswith("_amqp.sha256-")
    assert queue_of(topic_of(" " * 255)) is None


@pytest.mark.parametrize("topic", ["_amqp-a-zz", "_amqp-a-ff", "_amqp-plain"])
def test_a_topic_that_no_queue_has_is_itself(topic: str) -> None:
    assert queue_of(topic) == topic
