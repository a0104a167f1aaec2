"""Arguments of queues and exchanges: what they mean here, and which are refused by name. Pure. Contract: amqp.md, "Model"."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

from toymq_py.amqp.errors import NOT_IMPLEMENTED, PRECONDITION_FAILED, AmqpError
from toymq_py.amqp.fields import SHORT_STRING_MAX
from toymq_py.units import DURATION_MS_MAX

QUEUE_TYPES = ("classic", "quorum")
"""Both are durable logs here."""
UNSUPPORTED = ("x-max-priority", "x-single-active-consumer", "x-dead-letter-strategy")
BESIDE_DEAD_LETTERS = ("x-max-length", "x-max-length-bytes")
"""RabbitMQ sends what they drop to the dead-letter exchange; here it would be lost without a word."""
OVERFLOWS = {"drop-head": "drop-oldest", "reject-publish": "reject", "reject-publish-dlx": None}
NUMBERS = {
    "x-message-ttl": (0, DURATION_MS_MAX), "x-expires": (1, DURATION_MS_MAX), "x-max-length": (1, 1 << 62),
    "x-max-length-bytes": (1, 1 << 62), "x-delivery-limit": (0, (1 << 20) - 1),
}  # fmt: skip
CONSUMERS = ("x-priority", "x-stream-offset")
"""Arguments of basic.consume that change what it gets, and are not supported."""
STRINGS = ("x-overflow", "x-queue-type", "x-dead-letter-exchange", "x-dead-letter-routing-key")
"""Short ones: no dead letter could be sent to a longer exchange or routing key."""



def checked(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as they can be kept: JSON has their values. Raises: AmqpError."""
    return {name: _plain(name, value) for name, value in given.items()}


def _plain(name: str, value: Any) -> Any:
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, float):
        if not isfinite(value):
            raise AmqpError(PRECONDITION_FAILED, f"argument '{name}' is {value}, which is not kept: write a finite number")
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, list):
        return [_plain(name, one) for one in value]
    if isinstance(value, dict):
        return {inner: _plain(name, one) for inner, one in value.items()}
    raise AmqpError(PRECONDITION_FAILED, f"argument '{name}' has a value of type {type(value).__name__}, which is not kept")


def check_consumer(arguments: Mapping[str, Any]) -> None:
    """Raises: AmqpError (NOT_IMPLEMENTED) with the argument of basic.consume that is not supported."""
    for name in CONSUMERS:
        if arguments.get(name):
            raise AmqpError(NOT_IMPLEMENTED, f"{name} of basic.consume is not supported")


def topic_settings(arguments: Mapping[str, Any]) -> dict[str, str]:
    """The topic settings of a queue's arguments, as CREATE takes them. Raises: AmqpError."""
    for name in UNSUPPORTED:
        if arguments.get(name):
            raise AmqpError(NOT_IMPLEMENTED, f"{name} is not supported")
    for name, (least, most) in NUMBERS.items():
        value = arguments.get(name)
        if value is not None and (type(value) is not int or not least <= value <= most):
            raise AmqpError(PRECONDITION_FAILED, f"invalid arg '{name}': {value!r} is no number from {least} to {most}")
    for name in STRINGS:
        value = arguments.get(name)
        if value is not None and type(value) is not str:
            raise AmqpError(PRECONDITION_FAILED, f"invalid arg '{name}': {value!r} is not a string")
        if value is not None and len(value.encode()) > SHORT_STRING_MAX:
            raise AmqpError(PRECONDITION_FAILED, f"invalid arg '{name}': it is longer than {SHORT_STRING_MAX} bytes")
    kind, overflow = arguments.get("x-queue-type", "classic"), arguments.get("x-overflow")
    if kind not in QUEUE_TYPES:
        raise AmqpError(NOT_IMPLEMENTED, f"x-queue-type {kind} is not supported: there are {' and '.join(QUEUE_TYPES)}")
    if arguments.get("x-dead-letter-exchange") is not None:
        for name in BESIDE_DEAD_LETTERS:
            if arguments.get(name) is not None:
                raise AmqpError(NOT_IMPLEMENTED, f"{name} beside x-dead-letter-exchange is not supported")
    settings = {}
    if (ttl := arguments.get("x-message-ttl")) is not None and arguments.get("x-dead-letter-exchange") is None:
        settings["ttl"] = str(max(ttl, 1))
    limits = {"backlog_max_messages": arguments.get("x-max-length"), "backlog_max_bytes": arguments.get("x-max-length-bytes")}
    settings |= {name: str(limit) for name, limit in limits.items() if limit is not None}
    if overflow is not None and OVERFLOWS.get(overflow) is None:
        raise AmqpError(NOT_IMPLEMENTED, f"x-overflow {overflow} is not supported: there are drop-head and reject-publish")
    if any(limit is not None for limit in limits.values()):
        settings["when_full"] = OVERFLOWS[overflow or "drop-head"] or ""
    if (limit := arguments.get("x-delivery-limit")) is not None:
        to_exchange = arguments.get("x-dead-letter-exchange") is not None
        settings["max_attempts"] = "0" if to_exchange else str(limit + 1)  # 0: the channel counts, and knows the exchange
    return settings
