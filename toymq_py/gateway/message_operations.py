"""Browse the log and tail it live, without a consumer; messages as JSON. Contract: gateway.md."""

import json
from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from toymq_py.consumer_options import Start
from toymq_py.disk_errors import BeingExamined
from toymq_py.errors import BadArgument, BadName, NoSuchTopic, OutOfRange, QueueFull, StorageFailed
from toymq_py.gateway import answer_room
from toymq_py.gateway.access import may_go_on
from toymq_py.gateway.events import EVENT_STREAM, stream_response
from toymq_py.gateway.headers import parse_block
from toymq_py.gateway.operations import TOPIC, Answer, Operation, Parameter, count, whole
from toymq_py.gateway.request_context import Gateway
from toymq_py.records import MSG_ID_MAX, PRODUCER_PREFIX, Records
from toymq_py.topic import Topic

PAGE_MAX = 1000
PAGE_BYTES_MAX = 4 * 1024 * 1024
"""Payload bytes of one page; a single larger message is returned, too."""
READ_BYTES = 256 * 1024
"""Bytes that are read and encoded as JSON before other tasks get a turn; some milliseconds."""
HEARTBEAT_S = 15.0
"""How often a silent stream sends a comment: proxies cut silent connections, and writing finds readers that are gone."""

MESSAGE = {
    "type": "object",
    "required": ["topic", "id", "time_ms"],
    "properties": {
        "topic": {"type": "string"},
        "id": {"type": "integer"},
        "attempt": {"type": "integer", "description": "One more than the consumer's attempts that count; not in the log."},
        "time_ms": {"type": "integer", "description": "When it was published, unix milliseconds."},
        "expires_at_ms": {"type": "integer", "description": "When it expires, if it does."},
        "key": {"type": "string"},
        "headers": {"type": "object", "additionalProperties": {"type": "string"}},
        "payload": {"type": "string", "description": "Where it is UTF-8."},
        "payload_base64": {"type": "string", "contentEncoding": "base64", "description": "Where it is not."},
    },
}


def message_json(topic: str, records: Records, row: int, attempt: int | None = None) -> dict[str, Any]:
    """One message as JSON. ``attempt``: of the delivery; None where the message is read from the log."""
    described: dict[str, Any] = {"topic": topic, "id": records.ids[row]}
    if attempt is not None:
        described["attempt"] = attempt
    described["time_ms"] = records.ts_ns[row] // 1_000_000
    if records.expires_at_ns is not None and records.expires_at_ns[row]:
        described["expires_at_ms"] = records.expires_at_ns[row] // 1_000_000
    key = records.keys[row]
    if key and not key.startswith(PRODUCER_PREFIX):
        described["key"] = key.decode("ascii", "replace")
    if records.headers is not None and records.headers[row]:
        described["headers"] = parse_block(records.headers[row])
    payload = records.payloads[row]
    try:
        described["payload"] = payload.decode()
    except UnicodeDecodeError:
        described["payload_base64"] = b64encode(payload).decode()
    return described


def read_log(topic: Topic, from_id: int, max_count: int, max_bytes: int) -> tuple[list[tuple[int, str]], int, int]:
    """Read messages from the log as JSON.

    Returns: pairs of id and JSON, the id to continue at, and about how many payload bytes. Lost ids are skipped.

    Raises: OSError; BeingExamined only before the first message.
    """
    found: list[tuple[int, str]] = []
    size = 0
    while from_id < topic.next_id and len(found) < max_count and size < max_bytes:
        try:
            run, row, next_id = topic.read(from_id, max_count - len(found), max_bytes - size)
        except BeingExamined:
            if found:
                break
            raise
        if run is None:
            from_id = next_id
            continue
        while row < len(run) and run.ids[row] < next_id and len(found) < max_count and size < max_bytes:
            msg_id = run.ids[row]
            found.append((msg_id, json.dumps(message_json(topic.name, run, row))))
            size += len(run.payloads[row])
            from_id = msg_id + 1
            row += 1
    return found, from_id, size


FROM = Parameter(
    "from", "query", "`earliest`, `latest`, a message id, or `@` and unix milliseconds.", {"type": "string"}, Start.parse
)
MAX = count("max", "How many at most.", 1, PAGE_MAX, default=100)
LAST_EVENT_ID: Parameter[int] = Parameter(
    "Last-Event-ID", "header", "Continue behind this message.", {"type": "integer", "minimum": 0},
    whole("Last-Event-ID", 0, MSG_ID_MAX),
)  # fmt: skip


def _resolve(topic: Topic, start: Start) -> int:
    """Return the id that a start position stands for. Raises: OutOfRange, OSError."""
    at = topic.resolve(start)
    if start.kind == "id" and not topic.first_id <= at <= topic.next_id:
        raise OutOfRange.outside(topic.name, at, topic.first_id, topic.next_id)
    return min(max(at, topic.first_id), topic.next_id)


async def browse(gateway: Gateway, request: Request) -> Response:
    """``GET /v1/topics/{t}/log``."""
    topic = gateway.broker.topic(TOPIC.need(request))
    start = _resolve(topic, FROM.or_(Start("earliest"), request))
    max_count = MAX.or_(100, request)
    messages: list[str] = []
    size, at = 0, start
    while len(messages) < max_count and size < PAGE_BYTES_MAX and at < topic.next_id and not topic.deleted:
        part, behind, read = read_log(topic, at, max_count - len(messages), min(READ_BYTES, PAGE_BYTES_MAX - size))
        texts = [text for _, text in part]
        try:
            answer_room.hold(request, sum(map(len, texts)))
        except QueueFull:
            if not messages:
                raise
            break  # a shorter page
        messages += texts
        at = behind
        size += read
        await gateway.waiting.turn()
    content = (
        f'{{"first_id": {topic.first_id}, "next_id": {topic.next_id}, "next": {at}, "messages": [{", ".join(messages)}]}}'
    )
    headers = {"cache-control": "no-store"}
    if at > start:
        headers["content-range"] = f"messages {start}-{at - 1}/{topic.next_id}"
    return Response(content, 200, headers, "application/json")


async def stream(gateway: Gateway, request: Request) -> Response:
    """``GET /v1/topics/{t}/stream``."""
    topic = gateway.broker.topic(TOPIC.need(request))
    after = LAST_EVENT_ID.of(request)
    start = _resolve(topic, FROM.or_(Start("latest"), request)) if after is None else after + 1
    gateway.refuse_late()
    return stream_response(follow(gateway, request, topic, start))


async def follow(gateway: Gateway, request: Request, topic: Topic, at: int) -> AsyncIterator[bytes]:
    """Messages from ``at`` on as events, as fast as the reader takes them and as long as its token allows.

    An event ``gap`` names messages that are no longer retained; ``deleted`` ends the stream of a deleted topic.
    """
    waiting = gateway.waiting
    yield b"retry: 1000\n\n"
    while not waiting.stopped and may_go_on(gateway, request, "stream", "subscribe", topic.name):
        if topic.deleted:
            yield b"event: deleted\ndata: {}\n\n"
            return
        if not topic.first_id <= at <= topic.next_id:
            yield b'event: gap\ndata: {"from": %d, "next": %d}\n\n' % (at, topic.first_id)
            at = topic.first_id
        if at < topic.next_id:
            max_bytes = answer_room.bytes_to_take(request, READ_BYTES)
            try:
                messages, behind, size = read_log(topic, at, PAGE_MAX, max_bytes)
            except BeingExamined as busy:
                if not await waiting.wait_for(busy.begin_wait, HEARTBEAT_S) and not waiting.stopped:
                    yield b":\n\n"
                continue
            if not answer_room.has_room(request, size):
                del messages
                await answer_room.wait_for_room(waiting, request)
                continue
            at = behind
            yield _encode_events(messages)
            await waiting.turn()
        elif not await waiting.wait_for(topic.when_committed, HEARTBEAT_S) and not waiting.stopped:
            yield b":\n\n"


def _encode_events(messages: list[tuple[int, str]]) -> bytes:
    """Encode ids and messages as server-sent events. Empties the list, which the caller's frame would keep in memory."""
    piece = "".join(f"id: {msg_id}\ndata: {text}\n\n" for msg_id, text in messages).encode()
    messages.clear()
    return piece


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "GET", "/v1/topics/{topic}/log", "browse", "Browse the log; nothing is consumed.", browse, "subscribe",
        (TOPIC, FROM, MAX),
        answers={200: Answer("A page; `next` begins the following one. `Content-Range` says the same.", {
            "type": "object",
            "properties": {"first_id": {"type": "integer"}, "next_id": {"type": "integer"}, "next": {"type": "integer"},
                           "messages": {"type": "array", "items": MESSAGE}},
        })},
        errors=(BadArgument, BadName, NoSuchTopic, OutOfRange, StorageFailed), safe=True,
    ),
    Operation(
        "GET", "/v1/topics/{topic}/stream", "stream",
        "New messages as server-sent events; nothing is consumed. An event has the id of its message, so a browser goes on "
        "where it was. `gap` names messages that are no longer there, `deleted` ends the stream.",
        stream, "subscribe", (TOPIC, FROM, LAST_EVENT_ID),
        answers={200: Answer("Until the broker shuts down.", {"type": "string"}, EVENT_STREAM)},
        errors=(BadArgument, BadName, NoSuchTopic, OutOfRange, StorageFailed), safe=True,
    ),
)  # fmt: skip
