"""The message views of the dialect ``tinymq``, with peek and filter, which change nothing."""

from base64 import b64encode
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from toymq_py.gateway import answer_room
from toymq_py.gateway.bodies import parse_json
from toymq_py.gateway.dialects import rfc3339
from toymq_py.gateway.headers import parse_block
from toymq_py.gateway.message_operations import PAGE_MAX, READ_BYTES
from toymq_py.gateway.poll_operations import LEASE_BYTES_MAX
from toymq_py.gateway.request_context import Gateway
from toymq_py.gateway.tinymq.names import CONSUMER, HEADER_PREFIX, remember_unmade, shown_id, with_group
from toymq_py.names import TopicPattern, is_pattern
from toymq_py.records import Records
from toymq_py.topic import Topic

LOOKED_AT_MAX = 10_000
"""Most messages that one look reads; a filter for a rare value, or many acked messages, would else read the whole log."""


@dataclass(frozen=True)
class Place:
    """The target of a request: a topic or glob, its group, and the name that answers show."""

    name: str
    """The name of a topic, or a glob."""
    group: str | None = None
    asked: str | None = None
    """The topic as the request spells it, with slashes; None for a glob, whose topics have their own names."""

    @property
    def consumer(self) -> str:
        return self.group or CONSUMER

    def topic(self, name: str) -> str:
        """A topic's name in the spelling that answers show."""
        return with_group(name if self.asked is None else self.asked, self.group)


class Filter:
    """Selects messages by a member of a payload that is a JSON object, or by a header ``X-MQ-…``."""

    def __init__(self, key: str, value: str) -> None:
        self._key = key
        self._value = value
        self._header = key.lower().startswith(HEADER_PREFIX.decode())
        try:
            self._scalar: object = parse_json(value)
        except ValueError:
            self._scalar = value  # a string, not a number, true, false or null

    def wants(self, run: Records, row: int) -> bool:
        if self._header:
            return run.headers is not None and parse_block(run.headers[row]).get(self._key.lower()) == self._value
        try:
            found = parse_json(run.payloads[row], may_repeat=True)
        except ValueError:
            return False
        if type(found) is not dict or self._key not in found:
            return False
        member = found[self._key]
        if type(member) is str:
            return member == self._value
        return type(member) not in (dict, list) and type(self._scalar) is not str and member == self._scalar and (
            (type(member) is bool) == (type(self._scalar) is bool))  # fmt: skip


def describe(place: Place, topic: str, records: Records, row: int, failed: int) -> dict[str, Any]:
    """A message as JSON in TinyMQ's form. ``failed``: the failed attempts that count."""
    payload = records.payloads[row]
    shown: dict[str, Any] = {
        "id": shown_id(topic, place.group, records.ids[row]),
        "topic": place.topic(topic),
        "payload": b64encode(payload).decode(),
        "timestamp": rfc3339(records.ts_ns[row]),
        "retry_count": failed,
        "payload_encoding": "base64",
    }
    if place.group is not None:
        shown["group"] = place.group
    if records.expires_at_ns is not None and records.expires_at_ns[row]:
        shown["expires_at"] = rfc3339(records.expires_at_ns[row])
    if records.headers is not None and records.headers[row]:
        shown["headers"] = parse_block(records.headers[row])
    with suppress(UnicodeDecodeError):
        shown["payload_text"] = payload.decode()
    return shown


Seen = tuple[Topic, int, dict[str, Any]]
"""Topic, message id, and the message as answers show it."""


async def look(
    gateway: Gateway, request: Request, place: Place, limit: int, wanted: Filter | None = None
) -> list[Seen]:
    """Read messages that a consumer has not acked and that are not expired, oldest first, leased and delayed ones too.

    Args:
        limit: the most messages; fewer are returned when they are large, as with consume.
        wanted: selects messages; leased or delayed ones are then left out.
    """
    topics, name = gateway.broker.topics, place.name
    matches = TopicPattern(name).matches if is_pattern(name) else name.__eq__
    found: list[Seen] = []
    looked_at = size = 0
    max_bytes = answer_room.bytes_to_take(request, LEASE_BYTES_MAX)

    def enough() -> bool:
        return len(found) >= limit or size >= max_bytes or looked_at >= LOOKED_AT_MAX

    for topic in [topics[each] for each in sorted(topics) if matches(each)]:
        if place.group is not None and place.group not in topic.consumers:
            remember_unmade(topic.name, place.group)
        at = _next_unacked(topic, place.consumer, 0)
        while at is not None and not enough() and not topic.deleted:
            run, row, next_id = topic.read(at, PAGE_MAX, READ_BYTES)
            delayed: dict[int, dict[str, Any]] = {}
            while run is not None and row < len(run) and run.ids[row] < next_id and not enough():
                looked_at += 1
                msg_id = run.ids[row]
                late = topic.is_scheduled(msg_id)
                if not (late and wanted) and _is_open(gateway, topic, place.consumer, run, row, wanted):
                    state = topic.consumers.get(place.consumer)
                    shown = describe(place, topic.name, run, row, 0 if state is None else state.failed(msg_id))
                    found.append((topic, msg_id, shown))
                    size += len(run.payloads[row])
                    answer_room.hold(request, len(run.payloads[row]))
                    if late:
                        delayed[msg_id] = shown
                row += 1
            if delayed:
                for msg_id, due_ns in topic.due_times(min(delayed), max(delayed)).items():
                    if msg_id in delayed:
                        delayed[msg_id]["deliver_at"] = rfc3339(due_ns)
            await gateway.waiting.turn()
            at = _next_unacked(topic, place.consumer, next_id)
    return found


def _next_unacked(topic: Topic, consumer: str, at: int) -> int | None:
    """The first id from ``at`` on that is not acked; None after the last message."""
    at = max(at, topic.first_id)
    state = topic.consumers.get(consumer)
    if state is not None:
        gap = state.next_unacked(at, topic.next_id)
        return None if gap is None else gap[0]
    return at if at < topic.next_id else None


def _is_open(
    gateway: Gateway, topic: Topic, consumer: str, run: Records, row: int, wanted: Filter | None
) -> bool:
    """Whether a message is neither acked nor expired, and selected."""
    msg_id, state = run.ids[row], topic.consumers.get(consumer)
    if state is not None and (state.has_acked_all(msg_id, msg_id) or (wanted is not None and state.is_inflight(msg_id))):
        return False
    if run.expires_at_ns is not None and 0 < run.expires_at_ns[row] <= gateway.clock.wall_ns():
        return False
    return wanted is None or wanted.wants(run, row)
