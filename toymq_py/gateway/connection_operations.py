"""List open connections, and close one. Contract: gateway.md."""

import json
import re
from itertools import islice
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from toymq_py.errors import BadArgument
from toymq_py.gateway import answer_room
from toymq_py.gateway.bodies import seat_of
from toymq_py.gateway.operations import Answer, Operation, Parameter, count
from toymq_py.gateway.problems import NoSuchConnection
from toymq_py.gateway.request_context import Gateway
from toymq_py.gateway.topic_operations import json_rows

LISTED_MAX = 1000
LISTED = 100
SEARCH_CHARS_MAX = 100
PER_TURN = 64
"""Connections that are looked at before other tasks get a turn."""

LIST = "`toymqctl connections` or GET /v1/connections lists them"

PROTOCOLS = ("toymq", "amqp", "http", "websocket")
_ID = re.compile(rf"(?:{'|'.join(PROTOCOLS)})-[0-9]{{1,18}}")


def _connection_id(text: str) -> str:
    if not _ID.fullmatch(text):
        raise BadArgument(f"invalid connection {text[:50]!a}: write an id such as toymq-7: {LIST}")
    return text


def _protocol(text: str) -> str:
    if text not in PROTOCOLS:
        raise BadArgument(f"invalid protocol {text[:50]!a}: write {', '.join(PROTOCOLS)}")
    return text


def _search(text: str) -> str:
    if not 0 < len(text) <= SEARCH_CHARS_MAX:
        raise BadArgument(f"search is 1 to {SEARCH_CHARS_MAX} characters")
    return text.lower()


MAX = count("max", "How many connections to list.", 1, LISTED_MAX, default=LISTED)
PROTOCOL = Parameter("protocol", "query", "Those of this protocol alone.", {"enum": list(PROTOCOLS)}, _protocol)
SEARCH = Parameter("search", "query", "Part of an id, an address, a token's name, a client's name, a topic or a consumer.",
                   {"type": "string", "minLength": 1, "maxLength": SEARCH_CHARS_MAX}, _search)  # fmt: skip
CONNECTION = Parameter("connection", "path", "Id of the connection.", {"type": "string", "pattern": f"^{_ID.pattern}$"},
                       _connection_id, required=True)  # fmt: skip

_BYTES = {"type": ["integer", "null"]}
_TEXT = {"type": ["string", "null"]}
_SUBSCRIPTION = {"type": "object", "required": ["topic", "consumer", "inflight"], "properties": {
    "topic": {"type": "string"}, "consumer": {"type": "string"}, "mode": _TEXT, "inflight": {"type": "integer"},
    "window": {"type": "integer"}, "active_in": {"type": ["array", "null"], "items": {"type": "string"}}}}  # fmt: skip
_CHANNEL = {"type": "object", "required": ["channel", "mode", "consumers", "unacked", "unconfirmed"], "properties": {
    "channel": {"type": "integer"}, "mode": {"enum": ["confirms", "transactions", None]}, "consumers": {"type": "integer"},
    "prefetch": {"type": "integer"}, "channel_prefetch": {"type": "integer"}, "unacked": {"type": "integer"},
    "unconfirmed": {"type": "integer"}}}  # fmt: skip
_CONNECTION = {"type": "object", "required": ["connection", "protocol", "since_ms", "own"], "properties": {
    "connection": {"type": "string"}, "protocol": {"enum": list(PROTOCOLS)}, "address": _TEXT,
    "tls": {"type": "boolean"}, "token": _TEXT, "name": _TEXT, "since_ms": {"type": "integer"}, "own": {"type": "boolean"},
    "received_bytes": _BYTES, "sent_bytes": _BYTES, "unsent_bytes": {"type": "integer"},
    "inflight": {"type": "integer"}, "subscriptions_total": {"type": "integer"},
    "subscriptions": {"type": "array", "items": _SUBSCRIPTION}, "lacks": {"type": "array", "items": {"type": "string"}},
    "channels": {"type": "array", "items": _CHANNEL, "description": "Of AMQP alone, the first 100."}}}  # fmt: skip
LISTING = {"type": "object", "required": ["open", "more", "connections"], "properties": {
    "open": {"type": "integer"}, "more": {"type": "boolean"}, "part": _TEXT,
    "connections": {"type": "array", "items": _CONNECTION}}}  # fmt: skip


async def list_connections(gateway: Gateway, request: Request) -> Response:
    """``GET /v1/connections``."""
    most, search, own, protocol = MAX.or_(LISTED, request), SEARCH.of(request), seat_of(request), PROTOCOL.of(request)
    connections = (each for each in gateway.broker.quotas.open_connections if protocol in (None, each.protocol))
    present = sorted(connections, key=lambda each: (each.since_ms, each.number), reverse=True)
    found: list[str] = []
    left = iter(present)
    while len(found) <= most and (part := list(islice(left, PER_TURN))):
        for each in part:
            if each.transport.is_closing() or len(found) > most:
                continue
            described = each.describe() | {"own": own is not None and each.seat is own}
            if search is None or search in _text_of(described):
                found.append(json.dumps(described))
                answer_room.grow(request, len(found[-1]))
        await gateway.waiting.turn()
    whose = gateway.broker.placement.part
    return json_rows({"open": len(present), "more": len(found) > most, "part": whose}, "connections", found[:most])


def _text_of(described: dict[str, Any]) -> str:
    """The text of a connection in which a search looks, in lower case."""
    members = [described[name] or "" for name in ("connection", "address", "token", "name")]
    for each in described["subscriptions"]:
        members += [each["topic"], each["consumer"]]
    return "\n".join(members).lower()


async def close_connection(gateway: Gateway, request: Request) -> Response:
    """``DELETE /v1/connections/{connection}``."""
    wanted = CONNECTION.need(request)
    found = gateway.broker.quotas.open_connections.find(wanted)
    if found is None:
        raise NoSuchConnection(f"connection {wanted} is not open: it may have ended; {LIST}")
    if found.seat is not None and found.seat is seat_of(request):
        raise BadArgument(f"{wanted} is the connection of this request: it ends when you close it")
    found.close()
    return Response(status_code=204)


OPERATIONS: tuple[Operation, ...] = (
    Operation("GET", "/v1/connections", "listConnections",
              "Open connections of all protocols, the newest first, with what they subscribe to.", list_connections, "admin",
              (MAX, SEARCH, PROTOCOL),
              answers={200: Answer("How many are open, and those that were found.", LISTING)},
              errors=(BadArgument,), safe=True),
    Operation("DELETE", "/v1/connections/{connection}", "closeConnection",
              "Close a connection. What it has not acked goes back; its client may connect again.", close_connection, "admin",
              (CONNECTION,), answers={204: Answer("It is closed.")}, errors=(BadArgument, NoSuchConnection)),
)  # fmt: skip
