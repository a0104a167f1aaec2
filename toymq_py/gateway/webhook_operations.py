"""Define, list and delete webhooks. Contract: gateway.md. ``webhook_pusher.py`` pushes the messages."""

import json
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from toymq_py.config.webhooks import CONCURRENCY_MAX, NAME_MAX, TIMEOUT_MS_MAX, Webhook, check_webhook_name
from toymq_py.errors import BadArgument, BadFraming, BadName, DiskFull, Forbidden, Moved, PayloadTooLarge, StorageFailed
from toymq_py.gateway.access import check_topic, is_internal
from toymq_py.gateway.bodies import JSON_BYTES_MAX, parse_object, read_body
from toymq_py.gateway.neighbours import Neighbours
from toymq_py.gateway.operations import TESTED, Answer, Body, Operation, Parameter
from toymq_py.gateway.problems import NoSuchWebhook
from toymq_py.gateway.request_context import Gateway
from toymq_py.gateway.topic_operations import json_response
from toymq_py.names import is_pattern

NAME = Parameter(
    "name", "path", "Name of the webhook.", {"type": "string", "maxLength": NAME_MAX}, check_webhook_name, required=True
)


def _describe(gateway: Gateway, name: str) -> dict[str, Any]:
    webhooks = gateway.webhooks
    failure, letters = webhooks.failures.get(name), webhooks.letters[name]
    return {"name": name, **webhooks.defined[name].public(), "failure": failure, "letters": letters}


async def put_webhook(gateway: Gateway, request: Request) -> Response:
    """``PUT /v1/webhooks/{name}``."""
    name = NAME.need(request)
    body = parse_object(await read_body(request, JSON_BYTES_MAX))
    webhook = Webhook.from_json(body)
    check_topic(request, "subscribe", webhook.topic)  # a webhook reads the topic
    gateway.broker.partitioned.refuse_whole(webhook.topic)
    gateway.broker.placement.check(webhook.topic)
    gateway.refuse_late()
    if is_pattern(webhook.topic):
        await _reach_others(gateway, request)
    elif (before := gateway.webhooks.defined.get(name)) is not None and is_pattern(before.topic):
        await _delete_elsewhere(gateway, request)  # first, so that what fails can be tried again
    new = await gateway.webhooks.put(name, webhook, keep_secret="secret" not in body)
    stored = gateway.webhooks.defined.get(name)  # with the secret that it keeps; None: deleted meanwhile
    if stored is not None and is_pattern(stored.topic):
        await _put_elsewhere(gateway, request, stored)
    return json_response(_describe(gateway, name), 201 if new else 200)


def _known(gateway: Gateway, request: Request) -> str:
    """The name of an existing webhook. Raises: BadName, NoSuchWebhook, StorageFailed."""
    name = NAME.need(request)
    gateway.webhooks.check()
    if name not in gateway.webhooks.defined:
        raise _absent(name)
    return name


def _absent(name: str) -> NoSuchWebhook:
    return NoSuchWebhook(f"no webhook {name}: `toymqctl webhooks` or GET /v1/webhooks lists them")


async def get_webhook(gateway: Gateway, request: Request) -> Response:
    """``GET /v1/webhooks/{name}``."""
    return json_response(_describe(gateway, _known(gateway, request)))


async def delete_webhook(gateway: Gateway, request: Request) -> Response:
    """``DELETE /v1/webhooks/{name}``."""
    name = NAME.need(request)
    before, elsewhere = gateway.webhooks.defined.get(name), False
    if before is None or is_pattern(before.topic):  # first, so that what fails can be tried again, at any worker
        elsewhere = await _delete_elsewhere(gateway, request)
    if not await gateway.webhooks.delete(name) and not elsewhere:
        raise _absent(name)
    return Response(status_code=204)


# A webhook on a pattern is at every worker, each of which pushes its own topics. These raise PlacementUnknown.


def _others(gateway: Gateway, request: Request) -> Neighbours | None:
    return None if is_internal(request) else gateway.neighbours


async def _reach_others(gateway: Gateway, request: Request) -> None:
    if (others := _others(gateway, request)) is not None:
        await others.reach_all()


async def _put_elsewhere(gateway: Gateway, request: Request, webhook: Webhook) -> None:
    if (others := _others(gateway, request)) is not None:
        await others.change("PUT", _path(request), json.dumps(asdict(webhook)).encode())


async def _delete_elsewhere(gateway: Gateway, request: Request) -> bool:
    """Delete the webhook at other workers, except one on a single topic, which is another webhook of the same name. Returns:
    whether it existed."""
    others = _others(gateway, request)
    return others is not None and await others.delete_where(_path(request), lambda webhook: is_pattern(webhook["topic"]))


def _path(request: Request) -> str:
    return f"/v1/webhooks/{NAME.need(request)}"


async def list_webhooks(gateway: Gateway, request: Request) -> Response:
    """``GET /v1/webhooks``."""
    gateway.webhooks.check()
    found = [_describe(gateway, name) for name in sorted(gateway.webhooks.defined)]
    return json_response({"part": gateway.broker.placement.part, "webhooks": found})


async def test_webhook(gateway: Gateway, request: Request) -> Response:
    """``POST /v1/webhooks/{name}:test``."""
    name = _known(gateway, request)
    return json_response({"name": name, "failure": await gateway.webhooks.test(name)})


DEFINITION = {
    "type": "object",
    "required": ["topic", "url"],
    "properties": {
        "topic": {"type": "string", "description": "Name or pattern."},
        "url": {"type": "string", "description": "http or https; a private address needs --private-webhooks."},
        "secret": {"type": ["string", "null"], "description": "Key of the signature (Standard Webhooks). "
                   "Without the member an existing webhook keeps its own; null takes it away."},
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
        "letters": {"type": "integer", "description": "How many of its messages became dead letters since the start."},
    },
}
OPERATIONS: tuple[Operation, ...] = (
    Operation("GET", "/v1/webhooks", "listWebhooks", "List all webhooks.", list_webhooks, "admin",
              answers={200: Answer("By name. With several workers or groups each has its own: `part` names whose these are.",
                  {"type": "object", "properties": {
                      "part": {"type": ["string", "null"]}, "webhooks": {"type": "array", "items": DESCRIBED}}})},
              errors=(StorageFailed,), safe=True),
    Operation("PUT", "/v1/webhooks/{name}", "putWebhook",
              "Push the messages of a topic to a URL. The token needs `subscribe` for the topic beside `admin`.",
              put_webhook, "admin", (NAME,),
              Body("The definition.", {"application/json": DEFINITION}),
              {201: Answer("It is stored durably, and begins at the first message.", DESCRIBED),
               200: Answer("It replaced an older definition.", DESCRIBED)},
              (BadArgument, BadFraming, BadName, DiskFull, Forbidden, Moved, PayloadTooLarge, StorageFailed)),
    Operation("GET", "/v1/webhooks/{name}", "getWebhook", "Describe a webhook, without its secret.", get_webhook, "admin",
              (NAME,), answers={200: Answer("The definition.", DESCRIBED)}, errors=(BadName, NoSuchWebhook, StorageFailed),
              safe=True),
    Operation("DELETE", "/v1/webhooks/{name}", "deleteWebhook", "Delete a webhook and its consumer.", delete_webhook, "admin",
              (NAME,), answers={204: Answer("It is deleted.")}, errors=(BadName, DiskFull, NoSuchWebhook, StorageFailed)),
    Operation("POST", "/v1/webhooks/{name}:test", "testWebhook",
              "Push a test to the webhook's URL, once: no message is delivered.", test_webhook, "admin", (NAME,),
              answers={200: Answer("Whether it was taken.", TESTED)}, errors=(BadName, NoSuchWebhook, StorageFailed)),
)  # fmt: skip
