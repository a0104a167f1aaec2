"""Arguments of queues and exchanges: what they mean, and which are refused. Pure. Contract: amqp.md, "Model"."""

import json
from collections.abc import Mapping
from math import isfinite
from typing import Any

from toymq_py.amqp.errors import PRECONDITION_FAILED, AmqpError
from toymq_py.amqp.fields import SHORT_STRING_MAX
from toymq_py.amqp.streams import is_stream, stream_settings
from toymq_py.units import DURATION_MS_MAX

QUEUE_TYPES = ("classic", "quorum", "stream")
"""The types of queues: all are durable logs here; each consumer of a stream reads at its own position (``streams``)."""
OVERFLOWS = {"drop-head": "drop-oldest", "reject-publish": "reject", "reject-publish-dlx": "reject"}
STRATEGIES = ("at-most-once", "at-least-once")
"""The strategies for dead letters. Either way each letter is stored before its message leaves the queue."""
NUMBERS = {
    "x-message-ttl": (0, DURATION_MS_MAX), "x-expires": (1, DURATION_MS_MAX), "x-max-length": (1, 1 << 62),
    "x-max-length-bytes": (1, 1 << 62), "x-delivery-limit": (0, (1 << 20) - 1),
    "x-max-priority": (0, 255),
}  # fmt: skip
STRINGS = ("x-overflow", "x-queue-type", "x-dead-letter-exchange", "x-dead-letter-routing-key", "x-dead-letter-strategy")
"""Arguments that are short strings: no dead letter could be sent to a longer exchange or routing key."""

KEPT_BYTES_MAX = 4096
"""Most bytes of the arguments of one queue, exchange or binding, as JSON: tens of thousands of these stay in memory, and in
one file."""


def checked(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with values that JSON can store. Raises: AmqpError when a value cannot be, or all are too large."""
    kept = {name: _plain(name, value) for name, value in given.items()}
    if kept and (size := len(json.dumps(kept))) > KEPT_BYTES_MAX:
        raise AmqpError(PRECONDITION_FAILED, f"arguments have {size} bytes as JSON: at most {KEPT_BYTES_MAX} are kept")
    return kept


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


def consumer_priority(arguments: Mapping[str, Any]) -> int:
    """The priority of a basic.consume. Raises: AmqpError."""
    priority = arguments.get("x-priority", 0)
    if not isinstance(priority, int) or isinstance(priority, bool):
        raise AmqpError(PRECONDITION_FAILED, f"invalid arg 'x-priority': {str(priority)[:40]!r} is not a number")
    return int(priority)


def drops_to_exchange(arguments: Mapping[str, Any]) -> bool:
    """Whether messages beyond a queue's maximum length go to its dead-letter exchange. If so, the topic has no limit."""
    drops = arguments.get("x-overflow") in (None, "drop-head")
    return is_limited(arguments) and drops and arguments.get("x-dead-letter-exchange") is not None


def is_limited(arguments: Mapping[str, Any]) -> bool:
    """Whether a queue was declared with a maximum length."""
    return any(arguments.get(name) is not None for name in ("x-max-length", "x-max-length-bytes"))


def refuses_to_exchange(arguments: Mapping[str, Any]) -> bool:
    """Whether publishes that a full queue refuses go to its dead-letter exchange."""
    return arguments.get("x-overflow") == "reject-publish-dlx" and arguments.get("x-dead-letter-exchange") is not None


def topic_settings(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Translate a queue's arguments to topic settings, by name, as the verb CREATE takes them. Raises: AmqpError."""
    for name, (least, most) in NUMBERS.items():
        value = arguments.get(name)
        if value is not None and (type(value) is not int or not least <= value <= most):
            raise AmqpError(PRECONDITION_FAILED, f"invalid arg '{name}': {value!r} is not a number from {least} to {most}")
    for name in STRINGS:
        value = arguments.get(name)
        if value is not None and type(value) is not str:
            raise AmqpError(PRECONDITION_FAILED, f"invalid arg '{name}': {value!r} is not a string")
        if value is not None and len(value.encode()) > SHORT_STRING_MAX:
            raise AmqpError(PRECONDITION_FAILED, f"invalid arg '{name}': it is longer than {SHORT_STRING_MAX} bytes")
    if type(single := arguments.get("x-single-active-consumer", False)) is not bool:
        raise AmqpError(PRECONDITION_FAILED, f"invalid arg 'x-single-active-consumer': {str(single)[:40]!r} is not a boolean")
    kind, overflow = arguments.get("x-queue-type", "classic"), arguments.get("x-overflow")
    if kind not in QUEUE_TYPES:
        text = f"invalid arg 'x-queue-type': unsupported queue type {kind[:40]!r}, there are {', '.join(QUEUE_TYPES)}"
        raise AmqpError(PRECONDITION_FAILED, text)
    if is_stream(arguments):
        return stream_settings(arguments)
    settings = {}
    if (ttl := arguments.get("x-message-ttl")) is not None and arguments.get("x-dead-letter-exchange") is None:
        settings["ttl"] = str(max(ttl, 1))
    for name, known in (("x-overflow", OVERFLOWS), ("x-dead-letter-strategy", STRATEGIES)):
        if (value := arguments.get(name)) is not None and value not in known:
            raise AmqpError(PRECONDITION_FAILED, f"invalid arg '{name}': {value[:40]!r} is none of {', '.join(known)}")
    given = {"backlog_max_messages": arguments.get("x-max-length"), "backlog_max_bytes": arguments.get("x-max-length-bytes")}
    limits = {name: str(limit) for name, limit in given.items() if limit is not None}
    if limits and not drops_to_exchange(arguments):
        settings |= {**limits, "when_full": OVERFLOWS[overflow or "drop-head"]}
    if (limit := arguments.get("x-delivery-limit")) is not None:
        to_exchange = arguments.get("x-dead-letter-exchange") is not None
        settings["max_attempts"] = "0" if to_exchange else str(limit + 1)  # 0: the channel counts, and knows the exchange
    return settings
