"""Queues, webhooks and groups of the dialect ``tinymq``."""

import hashlib
from collections.abc import Iterable
from functools import partial
from itertools import islice
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from toymq_py.config.webhooks import Webhook
from toymq_py.consumer_options import EARLIEST
from toymq_py.errors import BadArgument, TopicExists
from toymq_py.gateway import answer_room
from toymq_py.gateway.access import acts_on, check_topic, grant_of
from toymq_py.gateway.bodies import JSON_BYTES_MAX, check_members, parse_object, read_body
from toymq_py.gateway.consumer_operations import redrive
from toymq_py.gateway.dialects import ensure, go_duration_ms
from toymq_py.gateway.long_poll import LongPoll
from toymq_py.gateway.poll_operations import LEASE_BYTES_MAX
from toymq_py.gateway.publish_operations import Message, payload_bytes
from toymq_py.gateway.request_context import Gateway
from toymq_py.gateway.tinymq.message_views import Place, look
from toymq_py.gateway.tinymq.messages import hand_out, json_bytes_max, store
from toymq_py.gateway.tinymq.names import (
    CONSUMER,
    LEASE_S,
    LIMIT,
    OF_GROUPS,
    OF_QUEUE,
    QUEUE,
    TOPIC,
    group_name,
    of_group,
    settings_of,
    topic_name,
    with_group,
)
from toymq_py.gateway.topic_operations import json_response, purge
from toymq_py.gateway.webhook_pusher import CONSUMER_PREFIX
from toymq_py.names import DEAD_LETTERS, TopicPattern, is_pattern
from toymq_py.topic import Topic

QUEUE_BYTES = 512
"""The memory of a listed queue: an object, and its text."""


def _queue(gateway: Gateway, topic: Topic) -> dict[str, Any]:
    hooked = any(name.startswith(CONSUMER_PREFIX) for name in topic.consumers)
    state = topic.consumers.get(CONSUMER)
    backlog = state.unacked(topic.next_id) if state is not None else topic.messages()
    return {
        "Name": topic.name,
        "MessageCount": backlog,
        "WaitingConsumers": _waiting(topic),
        "IsDLQ": topic.is_dead_letters,
        "HasWebhooks": hooked or any(_pushes(webhook, topic.name) for webhook in gateway.webhooks.defined.values()),
    }


def _waiting(topic: Topic) -> int:
    """The number of sessions and waiting polls, without polls of webhooks, which always wait."""
    return sum(channel.takers for name, channel in topic.channels.items() if not name.startswith(CONSUMER_PREFIX))


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
                answer_room.grow(request, QUEUE_BYTES)
        await gateway.waiting.turn()
    return found


async def list_queues(gateway: Gateway, request: Request) -> Response:
    """``GET /api/queues``."""
    return json_response(await _queues(gateway, request))


async def stats(gateway: Gateway, request: Request) -> Response:
    """``GET /api/stats``."""
    return json_response({"stats": await _queues(gateway, request), "total_webhooks": len(gateway.webhooks.defined)})


async def _object(request: Request, *known: str, bytes_max: int = JSON_BYTES_MAX) -> dict[str, Any]:
    found = parse_object(await read_body(request, bytes_max))
    check_members(found, frozenset(known))
    return found


def _text(found: dict[str, Any], name: str) -> str:
    value = found.get(name)
    if type(value) is not str:
        raise BadArgument(f"{name} must be a string")
    return value


async def create_queue(gateway: Gateway, request: Request) -> Response:
    """``POST /api/queues`` and ``POST /api/topics``."""
    found = await _object(request, "name", "policy", "retain")
    name = topic_name(_text(found, "name"))
    acts_on(request, topic=name)
    settings = settings_of(name)
    if policy := found.get("policy"):
        if policy not in ("reject", "drop-oldest"):
            raise BadArgument(f"invalid policy {str(policy)[:50]!a}: write reject or drop-oldest")
        settings["when_full"] = policy
    if found.get("retain") and (retain_ms := go_duration_ms("retain", _text(found, "retain"))):
        settings["ttl"] = str(retain_ms)  # of each message; retention would drop whole segments, later
    gateway.refuse_late()
    if name in gateway.broker.topics:
        raise TopicExists(f"{name} exists")
    await gateway.stored(partial(gateway.broker.create, name, settings))
    return json_response({"status": "topic_created"}, 201)


async def queue_publish(gateway: Gateway, request: Request) -> Response:
    """``POST /api/queues/publish``."""
    found = await _object(request, "queue", "payload", "ttl", "delay", "broadcast", bytes_max=json_bytes_max(gateway))
    shown = _text(found, "queue")
    if found.get("broadcast"):
        raise BadArgument("broadcast is not supported: every consumer group gets every message anyway")
    payload = payload_bytes(_text(found, "payload"))
    name = topic_name(shown)
    check_topic(request, "publish", name)
    times = {each: go_duration_ms(each, _text(found, each)) for each in ("ttl", "delay") if found.get(each)}
    message = Message(payload, delay_ms=times.get("delay") or None, ttl_ms=times.get("ttl") or None)
    return await store(gateway, shown, name, message, "queue")


async def queue_consume(gateway: Gateway, request: Request) -> Response:
    """``POST /api/queues/consume``: one message, acked."""
    found = await _object(request, "queue")
    asked = _text(found, "queue")
    shown, group = of_group(asked)
    name = topic_name(shown)
    check_topic(request, "subscribe", name)
    gateway.refuse_late()
    await ensure(gateway.broker, name, settings_of(name))
    place = Place(name, group, shown.strip("/"))
    polling = LongPoll(gateway.broker, gateway.waiting, name, place.consumer, visibility_s=LEASE_S)
    deliveries = await polling.poll(1, LEASE_BYTES_MAX, 0)
    return await hand_out(gateway, request, place, deliveries, 1, acked=True)


async def queue_peek(gateway: Gateway, request: Request) -> Response:
    """``GET /api/queues/peek``; no messages for a queue that does not exist."""
    name = OF_QUEUE.need(request)
    shown, group = of_group(request.query_params["queue"])
    found = await look(gateway, request, Place(name, group, shown.strip("/")), LIMIT.or_(10, request))
    return json_response([message for _, _, message in found])


async def queue_delete(gateway: Gateway, request: Request) -> Response:
    """``DELETE`` or ``POST /api/queues/delete``."""
    name = QUEUE.need(request)
    await gateway.stored(lambda done: gateway.broker.delete(name, lambda count, error: done(error)))
    return json_response({"status": "deleted"})


async def queue_purge(gateway: Gateway, request: Request) -> Response:
    """``DELETE`` or ``POST /api/queues/purge``."""
    return json_response({"status": "purged", "purged_messages": await purge(gateway, QUEUE.need(request))})


async def queue_redrive(gateway: Gateway, request: Request) -> Response:
    """``POST /api/queues/redrive``; names a queue or its dead-letter queue."""
    name = QUEUE.need(request).removesuffix(DEAD_LETTERS) + DEAD_LETTERS
    return json_response({"status": "success", "redriven_messages": await redrive(gateway, name, None, None)})


# -- webhooks and groups


async def add_webhook(gateway: Gateway, request: Request) -> Response:
    """``POST /webhook/{topic}``."""
    topic = TOPIC.need(request)
    found = await _object(request, "url", "secret")
    webhook = Webhook.from_json({"topic": topic, **found})
    check_topic(request, "subscribe", webhook.topic)  # a webhook reads the topic
    gateway.refuse_late()
    # the topic first: the webhook's poll would create it without settings; but not for a refused target
    await gateway.sender.check(webhook.url)
    await ensure(gateway.broker, topic, settings_of(topic))
    name = "tinymq." + hashlib.sha256(f"{topic} {webhook.url}".encode()).hexdigest()[:16]
    await gateway.webhooks.put(name, webhook)
    return json_response({"status": "webhook_registered"}, 201)


async def list_webhooks(gateway: Gateway, request: Request) -> Response:
    """``GET /api/queues/webhooks``: the URLs of webhooks."""
    queue = QUEUE.need(request)
    return json_response([webhook.url for webhook in gateway.webhooks.defined.values() if _pushes(webhook, queue)])


async def list_groups(gateway: Gateway, request: Request) -> Response:
    """``GET /api/groups``: the groups of a topic; [] for one that does not exist."""
    name = OF_GROUPS.need(request)
    topic = gateway.broker.topics.get(name)
    consumers = () if topic is None else topic.consumers
    groups = [each for each in consumers if each != CONSUMER and not each.startswith(CONSUMER_PREFIX)]
    return json_response({"topic": request.query_params["topic"], "groups": groups})


async def create_group(gateway: Gateway, request: Request) -> Response:
    """``POST /api/groups``: create a group at the first retained message. Idempotent."""
    found = await _object(request, "topic", "group")
    shown = _text(found, "topic")
    name, group = topic_name(shown), group_name(_text(found, "group"))
    acts_on(request, topic=name, group=group)
    gateway.refuse_late()
    await ensure(gateway.broker, name, settings_of(name))
    topic = gateway.broker.topic(name)
    if group not in topic.consumers:
        topic.seek(group, EARLIEST)
    await gateway.stored(topic.flush_offsets)
    return json_response({"status": "created", "virtual_topic": with_group(shown, group)}, 201)


async def cluster_status(gateway: Gateway, request: Request) -> Response:
    """``GET /api/cluster/status``: clustering is not supported."""
    return json_response({"clustering_enabled": False})
