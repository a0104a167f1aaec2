"""The table of operations of the dialect ``tinymq``, as in dialects.md."""

from typing import Any

from toymq_py.errors import (
    BadArgument,
    BadFraming,
    BadName,
    DiskFull,
    DiskLow,
    Forbidden,
    NoSuchTopic,
    PayloadTooLarge,
    QueueFull,
    StorageFailed,
    TooManyConsumers,
    TooManyTopics,
    TopicExists,
)
from toymq_py.gateway.events import EVENT_STREAM
from toymq_py.gateway.operations import Answer, Body, Handler, Need, Operation, Parameter
from toymq_py.gateway.problems import UpgradeRequired
from toymq_py.gateway.tinymq import messages, queues, socket
from toymq_py.gateway.tinymq.names import (
    AUTO_ACK,
    BROADCAST,
    DELAY,
    FILTER_KEY,
    FILTER_VAL,
    GLOB,
    GROUP,
    IDEMPOTENCY,
    KEY,
    LIMIT,
    MESSAGE_ID,
    OF_GLOB,
    OF_GROUPS,
    OF_QUEUE,
    OF_TOPIC,
    PEEK,
    PRIORITY,
    QUEUE,
    TIMEOUT,
    TOPIC,
    TTL,
    refuse,
)

PUBLISH_ERRORS = (BadArgument, BadName, PayloadTooLarge, QueueFull, TooManyTopics, DiskLow, DiskFull, StorageFailed)
CONSUME_ERRORS = (BadArgument, BadName, NoSuchTopic, TooManyTopics, TooManyConsumers, StorageFailed)
STATE_ERRORS = (BadArgument, BadFraming, BadName, NoSuchTopic, PayloadTooLarge, TopicExists, TooManyTopics, StorageFailed)
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

OPERATIONS: tuple[Operation, ...] = (
    _operation("POST", "/publish/{topic:slashes}", "Publish", messages.publish, "publish",
               (TOPIC, TTL, DELAY, PRIORITY, BROADCAST, IDEMPOTENCY, KEY),
               topic=TOPIC, body=PAYLOAD, answers=STORED, errors=PUBLISH_ERRORS),
    _operation("GET", "/consume/{topic:slashes}", "Consume", messages.consume, "subscribe",
               (OF_GLOB, TIMEOUT, LIMIT, AUTO_ACK, GROUP, PEEK, FILTER_KEY, FILTER_VAL),
               topic=OF_GLOB, answers=LEASED, errors=CONSUME_ERRORS),
    _operation("POST", "/ack/{topic:slashes}/{id}", "Ack", messages.ack, "subscribe",
               (OF_TOPIC, MESSAGE_ID, GROUP), topic=OF_TOPIC, answers={200: Answer("Acked.", OBJECT)},
               errors=(BadArgument, BadName, NoSuchTopic, TooManyConsumers, StorageFailed)),
    _operation("POST", "/requeue", "Requeue", messages.requeue, "see", (GROUP,),
               body=JSON, answers={202: Answer("It comes again.", OBJECT)}, errors=STATE_ERRORS),
    _operation("GET", "/api/queues", "Queues", queues.list_queues, "see", safe=True, answers=SHOWN),
    _operation("POST", "/api/queues", "CreateQueue", queues.create_queue, "admin",
               body=JSON, answers=MADE, errors=STATE_ERRORS, makes_topic=True),
    _operation("POST", "/api/topics", "CreateTopic", queues.create_queue, "admin",
               body=JSON, answers=MADE, errors=STATE_ERRORS, makes_topic=True),
    _operation("GET", "/api/stats", "Stats", queues.stats, "see", safe=True, answers={200: Answer("Now.", OBJECT)}),
    _operation("POST", "/api/queues/publish", "QueuePublish", queues.queue_publish, "see",
               body=JSON, answers=STORED, errors=(*PUBLISH_ERRORS, BadFraming)),
    _operation("POST", "/api/queues/consume", "QueueConsume", queues.queue_consume, "see",
               body=JSON, answers=LEASED, errors=(*CONSUME_ERRORS, BadFraming, PayloadTooLarge)),
    _operation("GET", "/api/queues/peek", "QueuePeek", queues.queue_peek, "subscribe", (OF_QUEUE, LIMIT),
               safe=True, topic=OF_QUEUE, answers=SHOWN, errors=CONSUME_ERRORS),
    *(_operation(method, "/api/queues/delete", f"Queue{method.capitalize()}Delete", queues.queue_delete, "admin", (QUEUE,),
                 answers={200: Answer("It is gone.", OBJECT)}, errors=STATE_ERRORS)
      for method in ("DELETE", "POST")),
    *(_operation(method, "/api/queues/purge", f"Queue{method.capitalize()}Purge", queues.queue_purge, "admin", (QUEUE,),
                 answers={200: Answer("It is empty.", OBJECT)}, errors=STATE_ERRORS)
      for method in ("DELETE", "POST")),
    _operation("POST", "/api/queues/redrive", "QueueRedrive", queues.queue_redrive, "admin", (QUEUE,),
               answers={200: Answer("They are back.", OBJECT)}, errors=STATE_ERRORS),
    _operation("GET", "/api/queues/webhooks", "QueueWebhooks", queues.list_webhooks, "admin", (QUEUE,),
               safe=True, answers=SHOWN, errors=(BadArgument, BadName)),
    _operation("POST", "/webhook/{topic:slashes}", "Webhook", queues.add_webhook, "admin", (TOPIC,),
               body=JSON, answers=MADE, errors=(*STATE_ERRORS, Forbidden)),
    _operation("GET", "/api/groups", "Groups", queues.list_groups, "describe", (OF_GROUPS,), topic=OF_GROUPS,
               safe=True, answers={200: Answer("Of the topic.", OBJECT)}, errors=(BadArgument, BadName)),
    _operation("GET", "/api/cluster/status", "ClusterStatus", queues.cluster_status, "see", safe=True,
               answers={200: Answer("There is none.", OBJECT)}),
    _operation("POST", "/api/groups", "CreateGroup", queues.create_group, "admin",
               body=JSON, answers=MADE, errors=(*STATE_ERRORS, TooManyConsumers)),
    _operation("GET", "/stream/{topic:slashes}", "Stream", messages.stream, "subscribe", (GLOB, FILTER_KEY, FILTER_VAL),
               safe=True, topic=GLOB, answers={200: Answer("Until the broker shuts down.", {"type": "string"}, EVENT_STREAM)},
               errors=CONSUME_ERRORS),
    _operation("GET", socket.PATH, "Socket", socket.upgrade, "see", safe=True,
               answers={101: Answer("A WebSocket: frames of JSON that publish, and show what is published.")},
               errors=(UpgradeRequired,)),
)  # fmt: skip
