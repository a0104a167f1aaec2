"""Names of queues as names of topics. ADR 0123."""

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toymq_py.amqp.names import DIGEST_PREFIX, PREFIX, VHOST_PREFIX, topic_of
from toymq_py.names import is_topic_name


def read(escaped: str) -> str | None:
    """Return the name that was escaped; None where a digest stands for it, or the text is not an escaped name."""
    if escaped.startswith("--"):
        return None
    with contextlib.suppress(UnicodeDecodeError):
        return re.sub(rb"-([0-9a-f]{2})", lambda match: bytes((int(match[1], 16),)), escaped.encode()).decode()
    return None


def place_of(topic: str) -> tuple[str | None, str | None]:
    """Return virtual host and queue of a topic; None where only the declaration has the name."""
    if topic.startswith(VHOST_PREFIX):
        vhost, _, queue = topic.removeprefix(VHOST_PREFIX).partition(".")
        return read(vhost), read(queue)
    return "/", queue_of(topic)


def queue_of(topic: str) -> str | None:
    """Return the queue of a topic of ``/``; None where only its declaration has the name."""
    if topic.startswith(DIGEST_PREFIX):
        return None
    if not topic.startswith(PREFIX):
        return topic
    found = read(topic.removeprefix(PREFIX))
    return found if found is not None and topic_of(found) == topic else topic


NAMES = st.text(max_size=255) | st.text("ab.-_/", max_size=6) | st.sampled_from(("_vhost.a.b", "_amqp-a", "a" * 200, "-2d"))


@given(NAMES, NAMES, NAMES, NAMES)
def test_two_queues_of_two_virtual_hosts_have_two_topics(first: str, one: str, second: str, other: str) -> None:
    topics = topic_of(one, first), topic_of(other, second)
    assert all(map(is_topic_name, topics))
    assert (topics[0] == topics[1]) is ((first, one) == (second, other))
    vhost, queue = place_of(topics[0])
    assert vhost in (first, None)
    assert queue in (one, None)


@pytest.mark.parametrize(
    ("vhost", "queue", "topic"),
    [
        ("prod", "orders", "_vhost.prod.orders"), ("prod", "orders.eu", "_vhost.prod.orders.eu"),
        ("a.b", "c@d", "_vhost.a-2eb.c-40d"), ("/", "_vhost.prod.orders", "_amqp-_vhost.prod.orders"),
        ("/x", "", "_vhost.-2fx."),
    ],
)  # fmt: skip
def test_a_virtual_host_is_a_word_of_the_topic(vhost: str, queue: str, topic: str) -> None:
    assert topic_of(queue, vhost) == topic
    assert place_of(topic) == (vhost, queue)


def test_long_names_of_a_virtual_host_have_a_digest() -> None:
    assert re.fullmatch(r"_vhost\.prod\.--[0-9a-f]{64}", topic_of("x" * 200, "prod"))
    assert re.fullmatch(r"_vhost\.--[0-9a-f]{64}\.q", topic_of("q", "v" * 65))


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
