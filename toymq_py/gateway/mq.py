"""The dialect ``mq``: SoftLayer's HTTP queue, path by path. Contract: dialects.md, "mq".

GET leases a message, which is redelivered unless it is deleted. This broker replaces the processes of the original: mover,
reaper, workers and peers.
"""

import re
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from toymq_py.broker import Done
from toymq_py.errors import (
    BadArgument,
    BadFraming,
    BadName,
    DiskFull,
    DiskLow,
    NoSuchTopic,
    PayloadTooLarge,
    QueueFull,
    RequestError,
    ShuttingDown,
    StorageFailed,
    TierAway,
    TierBehind,
    TooManyConsumers,
    TooManyTopics,
    TopicExists,
)
from toymq_py.gateway import answer_room
from toymq_py.gateway.bodies import read_body
from toymq_py.gateway.long_poll import LongPoll
from toymq_py.gateway.operations import Answer, Body, Operation, Parameter, whole
from toymq_py.gateway.poll_operations import LEASE_BYTES_MAX, LeasedResponse, give_back
from toymq_py.gateway.problems import NotLeased, problem
from toymq_py.gateway.publish_operations import Message, append
from toymq_py.gateway.request_context import Gateway
from toymq_py.records import MSG_ID_MAX

CONSUMER = "mq"
RETRY_AFTER_S = 10
RESERVED = frozenset((
    "v1", "metrics", "healthz", "readyz", "leader", "docs", "api", "publish", "consume", "ack", "requeue", "webhook", "stream",
    "ws",
))  # fmt: skip
TAKEN = dict.fromkeys(("metrics", "healthz", "readyz", "leader"), ("PUT", "DELETE")) | dict.fromkeys(
    ("requeue", "ws"), ("GET", "PUT", "DELETE")
)
"""Reserved names with a route of their own, in some dialect, and the methods that this dialect refuses on them."""
SETTINGS = {"max_attempts": "0"}
"""Settings of new queues: messages are redelivered without limit, since no name of this dialect reaches dead letters."""
_NAME = re.compile(r"[a-z0-9]{1,196}\Z")


def _check(name: str) -> str:
    if _NAME.match(name) is None:
        raise BadName(f"invalid queue name {name[:100]!a}: write 1 to 196 characters of a-z and 0-9")
    if name in RESERVED:
        raise TopicExists(f"{name} is a reserved name: choose another one for the queue")
    return name


def _message_id(text: str) -> int:
    try:
        return whole("id", 0, MSG_ID_MAX)(text)
    except BadArgument:
        raise NotLeased(f"no message has the id {text[:100]!a}") from None


QUEUE = Parameter("q", "path", "Name of the queue.", {"type": "string", "pattern": "^[a-z0-9]+$"}, _check, required=True)
MESSAGE_ID = Parameter("id", "path", "`X-Message-Id` of the message.", {"type": "string"}, _message_id, required=True)


def refuse(error: RequestError) -> Response:
    """The response to an error, with the statuses of the original: 400 for an invalid request, 503 when a message could not be
    stored."""
    if isinstance(error, BadFraming | BadName):
        return problem(error, status=400)
    if isinstance(error, DiskFull | DiskLow | StorageFailed | TierAway | TierBehind | QueueFull | ShuttingDown):
        return problem(error, status=503, retry_after_s=RETRY_AFTER_S)
    return problem(error)


async def get_queue(gateway: Gateway, request: Request) -> Response:
    """``GET /{q}``."""
    gateway.broker.topic(QUEUE.need(request))
    return Response()


async def put_queue(gateway: Gateway, request: Request) -> Response:
    """``PUT /{q}``."""
    name = QUEUE.need(request)
    gateway.refuse_late()
    settings = {} if gateway.broker.has(name) else SETTINGS  # an existing topic keeps its own
    await gateway.stored(partial(gateway.broker.create, name, settings))
    return Response(status_code=201)


async def delete_queue(gateway: Gateway, request: Request) -> Response:
    """``DELETE /{q}``."""
    name = QUEUE.need(request)

    def begin(done: Done) -> None:
        gateway.broker.delete(name, lambda count, error: done(error))

    await gateway.stored(begin)
    return Response()


async def get_message(gateway: Gateway, request: Request) -> Response:
    """``GET /{q}/messages``."""
    name = QUEUE.need(request)
    gateway.broker.topic(name)
    gateway.refuse_late()
    polling = LongPoll(gateway.broker, gateway.waiting, name, CONSUMER, visibility_s=gateway.mq_delay_s)
    deliveries = await polling.poll(1, LEASE_BYTES_MAX, 0)
    if not deliveries:
        return Response(status_code=204)
    records, row = deliveries[0].records, deliveries[0].start
    try:
        answer_room.hold(request, len(records.payloads[row]))
    except BaseException:
        give_back(deliveries)
        raise
    headers = {"x-message-id": str(records.ids[row]), "cache-control": "no-store"}
    return LeasedResponse(records.payloads[row], deliveries, headers, "application/octet-stream")


async def post_message(gateway: Gateway, request: Request) -> Response:
    """``POST /{q}/messages``."""
    name = QUEUE.need(request)
    gateway.broker.topic(name)
    payload = await read_body(request, gateway.broker.options.max_payload_bytes)
    gateway.refuse_late()
    (outcome,) = append(gateway.broker.topic(name), [Message(payload)])
    error = outcome.error or await gateway.settled(outcome.commit)
    if error is not None:
        gateway.broker.metrics.refused(error.code)
        return refuse(error)
    return Response(status_code=201, headers={"x-message-id": str(outcome.first_id)})


async def delete_message(gateway: Gateway, request: Request) -> Response:
    """``DELETE /{q}/messages/{id}``, whether leased or not. Idempotent, like the original's."""
    topic = gateway.broker.topic(QUEUE.need(request))
    msg_id = MESSAGE_ID.need(request)
    if msg_id >= topic.next_id:
        raise NotLeased(f"no message has the id {msg_id}")
    topic.ack(CONSUMER, [(msg_id, msg_id)], unseen=True)
    await gateway.stored(topic.flush_offsets)
    return Response(status_code=202)


async def reserved(gateway: Gateway, request: Request) -> Response:
    """Refuse a reserved name."""
    raise TopicExists(f"{request.url.path.strip('/')} is a reserved name: choose another one for the queue")


GONE = (BadName, NoSuchTopic, TopicExists)
RAW = {"type": "string", "format": "binary"}
OPERATIONS: tuple[Operation, ...] = (
    Operation("GET", "/{q}", "mqGetQueue", "Whether a queue exists.", get_queue, "describe", (QUEUE,),
              answers={200: Answer("It exists.")}, errors=GONE, safe=True, refuse=refuse, topic=QUEUE),
    Operation("PUT", "/{q}", "mqPutQueue", "Create a queue. Idempotent.", put_queue, "admin", (QUEUE,),
              answers={201: Answer("It exists now.")}, errors=(*GONE, StorageFailed, TooManyTopics), refuse=refuse, topic=QUEUE,
              makes_topic=True),
    Operation("DELETE", "/{q}", "mqDeleteQueue", "Delete a queue with its messages.", delete_queue, "admin", (QUEUE,),
              answers={200: Answer("It is deleted.")}, errors=(*GONE, StorageFailed), refuse=refuse, topic=QUEUE),
    Operation("GET", "/{q}/messages", "mqGetMessage", "Lease the oldest message.", get_message, "subscribe", (QUEUE,),
              answers={200: Answer("Its payload; `X-Message-Id` names it.", RAW, "application/octet-stream"),
                       204: Answer("There is none.")},
              errors=(*GONE, StorageFailed), refuse=refuse, topic=QUEUE),
    Operation("POST", "/{q}/messages", "mqPostMessage", "Publish a message.", post_message, "publish", (QUEUE,),
              Body("The payload.", {"*/*": RAW}), {201: Answer("It is on stable storage; `X-Message-Id` names it.")},
              (*GONE, BadFraming, PayloadTooLarge, StorageFailed), refuse=refuse, topic=QUEUE),
    Operation("DELETE", "/{q}/messages/{id}", "mqDeleteMessage", "Delete a message, leased or not.", delete_message,
              "subscribe",
              (QUEUE, MESSAGE_ID), answers={202: Answer("It is not delivered again, durably.")},
              errors=(*GONE, StorageFailed, TooManyConsumers), refuse=refuse, topic=QUEUE),
    *(Operation(method, f"/{name}", f"mq{method.capitalize()}Reserved{name.capitalize()}", "A reserved name.", reserved, "see",
                answers={409: Answer("The name is reserved.")}, errors=(TopicExists,), refuse=refuse)
      for name, methods in TAKEN.items() for method in methods),
)  # fmt: skip
