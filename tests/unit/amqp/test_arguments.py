"""Arguments of queues: what they mean here, and what is refused by name."""

from typing import Any

import pytest

from toymq_py.amqp.arguments import check_consumer, checked, topic_settings
from toymq_py.amqp.errors import AmqpError


@pytest.mark.parametrize(
    ("arguments", "settings"),
    [
        ({}, {}), ({"x-queue-type": "quorum", "x-expires": 5, "unknown": 1}, {}),
        ({"x-message-ttl": 60000}, {"ttl": "60000"}), ({"x-message-ttl": 0}, {"ttl": "1"}),
        ({"x-max-length": 5}, {"backlog_max_messages": "5", "when_full": "drop-oldest"}),
        ({"x-max-length-bytes": 9, "x-overflow": "reject-publish"}, {"backlog_max_bytes": "9", "when_full": "reject"}),
        ({"x-delivery-limit": 3}, {"max_attempts": "4"}), ({"x-message-ttl": 5, "x-dead-letter-exchange": ""}, {}),
        ({"x-delivery-limit": 3, "x-dead-letter-exchange": "d"}, {"max_attempts": "0"}),
    ],
)  # fmt: skip
def test_arguments_are_settings_of_the_topic(arguments: dict[str, Any], settings: dict[str, str]) -> None:
    assert topic_settings(arguments) == settings


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ({"x-max-priority": 5}, 540, "x-max-priority is not supported"),
        ({"x-queue-type": "stream"}, 540, "x-queue-type stream"),
        ({"x-single-active-consumer": True}, 540, "x-single-active-consumer"),
        ({"x-message-ttl": "5"}, 406, "invalid arg 'x-message-ttl'"), ({"x-expires": 0}, 406, "invalid arg 'x-expires'"),
        ({"x-max-length": 5, "x-dead-letter-exchange": ""}, 540, "x-max-length beside x-dead-letter-exchange"),
        ({"x-max-length": 5, "x-overflow": "reject-publish-dlx"}, 540, "x-overflow reject-publish-dlx"),
        ({"x-overflow": 5}, 406, "invalid arg 'x-overflow'"),
        ({"x-dead-letter-exchange": "x" * 256}, 406, "invalid arg 'x-dead-letter-exchange': it is longer than 255 bytes"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_named(arguments: dict[str, Any], code: int, text: str) -> None:
    with pytest.raises(AmqpError, match=text) as refused:
        topic_settings(arguments)
    assert refused.value.code == code


def test_arguments_are_kept_as_json() -> None:
    assert checked({"a": [1, {"b": None}], "c": 1.5}) == {"a": [1, {"b": None}], "c": 1.5}
    with pytest.raises(AmqpError, match="argument 'a' has a value of type bytes"):
        checked({"a": b"x"})


def test_arguments_of_a_consumer_that_are_not_supported_are_named() -> None:
    check_consumer({"x-priority": 0, "x-cancel-on-ha-failover": True})
    with pytest.raises(AmqpError, match=r"x-stream-offset of basic\.consume is not supported") as refused:
        check_consumer({"x-stream-offset": "first"})
    assert refused.value.code == 540
