"""What one may ask a broker beside publishing and subscribing: the command, its reply, and what the reply is in Python.

Written once for both clients; each method of theirs that has a request here is documented here.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from toymq_client.conversation import Conversation
from toymq_client.message import Settings, lines_of, to_ms, to_ranges
from toymq_client.slots import CallSlot, GiveBack, PullSlot
from toymq_py.errors import ToymqError
from toymq_py.failure import Failure
from toymq_py.model import IdRange, Start
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
    Topics,
    Touch,
)
from toymq_py.protocol.frames import DEFAULT_FETCH_BYTES

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


def _settings(settings: Settings | None) -> dict[str, str]:
    return {name: str(value) for name, value in (settings or {}).items()}


def ping() -> Request[None]:
    return _request(Ping(), PongReply, _nothing)


def offsets(topic: str, at_ms: int | None) -> Request[tuple[int, int]]:
    return _request(Offsets(topic, at_ms), OffsetsReply, lambda reply: (reply.first_id, reply.next_id))


def topics(pattern: str | None) -> Request[list[dict[str, Any]]]:
    return _request(Topics(pattern), JsonReply, _json)


def describe(topic: str) -> Request[dict[str, Any]]:
    return _request(Describe(topic), JsonReply, _json)


def stats() -> Request[dict[str, Any]]:
    return _request(Stats(), JsonReply, _json)


def fetch(topic: str, from_id: int, max_count: int, max_bytes: int | None, wait: float) -> Request[BatchReply]:
    command = Fetch(topic, from_id, max_count, max_bytes or DEFAULT_FETCH_BYTES, to_ms("wait", wait) or 0)
    return _request(command, BatchReply, lambda reply: reply, wait_s=wait)


def pull(
    topic: str, consumer: str, max_count: int, wait: float, visibility: float | None, give_back: GiveBack
) -> Request[list[MessagePush]]:
    """Not said again by itself: the wait would begin anew. What a lost reply had leased comes back by its deadline;
    ``give_back`` gets what nobody takes."""
    command = Pull(topic, consumer, max_count, to_ms("wait", wait) or 0, to_ms("visibility", visibility))
    slot = PullSlot(command, give_back)
    return Request(slot, lambda _: slot.messages, wait)


def give_back(conversation: Conversation, consumer: str, messages: Sequence[MessagePush]) -> None:
    """Deliveries that nobody takes are ready again at once. Without a connection their leases end by their time: later, a
    NACK might be of somebody else's lease."""
    by_topic: dict[str, list[int]] = {}
    for message in messages:
        by_topic.setdefault(message.topic, []).append(message.msg_id)
    for topic, ids in by_topic.items():
        for line in lines_of(to_ranges(ids)):
            conversation.say_now(nack(topic, consumer, line, 0.0).slot)


def ack(topic: str, consumer: str, ids: tuple[IdRange, ...], *, sync: bool) -> Request[int]:
    return _request(Ack(topic, consumer, ids, sync), OkReply, _value, again=False)


def nack(
    topic: str, consumer: str, ids: Sequence[IdRange], delay: float | None,
    *, dead: bool = False, failure: Failure | None = None,
) -> Request[int]:  # fmt: skip
    return _request(Nack(topic, consumer, tuple(ids), to_ms("delay", delay), dead, failure), OkReply, _value, again=False)


def touch(topic: str, consumer: str, ids: Sequence[IdRange], visibility: float | None) -> Request[int]:
    return _request(Touch(topic, consumer, tuple(ids), to_ms("visibility", visibility)), OkReply, _value, again=False)


def create(topic: str, settings: Settings | None) -> Request[None]:
    return _request(Create(topic, _settings(settings)), OkReply, _nothing)


def config(topic: str, settings: Settings | None) -> Request[dict[str, Any]]:
    return _request(Config(topic, _settings(settings)), JsonReply, _json)


def delete(topic: str) -> Request[int]:
    return _request(Delete(topic), OkReply, _value, again=False)


def purge(topic: str) -> Request[int]:
    return _request(Purge(topic), OkReply, _value, again=False)


def seek(topic: str, consumer: str, to: str) -> Request[int]:
    return _request(Seek(topic, consumer, Start.parse(to)), OkReply, _value, again=False)


def forget(topic: str, consumer: str) -> Request[None]:
    return _request(Forget(topic, consumer), OkReply, _nothing, again=False)


def redrive(topic: str, ids: Sequence[IdRange] | None, max_count: int | None) -> Request[int]:
    return _request(Redrive(topic, tuple(ids) if ids else None, max_count), OkReply, _value, again=False)
