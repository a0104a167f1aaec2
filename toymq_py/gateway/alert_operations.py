"""Define, list, delete and test alert rules. Contract: gateway.md; ADR 0149. ``alert_watch.py`` evaluates the rules."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from toymq_py.config.alerts import CONDITIONS, FOR_MS, REPEAT_MS, Alert
from toymq_py.config.webhooks import TIMEOUT_MS_MAX
from toymq_py.errors import BadArgument, BadFraming, BadName, DiskFull, Forbidden, Moved, PayloadTooLarge, StorageFailed
from toymq_py.gateway.access import check_topic
from toymq_py.gateway.bodies import JSON_BYTES_MAX, parse_object, read_body
from toymq_py.gateway.operations import TESTED, Answer, Body, Operation, Parameter
from toymq_py.gateway.problems import NoSuchAlert
from toymq_py.gateway.request_context import Gateway
from toymq_py.gateway.topic_operations import json_response
from toymq_py.names import NAME_BYTES_MAX, check_name

NAME = Parameter(
    "name", "path", "Name of the rule.", {"type": "string", "maxLength": NAME_BYTES_MAX},
    lambda name: check_name("alert", name), required=True,
)  # fmt: skip


async def list_alerts(gateway: Gateway, request: Request) -> Response:
    """``GET /v1/alerts``."""
    gateway.alerts.check()
    rules = [gateway.alerts.describe(name) for name in sorted(gateway.alerts.rules)]
    return json_response({"part": gateway.broker.placement.part, "alerts": rules})


async def put_alert(gateway: Gateway, request: Request) -> Response:
    """``PUT /v1/alerts/{name}``."""
    name = NAME.need(request)
    body = parse_object(await read_body(request, JSON_BYTES_MAX))
    alert = Alert.from_json(body)
    if alert.to is not None:
        check_topic(request, "publish", alert.to)
    for topic in (alert.topic, alert.to):
        if topic is not None:
            gateway.broker.partitioned.refuse_whole(topic)
            gateway.broker.placement.check(topic)
    gateway.refuse_late()
    new = await gateway.alerts.put(name, alert, keep_secret="secret" not in body)
    workers = len(gateway.broker.placement.addresses)
    watched = {"workers": workers} if workers > 1 else {}
    return json_response(gateway.alerts.describe(name) | watched, 201 if new else 200)


def _known(gateway: Gateway, request: Request) -> str:
    """The name of an existing rule. Raises: BadName, NoSuchAlert, StorageFailed."""
    name = NAME.need(request)
    gateway.alerts.check()
    if name not in gateway.alerts.rules:
        raise _absent(name)
    return name


def _absent(name: str) -> NoSuchAlert:
    return NoSuchAlert(f"no alert {name}: `toymqctl alerts` or GET /v1/alerts lists them")


async def get_alert(gateway: Gateway, request: Request) -> Response:
    """``GET /v1/alerts/{name}``."""
    return json_response(gateway.alerts.describe(_known(gateway, request)))


async def delete_alert(gateway: Gateway, request: Request) -> Response:
    """``DELETE /v1/alerts/{name}``."""
    name = NAME.need(request)
    if not await gateway.alerts.delete(name):
        raise _absent(name)
    return Response(status_code=204)


async def test_alert(gateway: Gateway, request: Request) -> Response:
    """``POST /v1/alerts/{name}:test``."""
    name = _known(gateway, request)
    if (to := gateway.alerts.rules[name].alert.to) is not None:
        check_topic(request, "publish", to)
    return json_response({"name": name, "failure": await gateway.alerts.test(name)})


_QUANTITY = {"type": ["integer", "string"]}
_NULL_TEXT = {"type": ["string", "null"]}
DEFINITION: dict[str, Any] = {
    "type": "object",
    "required": ["when"],
    "properties": {
        "when": {"enum": list(CONDITIONS), "description": "What is measured: a consumer's backlog, the age of its oldest "
                 "unacked message, dead letters, messages of a consumer with nothing attached, free space."},
        "topic": _NULL_TEXT | {"description": "Name or pattern; not for disk."},
        "threshold": _QUANTITY | {"description": "Messages, a duration (age), a size (disk): 10000, \"5m\", \"10GiB\"."},
        "clear": {"type": ["integer", "string", "null"], "description": "Resolved at this value; by default at 80 % of the "
                  "threshold, of disk at 120 %."},
        "for_ms": _QUANTITY | {"default": FOR_MS, "description": "So long it must last; also `for`: \"5m\"."},
        "repeat_ms": _QUANTITY | {"default": REPEAT_MS, "description": "Sent again so often while it fires, 0: never; also "
                                  "`repeat`: \"4h\"."},
        "url": _NULL_TEXT | {"description": "Post notices there; http or https. A private address needs --private-webhooks."},
        "secret": _NULL_TEXT | {"description": "Key of the signature (Standard Webhooks). Without the member an existing rule "
                                "keeps its own; null takes it away."},
        "timeout_ms": {"type": ["integer", "string"], "minimum": 1, "maximum": TIMEOUT_MS_MAX, "default": 10_000},
        "to": _NULL_TEXT | {"description": "Write notices to this topic, instead of url."},
    },
}  # fmt: skip
_TROUBLE = {"type": "object", "properties": {
    "topic": _NULL_TEXT, "consumer": _NULL_TEXT, "value": {"type": "integer"}, "since_ms": {"type": "integer"},
    "firing": {"type": "boolean"}}}  # fmt: skip
DESCRIBED = {
    "type": "object",
    "properties": {
        **DEFINITION["properties"],
        "name": {"type": "string"},
        "unit": {"enum": ["messages", "ms", "bytes"]},
        "firing": {"type": "integer", "description": "How many topics fire it."},
        "troubles": {"type": "array", "items": _TROUBLE},
        "beyond": {"type": "integer", "description": "Topics in trouble beyond the 1,000 that a rule watches at a time."},
        "failure": {"type": ["string", "null"], "description": "Why the last notice was not taken."},
        "workers": {"type": "integer", "description": "In the answer to PUT of a broker with --workers: how many it has. The "
                    "rule watches the topics of this one."},
    },
}
OPERATIONS: tuple[Operation, ...] = (
    Operation("GET", "/v1/alerts", "listAlerts", "List all alert rules and what fires.", list_alerts, "admin",
              answers={200: Answer("By name. With several workers or groups each has its own: `part` names whose these are.",
                  {"type": "object", "properties": {"part": _NULL_TEXT, "alerts": {"type": "array", "items": DESCRIBED}}})},
              errors=(StorageFailed,), safe=True),
    Operation("PUT", "/v1/alerts/{name}", "putAlert",
              "Tell a URL or a topic when something is wrong. `to` needs the right `publish` for that topic beside `admin`.",
              put_alert, "admin", (NAME,), Body("The rule.", {"application/json": DEFINITION}),
              {201: Answer("It is stored durably, and evaluated from now on.", DESCRIBED),
               200: Answer("It replaced an older rule.", DESCRIBED)},
              (BadArgument, BadFraming, BadName, DiskFull, Forbidden, Moved, PayloadTooLarge, StorageFailed)),
    Operation("GET", "/v1/alerts/{name}", "getAlert", "Describe a rule, without its secret, and what fires.", get_alert,
              "admin", (NAME,), answers={200: Answer("The rule.", DESCRIBED)},
              errors=(BadName, NoSuchAlert, StorageFailed), safe=True),
    Operation("DELETE", "/v1/alerts/{name}", "deleteAlert", "Delete a rule. What fires is not told to be resolved.",
              delete_alert, "admin", (NAME,), answers={204: Answer("It is deleted.")},
              errors=(BadName, DiskFull, NoSuchAlert, StorageFailed)),
    Operation("POST", "/v1/alerts/{name}:test", "testAlert", "Send a notice that says that it is a test, once.", test_alert,
              "admin", (NAME,), answers={200: Answer("Whether it was taken.", TESTED)},
              errors=(BadName, Forbidden, NoSuchAlert, StorageFailed)),
)  # fmt: skip
