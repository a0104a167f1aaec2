"""What one may ask a broker beside publishing and subscribing: the command, its reply, and what the reply is in Python.

Written once for both clients, with the checks of what their callers say (``arguments``).
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from toymq import arguments
from toymq.conversation import Conversation
from toymq.message import RANGES_BESIDE_A_FAILURE, Settings, lines_of, to_ranges
from toymq.options import DEFAULT_VISIBILITY_S
from toymq.pending_replies import CallSlot, GiveBack, PullSlot
from toymq_py.errors import ToymqError
from toymq_py.failure import Failure
from toymq_py.model import MSG_ID_MAX, IdRange, Mode
from toymq_py.protocol import (
    Ack,
    BatchReply,
    Command,
    Config,
    Create,
    Delete,
    Describe,
    Fetch,
    Forget,
    JsonReply,
    MessagePush,
    Nack,
    Offsets,
    OffsetsReply,
    OkReply,
    Ping,
    PongReply,
    Pull,
    Purge,
    Redrive,
    Reply,
    Seek,
    Stats,
    Subscribe,
    Topics,
    Touch,
)
from toymq_py.protocol.frames import DEFAULT_FETCH_BYTES, FETCH_BYTES_MAX

T = TypeVar("T")


@dataclass(slots=True)
class Request(Generic[T]):
    """``wait_s``: the broker may take so much longer than usual."""

    slot: CallSlot
    read: Callable[[Any], T]
    wait_s: float = 0.0

    def result(self) -> T:
        """Raises: what became of it, when it failed."""
        answer = self.slot.answer
        if isinstance(answer, ToymqError):
            raise answer
        return self.read(answer)


def _request(
    command: Command, expect: type[Reply], read: Callable[[Any], T], *, again: bool = True, wait_s: float = 0.0
) -> Request[T]:
    return Request(CallSlot(command, expect, again=again), read, wait_s)


def _value(reply: OkReply) -> int:
    return reply.value


def _nothing(_: object) -> None:
    return None


def _json(reply: JsonReply) -> Any:
    return json.loads(reply.body)


def _settings_in_seconds(reply: JsonReply) -> dict[str, Any]:
    return arguments.settings_in_seconds(json.loads(reply.body))


def ping() -> Request[None]:
    return _request(Ping(), PongReply, _nothing)


def offsets(topic: str, at_ms: int | None) -> Request[tuple[int, int]]:
    command = Offsets(arguments.topic(topic), arguments.unix_ms("at_ms", at_ms))
    return _request(command, OffsetsReply, lambda reply: (reply.first_id, reply.next_id))


def topics(pattern: str | None) -> Request[list[dict[str, Any]]]:
    return _request(Topics(None if pattern is None else arguments.topic_or_pattern(pattern, "pattern")), JsonReply, _json)


def describe(topic: str) -> Request[dict[str, Any]]:
    return _request(Describe(arguments.topic(topic)), JsonReply, _json)


def stats() -> Request[dict[str, Any]]:
    return _request(Stats(), JsonReply, _json)


def fetch(topic: str, from_id: int, max_count: int, max_bytes: int | None, wait: float) -> Request[BatchReply]:
    command = Fetch(
        arguments.topic(topic), arguments.whole("from_id", from_id, 0, MSG_ID_MAX), arguments.count("max_count", max_count),
        DEFAULT_FETCH_BYTES if max_bytes is None else arguments.whole("max_bytes", max_bytes, 1, FETCH_BYTES_MAX),
        arguments.duration_ms("wait", wait),
    )  # fmt: skip
    return _request(command, BatchReply, lambda reply: reply, wait_s=command.wait_ms / 1000)


def subscription(
    topic: str, consumer: str, window: int, visibility: float | None, mode: Mode | None, start: str | None,
    auto_ack: bool, auto_extend: bool,
) -> Subscribe:  # fmt: skip
    """What opens it. Raises: TypeError, BadName, BadArgument."""
    arguments.flag("auto_ack", auto_ack)
    if arguments.flag("auto_extend", auto_extend) and visibility is None:
        visibility = DEFAULT_VISIBILITY_S
    return Subscribe(
        arguments.topic_or_pattern(topic), arguments.consumer(consumer), arguments.count("window", window),
        arguments.to_ms("visibility", visibility, 1), None if start is None else arguments.start("start", start),
        arguments.mode(mode),
    )  # fmt: skip


def pull_command(topic: str, consumer: str, max_count: int, wait: float, visibility: float | None) -> Pull:
    """Raises: TypeError, BadName, BadArgument."""
    return Pull(
        arguments.topic_or_pattern(topic), arguments.consumer(consumer), arguments.count("max", max_count),
        arguments.duration_ms("wait", wait), arguments.to_ms("visibility", visibility, 1),
    )  # fmt: skip


def pull(command: Pull, wait_s: float, give_back: GiveBack) -> Request[list[MessagePush]]:
    """Not said again by itself: the wait would begin anew. What a lost reply had leased comes back by its deadline;
    ``give_back`` gets what nobody takes. ``wait_s`` is what is left of the wait."""
    slot = PullSlot(replace(command, wait_ms=round(wait_s * 1000)), give_back)
    return Request(slot, lambda _: slot.messages, wait_s)


def give_back(conversation: Conversation, consumer: str, messages: Sequence[MessagePush]) -> None:
    """Deliveries that nobody takes are ready again at once. Without a connection their leases end by their time: later, a
    NACK might be of somebody else's lease."""
    by_topic: dict[str, list[int]] = {}
    for message in messages:
        by_topic.setdefault(message.topic, []).append(message.msg_id)
    for topic, ids in by_topic.items():
        for line in lines_of(to_ranges(ids)):
            conversation.say_now(nack(topic, consumer, line, 0.0).slot)


def acks(topic: str, consumer: str, ids: Sequence[IdRange], *, sync: bool) -> list[Request[int]]:
    """A request for each line that they fit into."""
    topic, consumer, sync = arguments.topic(topic), arguments.consumer(consumer), arguments.flag("sync", sync)
    lines = lines_of(arguments.ids("ids", ids))
    return [_request(Ack(topic, consumer, line, sync), OkReply, _value, again=False) for line in lines]


def nacks(
    topic: str, consumer: str, ids: Sequence[IdRange], delay: float | None, *, dead: bool, failure: Failure | None
) -> list[Request[int]]:
    """The same."""
    topic, consumer, dead = arguments.topic(topic), arguments.consumer(consumer), arguments.flag("dead", dead)
    arguments.to_ms("delay", delay)
    ranges = arguments.ids("ids", ids)
    lines = lines_of(ranges) if failure is None else lines_of(ranges, RANGES_BESIDE_A_FAILURE)
    return [nack(topic, consumer, line, delay, dead=dead, failure=failure) for line in lines]


def nack(
    topic: str, consumer: str, ids: Sequence[IdRange], delay: float | None,
    *, dead: bool = False, failure: Failure | None = None,
) -> Request[int]:  # fmt: skip
    """Of ids that are known to be some."""
    command = Nack(topic, consumer, tuple(ids), arguments.to_ms("delay", delay), dead, failure)
    return _request(command, OkReply, _value, again=False)


def touch(topic: str, consumer: str, ids: Sequence[IdRange], visibility: float | None) -> Request[int]:
    command = Touch(topic, consumer, tuple(ids), arguments.to_ms("visibility", visibility, 1))
    return _request(command, OkReply, _value, again=False)


def create(topic: str, settings: Settings | None) -> Request[None]:
    return _request(Create(arguments.topic(topic), arguments.settings(settings)), OkReply, _nothing)


def config(topic: str, settings: Settings | None) -> Request[dict[str, Any]]:
    return _request(Config(arguments.topic(topic), arguments.settings(settings)), JsonReply, _settings_in_seconds)


def delete(topic: str) -> Request[int]:
    return _request(Delete(arguments.topic(topic)), OkReply, _value, again=False)


def purge(topic: str) -> Request[int]:
    return _request(Purge(arguments.topic(topic)), OkReply, _value, again=False)


def seek(topic: str, consumer: str, to: str) -> Request[int]:
    command = Seek(arguments.topic(topic), arguments.consumer(consumer), arguments.start("to", to))
    return _request(command, OkReply, _value, again=False)


def forget(topic: str, consumer: str) -> Request[None]:
    return _request(Forget(arguments.topic(topic), arguments.consumer(consumer)), OkReply, _nothing, again=False)


def redrive(topic: str, ids: Sequence[IdRange] | None, max_count: int | None) -> Request[int]:
    """Of ids that fit into one line."""
    max_count = None if max_count is None else arguments.count("max", max_count)
    return _request(Redrive(arguments.topic(topic), tuple(ids) if ids else None, max_count), OkReply, _value, again=False)
