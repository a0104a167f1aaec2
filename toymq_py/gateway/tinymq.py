"""The dialect ``tinymq``: TinyMQ's HTTP API, endpoint by endpoint. Contract: dialects.md, "tinymq".

How its words map: ``/`` in a name becomes ``.``; without ``group`` the consumer is ``tinymq``, a group is a consumer of that
name; the glob ``*`` at the end crosses dots. A consumed message is leased, and a dead letter after three attempts.
"""

import hashlib
import json
from base64 import b64encode
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from toymq_py.errors import (
    BadArgument,
    BadFraming,
    BadName,
    DiskFull,
    DiskLow,
    Forbidden,
    NoSuchConsumer,
    NoSuchTopic,
    PayloadTooLarge,
    QueueFull,
    RequestError,
    StorageFailed,
    TooManyConsumers,
    TooManyTopics,
    TopicExists,
)
from toymq_py.gateway.access import check_topic, grant_of
from toymq_py.gateway.bodies import check_members, parse_object, read_body
from toymq_py.gateway.consuming import redrive
from toymq_py.gateway.dialects import ensure, go_duration_ms, rfc3339
from toymq_py.gateway.events import EVENT_STREAM, stream_response
from toymq_py.gateway.gateway import Gateway
from toymq_py.gateway.headers import header_block, parse_block
from toymq_py.gateway.leasing import LEASE_BYTES_MAX, LEASE_MAX, WAIT_S_MAX, GivenBack, poll_for
from toymq_py.gateway.messages import HEARTBEAT_S, PAGE_MAX, READ_BYTES, still_may
from toymq_py.gateway.operations import Answer, Body, Handler, Need, Operation, Parameter, check_key, whole
from toymq_py.gateway.polling import Polling
from toymq_py.gateway.problems import STATUS, NotLeased
from toymq_py.gateway.publishing import Message, append
from toymq_py.gateway.pushing import CONSUMER_PREFIX
from toymq_py.gateway.topics import json_response, purge
from toymq_py.model import DEAD_LETTERS, EARLIEST, MSG_ID_MAX, Records, TopicPattern, check_name, is_pattern
from toymq_py.topic import Topic
from toymq_py.webhook import Webhook

CONSUMER = "tinymq"
LEASE_S = 30.0
BODY_BYTES_MAX = 2_097_152
"""Exactly so many are accepted, unless ``--max-payload`` is less."""
BACKLOG_MAX = 100_000
SETTINGS = {"backlog_max_messages": str(BACKLOG_MAX), "max_attempts": "3"}
"""Of the topics that are made here."""
FILTER_LOOKED_AT_MAX = 10_000
"""Messages that a filter looks at, so that a rare value does not hold everybody up."""
HEADER_PREFIX = "x-mq-"


# -- names and parameters


def _topic_name(text: str) -> str:
    """A topic of the original as ours. Raises: BadName."""
    return check_name("topic", text.strip("/").replace("/", "."))


def _topic_or_glob(text: str) -> str:
    """The same, or a glob: its last ``*`` crosses dots. Raises: BadName."""
    name = text.strip("/").replace("/", ".")
    if not is_pattern(name):
        return check_name("topic", name)
    if ">" in name:
        raise BadName("a glob has * for any text, as whole words only")
    pattern = name[:-1] + ">" if name.endswith("*") else name
    TopicPattern(pattern)
    return pattern


def _yes(name: str) -> Parameter[bool]:
    def parse(text: str) -> bool:
        if text not in ("true", "false", "1", "0"):
            raise BadArgument(f"{name} is true or false")
        return text in ("true", "1")

    return Parameter(name, "query", "", {"type": "boolean"}, parse)


def _duration(name: str, text: str) -> Parameter[int]:
    return Parameter(name, "query", text, {"type": "string"}, partial(go_duration_ms, name))


def _plain(name: str, text: str = "") -> Parameter[str]:
    return Parameter(name, "query", text, {"type": "string"}, str)


TOPIC = Parameter("topic", "path", "Slashes are dots here.", {"type": "string"}, _topic_name, required=True)
GLOB = Parameter("topic", "path", "Also with * at its end.", {"type": "string"}, _topic_or_glob, required=True)
MESSAGE_ID = Parameter("id", "path", "", {"type": "string"}, whole("id", 0, MSG_ID_MAX), required=True)
QUEUE = Parameter("queue", "query", "Name of the queue.", {"type": "string"}, _topic_name, required=True)
LIMIT = Parameter("limit", "query", "", {"type": "integer", "minimum": 1, "maximum": LEASE_MAX}, whole("limit", 1, LEASE_MAX))
TIMEOUT = _duration("timeout", "How long to wait for a message: 10s.")
GROUP = Parameter("group", "query", "A consumer group.", {"type": "string"}, lambda name: check_name("consumer", name))
TTL, DELAY = _duration("ttl", "Dropped after."), _duration("delay", "Delivered after.")
PRIORITY, BROADCAST = _plain("priority"), _yes("broadcast")
IDEMPOTENCY = _plain("idempotency", "auto: the body is its own key.")
AUTO_ACK, PEEK = _yes("auto_ack"), _yes("peek")
FILTER_KEY, FILTER_VAL = _plain("filter_key", "A header."), _plain("filter_val", "Its value. Nothing is consumed.")
KEY = Parameter("Idempotency-Key", "header", "", {"type": "string"}, check_key)


def refuse(error: RequestError) -> Response:
    """The original's statuses and its plain text."""
    if isinstance(error, NotLeased | NoSuchConsumer):
        return json_response({"status": "error", "message": "Message not found"}, 404)
    bad = isinstance(error, BadArgument | BadName | BadFraming)
    headers = {"cache-control": "no-store"}
    if error.retryable:
        headers["retry-after"] = "1"
    return Response(f"{error}\n", 400 if bad else STATUS[error.code], headers, "text/plain")


# -- publishing


async def _publish(gateway: Gateway, shown: str, name: str, message: Message) -> Response:
    gateway.refuse_late()
    if not name.endswith(DEAD_LETTERS):  # those are refused, not made
        await ensure(gateway.broker, name, SETTINGS)
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
    pairs = [(header, value) for header, value in request.headers.items() if header.startswith(HEADER_PREFIX)]
    message = Message(payload, key, header_block(pairs) if pairs else b"", DELAY.of(request) or None, TTL.of(request) or None)
    return await _publish(gateway, request.path_params["topic"], name, message)


# -- consuming


def describe(topic: str, records: Records, row: int, attempt: int) -> dict[str, Any]:
    """A message as the original shows one."""
    payload = records.payloads[row]
    shown: dict[str, Any] = {
        "id": str(records.ids[row]),
        "topic": topic,
        "payload": b64encode(payload).decode(),
        "timestamp": rfc3339(records.ts_ns[row]),
        "retry_count": attempt - 1,
        "payload_encoding": "base64",
    }
    if records.expires_at_ns is not None and records.expires_at_ns[row]:
        shown["expires_at"] = rfc3339(records.expires_at_ns[row])
    if records.headers is not None and records.headers[row]:
        shown["headers"] = parse_block(records.headers[row])
    with suppress(UnicodeDecodeError):
        shown["payload_text"] = payload.decode()
    return shown


def _one_or_all(messages: list[dict[str, Any]], limit: int) -> str:
    return json.dumps(messages[0] if limit == 1 else messages)


async def consume(gateway: Gateway, request: Request) -> Response:
    """``GET /consume/{topic}``."""
    name, limit = GLOB.need(request), LIMIT.or_(1, request)
    wait_s = min(TIMEOUT.or_(0, request) / 1000, WAIT_S_MAX)
    consumer, acked = GROUP.or_(CONSUMER, request), AUTO_ACK.of(request)
    key, value = FILTER_KEY.of(request), FILTER_VAL.of(request)
    gateway.refuse_late()
    if (key is None) != (value is None):
        raise BadArgument("filter_key and filter_val belong together")
    if PEEK.of(request) or key is not None:
        found = await _peek(gateway, name, consumer, limit, key, value)
        return Response(_one_or_all(found, limit), 200, None, "application/json") if found else Response(status_code=204)
    if not is_pattern(name) and ">" not in name:
        await ensure(gateway.broker, name, {} if name.endswith(DEAD_LETTERS) else SETTINGS)
    polling = Polling(gateway.broker, gateway.waiting, name, consumer, visibility_s=LEASE_S)
    deliveries = await poll_for(request, polling, limit, LEASE_BYTES_MAX, wait_s)
    if not deliveries:
        return Response(status_code=204)
    messages = [
        describe(delivery.topic, delivery.records, row, delivery.attempt)
        for delivery in deliveries
        for row in range(delivery.start, delivery.stop)
    ]
    content = _one_or_all(messages, limit)
    if acked:
        for delivery in deliveries:
            topic = delivery.subscription.topic
            topic.ack(consumer, [(delivery.first_id, delivery.last_id)])
            await gateway.stored(topic.flush_offsets)
        return Response(content, 200, None, "application/json")
    return GivenBack(content, deliveries, {"cache-control": "no-store"}, "application/json")


async def _peek(
    gateway: Gateway, name: str, consumer: str, limit: int, key: str | None, value: str | None
) -> list[dict[str, Any]]:
    """What the consumer has not acked, from the oldest on; nothing is leased."""
    topics = gateway.broker.topics
    matches = TopicPattern(name).matches if is_pattern(name) or ">" in name else name.__eq__
    found: list[dict[str, Any]] = []
    looked_at = 0
    for topic in [topics[each] for each in sorted(topics) if matches(each)]:
        state = topic.consumers.get(consumer)
        at = max(topic.log.first_id, state.floor if state is not None else 0)
        while at < topic.log.committed_id and len(found) < limit and looked_at < FILTER_LOOKED_AT_MAX and not topic.deleted:
            run, row, next_id = topic.log.read(at, min(PAGE_MAX, topic.log.committed_id - at), READ_BYTES)
            at = next_id
            for each in range(row, len(run) if run is not None else 0):
                assert run is not None
                looked_at += 1
                if run.ids[each] >= next_id or len(found) >= limit:
                    break
                shown = describe(topic.name, run, each, 1)
                if key is None or shown.get("headers", {}).get(key.lower()) == value:
                    found.append(shown)
            await gateway.waiting.pause()
    return found


async def ack(gateway: Gateway, request: Request) -> Response:
    """``POST /ack/{topic}/{id}``."""
    topic, msg_id = gateway.broker.topic(TOPIC.need(request)), MESSAGE_ID.need(request)
    if not _with_lease(topic, msg_id, GROUP.of(request), lambda consumer: topic.ack(consumer, [(msg_id, msg_id)])):
        raise NotLeased("Message not found")
    await gateway.stored(topic.flush_offsets)
    return json_response({"status": "success", "message": "Message acknowledged"})


def _with_lease(topic: Topic, msg_id: int, group: str | None, act: Any) -> bool:
    """Do it for the group that is named; else for the first one that has the message."""
    names = [group] if group is not None else [CONSUMER, *(name for name in topic.consumers if name != CONSUMER)]
    return any(name in topic.consumers and act(name) for name in names)


async def requeue(gateway: Gateway, request: Request) -> Response:
    """``POST /requeue``: the message, as it was consumed."""
    found = parse_object(await read_body(request, 2 * BODY_BYTES_MAX))
    if type(found.get("topic")) is not str or type(found.get("id")) not in (str, int):
        raise BadArgument("a message has topic and id")
    name = _topic_name(found["topic"])
    check_topic(request, "subscribe", name)
    topic = gateway.broker.topic(name)
    msg_id = whole("id", 0, MSG_ID_MAX)(str(found["id"]))
    if not _with_lease(topic, msg_id, None, lambda consumer: topic.nack(consumer, [(msg_id, msg_id)], 0.0)):
        raise NotLeased("Message not found")
    return json_response({"status": "requeued"}, 202)


# -- queues


def _queue(gateway: Gateway, topic: Topic) -> dict[str, Any]:
    hooked = any(name.startswith(CONSUMER_PREFIX) for name in topic.consumers)
    state = topic.consumers.get(CONSUMER)
    backlog = state.counts(topic.log.committed_id).backlog if state is not None else topic.log.messages()
    return {
        "Name": topic.name,
        "MessageCount": backlog,
        "WaitingConsumers": topic.attachments.sessions,
        "IsDLQ": topic.is_dead_letters,
        "HasWebhooks": hooked or any(_pushes(webhook, topic.name) for webhook in gateway.webhooks.defined.values()),
    }


def _pushes(webhook: Webhook, topic: str) -> bool:
    return TopicPattern(webhook.topic).matches(topic) if is_pattern(webhook.topic) else webhook.topic == topic


async def _queues(gateway: Gateway, request: Request) -> list[dict[str, Any]]:
    grant = grant_of(request)
    names: Iterable[str] = iter(sorted(gateway.broker.topics))
    found = []
    while part := list(islice(names, 64)):
        for name in part:
            topic = gateway.broker.topics.get(name)
            if topic is not None and not topic.deleted and (grant is None or grant.sees(name)):
                found.append(_queue(gateway, topic))
        await gateway.waiting.pause()
    return found


async def list_queues(gateway: Gateway, request: Request) -> Response:
    """``GET /api/queues``."""
    return json_response(await _queues(gateway, request))


async def stats(gateway: Gateway, request: Request) -> Response:
    """``GET /api/stats``."""
    return json_response({"stats": await _queues(gateway, request), "total_webhooks": len(gateway.webhooks.defined)})


async def _object(request: Request, *known: str) -> dict[str, Any]:
    found = parse_object(await read_body(request, 4 * BODY_BYTES_MAX))
    check_members(found, frozenset(known))
    return found


def _text(found: dict[str, Any], name: str) -> str:
    value = found.get(name)
    if type(value) is not str:
        raise BadArgument(f"{name} is a text")
    return value


async def create_queue(gateway: Gateway, request: Request) -> Response:
    """``POST /api/queues`` and ``POST /api/topics``."""
    found = await _object(request, "name", "policy", "retain")
    name = _topic_name(_text(found, "name"))
    settings = dict(SETTINGS)
    if (policy := found.get("policy")) is not None:
        if policy not in ("reject", "drop-oldest"):
            raise BadArgument("policy is reject or drop-oldest")
        settings["when_full"] = policy
    if found.get("retain") is not None:
        settings["retain_max_age"] = str(go_duration_ms("retain", _text(found, "retain")))
    gateway.refuse_late()
    if name in gateway.broker.topics:
        raise TopicExists(f"{name} exists")
    await gateway.stored(partial(gateway.broker.create, name, settings))
    return json_response({"status": "topic_created"}, 201)


async def queue_publish(gateway: Gateway, request: Request) -> Response:
    """``POST /api/queues/publish``."""
    found = await _object(request, "queue", "payload", "ttl", "delay", "broadcast")
    shown = _text(found, "queue")
    if found.get("broadcast"):
        raise BadArgument("broadcast is not done here: every consumer group sees every message")
    payload = _text(found, "payload").encode(errors="replace")
    if not payload:
        raise BadArgument("the payload is empty")
    name = _topic_name(shown)
    check_topic(request, "publish", name)
    times = {each: go_duration_ms(each, _text(found, each)) for each in ("ttl", "delay") if found.get(each)}
    message = Message(payload, delay_ms=times.get("delay") or None, ttl_ms=times.get("ttl") or None)
    return await _publish(gateway, shown, name, message)


async def queue_consume(gateway: Gateway, request: Request) -> Response:
    """``POST /api/queues/consume``."""
    found = await _object(request, "queue")
    name = _topic_name(_text(found, "queue"))
    check_topic(request, "subscribe", name)
    gateway.refuse_late()
    await ensure(gateway.broker, name, SETTINGS)
    polling = Polling(gateway.broker, gateway.waiting, name, CONSUMER, visibility_s=LEASE_S)
    deliveries = await polling.poll(1, LEASE_BYTES_MAX, 0)
    if not deliveries:
        return Response(status_code=204)
    delivery = deliveries[0]
    content = json.dumps(describe(name, delivery.records, delivery.start, delivery.attempt))
    return GivenBack(content, deliveries, {"cache-control": "no-store"}, "application/json")


async def queue_peek(gateway: Gateway, request: Request) -> Response:
    """``GET /api/queues/peek``."""
    name = QUEUE.need(request)
    gateway.broker.topic(name)
    return json_response(await _peek(gateway, name, CONSUMER, LIMIT.or_(10, request), None, None))


async def queue_delete(gateway: Gateway, request: Request) -> Response:
    """``POST /api/queues/delete``."""
    name = QUEUE.need(request)
    await gateway.stored(lambda done: gateway.broker.delete(name, lambda count, error: done(error)))
    return json_response({"status": "deleted"})


async def queue_purge(gateway: Gateway, request: Request) -> Response:
    """``POST /api/queues/purge``."""
    return json_response({"status": "purged", "purged_messages": await purge(gateway, QUEUE.need(request))})


async def queue_redrive(gateway: Gateway, request: Request) -> Response:
    """``POST /api/queues/redrive``: of a queue or of its dead letters."""
    name = QUEUE.need(request).removesuffix(DEAD_LETTERS) + DEAD_LETTERS
    return json_response({"status": "success", "redriven_messages": await redrive(gateway, name, None, None)})


# -- webhooks and groups


async def add_webhook(gateway: Gateway, request: Request) -> Response:
    """``POST /webhook/{topic}``."""
    topic = TOPIC.need(request)
    found = await _object(request, "url", "secret")
    webhook = Webhook.from_json({"topic": topic, **found})
    gateway.refuse_late()
    name = "tinymq." + hashlib.sha256(f"{topic} {webhook.url}".encode()).hexdigest()[:16]
    await gateway.webhooks.put(name, webhook)
    return json_response({"status": "webhook_registered"}, 201)


async def list_webhooks(gateway: Gateway, request: Request) -> Response:
    """``GET /api/queues/webhooks``."""
    queue = QUEUE.need(request)
    found = filter(lambda webhook: _pushes(webhook, queue), gateway.webhooks.defined.values())
    return json_response([{"topic": webhook.topic, "url": webhook.url} for webhook in found])


async def list_groups(gateway: Gateway, request: Request) -> Response:
    """``GET /api/groups``."""
    grant = grant_of(request)
    found = [
        {"topic": topic.name, "group": name}
        for topic in gateway.broker.topics.values()
        if not topic.deleted and (grant is None or grant.sees(topic.name))
        for name in topic.consumers
    ]
    return json_response(found)


async def create_group(gateway: Gateway, request: Request) -> Response:
    """``POST /api/groups``: it begins at the first message, and loses none."""
    found = await _object(request, "topic", "group")
    name, group = _topic_name(_text(found, "topic")), check_name("consumer", _text(found, "group"))
    gateway.refuse_late()
    await ensure(gateway.broker, name, SETTINGS)
    topic = gateway.broker.topic(name)
    if group in topic.consumers:
        raise TopicExists(f"{name} has a group {group}")
    topic.seek(group, EARLIEST)
    await gateway.stored(topic.flush_offsets)
    return json_response({"status": "group_created"}, 201)


async def stream(gateway: Gateway, request: Request) -> Response:
    """``GET /stream/{topic}``."""
    name = TOPIC.need(request)
    gateway.refuse_late()
    await ensure(gateway.broker, name, SETTINGS)
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
            shown = [json.dumps(describe(topic.name, run, each, 1)) for each in rows if run is not None and run.ids[each] < at]
            yield "".join(f"data: {text}\n\n" for text in shown).encode()
            await waiting.pause()
        elif not await waiting.wait_for(topic.when_committed, HEARTBEAT_S) and not waiting.stopped:
            yield b":\n\n"


PUBLISH_ERRORS = (BadArgument, BadName, PayloadTooLarge, QueueFull, TooManyTopics, DiskLow, DiskFull, StorageFailed)
CONSUME_ERRORS = (BadArgument, BadName, NoSuchTopic, TooManyTopics, TooManyConsumers, StorageFailed)
STATE_ERRORS = (BadArgument, BadFraming, BadName, NoSuchTopic, TopicExists, TooManyTopics, StorageFailed)
OBJECT = {"type": "object"}
ANY = {"oneOf": [OBJECT, {"type": "array", "items": OBJECT}]}
LIST = {"type": "array", "items": OBJECT}


REFUSALS = ("text/plain", "application/json")


def _operation(
    method: str, path: str, name: str, handler: Handler, needs: Need, parameters: tuple[Parameter[Any], ...] = (), **more: Any
) -> Operation:
    return Operation(
        method, path, f"tinymq{name}", "As TinyMQ.", handler, needs, parameters, refuse=refuse, refusals=REFUSALS, **more
    )


JSON = Body("As the original has it.", {"application/json": OBJECT})
PAYLOAD = Body("The payload.", {"*/*": {"type": "string", "format": "binary"}})
STORED = {202: Answer("It is on stable storage.", OBJECT), 200: Answer("It was there.", OBJECT)}
MADE = {201: Answer("It is there.", OBJECT)}
SHOWN = {200: Answer("All of them.", LIST)}
LEASED = {200: Answer("Leased.", ANY), 204: Answer("There is none.")}

OPERATIONS = (
    _operation("POST", "/publish/{topic:slashes}", "Publish", publish, "publish",
               (TOPIC, TTL, DELAY, PRIORITY, BROADCAST, IDEMPOTENCY, KEY),
               topic=TOPIC, body=PAYLOAD, answers=STORED, errors=PUBLISH_ERRORS),
    _operation("GET", "/consume/{topic:slashes}", "Consume", consume, "subscribe",
               (GLOB, TIMEOUT, LIMIT, AUTO_ACK, GROUP, PEEK, FILTER_KEY, FILTER_VAL),
               topic=GLOB, answers=LEASED, errors=CONSUME_ERRORS),
    _operation("POST", "/ack/{topic:slashes}/{id}", "Ack", ack, "subscribe", (TOPIC, MESSAGE_ID, GROUP),
               topic=TOPIC, answers={200: Answer("Acked.", OBJECT)}, errors=(BadArgument, BadName, NoSuchTopic, StorageFailed)),
    _operation("POST", "/requeue", "Requeue", requeue, "see",
               body=JSON, answers={202: Answer("It comes again.", OBJECT)}, errors=(*STATE_ERRORS, PayloadTooLarge)),
    _operation("GET", "/api/queues", "Queues", list_queues, "see", safe=True, answers=SHOWN),
    _operation("POST", "/api/queues", "CreateQueue", create_queue, "admin", body=JSON, answers=MADE, errors=STATE_ERRORS),
    _operation("POST", "/api/topics", "CreateTopic", create_queue, "admin", body=JSON, answers=MADE, errors=STATE_ERRORS),
    _operation("GET", "/api/stats", "Stats", stats, "see", safe=True, answers={200: Answer("Now.", OBJECT)}),
    _operation("POST", "/api/queues/publish", "QueuePublish", queue_publish, "see",
               body=JSON, answers=STORED, errors=(*PUBLISH_ERRORS, BadFraming)),
    _operation("POST", "/api/queues/consume", "QueueConsume", queue_consume, "see",
               body=JSON, answers=LEASED, errors=(*CONSUME_ERRORS, BadFraming)),
    _operation("GET", "/api/queues/peek", "QueuePeek", queue_peek, "subscribe", (QUEUE, LIMIT),
               safe=True, topic=QUEUE, answers=SHOWN, errors=CONSUME_ERRORS),
    _operation("POST", "/api/queues/delete", "QueueDelete", queue_delete, "admin", (QUEUE,),
               answers={200: Answer("It is gone.", OBJECT)}, errors=STATE_ERRORS),
    _operation("POST", "/api/queues/purge", "QueuePurge", queue_purge, "admin", (QUEUE,),
               answers={200: Answer("It is empty.", OBJECT)}, errors=STATE_ERRORS),
    _operation("POST", "/api/queues/redrive", "QueueRedrive", queue_redrive, "admin", (QUEUE,),
               answers={200: Answer("They are back.", OBJECT)}, errors=STATE_ERRORS),
    _operation("GET", "/api/queues/webhooks", "QueueWebhooks", list_webhooks, "admin", (QUEUE,),
               safe=True, answers=SHOWN, errors=(BadArgument, BadName)),
    _operation("POST", "/webhook/{topic:slashes}", "Webhook", add_webhook, "admin", (TOPIC,),
               body=JSON, answers=MADE, errors=(*STATE_ERRORS, Forbidden)),
    _operation("GET", "/api/groups", "Groups", list_groups, "see", safe=True, answers=SHOWN),
    _operation("POST", "/api/groups", "CreateGroup", create_group, "admin",
               body=JSON, answers=MADE, errors=(*STATE_ERRORS, TooManyConsumers)),
    _operation("GET", "/stream/{topic:slashes}", "Stream", stream, "subscribe", (TOPIC,),
               safe=True, topic=TOPIC, answers={200: Answer("Until the broker shuts down.", {"type": "string"}, EVENT_STREAM)},
               errors=CONSUME_ERRORS),
)  # fmt: skip
