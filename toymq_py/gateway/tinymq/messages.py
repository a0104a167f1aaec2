"""Messages of the dialect ``tinymq``: publish, consume, ack, requeue, stream. Consume leases a message; after three attempts it
is a dead letter."""

import hashlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from toymq_py.broker_waits import made
from toymq_py.errors import BadArgument, NoSuchTopic, QueueFull, RequestError, StorageFailed
from toymq_py.gateway import answer_room
from toymq_py.gateway.access import check_again, check_topic, may_go_on
from toymq_py.gateway.bodies import parse_object, read_body
from toymq_py.gateway.dialects import ensure
from toymq_py.gateway.events import stream_response
from toymq_py.gateway.headers import header_block, header_text
from toymq_py.gateway.long_poll import LongPoll
from toymq_py.gateway.message_operations import HEARTBEAT_S
from toymq_py.gateway.poll_operations import WAIT_S_MAX, LeasedResponse, encode_leased, give_back, lease_for, watched
from toymq_py.gateway.problems import NotLeased
from toymq_py.gateway.publish_operations import BATCH_BYTES_MAX, Message, append, check_size
from toymq_py.gateway.request_context import Gateway
from toymq_py.gateway.tinymq.live_tail import LiveTail
from toymq_py.gateway.tinymq.message_views import Filter, Place, Seen, describe, look
from toymq_py.gateway.tinymq.names import (
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
    OF_GLOB,
    OF_GROUP,
    OF_TOPIC,
    PEEK,
    PRIORITY,
    TIMEOUT,
    TOPIC,
    TTL,
    group_name,
    is_marked,
    message_id,
    of_group,
    settings_of,
    shown_id,
    topic_name,
)
from toymq_py.gateway.topic_operations import json_response
from toymq_py.gateway.webhook_pusher import CONSUMER_PREFIX
from toymq_py.names import is_dead_letters, is_pattern
from toymq_py.topic import Delivery, Published, Topic

BURIAL_S = 10.0
"""How long a requeue waits for its dead letter to be stored."""

# -- publishing


async def put(gateway: Gateway, name: str, message: Message) -> Published:
    """Append a message, or find its duplicate, and wait until it is on stable storage. Raises: RequestError."""
    if not message.payload:
        raise BadArgument("the payload is empty")
    check_size(message.payload, b"", BODY_BYTES_MAX)
    check_size(message.payload, message.headers, gateway.broker.options.max_payload_bytes)
    gateway.refuse_late()
    if not is_dead_letters(name):  # refused below, not created
        await ensure(gateway.broker, name, settings_of(name))
    topic = await made(partial(gateway.broker.topic_to_publish, name))
    (outcome,) = append(topic, [message])
    error = outcome.error or await gateway.settled(outcome.commit)
    if isinstance(error, QueueFull):
        raise QueueFull(f"queue capacity reached (max {topic.settings.backlog_max_messages or BACKLOG_MAX} messages)")
    if error is not None:
        raise error
    if outcome.duplicate:
        gateway.broker.metrics.duplicate_total += 1
    return outcome


async def store(gateway: Gateway, shown: str, name: str, message: Message, said_as: str = "topic") -> Response:
    """Append a message, and answer with its id. ``shown``: the topic as the request spells it; ``said_as``: its JSON key."""
    outcome = await put(gateway, name, message)
    if outcome.duplicate:
        return json_response({"status": "ignored", "reason": "idempotency_key_exists", said_as: shown})
    return json_response({"status": "accepted", said_as: shown, "id": shown_id(name, None, outcome.first_id)}, 202)


async def publish(gateway: Gateway, request: Request) -> Response:
    """``POST /publish/{topic}``."""
    name, key = TOPIC.need(request), KEY.of(request) or b""
    if BROADCAST.of(request):
        raise BadArgument("broadcast is not supported: every consumer group gets every message anyway")
    if PRIORITY.or_("normal", request) != "normal":
        raise BadArgument("priority must be normal: messages are delivered in order")
    automatic = IDEMPOTENCY.of(request)
    if automatic not in (None, "auto"):
        raise BadArgument(f"invalid idempotency {automatic[:50]!a}: write auto, or leave it out")
    payload = await read_body(request, min(BODY_BYTES_MAX, gateway.broker.options.max_payload_bytes))
    if automatic and not key:
        key = b"auto:" + hashlib.sha256(payload).hexdigest().encode()
    pairs = [(header.decode("latin-1"), header_text(value)) for header, value in request.headers.raw
             if header.startswith(HEADER_PREFIX)]
    message = Message(payload, key, header_block(pairs) if pairs else b"", DELAY.of(request) or None, TTL.of(request) or None)
    return await store(gateway, request.path_params["topic"], name, message)


def json_bytes_max(gateway: Gateway) -> int:
    """The largest message as JSON: it may have the payload as base64 and as text, each byte as an escape of six characters."""
    return max(BATCH_BYTES_MAX, 3 * gateway.broker.options.max_payload_bytes)


# -- consuming


def _one_or_all(texts: list[str], limit: int) -> str:
    """The answer's body: one JSON object if ``limit`` is 1, else a list of them."""
    return texts[0] if limit == 1 else f"[{', '.join(texts)}]"


def place_of(request: Request) -> Place:
    """The topic and group of a request. Raises: BadName, BadArgument."""
    name, group = OF_GLOB.need(request), _group(request)
    asked, _, _ = request.path_params["topic"].strip("/").partition(OF_GROUP)
    return Place(name, group, None if is_pattern(name) else asked)


def _group(request: Request) -> str | None:
    """The group of query or path. Raises: BadName, BadArgument."""
    _, of_path = of_group(request.path_params["topic"])
    group = GROUP.of(request)
    if group is not None and of_path not in (None, group):
        raise BadArgument(f"the path names the group {of_path} and the parameter {group}: name one")
    return of_path if group is None else group


async def consume(gateway: Gateway, request: Request) -> Response:
    """``GET /consume/{topic}``."""
    place, limit = place_of(request), LIMIT.or_(1, request)
    wait_s = min(TIMEOUT.or_(0, request) / 1000, WAIT_S_MAX)
    key, value = FILTER_KEY.of(request), FILTER_VAL.of(request)
    gateway.refuse_late()
    if (key is None) != (value is None):
        raise BadArgument("filter_key and filter_val need each other: give both or neither")
    if PEEK.of(request):
        return await _peek(gateway, request, place, limit)
    if not is_pattern(place.name):
        await ensure(gateway.broker, place.name, settings_of(place.name))
    if key is not None and value is not None:
        return await _select(gateway, request, place, limit, wait_s, Filter(key, value))
    polling = LongPoll(gateway.broker, gateway.waiting, place.name, place.consumer, visibility_s=LEASE_S)
    deliveries = await lease_for(gateway, request, polling, limit, wait_s)
    return await hand_out(gateway, request, place, deliveries, limit, acked=AUTO_ACK.of(request) or False)


async def hand_out(
    gateway: Gateway, request: Request, place: Place, deliveries: list[Delivery], limit: int, *, acked: bool
) -> Response:
    """Answer with leased messages. ``acked``: ack them first."""
    if not deliveries:
        return Response(status_code=204)
    texts = await encode_leased(
        gateway, request, deliveries, lambda each, row: describe(place, each.topic, each.records, row, each.attempt - 1)
    )
    content = _one_or_all(texts, limit)
    if not acked:
        return LeasedResponse(content, deliveries, {"cache-control": "no-store"}, "application/json")
    if await request.is_disconnected():  # acked messages would be lost
        give_back(deliveries)
        return Response(status_code=204)
    for delivery in deliveries:
        delivery.subscription.channel.ack(delivery.ranges())
    for delivery in deliveries:
        await _store_acks(gateway, delivery.topic)
    return Response(content, 200, None, "application/json")


async def _store_acks(gateway: Gateway, topic: str) -> None:
    with suppress(RequestError):  # without an answer acked messages would be lost; at worst they are delivered again
        await gateway.stored(gateway.broker.topic(topic).flush_offsets)


async def _peek(gateway: Gateway, request: Request, place: Place, limit: int) -> Response:
    if not is_pattern(place.name) and place.name not in gateway.broker.topics:
        return json_response({"status": "not_found", "message": "Topic does not exist"}, 404)
    texts = [json.dumps(shown) for _, _, shown in await look(gateway, request, place, limit)]
    return Response(_one_or_all(texts, limit), 200, None, "application/json") if texts else Response(status_code=204)


async def _select(
    gateway: Gateway, request: Request, place: Place, limit: int, wait_s: float, wanted: Filter
) -> Response:
    """The messages that a filter selects, without leasing them. Other messages stay in the queue; TinyMQ drops them."""
    acked = AUTO_ACK.of(request) or False
    with LiveTail(gateway, place, wanted) as tail:
        found = await look(gateway, request, place, limit, wanted)
        if not found and wait_s:
            wait = partial(_await_selected, gateway, request, tail, limit, wait_s, wanted)
            found = await watched(request, wait, tail.end, tail.end)
    if await request.is_disconnected():
        return Response(status_code=204)
    if acked:  # without those that another client took meanwhile
        found = [each for each in found if each[0].ack(place.consumer, [(each[1], each[1])], unseen=True)]
        for topic in dict.fromkeys(topic for topic, _, _ in found):
            await _store_acks(gateway, topic.name)
    texts = [json.dumps(shown) for _, _, shown in found]
    return Response(_one_or_all(texts, limit), 200, None, "application/json") if texts else Response(status_code=204)


async def _await_selected(
    gateway: Gateway, request: Request, tail: LiveTail, limit: int, wait_s: float, wanted: Filter
) -> list[Seen]:
    """Wait for a message that the filter selects, testing each new one. Raises: RequestError, OSError."""
    until = gateway.loop.time() + wait_s
    found: list[Seen] = []
    while not (found or tail.ended or gateway.waiting.stopped) and (left_s := until - gateway.loop.time()) > 0:
        grown = await tail.grown(left_s)
        check_again(gateway, request, "subscribe", tail.place.name)
        if grown and tail.take():
            found = await look(gateway, request, tail.place, limit, wanted)
    return found


# -- done with a message


async def ack(gateway: Gateway, request: Request) -> Response:
    """``POST /ack/{topic}/{id}``, of a message that was consumed or peeked."""
    name, group = OF_TOPIC.need(request), _group(request)
    topic = _topic_with(gateway, name)
    consumers = topic.consumers
    text = MESSAGE_ID.need(request)
    msg_id, holder = _whose(
        topic, text, group,
        lambda name, msg_id: consumers[name].has_delivered(msg_id, msg_id),
        lambda name, msg_id: consumers[name].maybe_delivered(msg_id),
    )  # fmt: skip
    if holder != CONSUMER and holder not in topic.consumers and not is_marked(text, name, holder):
        raise NotLeased(NOT_FOUND)
    if not topic.first_id <= msg_id < topic.next_id or not topic.ack(holder, [(msg_id, msg_id)], unseen=True):
        raise NotLeased(NOT_FOUND)
    await gateway.stored(topic.flush_offsets)
    return json_response({"status": "success", "message": "Message acknowledged"})


def _topic_with(gateway: Gateway, name: str) -> Topic:
    """Find a message's topic. Raises: NotLeased when the topic does not exist, as for an unknown message."""
    try:
        return gateway.broker.topic(name)
    except NoSuchTopic:
        raise NotLeased(NOT_FOUND) from None


def _whose(
    topic: Topic, text: str, group: str | None, has: Callable[[str, int], bool],
    maybe: Callable[[str, int], bool] = lambda name, msg_id: False,
) -> tuple[int, str]:  # fmt: skip
    """The message id and the consumer that a request refers to: the named group, or the group in the id's hash. A plain number
    without a group means the consumer ``tinymq`` if that ``has`` the message, else the only group that has it, else the only
    group that ``maybe`` had it before a restart.

    Raises: NotLeased; BadArgument when several groups have it.
    """
    msg_id, marked, known = message_id(topic, text, group)
    if group is not None or known:
        return msg_id, group or marked or CONSUMER
    named = [name for name in topic.consumers if not name.startswith(CONSUMER_PREFIX)]  # no webhooks
    groups = [name for name in named if has(name, msg_id)]
    if len(groups) > 1 and CONSUMER in groups:
        return msg_id, CONSUMER
    groups = groups or [name for name in named if maybe(name, msg_id)]
    if len(groups) > 1:
        raise BadArgument(f"message {msg_id} of {topic.name} is leased to several groups: name one with group=")
    return msg_id, groups[0] if groups else CONSUMER


async def requeue(gateway: Gateway, request: Request) -> Response:
    """``POST /requeue`` with the message as it was consumed. If that makes it a dead letter, it is stored before the answer."""
    group = GROUP.of(request)
    found = parse_object(await read_body(request, json_bytes_max(gateway)))
    if type(found.get("topic")) is not str or type(found.get("id")) not in (str, int):
        raise BadArgument("requeue needs topic, a string, and id, a string or number")
    if group is None and found.get("group") is not None:
        if type(found["group"]) is not str:
            raise BadArgument("group must be a string")
        group = group_name(found["group"])
    shown, of_topic = of_group(found["topic"])
    name = topic_name(shown)
    check_topic(request, "subscribe", name)
    topic = _topic_with(gateway, name)
    consumers = topic.consumers
    msg_id, holder = _whose(
        topic, str(found["id"]), of_topic if group is None else group, lambda name, msg_id: consumers[name].is_inflight(msg_id)
    )
    if holder not in topic.consumers or not topic.nack(holder, [(msg_id, msg_id)], 0.0):
        raise NotLeased(NOT_FOUND)
    await _buried(gateway, topic, holder, msg_id)
    await gateway.stored(topic.flush_offsets)  # the attempt counts, also after a crash
    return json_response({"status": "requeued"}, 202)


async def _buried(gateway: Gateway, topic: Topic, holder: str, msg_id: int) -> None:
    """Wait until a message without attempts left is stored as a dead letter. Raises: StorageFailed."""
    consumer = topic.consumers[holder]
    until = gateway.loop.time() + BURIAL_S
    while consumer.is_held(msg_id) and not topic.deleted:
        left_s = until - gateway.loop.time()
        if left_s <= 0 or gateway.waiting.stopped:
            raise StorageFailed(f"the dead letter of {msg_id} of {topic.name} is not stored yet; the broker goes on trying")
        await gateway.waiting.wait_for(partial(gateway.broker.when_letters_are_stored, topic), left_s)


# -- what is published, as it comes


async def stream(gateway: Gateway, request: Request) -> Response:
    """``GET /stream/{topic}``."""
    name = GLOB.need(request)
    key, value = FILTER_KEY.of(request), FILTER_VAL.of(request)
    if (key is None) != (value is None):
        raise BadArgument("filter_key and filter_val need each other: give both or neither")
    gateway.refuse_late()
    asked = request.path_params["topic"].strip("/")
    place = Place(name, None, None if is_pattern(name) else asked)
    wanted = None if key is None or value is None else Filter(key, value)
    return stream_response(_follow(gateway, request, asked, LiveTail(gateway, place, wanted)))


async def _follow(gateway: Gateway, request: Request, asked: str, tail: LiveTail) -> AsyncIterator[bytes]:
    with tail:
        yield f"data: {json.dumps({'status': 'connected', 'topic': asked})}\n\n".encode()
        while tail.living and not gateway.waiting.stopped:
            grown = await tail.grown(HEARTBEAT_S)
            if not may_go_on(gateway, request, "tinymqStream", "subscribe", tail.place.name):
                return
            await answer_room.wait_for_room(gateway.waiting, request)
            yield "".join(f"data: {text}\n\n" for text in tail.take()).encode() if grown else b":\n\n"
            await gateway.waiting.turn()
