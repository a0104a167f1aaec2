"""Messages of the dialect ``tinymq``: published, consumed, acked, streamed. A consumed message is leased, and a dead letter
after three attempts."""

import hashlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from toymq_py.consumer import Consumer
from toymq_py.errors import BadArgument, NoSuchTopic, QueueFull, RequestError
from toymq_py.gateway.access import check_topic
from toymq_py.gateway.bodies import parse_object, read_body
from toymq_py.gateway.dialects import ensure
from toymq_py.gateway.events import stream_response
from toymq_py.gateway.gateway import Gateway
from toymq_py.gateway.headers import header_block, header_text
from toymq_py.gateway.leasing import WAIT_S_MAX, GivenBack, give_back, lease_for
from toymq_py.gateway.messages import HEARTBEAT_S, PAGE_MAX, READ_BYTES, still_may
from toymq_py.gateway.polling import Polling
from toymq_py.gateway.problems import NotLeased
from toymq_py.gateway.publishing import BATCH_BYTES_MAX, Message, append, check_size
from toymq_py.gateway.pushing import CONSUMER_PREFIX
from toymq_py.gateway.tinymq.showing import describe, peek
from toymq_py.gateway.tinymq.words import (
    AUTO_ACK,
    BACKLOG_MAX,
    BODY_BYTES_MAX,
    BROADCAST,
    CONSUMER,
    DELAY,
    FILTER_KEY,
    FILTER_VAL,
    GLOB,
    GROUP,
    HEADER_PREFIX,
    IDEMPOTENCY,
    KEY,
    LEASE_S,
    LIMIT,
    MESSAGE_ID,
    NOT_FOUND,
    PEEK,
    PRIORITY,
    TIMEOUT,
    TOPIC,
    TTL,
    group_name,
    message_id,
    refuse,
    settings_of,
    topic_name,
)
from toymq_py.gateway.topics import json_response
from toymq_py.model import DEAD_LETTERS, is_pattern
from toymq_py.topic import Topic

# -- publishing


async def store(gateway: Gateway, shown: str, name: str, message: Message) -> Response:
    """Append a message and answer."""
    check_size(message.payload, b"", BODY_BYTES_MAX)
    check_size(message.payload, message.headers, gateway.broker.options.max_payload_bytes)
    gateway.refuse_late()
    if not name.endswith(DEAD_LETTERS):  # those are refused, not made
        await ensure(gateway.broker, name, settings_of(name))
    topic = gateway.broker.topic_to_publish(name)
    (outcome,) = append(topic, [message])
    error = outcome.error or await gateway.settled(outcome.commit)
    if isinstance(error, QueueFull):
        raise QueueFull(f"queue capacity reached (max {topic.settings.backlog_max_messages or BACKLOG_MAX} messages)")
    if error is not None:
        gateway.broker.metrics.refused(error.code)
        return refuse(error)
    if outcome.duplicate:
        gateway.broker.metrics.duplicate_total += 1
        return json_response({"status": "ignored", "reason": "idempotency_key_exists", "topic": shown})
    return json_response({"status": "accepted", "topic": shown, "id": str(outcome.first_id)}, 202)


async def publish(gateway: Gateway, request: Request) -> Response:
    """``POST /publish/{topic}``."""
    name, key = TOPIC.need(request), KEY.of(request) or b""
    if BROADCAST.of(request):
        raise BadArgument("broadcast is not done here: every consumer group sees every message")
    if PRIORITY.or_("normal", request) != "normal":
        raise BadArgument("priority is normal: messages are in order here")
    automatic = IDEMPOTENCY.of(request)
    if automatic not in (None, "auto"):
        raise BadArgument("idempotency is auto, or not there")
    payload = await read_body(request, min(BODY_BYTES_MAX, gateway.broker.options.max_payload_bytes))
    if not payload:
        raise BadArgument("the body is empty")
    if automatic and not key:
        key = b"auto:" + hashlib.sha256(payload).hexdigest().encode()
    pairs = [(header.decode("latin-1"), header_text(value)) for header, value in request.headers.raw
             if header.startswith(HEADER_PREFIX)]
    message = Message(payload, key, header_block(pairs) if pairs else b"", DELAY.of(request) or None, TTL.of(request) or None)
    return await store(gateway, request.path_params["topic"], name, message)


def json_bytes_max(gateway: Gateway) -> int:
    """Of a message as JSON: as base64 and beside it as text, in which a byte may be an escape of six."""
    return max(BATCH_BYTES_MAX, 3 * gateway.broker.options.max_payload_bytes)


# -- consuming


def _one_or_all(messages: list[dict[str, Any]], limit: int) -> str:
    return json.dumps(messages[0] if limit == 1 else messages)


async def consume(gateway: Gateway, request: Request) -> Response:
    """``GET /consume/{topic}``."""
    name, limit = GLOB.need(request), LIMIT.or_(1, request)
    wait_s = min(TIMEOUT.or_(0, request) / 1000, WAIT_S_MAX)
    group, acked = GROUP.of(request), AUTO_ACK.of(request)
    consumer = group or CONSUMER
    key, value = FILTER_KEY.of(request), FILTER_VAL.of(request)
    gateway.refuse_late()
    if (key is None) != (value is None):
        raise BadArgument("filter_key and filter_val belong together")
    if PEEK.of(request) or key is not None:
        found = await peek(gateway, name, consumer, limit, None if key is None or value is None else (key, value))
        return Response(_one_or_all(found, limit), 200, None, "application/json") if found else Response(status_code=204)
    if not is_pattern(name):
        await ensure(gateway.broker, name, settings_of(name))
    polling = Polling(gateway.broker, gateway.waiting, name, consumer, visibility_s=LEASE_S)
    deliveries = await lease_for(gateway, request, polling, limit, wait_s)
    if not deliveries:
        return Response(status_code=204)
    messages = [
        describe(delivery.topic, delivery.records, row, delivery.attempt - 1)
        for delivery in deliveries
        for row in range(delivery.start, delivery.stop)
    ]
    if group is not None:  # whoever gives it back says whose it is
        messages = [message | {"group": group} for message in messages]
    content = _one_or_all(messages, limit)
    if acked and await request.is_disconnected():  # acked, they would be lost
        give_back(deliveries)
        return Response(status_code=204)
    if acked:
        for delivery in deliveries:
            delivery.subscription.topic.ack(consumer, delivery.ranges())
        for delivery in deliveries:
            with suppress(RequestError):  # they are acked: without an answer they would be lost; at worst they come again
                await gateway.stored(delivery.subscription.topic.flush_offsets)
        return Response(content, 200, None, "application/json")
    return GivenBack(content, deliveries, {"cache-control": "no-store"}, "application/json")


async def ack(gateway: Gateway, request: Request) -> Response:
    """``POST /ack/{topic}/{id}``."""
    name, msg_id, group = TOPIC.need(request), MESSAGE_ID.need(request), GROUP.of(request)
    topic = _topic_with(gateway, name)
    try:
        holder = _holder(topic, msg_id, group, Consumer.has_delivered)
    except NotLeased:  # before a restart, then
        holder = _holder(topic, msg_id, group, Consumer.maybe_delivered, one=True)
    topic.ack(holder, [(msg_id, msg_id)])
    await gateway.stored(topic.flush_offsets)
    return json_response({"status": "success", "message": "Message acknowledged"})


def _topic_with(gateway: Gateway, name: str) -> Topic:
    """The topic of a message. Raises: NotLeased when there is none, as for any message that is not there."""
    try:
        return gateway.broker.topic(name)
    except NoSuchTopic:
        raise NotLeased(NOT_FOUND) from None


def _holder(
    topic: Topic, msg_id: int, group: str | None, has: Callable[[Consumer, int], bool], *, one: bool = False
) -> str:
    """Who has a message: the group that is named; else the consumer of those without one, unless it has to be the only ``one``;
    else the only group that does.

    Raises: NotLeased; BadArgument when several groups do: one must not end what another one has.
    """
    if group is None:
        named = (name for name in topic.consumers if not name.startswith(CONSUMER_PREFIX))  # no webhooks
        groups = [name for name in named if has(topic.consumers[name], msg_id)]
        if len(groups) > 1 and (one or CONSUMER not in groups):
            raise BadArgument(f"several groups have {msg_id} of {topic.name}: name one with group")
        group = CONSUMER if CONSUMER in groups else groups[0] if groups else None
    elif group not in topic.consumers or not has(topic.consumers[group], msg_id):
        group = None
    if group is None:
        raise NotLeased(NOT_FOUND)
    return group


async def requeue(gateway: Gateway, request: Request) -> Response:
    """``POST /requeue``: the message, as it was consumed."""
    group = GROUP.of(request)
    found = parse_object(await read_body(request, json_bytes_max(gateway)))
    if type(found.get("topic")) is not str or type(found.get("id")) not in (str, int):
        raise BadArgument("a message has topic and id")
    if group is None and found.get("group") is not None:
        if type(found["group"]) is not str:
            raise BadArgument("group is a text")
        group = group_name(found["group"])
    name = topic_name(found["topic"])
    check_topic(request, "subscribe", name)
    msg_id = message_id(str(found["id"]))
    topic = _topic_with(gateway, name)
    topic.nack(_holder(topic, msg_id, group, Consumer.is_inflight), [(msg_id, msg_id)], 0.0)
    return json_response({"status": "requeued"}, 202)


async def stream(gateway: Gateway, request: Request) -> Response:
    """``GET /stream/{topic}``."""
    name = TOPIC.need(request)
    gateway.refuse_late()
    await ensure(gateway.broker, name, settings_of(name))
    topic = gateway.broker.topic(name)
    return stream_response(_follow(gateway, request, topic, topic.log.committed_id))


async def _follow(gateway: Gateway, request: Request, topic: Topic, at: int) -> AsyncIterator[bytes]:
    waiting, log = gateway.waiting, topic.log
    yield b":\n\n"
    while not (waiting.stopped or topic.deleted) and still_may(gateway, request, topic):
        at = max(at, log.first_id)
        if at < log.committed_id:
            run, row, at = log.read(at, min(PAGE_MAX, log.committed_id - at), READ_BYTES)
            rows = range(row, len(run)) if run is not None else ()
            shown = [json.dumps(describe(topic.name, run, each, 0)) for each in rows if run is not None and run.ids[each] < at]
            yield "".join(f"data: {text}\n\n" for text in shown).encode()
            await waiting.pause()
        elif not await waiting.wait_for(topic.when_committed, HEARTBEAT_S) and not waiting.stopped:
            yield b":\n\n"
