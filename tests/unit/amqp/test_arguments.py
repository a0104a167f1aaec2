"""Arguments of queues: what they mean here, and what is refused by name."""

from typing import Any

import pytest

from toymq_py.amqp.arguments import KEPT_BYTES_MAX, checked, consumer_priority, topic_settings
from toymq_py.amqp.errors import AmqpError


@pytest.mark.parametrize(
    ("arguments", "settings"),
    [
        ({}, {}), ({"x-queue-type": "quorum", "x-expires": 5, "unknown": 1}, {}),
        ({"x-queue-type": "stream"}, {}),
        ({"x-queue-type": "stream", "x-max-age": "2h", "x-max-length-bytes": 9},
         {"retain_max_age": "7200000", "retain_max_bytes": "9"}),
        ({"x-max-priority": 10}, {}), ({"x-max-priority": 0}, {}),
        ({"x-message-ttl": 60000}, {"ttl": "60000"}), ({"x-message-ttl": 0}, {"ttl": "1"}),
        ({"x-max-length": 5}, {"backlog_max_messages": "5", "when_full": "drop-oldest"}),
        ({"x-max-length-bytes": 9, "x-overflow": "reject-publish"}, {"backlog_max_bytes": "9", "when_full": "reject"}),
        ({"x-delivery-limit": 3}, {"max_attempts": "4"}), ({"x-message-ttl": 5, "x-dead-letter-exchange": ""}, {}),
        ({"x-delivery-limit": 3, "x-dead-letter-exchange": "d"}, {"max_attempts": "0"}),
        ({"x-max-length": 5, "x-dead-letter-exchange": "d"}, {}),
        ({"x-max-length-bytes": 5, "x-overflow": "drop-head", "x-dead-letter-exchange": "d"}, {}),
        (
            {"x-max-length": 5, "x-overflow": "reject-publish", "x-dead-letter-exchange": "d"},
            {"backlog_max_messages": "5", "when_full": "reject"},
        ),
        (
            {"x-max-length": 5, "x-overflow": "reject-publish-dlx", "x-dead-letter-strategy": "at-least-once"},
            {"backlog_max_messages": "5", "when_full": "reject"},
        ),
    ],
)  # fmt: skip
def test_arguments_are_settings_of_the_topic(arguments: dict[str, Any], settings: dict[str, str]) -> None:
    assert topic_settings(arguments) == settings


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ({"x-dead-letter-strategy": "never"}, 406, "invalid arg 'x-dead-letter-strategy': 'never' is none of at-most-once"),
        ({"x-max-priority": -1}, 406, "invalid arg 'x-max-priority': -1 is not a number from 0 to 255"),
        ({"x-max-priority": 256}, 406, "invalid arg 'x-max-priority'"), ({"x-max-priority": "a"}, 406, "x-max-priority"),
        ({"x-max-priority": True}, 406, "x-max-priority"), ({"x-max-priority": 1 << 63}, 406, "x-max-priority"),
        ({"x-queue-type": "heap"}, 406, "invalid arg 'x-queue-type': unsupported queue type 'heap', there are classic, quorum"),
        ({"x-single-active-consumer": 1}, 406, "invalid arg 'x-single-active-consumer': '1' is not a boolean"),
        ({"x-message-ttl": "5"}, 406, "invalid arg 'x-message-ttl'"), ({"x-expires": 0}, 406, "invalid arg 'x-expires'"),
        ({"x-max-length": 5, "x-overflow": "drop-tail"}, 406, "invalid arg 'x-overflow': 'drop-tail' is none of drop-head"),
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


def test_a_consumer_has_a_priority() -> None:
    assert consumer_priority({"x-cancel-on-ha-failover": True}) == 0
    assert consumer_priority({"x-priority": -3}) == -3


@pytest.mark.parametrize("priority", ["1", True, 1.5, None, [1]], ids=str)
def test_a_priority_is_a_number(priority: Any) -> None:
    with pytest.raises(AmqpError, match="invalid arg 'x-priority'") as refused:
        consumer_priority({"x-priority": priority})
    assert refused.value.code == 406


def test_what_is_kept_of_arguments_is_bounded() -> None:
    """Found: each of 20,000 bindings could keep arguments of 128 KiB."""
    room = KEPT_BYTES_MAX - len('{"a": ""}')
    assert checked({"a": "x" * room}) == {"a": "x" * room}
    with pytest.raises(AmqpError, match="arguments have 4097 bytes as JSON: at most 4096 are kept"):
        checked({"a": "x" * (room + 1)})
    with pytest.raises(AmqpError, match="at most 4096 are kept"):
        checked({str(number): [{"a": 1}] * 100 for number in range(9)})
