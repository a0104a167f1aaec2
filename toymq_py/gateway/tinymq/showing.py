"""Messages as the dialect ``tinymq`` shows them, and looks at a queue that change nothing: peek and filter."""

from base64 import b64encode
from contextlib import suppress
from typing import Any

from toymq_py.gateway.dialects import rfc3339
from toymq_py.gateway.gateway import Gateway
from toymq_py.gateway.headers import parse_block
from toymq_py.gateway.leasing import LEASE_BYTES_MAX
from toymq_py.gateway.messages import PAGE_MAX, READ_BYTES
from toymq_py.model import Records, TopicPattern, is_pattern
from toymq_py.storage.record import ATTRIBUTE_DELIVER_AT, iter_frames
from toymq_py.topic import Topic

LOOKED_AT_MAX = 10_000
"""Messages that one look passes, so that a rare value, or many that are acked, do not hold everybody up."""


def describe(topic: str, records: Records, row: int, failed: int) -> dict[str, Any]:
    """A message as the original shows one. ``failed``: deliveries that came to nothing."""
    payload = records.payloads[row]
    shown: dict[str, Any] = {
        "id": str(records.ids[row]),
        "topic": topic,
        "payload": b64encode(payload).decode(),
        "timestamp": rfc3339(records.ts_ns[row]),
        "retry_count": failed,
        "payload_encoding": "base64",
    }
    if records.expires_at_ns is not None and records.expires_at_ns[row]:
        shown["expires_at"] = rfc3339(records.expires_at_ns[row])
    if records.headers is not None and records.headers[row]:
        shown["headers"] = parse_block(records.headers[row])
    with suppress(UnicodeDecodeError):
        shown["payload_text"] = payload.decode()
    return shown


async def peek(
    gateway: Gateway, name: str, consumer: str, limit: int, header: tuple[str, str] | None = None
) -> list[dict[str, Any]]:
    """What a consumer has not acked and is not expired, from the oldest on, leased and delayed ones too; nothing is leased.

    Args:
        name: a topic or a pattern.
        limit: how many at most; fewer where they are large, as consume has it.
        header: name and value of a header that they have.
    """
    topics = gateway.broker.topics
    matches = TopicPattern(name).matches if is_pattern(name) else name.__eq__
    found: list[dict[str, Any]] = []
    looked_at = size = 0

    def enough() -> bool:
        return len(found) >= limit or size >= LEASE_BYTES_MAX or looked_at >= LOOKED_AT_MAX

    for topic in [topics[each] for each in sorted(topics) if matches(each)]:
        at = _next_unacked(topic, consumer, 0)
        while at is not None and not enough() and not topic.deleted:
            run, row, next_id = topic.log.read(at, PAGE_MAX, READ_BYTES)
            delayed: dict[int, dict[str, Any]] = {}
            while run is not None and row < len(run) and run.ids[row] < next_id and not enough():
                looked_at += 1
                shown = _show(gateway, topic, consumer, run, row, header)
                if shown is not None:
                    found.append(shown)
                    size += len(run.payloads[row])
                    if run.ids[row] in topic.delays.schedule.ids:
                        delayed[run.ids[row]] = shown
                row += 1
            if delayed:
                _add_times(topic, delayed)
            await gateway.waiting.pause()
            at = _next_unacked(topic, consumer, next_id)
    return found


def _next_unacked(topic: Topic, consumer: str, at: int) -> int | None:
    """The first id from ``at`` on that is not acked, None behind the last."""
    at = max(at, topic.log.first_id)
    state = topic.consumers.get(consumer)
    if state is not None:
        gap = state.next_unacked(at, topic.log.committed_id)
        return None if gap is None else gap[0]
    return at if at < topic.log.committed_id else None


def _show(
    gateway: Gateway, topic: Topic, consumer: str, run: Records, row: int, header: tuple[str, str] | None
) -> dict[str, Any] | None:
    """None for what is not to be shown."""
    msg_id, state = run.ids[row], topic.consumers.get(consumer)
    if state is not None and state.has_acked_all(msg_id, msg_id):
        return None
    if run.expires_at_ns is not None and 0 < run.expires_at_ns[row] <= gateway.clock.wall_ns():
        return None
    if header is not None:
        name, value = header
        if run.headers is None or parse_block(run.headers[row]).get(name.lower()) != value:
            return None
    return describe(topic.name, run, row, 0 if state is None else state.failed(msg_id))


def _add_times(topic: Topic, delayed: dict[int, dict[str, Any]]) -> None:
    """When messages of one page are due, which stands in their records alone: it is read once more."""
    at, last = min(delayed), max(delayed)
    while at <= last:
        frames, _, at = topic.log.read_frames(at, last + 1 - at, READ_BYTES)
        for frame in iter_frames(frames):
            if frame.msg_id in delayed and (due_ns := frame.number(ATTRIBUTE_DELIVER_AT)) is not None:
                delayed[frame.msg_id]["deliver_at"] = rfc3339(due_ns)
