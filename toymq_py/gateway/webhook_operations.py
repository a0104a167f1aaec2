"""The definitions of webhooks over HTTP. Contract: gateway.md. What they do is in ``webhook_pusher.py``."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from toymq_py.config.webhooks import CONCURRENCY_MAX, NAME_MAX, TIMEOUT_MS_MAX, Webhook, check_webhook_name
from toymq_py.errors import BadArgument, BadFraming, BadName, DiskFull, Forbidden, PayloadTooLarge, StorageFailed
from toymq_py.gateway.access import check_topic
from toymq_py.gateway.bodies import JSON_BYTES_MAX, parse_object, read_body
from toymq_py.gateway.operations import Answer, Body, Operation, Parameter
from toymq_py.gateway.problems import NoSuchWebhook
from toymq_py.gateway.request_context import Gateway
from toymq_py.gateway.topic_operations import json_response

NAME = Parameter(
    "name", "path", "Name of the webhook.", {"type": "string", "maxLength": NAME_MAX}, check_webhook_name, required=True
)


def _describe(gateway: Gateway, name: str) -> dict[str, Any]:
    webhooks = gateway.webhooks
    return {"name": name, **webhooks.defined[name].public(), "failure": webhooks.failures.get(name)}


async def put_webhook(gateway: Gateway, request: Request) -> Response:
    """``PUT /v1/webhooks/{name}``."""
    name = NAME.need(request)
    webhook = Webhook.from_json(parse_object(await read_body(request, JSON_BYTES_MAX)))
    check_topic(request, "subscribe", webhook.topic)  # what is pushed is read
    gateway.refuse_late()
    new = await gateway.webhooks.put(name, webhook)
    return json_response(_describe(gateway, name), 201 if new else 200)


async def get_webhook(gateway: Gateway, request: Request) -> Response:
    """``GET /v1/webhooks/{name}``."""
    name = NAME.need(request)
    if name not in gateway.webhooks.defined:
        raise NoSuchWebhook(f"there is no webhook {name}")
    return json_response(_describe(gateway, name))


async def delete_webhook(gateway: Gateway, request: Request) -> Response:
    """``DELETE /v1/webhooks/{name}``."""
    name = NAME.need(request)
    if not await gateway.webhooks.delete(name):
        raise NoSuchWebhook(f"there is no webhook {name}")
    return Response(status_code=204)


async def list_webhooks(gateway: Gateway, request: Request) -> Response:
    """``GET /v1/webhooks``."""
    return json_response({"webhooks": [_describe(gateway, name) for name in sorted(gateway.webhooks.defined)]})


DEFINITION = {
    "type": "object",
    "required": ["topic", "url"],
    "properties": {
        "topic": {"type": "string", "description": "Name or pattern."},
        "url": {"type": "string", "description": "http or https; not of this machine or its network, unless that is allowed."},
        "secret": {"type": ["string", "null"], "description": "Signs what is pushed (Standard Webhooks)."},
        "timeout_ms": {"type": "integer", "minimum": 1, "maximum": TIMEOUT_MS_MAX, "default": 10_000},
        "concurrency": {"type": "integer", "minimum": 1, "maximum": CONCURRENCY_MAX, "default": 1},
    },
}
DESCRIBED = {
    "type": "object",
    "properties": {
        **DEFINITION["properties"],  # type: ignore[dict-item]
        "name": {"type": "string"},
        "failure": {"type": ["string", "null"], "description": "Why the last push failed."},
    },
}
OPERATIONS = (
    Operation("GET", "/v1/webhooks", "listWebhooks", "Every webhook.", list_webhooks, "admin",
              answers={200: Answer("By name.", {"type": "object", "properties": {
                  "webhooks": {"type": "array", "items": DESCRIBED}}})}, safe=True),
    Operation("PUT", "/v1/webhooks/{name}", "putWebhook",
              "Push what comes to a topic to a URL. The token needs `subscribe` for the topic beside `admin`.",
              put_webhook, "admin", (NAME,),
              Body("The definition.", {"application/json": DEFINITION}),
              {201: Answer("It is on stable storage and begins at the first message.", DESCRIBED),
               200: Answer("It replaces another.", DESCRIBED)},
              (BadArgument, BadFraming, BadName, DiskFull, Forbidden, PayloadTooLarge, StorageFailed)),
    Operation("GET", "/v1/webhooks/{name}", "getWebhook", "One webhook; its secret is not shown.", get_webhook, "admin",
              (NAME,), answers={200: Answer("It.", DESCRIBED)}, errors=(BadName, NoSuchWebhook), safe=True),
    Operation("DELETE", "/v1/webhooks/{name}", "deleteWebhook", "Remove a webhook and its consumer.", delete_webhook, "admin",
              (NAME,), answers={204: Answer("It is gone.")}, errors=(BadName, DiskFull, NoSuchWebhook, StorageFailed)),
)  # fmt: skip
