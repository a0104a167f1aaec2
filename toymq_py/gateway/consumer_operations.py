"""Ack, nack and extend of leased messages; describe, seek and delete of consumers; redrive of dead letters.

Contract: gateway.md; delivery.md. An ack is answered after the offsets flush that holds it; acks that arrive during a flush
share the next one.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from toymq_py import partition_operations
from toymq_py.broker import Done
from toymq_py.consumer_options import LEASE_NUMBER_MAX, Start
from toymq_py.errors import (
    BadArgument,
    BadFraming,
    BadName,
    DiskFull,
    DiskLow,
    NoSuchConsumer,
    NoSuchTopic,
    OutOfRange,
    PayloadTooLarge,
    QueueFull,
    RequestError,
    StorageFailed,
    TooManyConsumers,
)
from toymq_py.failure import Failure, failure_of
from toymq_py.gateway import whole_topics
from toymq_py.gateway.bodies import JSON_BYTES_MAX, check_members, parse_object, read_body, read_object
from toymq_py.gateway.operations import (
    CONSUMER,
    CONSUMER_OF_PATH,
    MESSAGE_ID,
    TOPIC,
    Answer,
    Body,
    Operation,
    Parameter,
    count,
    flag,
    seconds,
)
from toymq_py.gateway.problems import NotLeased
from toymq_py.gateway.request_context import Gateway
from toymq_py.gateway.topic_operations import json_response
from toymq_py.names import DEAD_LETTERS
from toymq_py.records import MSG_ID_MAX, IdRange
from toymq_py.topic import Topic
from toymq_py.units import DURATION_MS_MAX, check_number, parse_number

DURATION_S_MAX = DURATION_MS_MAX / 1000

VISIBILITY_S = seconds("visibility_s", "Visibility timeout of the lease; default: the topic's.", 0.001, DURATION_S_MAX)
ERROR_MEMBERS = ("type", "text", "traceback")


def parse_failure(reason: object, error: object) -> Failure | None:
    """Parse ``reason``, a string, and ``error``, a string or an object of ``ERROR_MEMBERS``. Raises: BadArgument."""
    described = {"text": error} if error is None or type(error) is str else error
    if type(described) is not dict:
        raise BadArgument('invalid error: write a string, or {"type": "ValueError", "text": "not found", "traceback": "..."}')
    check_members(described, frozenset(ERROR_MEMBERS))
    texts: list[str | None] = []
    for name, text in (("reason", reason), *((f"error.{member}", described.get(member)) for member in ERROR_MEMBERS)):
        if not (text is None or type(text) is str):
            raise BadArgument(f"{name} must be a string")
        texts.append(text)
    return failure_of(*texts)


DEAD = flag("dead", "Make it a dead letter at once; without `lease` also while it waits for its next delivery.")
REASON: Parameter[str] = Parameter("reason", "query", "Any text, for the dead letter.", {"type": "string"}, str)
LEASE = count("lease", "`lease` of the answer that had the message; default: any lease of it.", 1, LEASE_NUMBER_MAX)
DELAY_S = seconds("delay_s", "Deliver again after so long; default: the topic's backoff; 0: at once.", 0, DURATION_S_MAX)


async def ack(gateway: Gateway, request: Request) -> Response:
    """``DELETE /v1/topics/{t}/messages/{id}``."""
    topic = gateway.broker.topic(TOPIC.need(request))
    msg_id, consumer = MESSAGE_ID.need(request), CONSUMER.need(request)
    if not topic.ack(consumer, [(msg_id, msg_id)]):
        raise not_leased(topic, consumer, msg_id)
    await gateway.stored(topic.flush_offsets)
    return Response(status_code=204)


def not_leased(topic: Topic, consumer: str, msg_id: int) -> NotLeased:
    """The error for a message that is not leased to a consumer, or not under the lease number; names the message's state."""
    state, attempt = topic.channel(consumer).consumer.state_of(msg_id)
    if msg_id >= topic.next_id:
        instead = "there is no such message"
    elif state == "acked":
        instead = "it is acked, or a dead letter"
    elif state == "dying":
        instead = "it is on its way to the dead letters"
    elif state == "inflight":
        instead = "this lease has ended, and another one has it"
    elif attempt:
        instead = f"the lease has ended, and it waits for attempt {attempt + 1}; nack?dead=true without a lease gives it up"
    else:
        instead = "it was never delivered"
    return NotLeased(f"{msg_id} is not leased to {consumer}: {instead}")


async def ack_many(gateway: Gateway, request: Request) -> Response:
    """``POST /v1/topics/{t}/messages:ack``."""
    topic = gateway.broker.topic(TOPIC.need(request))
    consumer = CONSUMER.need(request)
    body = parse_object(await read_body(request, JSON_BYTES_MAX))
    check_members(body, frozenset({"ids"}))
    acked = topic.ack(consumer, parse_ids(body.get("ids")))
    if not acked:
        raise NotLeased(f"none of ids is leased to {consumer}: never delivered, acked already, or the leases have ended")
    await gateway.stored(topic.flush_offsets)
    return Response(status_code=204, headers={"x-acked": str(acked)})


def parse_ids(found: object) -> list[IdRange]:
    """Parse a JSON list of whole numbers and ranges ``"3-9"`` into ascending ranges. Raises: BadArgument."""
    if type(found) is not list or not found:
        raise BadArgument('ids must be a list of message ids and ranges: [7, "9-12"]')
    ranges = sorted(map(_range_of, found))
    merged = [ranges[0]]
    for first, last in ranges[1:]:
        if first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return merged


def _range_of(item: object) -> IdRange:
    if type(item) is int and 0 <= item <= MSG_ID_MAX:  # without a call: an ack has thousands of them
        return item, item
    if type(item) is not str:
        msg_id = check_number("id in ids", item)
        return msg_id, msg_id
    low, dash, high = item.partition("-")
    first = parse_number("id in ids", low)
    last = parse_number("id in ids", high, first) if dash else first
    return first, last


async def nack(gateway: Gateway, request: Request) -> Response:
    """``POST /v1/topics/{t}/messages/{id}:nack``."""
    topic = gateway.broker.topic(TOPIC.need(request))
    msg_id, consumer = MESSAGE_ID.need(request), CONSUMER.need(request)
    body = await read_object(request, frozenset({"reason", "error"}))
    failure = parse_failure(body.get("reason", REASON.of(request)), body.get("error"))
    delay_s, dead, lease = DELAY_S.of(request), DEAD.of(request) or False, LEASE.of(request)
    if not topic.nack(consumer, [(msg_id, msg_id)], delay_s, dead=dead, failure=failure, lease=lease):
        raise not_leased(topic, consumer, msg_id)
    await gateway.stored(topic.flush_offsets)  # the attempt counts, also after a crash
    return Response(status_code=204)


async def redrive_letters(gateway: Gateway, request: Request) -> Response:
    """``POST /v1/topics/{t}.dlq:redrive``."""
    name = TOPIC.need(request)
    body = await read_object(request, frozenset({"ids", "max"}))
    max_count = body.get("max")
    if max_count is not None:
        check_number("max", max_count, 1)
    ids = None if body.get("ids") is None else parse_ids(body["ids"])

    async def here() -> dict[str, int]:
        return {"redriven": await redrive(gateway, name, ids, max_count)}

    if not whole_topics.is_whole(gateway, name):
        return json_response(await here())
    if gateway.errands is not None and ids is None and max_count is None:
        return json_response({"redriven": await gateway.errands.redrive(name)})
    found = await whole_topics.here_and_there(gateway, request, name, here, json.dumps(body).encode())
    return json_response({"redriven": sum(one["redriven"] for one in found)})


async def redrive(gateway: Gateway, name: str, ids: Sequence[IdRange] | None, max_count: int | None) -> int:
    """Move dead letters back to their topic. Returns: how many, once they are on stable storage. Raises: RequestError."""
    gateway.refuse_late()
    moved = 0

    def begin(done: Done) -> None:
        def ended(count: int, error: OSError | RequestError | None) -> None:
            nonlocal moved
            moved = count
            done(error)

        partition_operations.redrive(gateway.broker, name, ids, max_count, ended)

    await gateway.stored(begin)
    return moved


async def discard_letters(gateway: Gateway, request: Request) -> Response:
    """``POST /v1/topics/{t}.dlq:discard``."""
    topic = gateway.broker.topic(TOPIC.need(request))
    body = await read_object(request, frozenset({"ids"}))
    if not topic.is_dead_letters:
        raise BadArgument(f"{topic.name} is not a dead-letter topic: their names end with {DEAD_LETTERS}")
    ids = parse_ids(body.get("ids"))
    gateway.refuse_late()
    discarded = topic.discard_letters(ids)
    topic.offsets.changed()
    await gateway.stored(topic.flush_offsets)
    return json_response({"discarded": discarded})


async def extend(gateway: Gateway, request: Request) -> Response:
    """``POST /v1/topics/{t}/messages/{id}:extend``."""
    topic = gateway.broker.topic(TOPIC.need(request))
    msg_id, consumer = MESSAGE_ID.need(request), CONSUMER.need(request)
    if not topic.touch(consumer, [(msg_id, msg_id)], VISIBILITY_S.of(request), lease=LEASE.of(request)):
        raise not_leased(topic, consumer, msg_id)
    return Response(status_code=204)


async def get_consumer(gateway: Gateway, request: Request) -> Response:
    """``GET /v1/topics/{t}/consumers/{c}``."""
    return json_response(await _describe(gateway, request, TOPIC.need(request), CONSUMER_OF_PATH.need(request)))


async def _describe(gateway: Gateway, request: Request, topic: str, consumer: str) -> dict[str, Any]:
    """Describe a consumer as JSON. Raises: NoSuchTopic, NoSuchConsumer."""
    if not whole_topics.is_whole(gateway, topic):
        return gateway.broker.topic(topic).describe_consumer(consumer)
    whole = await whole_topics.describe(gateway, request, topic)
    for found in whole["consumers"]:
        if found["consumer"] == consumer:
            return dict(found)
    raise NoSuchConsumer(f"no partition of {topic} has a consumer {consumer}")


async def put_consumer(gateway: Gateway, request: Request) -> Response:
    """``PUT /v1/topics/{t}/consumers/{c}``."""
    topic, name = TOPIC.need(request), CONSUMER_OF_PATH.need(request)
    if not whole_topics.is_whole(gateway, topic):
        gateway.broker.topic(topic)
    body = parse_object(await read_body(request, JSON_BYTES_MAX))
    check_members(body, frozenset({"seek", "create"}))
    target, creates = body.get("seek"), body.get("create", True)
    if type(target) not in (str, int):
        raise BadArgument('seek must be "earliest", "latest", a message id or "@<unix-ms>"')
    if type(creates) is not bool:
        raise BadArgument("create must be true or false")
    gateway.refuse_late()
    start = Start.parse_checked(str(target))
    partition_operations.check_seek(gateway.broker, topic, start)

    def seek(one: str, done: Done) -> None:
        found = gateway.broker.topic(one)
        found.seek(name, start, creates=creates)
        found.flush_offsets(done)

    if (errands := whole_topics.errands_for(gateway, topic)) is not None:
        await errands.seek(topic, name, start, creates=creates)
    else:
        await _everywhere(gateway, request, topic, seek, json.dumps(body).encode())
    return json_response(await whole_topics.described_after(_describe(gateway, request, topic, name)))


async def _everywhere(
    gateway: Gateway, request: Request, topic: str, change: Callable[[str, Done], None], body: bytes = b""
) -> None:
    """Change a consumer of a topic, or of all partitions that have the consumer. Raises: NoSuchTopic, NoSuchConsumer."""

    async def here() -> dict[str, Any]:
        await gateway.stored(lambda done: partition_operations.for_each_with(gateway.broker, topic, change, done))
        return {}

    if whole_topics.is_whole(gateway, topic):
        await whole_topics.here_and_there(gateway, request, topic, here, body)
    else:
        await here()


async def delete_consumer(gateway: Gateway, request: Request) -> Response:
    """``DELETE /v1/topics/{t}/consumers/{c}``."""
    topic, name = TOPIC.need(request), CONSUMER_OF_PATH.need(request)
    if (errands := whole_topics.errands_for(gateway, topic)) is not None:
        await errands.forget(topic, name)
        return Response(status_code=204)
    await _everywhere(gateway, request, topic, lambda one, done: partition_operations.forget(gateway.broker, one, name, done))
    return Response(status_code=204)


ERROR = {"oneOf": [
    {"type": "string"},
    {"type": "object", "properties": {name: {"type": "string"} for name in ERROR_MEMBERS}},
]}  # fmt: skip
DISCARDED = {"type": "object", "required": ["discarded"], "properties": {"discarded": {"type": "integer"}}}
REDRIVEN = {"type": "object", "required": ["redriven"], "properties": {"redriven": {"type": "integer"}}}
DESCRIBED = {"type": "object", "required": ["consumer", "ready", "inflight", "backlog"],
             "properties": {"consumer": {"type": "string"}, "ready": {"type": "integer"}, "inflight": {"type": "integer"},
                            "scheduled": {"type": "integer"}, "backlog": {"type": "integer"}}}  # fmt: skip
GONE: tuple[type[RequestError], ...] = (BadArgument, BadName, NoSuchTopic, NoSuchConsumer, NotLeased)

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "DELETE", "/v1/topics/{topic}/messages/{id}", "ack",
        "Ack a message: it is not delivered to this consumer again, also after a crash.",
        ack, "subscribe", (TOPIC, MESSAGE_ID, CONSUMER),
        answers={204: Answer("The ack is on stable storage.")}, errors=(*GONE, StorageFailed), brief=True,
    ),
    Operation(
        "POST", "/v1/topics/{topic}/messages/{id}:nack", "nack",
        "Nack a message: it is delivered again, or becomes a dead letter.",
        nack, "subscribe", (TOPIC, MESSAGE_ID, CONSUMER, LEASE, DELAY_S, DEAD, REASON),
        Body("Why it failed, for its dead letter; optional.", {"application/json": {
            "type": "object", "properties": {"reason": {"type": "string"}, "error": ERROR},
        }}),
        {204: Answer("The attempt is on stable storage.")},
        (*GONE, BadFraming, PayloadTooLarge, StorageFailed), brief=True,
    ),
    Operation(
        "POST", "/v1/topics/{topic}:redrive", "redrive",
        "Move dead letters (`orders.dlq`) back to their topic, for the consumer that failed them.",
        redrive_letters, "admin", (TOPIC,),
        Body('`{"ids": [7, "9-12"], "max": 100}`; an empty body for all.', {"application/json": {
            "type": "object",
            "properties": {
                "ids": {"type": "array", "items": {"type": ["integer", "string"]}},
                "max": {"type": "integer", "minimum": 1},
            },
        }}),
        {200: Answer("How many are back in their topic, on stable storage.", REDRIVEN)},
        (BadArgument, BadFraming, BadName, DiskFull, DiskLow, NoSuchTopic, PayloadTooLarge, QueueFull, StorageFailed),
    ),
    Operation(
        "POST", "/v1/topics/{topic}:discard", "discard",
        "Discard dead letters: they no longer wait, and no redrive brings them back. Retention drops their records later.",
        discard_letters, "admin", (TOPIC,),
        Body('`{"ids": [7, "9-12"]}`', {"application/json": {
            "type": "object", "required": ["ids"],
            "properties": {"ids": {"type": "array", "items": {"type": ["integer", "string"]}}},
        }}),
        {200: Answer("How many waited until now, on stable storage.", DISCARDED)},
        (BadArgument, BadFraming, BadName, NoSuchTopic, PayloadTooLarge, StorageFailed),
    ),
    Operation(
        "POST", "/v1/topics/{topic}/messages/{id}:extend", "extend", "Extend a lease: it lasts its whole time again.",
        extend, "subscribe", (TOPIC, MESSAGE_ID, CONSUMER, LEASE, VISIBILITY_S), answers={204: Answer("It is extended.")},
        errors=GONE, brief=True,
    ),
    Operation(
        "POST", "/v1/topics/{topic}/messages:ack", "ackMany",
        "Ack many messages. Ids that are not leased are skipped; an error when none is leased.",
        ack_many, "subscribe", (TOPIC, CONSUMER),
        Body('`{"ids": [7, "9-12"]}`', {"application/json": {
            "type": "object", "required": ["ids"],
            "properties": {"ids": {"type": "array", "items": {"type": ["integer", "string"]}}},
        }}),
        {204: Answer("The acks are on stable storage; `X-Acked` says how many.")},
        (*GONE, BadFraming, PayloadTooLarge, StorageFailed), brief=True,
    ),
    Operation(
        "GET", "/v1/topics/{topic}/consumers/{consumer}", "describeConsumer",
        "Describe a consumer: ready, inflight, scheduled, backlog.",
        get_consumer, "describe", (TOPIC, CONSUMER_OF_PATH), answers={200: Answer("As in DESCRIBE.", DESCRIBED)},
        errors=(BadName, NoSuchTopic, NoSuchConsumer), safe=True,
    ),
    Operation(
        "PUT", "/v1/topics/{topic}/consumers/{consumer}", "seek", "Move a consumer, or create one, at a position.",
        put_consumer, "admin", (TOPIC, CONSUMER_OF_PATH),
        Body('`{"seek": "earliest"}`, `latest`, a message id, or `@` and unix milliseconds. With `"create": false` a consumer '
             "that does not exist is a 404.", {"application/json": {
            "type": "object", "required": ["seek"],
            "properties": {"seek": {"type": ["integer", "string"]}, "create": {"type": "boolean"}},
        }}),
        {200: Answer("The position is on stable storage.", DESCRIBED)},
        (BadArgument, BadFraming, BadName, NoSuchTopic, NoSuchConsumer, OutOfRange, TooManyConsumers, StorageFailed),
    ),
    Operation(
        "DELETE", "/v1/topics/{topic}/consumers/{consumer}", "forget", "Delete a consumer's state.",
        delete_consumer, "admin", (TOPIC, CONSUMER_OF_PATH), answers={204: Answer("It is gone, also after a crash.")},
        errors=(BadName, NoSuchTopic, NoSuchConsumer, StorageFailed),
    ),
)  # fmt: skip
