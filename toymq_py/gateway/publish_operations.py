"""Publish one message or a batch; 2xx is answered after the fsync that makes them durable. Contract: gateway.md."""

import asyncio
import json
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from toymq_py.broker_waits import made
from toymq_py.errors import (
    BadArgument,
    BadFraming,
    BadName,
    DiskFull,
    DiskLow,
    PayloadTooLarge,
    QueueFull,
    RequestError,
    StorageFailed,
    TooManyTopics,
)
from toymq_py.gateway.bodies import (
    JSON_BYTES_MAX,
    check_coding,
    check_members,
    lines_of,
    media_type,
    parse_json,
    read_body,
    read_pieces,
    too_large,
)
from toymq_py.gateway.headers import header_block, headers_of, parse_block, refuse_headers_of_one
from toymq_py.gateway.multipart import parse_multipart
from toymq_py.gateway.operations import (
    DELAY_MS,
    IDEMPOTENCY_KEY,
    ROUTE,
    TOPIC,
    TTL_MS,
    Answer,
    Body,
    Operation,
    Parameter,
    check_key,
    check_route,
)
from toymq_py.gateway.problems import STATUS, problem
from toymq_py.gateway.request_context import Gateway
from toymq_py.partitions import Partitioned, half_made, number_of
from toymq_py.topic import Appended, Duplicate, Published, Topic
from toymq_py.units import DURATION_MS_MAX, check_delay, check_number

PATH = "/v1/topics/"
BATCH = "/messages:batch"
BATCH_BYTES_MAX = 16 * 1024 * 1024
"""Most bytes of a batch, which is in memory as a whole; 20,000 messages of 800 bytes."""
BATCH_MESSAGES_MAX = 100_000
MESSAGES_PER_TURN = 128
BYTES_PER_TURN = 128 * 1024
"""Bytes that are parsed and appended before other tasks get a turn; a millisecond."""

PUBLISH_ERRORS = (BadArgument, BadName, PayloadTooLarge, QueueFull, TooManyTopics, DiskLow, DiskFull, StorageFailed)
RECEIPT = {
    "type": "object",
    "required": ["id", "duplicate"],
    "properties": {
        "id": {"type": "integer", "description": "Number of the message in its topic."},
        "duplicate": {"type": "boolean", "description": "It was there already; nothing was appended."},
        "partition": {"type": "integer", "description": "Of a partitioned topic; the id is that of the partition."},
    },
}
RESULT = {
    "oneOf": [
        RECEIPT,
        {
            "type": "object",
            "required": ["code", "detail"],
            "properties": {"code": {"type": "string"}, "detail": {"type": "string"}},
        },
    ]
}
RESULTS = {"type": "object", "required": ["results"], "properties": {"results": {"type": "array", "items": RESULT}}}
LINE_MEMBERS = frozenset({"payload", "payload_base64", "key", "headers", "delay_ms", "ttl_ms", "route"})


@dataclass(frozen=True, slots=True)
class Message:
    """A message to publish. An absent ``key``, ``headers`` or ``route`` is b""."""

    payload: bytes
    key: bytes = b""
    headers: bytes = b""
    delay_ms: int | None = None
    ttl_ms: int | None = None
    route: bytes = b""

    def __post_init__(self) -> None:
        """Check the fields. Raises: BadArgument."""
        check_delay(self.delay_ms, self.ttl_ms)


async def publish(gateway: Gateway, request: Request) -> Response:
    """``POST /v1/topics/{t}/messages``."""
    name = TOPIC.need(request)
    key = IDEMPOTENCY_KEY.of(request) or b""
    ROUTE.of(request)  # its partition is in the path by now
    delay_ms, ttl_ms = DELAY_MS.of(request), TTL_MS.of(request)
    check_delay(delay_ms, ttl_ms)
    headers = headers_of(request.headers.raw)
    bytes_max = gateway.broker.options.max_payload_bytes
    payload = await read_body(request, bytes_max)
    check_size(payload, headers, bytes_max)
    gateway.refuse_late()
    topic = await made(partial(gateway.broker.topic_to_publish, name))
    (outcome,) = topic.publish(
        [key], [payload], [headers] if headers else None,
        None if delay_ms is None else [delay_ms], None if ttl_ms is None else [ttl_ms],
    )  # fmt: skip
    error = outcome.error or await gateway.settled(outcome.commit)
    if error is not None:
        gateway.broker.metrics.refused(error.code)
        return problem(error)
    if outcome.duplicate:
        gateway.broker.metrics.duplicate_total += 1
    partition = "" if (number := number_of(name)) is None else f',"partition":{number}'
    return Response(
        f'{{"id":{outcome.first_id},"duplicate":{"true" if outcome.duplicate else "false"}{partition}}}',
        201, {"x-message-id": str(outcome.first_id)}, "application/json",
    )  # fmt: skip


def check_size(payload: bytes, headers: bytes, bytes_max: int) -> None:
    """Check payload and headers against ``--max-payload``. Raises: PayloadTooLarge."""
    if len(payload) + len(headers) > bytes_max:
        raise too_large(bytes_max)


def line_bytes_max(payload_bytes_max: int) -> int:
    """The largest JSON line or WebSocket message: a payload, perhaps all escapes (``\\u0434`` for two bytes), and the rest."""
    return 3 * payload_bytes_max + JSON_BYTES_MAX


async def publish_batch(gateway: Gateway, request: Request) -> Response:
    """``POST /v1/topics/{t}/messages:batch``."""
    name = TOPIC.need(request)
    refuse_headers_of_one(request.headers.raw)
    kind = media_type(request)
    if kind not in BATCH_MEDIA:
        raise BadFraming(f"invalid Content-Type {kind[:100]!a}: a batch is {' or '.join(BATCH_MEDIA)}")
    bytes_max = max(BATCH_BYTES_MAX, 2 * gateway.broker.options.max_payload_bytes)
    is_lines = kind == "application/x-ndjson"
    line_max = line_bytes_max(gateway.broker.options.max_payload_bytes) if is_lines else None
    pieces = await read_pieces(request, bytes_max, line_max)
    if is_lines:
        if sum(piece.count(b"\n") for piece in pieces) + (not pieces[-1].endswith(b"\n")) > BATCH_MESSAGES_MAX:
            raise BadArgument(f"the batch has more than {BATCH_MESSAGES_MAX} messages: send it as several batches")
        found = map(_of_line, lines_of(pieces))
    else:
        parts = await parse_multipart(request.headers["content-type"], pieces, BATCH_MESSAGES_MAX, gateway.waiting.turn)
        found = map(_of_part, parts)
    gateway.refuse_late()
    whole = await made(partial(gateway.broker.partitioned.find, name))
    if whole is not None and name == whole.name:
        return await _publish_whole(gateway, whole, list(found))
    topic = await made(partial(gateway.broker.topic_to_publish, name))
    return await _publish_all(gateway, topic, found)


BATCH_MEDIA = ("application/x-ndjson", "multipart/form-data", "multipart/mixed")


Parsed = tuple[int, Message | RequestError]
"""The number of bytes parsed, and the message or why it is refused."""


async def _publish_whole(gateway: Gateway, whole: Partitioned, found: Sequence[Parsed]) -> Response:
    """Publish to the partitions of a topic, each at its worker; results are in the order of the messages."""
    results: list[dict[str, Any]] = [
        {"code": one.code, "detail": str(one)} if isinstance(one, RequestError) else {} for _, one in found
    ]
    sound = [(row, message) for row, (_, message) in enumerate(found) if isinstance(message, Message)]
    numbers = gateway.router.numbers(
        whole, [message.key for _, message in sound], routes=[message.route for _, message in sound],
        blocks=[message.headers for _, message in sound],
    )  # fmt: skip
    rows: dict[int, list[tuple[int, Message]]] = {}
    for place, number in zip(sound, numbers, strict=True):
        rows.setdefault(number, []).append(place)
    answers = await asyncio.gather(
        *(_publish_part(gateway, whole.names[number], [message for _, message in mine]) for number, mine in rows.items())
    )
    refusals = [problem(one) for _, one in found if isinstance(one, RequestError)]
    for (number, mine), answer in zip(rows.items(), answers, strict=True):
        said = json.loads(bytes(answer.body))
        if answer.status_code >= 400:
            refusals.append(answer)
        refused = {name: said[name] for name in ("code", "detail") if name in said}
        for (row, _), result in zip(mine, said.get("results") or [refused] * len(mine), strict=True):
            results[row] = {**result, "partition": number}
    listed = f'"results":{json.dumps(results)}'
    if not refusals:
        return Response(f"{{{listed}}}", 201, None, "application/json")
    first = json.loads(bytes(refusals[0].body))
    first.pop("results", None)
    headers = {"cache-control": "no-store"}
    return Response(f"{json.dumps(first)[:-1]}, {listed}}}", refusals[0].status_code, headers, "application/problem+json")


async def _publish_part(gateway: Gateway, name: str, messages: Sequence[Message]) -> Response:
    """Publish to one partition, here or at the worker that has it."""
    placement, worker = gateway.broker.placement, gateway.broker.placement.worker_of(name)
    try:
        if gateway.neighbours is not None and worker != placement.worker:
            path = f"{PATH}{quote(name)}{BATCH}"
            answer = await gateway.neighbours.post(worker, path, b"\n".join(map(line_of, messages)))
            return problem(half_made(name)) if answer.status_code in (404, 421) else answer
        topic = gateway.broker.topic_to_publish(name)
        return await _publish_all(gateway, topic, iter([(len(message.payload), message) for message in messages]))
    except RequestError as error:
        return problem(error)


def line_of(message: Message) -> bytes:
    """The JSON line of a message; the inverse of ``parse_line``."""
    line: dict[str, object] = {"payload_base64": b64encode(message.payload).decode()}
    if message.key:
        line["key"] = message.key.decode()
    if message.headers:
        line["headers"] = parse_block(message.headers)
    line |= {name: value for name in ("delay_ms", "ttl_ms") if (value := getattr(message, name)) is not None}
    return json.dumps(line).encode()


async def _publish_all(gateway: Gateway, topic: Topic, found: Iterator[Parsed]) -> Response:
    """Append messages in slices, wait for the commits, and answer with one result for each message."""
    outcomes: list[Published | RequestError] = []
    bytes_max = gateway.broker.options.max_payload_bytes

    def kind(message: Message | RequestError) -> tuple[bool, bool, bool]:
        """Whether a message is refused, is delayed, has a ttl: adjacent messages of one kind are appended together."""
        if isinstance(message, RequestError) or len(message.payload) + len(message.headers) > bytes_max:
            return True, False, False
        return False, message.delay_ms is not None, message.ttl_ms is not None

    while part := _one_turn(found):
        for (bad, _, _), run in groupby(part, kind):
            if bad:
                outcomes += [message if isinstance(message, RequestError) else too_large(bytes_max) for message in run]
            else:
                outcomes += append(topic, [message for message in run if isinstance(message, Message)])
        await gateway.waiting.turn()
    return await _answer(gateway, outcomes)


def _one_turn(found: Iterator[Parsed]) -> list[Message | RequestError]:
    """Parse as many messages as one turn of the event loop may take."""
    part: list[Message | RequestError] = []
    size = 0
    for parsed_bytes, message in found:
        part.append(message)
        size += parsed_bytes
        if len(part) == MESSAGES_PER_TURN or size > BYTES_PER_TURN:
            break
    return part


def append(topic: Topic, messages: Sequence[Message]) -> Sequence[Published]:
    """Append messages together. Assumes that all have a delay or none has, and likewise a ttl."""
    headers = [message.headers for message in messages]
    delays_ms = [message.delay_ms for message in messages if message.delay_ms is not None]
    ttls_ms = [message.ttl_ms for message in messages if message.ttl_ms is not None]
    return topic.publish(
        [message.key for message in messages], [message.payload for message in messages], headers if any(headers) else None,
        delays_ms or None, ttls_ms or None,
    )  # fmt: skip


async def _answer(gateway: Gateway, outcomes: list[Published | RequestError]) -> Response:
    """Wait for the commits, and answer: 201 when all messages are on stable storage, else the status of the first error."""
    metrics = gateway.broker.metrics
    results: list[str] = []
    first_error: RequestError | None = None
    for number, outcome in enumerate(outcomes):
        if number % 16 == 15:
            await gateway.waiting.turn()
        error: RequestError | None
        if isinstance(outcome, RequestError):
            error, size = outcome, 1
        else:
            error, size = outcome.error or await gateway.settled(outcome.commit), outcome.count
        if error is not None:
            first_error = first_error or error
            metrics.refused(error.code, size)
            results += [json.dumps({"code": error.code, "detail": str(error)})] * size
        elif type(outcome) is Appended:
            results += [f'{{"id":{msg_id},"duplicate":false}}' for msg_id in range(outcome.first_id, outcome.first_id + size)]
        elif type(outcome) is Duplicate:
            metrics.duplicate_total += size
            results += [f'{{"id":{outcome.first_id},"duplicate":true}}'] * size
    listed = f'"results":[{",".join(results)}]'
    if first_error is None:
        return Response(f"{{{listed}}}", 201, None, "application/json")
    refusal = problem(first_error)
    described = bytes(refusal.body)[:-1].decode()
    headers = {name: value for name, value in refusal.headers.items() if name not in ("content-length", "content-type")}
    return Response(f"{described}, {listed}}}", STATUS[first_error.code], headers, "application/problem+json")


def _of_line(line: bytes) -> Parsed:
    try:
        return len(line), parse_line(line)
    except RequestError as error:
        return len(line), error.bare()


def parse_line(line: bytes) -> Message:
    """Parse a JSON line. Raises: BadArgument."""
    try:
        found = parse_json(line)
    except ValueError as error:
        raise BadArgument(f"invalid line: it is not valid JSON ({error})") from None
    if type(found) is not dict:
        raise BadArgument('invalid line: write a JSON object such as {"payload": "hello"}')
    return message_of(found, LINE_MEMBERS)


def message_of(found: Mapping[str, Any], known: frozenset[str]) -> Message:
    """Make a message from a JSON object. Raises: BadArgument."""
    if len(found) == 1 and type(payload := found.get("payload")) is str:  # the most frequent one
        return Message(payload_bytes(payload))
    check_members(found, known)
    key, headers = found.get("key"), found.get("headers")
    delay_ms, ttl_ms = found.get("delay_ms"), found.get("ttl_ms")
    if key is not None and type(key) is not str:
        raise BadArgument(f"invalid key {str(key)[:50]!a}: write a string")
    return Message(
        payload_of(found),
        check_key(key) if key is not None else b"",
        _block_of(headers) if headers is not None else b"",
        None if delay_ms is None else check_number("delay_ms", delay_ms, 0, DURATION_MS_MAX),
        None if ttl_ms is None else check_number("ttl_ms", ttl_ms, 1, DURATION_MS_MAX),
        _route_of(found.get("route")),
    )


def _route_of(route: object) -> bytes:
    if route is None:
        return b""
    if type(route) is not str:
        raise BadArgument(f"invalid route {str(route)[:50]!a}: write a string")
    return check_route(route)


def payload_of(found: Mapping[str, Any]) -> bytes:
    """The bytes of ``payload`` or ``payload_base64``. Raises: BadArgument."""
    text, encoded = found.get("payload"), found.get("payload_base64")
    if type(text) is str and encoded is None:
        return payload_bytes(text)
    if type(encoded) is str and text is None:
        try:
            return b64decode(encoded, validate=True)
        except ValueError:
            raise BadArgument("payload_base64 is not valid base64") from None
    raise BadArgument("a message needs either payload or payload_base64, a string")


def payload_bytes(text: str) -> bytes:
    """A payload that is given as text. Raises: BadArgument."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise BadArgument("the payload has half of a surrogate pair: use payload_base64 for bytes that are not UTF-8") from None


def _block_of(headers: object) -> bytes:
    if type(headers) is not dict or any(type(value) is not str for value in headers.values()):
        raise BadArgument('headers must be an object of strings: {"color": "red"}')
    return header_block(headers.items())


def _of_part(part: tuple[Mapping[str, bytes], bytes]) -> Parsed:
    """Make a message from a multipart part, whose headers are those of a single publish."""
    headers, payload = part
    try:
        for name in ("content-encoding", "content-transfer-encoding"):
            check_coding(headers.get(name, b"").decode("latin-1"))
        key, route = headers.get("idempotency-key"), headers.get("x-route")
        delay_ms, ttl_ms = (
            parameter.parse(found.decode("latin-1")) if (found := headers.get(parameter.name.lower())) is not None else None
            for parameter in (DELAY_MS, TTL_MS)
        )
        return len(payload), Message(
            payload,
            check_key(key.decode("latin-1")) if key is not None else b"",
            headers_of((name.encode("latin-1"), value) for name, value in headers.items()),
            delay_ms, ttl_ms,
            check_route(route.decode("latin-1")) if route is not None else b"",
        )  # fmt: skip
    except RequestError as error:
        return len(payload), error.bare()


MESSAGE_HEADERS: Parameter[str] = Parameter(
    "X-Header-*", "header", "Headers of the message: `X-Header-Color: red` is stored as `color: red`.", {"type": "string"}, str
)
TRACEPARENT: Parameter[str] = Parameter(
    "traceparent", "header", "W3C trace context; stored with the message.", {"type": "string"}, str
)

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "POST", "/v1/topics/{topic}/messages", "publish", "Publish one message. A topic that does not exist is created.",
        publish, "publish", (TOPIC, IDEMPOTENCY_KEY, ROUTE, DELAY_MS, TTL_MS, MESSAGE_HEADERS, TRACEPARENT),
        Body("The payload, as it is.", {"*/*": {"type": "string", "format": "binary"}}),
        {201: Answer("It is on stable storage.", RECEIPT)},
        PUBLISH_ERRORS, brief=True,
    ),
    Operation(
        "POST", "/v1/topics/{topic}/messages:batch", "publishBatch",
        "Publish many messages. 201 means that every one of them is on stable storage; when some were refused, the answer is "
        "the first one's problem with a member `results`, and those with an id are stored. With the code `SHUTTING_DOWN` their "
        "worker ended meanwhile: the outcome is unknown.",
        publish_batch, "publish", (TOPIC,),
        Body(
            "A JSON object a line, or a part a message with the headers of a single publish.",
            {
                "application/x-ndjson": {
                    "type": "object",
                    "properties": {
                        "payload": {"type": "string"},
                        "payload_base64": {"type": "string", "contentEncoding": "base64"},
                        "key": IDEMPOTENCY_KEY.schema,
                        "route": ROUTE.schema,
                        "delay_ms": DELAY_MS.schema,
                        "ttl_ms": TTL_MS.schema,
                        "headers": {"type": "object", "additionalProperties": {"type": "string"}},
                    },
                    "additionalProperties": False,
                },
                "multipart/mixed": {"type": "string", "format": "binary"},
                "multipart/form-data": {"type": "string", "format": "binary"},
            },
        ),
        {201: Answer("One result a message, in order.", RESULTS)},
        (*PUBLISH_ERRORS, BadFraming),
    ),
)  # fmt: skip
