"""List AMQP exchanges, queues and bindings, and declare those of a definitions file. Contract: gateway.md; ADR 0162."""

import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from toymq_py.config.amqp_definitions import FIELDS, KINDS, AmqpDefinition, Key, add
from toymq_py.errors import BadArgument, BadFraming, ConfigError, DiskFull, PayloadTooLarge, StorageFailed
from toymq_py.gateway import answer_room
from toymq_py.gateway.access import acts_on
from toymq_py.gateway.bodies import JSON_BYTES_MAX, check_members, parse_object, read_body
from toymq_py.gateway.operations import Answer, Body, Operation, Parameter, count
from toymq_py.gateway.request_context import Amqp, Gateway
from toymq_py.gateway.topic_operations import json_response, json_rows

LISTED_MAX = 1000
LISTED = 100
SKIP_MAX = 1_000_000
SEARCH_CHARS_MAX = 255
PER_TURN = 64
"""Queues and other objects that are looked at before other tasks get a turn."""


def _search(text: str) -> str:
    if not 0 < len(text) <= SEARCH_CHARS_MAX:
        raise BadArgument(f"search is 1 to {SEARCH_CHARS_MAX} characters")
    return text.lower()


MAX = count("max", "How many to list.", 1, LISTED_MAX, default=LISTED)
SKIP = count("skip", "How many of those that match to leave out: the ones of earlier pages.", 0, SKIP_MAX, default=0)
SEARCH = Parameter("search", "query", "Part of a name, a type or a routing key; small and capital letters are the same.",
                   {"type": "string", "minLength": 1, "maxLength": SEARCH_CHARS_MAX}, _search)  # fmt: skip

Rows = Callable[[Amqp], Iterator[dict[str, Any]]]
_SEARCHED = ("vhost", "name", "type", "topic", "alternate", "source", "queue", "exchange", "routing_key")

_FLAG, _COUNT, _TEXT = {"type": "boolean"}, {"type": "integer"}, {"type": ["string", "null"]}
_ARGUMENTS = {"type": "object"}
_LASTING = {"type": "boolean", "description": "It outlives a restart: `toymq definitions` has it."}
EXCHANGE = {"type": "object", "required": ["name", "type", "durable", "auto_delete"], "properties": {
    "vhost": {"type": "string"}, "name": {"type": "string"}, "type": {"type": "string"}, "durable": _FLAG,
    "auto_delete": _FLAG, "internal": _FLAG,
    "predeclared": _FLAG, "alternate": _TEXT, "bindings": _COUNT, "arguments": _ARGUMENTS, "lasting": _LASTING}}  # fmt: skip
QUEUE = {"type": "object", "required": ["name", "topic", "ready", "consumers"], "properties": {
    "vhost": {"type": "string"}, "name": {"type": "string"}, "topic": {"type": "string"}, "durable": _FLAG,
    "exclusive": _FLAG, "auto_delete": _FLAG,
    "ready": _COUNT, "consumers": _COUNT, "arguments": _ARGUMENTS, "lasting": _LASTING}}  # fmt: skip
BINDING = {"type": "object", "required": ["source", "queue", "exchange", "routing_key"], "properties": {
    "vhost": {"type": "string"}, "source": {"type": "string"}, "queue": _TEXT, "exchange": _TEXT,
    "routing_key": {"type": "string"}, "arguments": _ARGUMENTS, "lasting": _LASTING}}  # fmt: skip
DEFINITIONS = {"type": "object", "description": "As in a file of definitions.", "properties": {
    kind: {"type": "array", "items": {"type": "object"}} for kind in KINDS}}  # fmt: skip
DECLARED = {"type": "object", "required": ["declared"], "properties": {"declared": _COUNT}}


def _listing(kind: str, row: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": ["served", "total", "more", kind], "properties": {
        "served": {"type": "boolean", "description": "Whether this broker has a listener of AMQP."},
        "total": {"type": "integer", "description": "All there are, whatever was searched."},
        "more": _FLAG, kind: {"type": "array", "items": row}}}  # fmt: skip


async def _list(kind: str, rows: Rows, gateway: Gateway, request: Request) -> Response:
    most, skip, search = MAX.or_(LISTED, request), SKIP.or_(0, request), SEARCH.of(request)
    if gateway.amqp is None:
        return json_response({"served": False, "total": 0, "more": False, kind: []})
    found: list[str] = []
    total = matching = 0
    left = rows(gateway.amqp)
    while part := list(islice(left, PER_TURN)):
        for row in part:
            total += 1
            if search is None or search in _text_of(row):
                matching += 1
                if skip < matching <= skip + most:
                    found.append(json.dumps(row))
                    answer_room.grow(request, len(found[-1]))
        await gateway.waiting.turn()
    return json_rows({"served": True, "total": total, "more": matching > skip + most}, kind, found)


def _text_of(row: dict[str, Any]) -> str:
    """The text of a row in which a search looks, in lower case."""
    return "\n".join(str(row[name]) for name in _SEARCHED if row.get(name) is not None).lower()


async def declare_amqp(gateway: Gateway, request: Request) -> Response:
    """``POST /v1/amqp:declare``."""
    body = parse_object(await read_body(request, JSON_BYTES_MAX))
    check_members(body, frozenset(FIELDS))
    wanted: dict[Key, AmqpDefinition] = {}
    for kind in KINDS:
        entries = body.get(kind, [])
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise BadArgument(f"{kind} is an array of objects")
        for number, entry in enumerate(entries, 1):
            try:
                add(wanted, kind, f"{kind} number {number}", entry)
            except ConfigError as error:
                raise BadArgument(str(error)) from None
    acts_on(request, **_named(wanted.values()))
    gateway.refuse_late()
    if gateway.amqp is None:
        raise BadArgument("this broker serves no AMQP: start it with --amqp or --amqps")
    return json_response({"declared": len(await gateway.amqp.declare(wanted.values()))})


def _named(wanted: Iterable[AmqpDefinition]) -> dict[str, str]:
    """The exchanges and queues that are declared, and the sources of bindings, for the audit trail."""
    found: dict[str, dict[str, None]] = {}
    for each in wanted:
        kind, name = ("source", "source") if each.kind == "binding" else (each.kind, "name")
        found.setdefault(kind, {})[each.values[name]] = None
    return {kind: ",".join(names) for kind, names in found.items()}


def _operation(kind: str, name: str, text: str, rows: Rows, row: dict[str, Any]) -> Operation:
    return Operation(
        "GET", f"/v1/{kind}", name, text, partial(_list, kind, rows), "admin", (MAX, SKIP, SEARCH),
        answers={200: Answer("Those that match.", _listing(kind, row))}, errors=(BadArgument,), safe=True,
    )  # fmt: skip


OPERATIONS = (
    _operation("exchanges", "listExchanges", "Exchanges of AMQP, by name.", lambda amqp: amqp.exchanges(), EXCHANGE),
    _operation("queues", "listQueues", "Queues that clients of AMQP declared, by name. Each is a topic.",
               lambda amqp: amqp.declared_queues(), QUEUE),
    _operation("bindings", "listBindings", "Bindings of AMQP, by the exchange that they lead away from.",
               lambda amqp: amqp.bindings(), BINDING),
    Operation("POST", "/v1/amqp:declare", "declareAmqp",
              "Declare exchanges, queues and bindings that outlive a restart. What is there and differs is refused.",
              declare_amqp, "admin", body=Body("The definitions.", {"application/json": DEFINITIONS}),
              answers={200: Answer("How many are new, durably.", DECLARED)},
              errors=(BadArgument, BadFraming, DiskFull, PayloadTooLarge, StorageFailed)),
)  # fmt: skip
