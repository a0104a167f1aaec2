"""Describe this broker: options and where each comes from, limits, tokens without their secrets, disk, memory, cluster.

Contract: gateway.md. All values are read at the request.
"""

import os
import platform
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from toymq_py import build
from toymq_py.auth.tokens import Grant
from toymq_py.config.option_schema import options_of
from toymq_py.config.options import ServeOptions
from toymq_py.gateway.operations import Answer, Operation
from toymq_py.gateway.request_context import Gateway
from toymq_py.gateway.snapshots import TOPICS_PER_TURN
from toymq_py.gateway.topic_operations import json_response

TOKENS_MAX = 1000
"""Most tokens that are listed."""

_TEXTS = {"type": "array", "items": {"type": "string"}}
_COUNT = {"type": "integer"}
_OPTION = {"type": "object", "required": ["option", "value", "from", "help"], "properties": {
    "option": {"type": "string"}, "value": {"type": ["string", "null"]}, "from": {"type": "string"},
    "help": {"type": "string"}}}  # fmt: skip
_LIMIT = {"type": "object", "required": ["limit", "used", "max", "refused_total"], "properties": {
    "limit": {"type": "string"}, "used": _COUNT, "max": _COUNT, "refused_total": _COUNT}}  # fmt: skip
_TOKEN = {"type": "object", "required": ["name", "admin", "publish", "subscribe", "expires_ms", "expired"], "properties": {
    "name": {"type": "string"}, "admin": {"type": "boolean"}, "publish": _TEXTS, "subscribe": _TEXTS,
    "expires_ms": {"type": ["integer", "null"]}, "expired": {"type": "boolean"}}}  # fmt: skip
DESCRIBED = {"type": "object", "required": ["version", "options", "limits", "tokens", "disk", "memory"], "properties": {
    "version": {"type": "string"}, "part": {"type": ["string", "null"]}, "python": {"type": "string"},
    "compiled": {"type": "boolean"}, "pid": _COUNT,
    "uptime_s": {"type": "number"}, "options": {"type": "array", "items": _OPTION},
    "limits": {"type": "array", "items": _LIMIT},
    "tokens": {"type": ["array", "null"], "items": _TOKEN}, "tokens_total": _COUNT,
    "disk": {"type": "object"}, "memory": {"type": "object"}, "cluster": {"type": "object"}}}  # fmt: skip


async def describe_broker(gateway: Gateway, request: Request) -> Response:
    """``GET /v1/broker``."""
    broker = gateway.broker
    stats = broker.stats()
    grants = None if gateway.authority is None else gateway.authority.grants
    found = {
        "version": stats["version"],
        "part": broker.placement.part,
        "python": platform.python_version(),
        "compiled": build.compiled(),
        "pid": os.getpid(),
        "uptime_s": stats["uptime_s"],
        "options": _options(gateway),
        "limits": _limits(gateway),
        "tokens": None if grants is None else [_token(grant, stats["time_ms"]) for grant in grants[:TOKENS_MAX]],
        "tokens_total": len(grants or ()),
        "disk": {
            "data_dir": broker.options.data_dir, "free_bytes": stats["disk_free_bytes"], "low": stats["disk_low"],
            "min_free_bytes": broker.options.min_free_bytes,
            "log_bytes": await _log_bytes(gateway),
        },
        "memory": {
            "resident_bytes": stats["rss_bytes"], "max_bytes": broker.quotas.memory_max_bytes,
            "high": broker.quotas.memory_high,
        },
    }  # fmt: skip
    if "cluster" in stats:
        found["cluster"] = stats["cluster"]
    return json_response(found)


async def _log_bytes(gateway: Gateway) -> int:
    total = 0
    for number, name in enumerate(list(gateway.broker.topics), 1):
        if (topic := gateway.broker.topics.get(name)) is not None:
            total += topic.describe(consumers=False)["bytes"]
        if number % TOPICS_PER_TURN == 0:
            await gateway.waiting.turn()
    return total


def _options(gateway: Gateway) -> list[dict[str, Any]]:
    """The options as `toymq config show` prints them. No option is secret: secrets are in files that options name."""
    options = gateway.broker.options
    sources = options.sources if isinstance(options, ServeOptions) else {}
    listed = []
    for each in options_of(type(options)):
        value = getattr(options, each.attribute)
        shown = each.show(value) if value is not None else None
        listed.append({"option": each.name, "value": shown, "from": sources.get(each.attribute, "default"), "help": each.help})
    return listed


def _limits(gateway: Gateway) -> list[dict[str, Any]]:
    broker = gateway.broker
    quotas, options, reached = broker.quotas, broker.options, broker.metrics.limits_reached
    topics = len(broker.topics) - len(quotas.beside)
    used = {
        "connections": (quotas.connections, options.max_connections), "topics": (topics, options.max_topics),
        "held_bytes": (quotas.held_bytes, quotas.max_held_bytes),
    }  # fmt: skip
    return [
        {"limit": name, "used": now, "max": most, "refused_total": reached[name]} for name, (now, most) in used.items()
    ]


def _token(grant: Grant, now_ms: int) -> dict[str, Any]:
    expires_ms = None if grant.expires_ns is None else grant.expires_ns // 1_000_000
    return {
        "name": grant.name, "admin": grant.admin, "publish": grant.publish.texts, "subscribe": grant.subscribe.texts,
        "expires_ms": expires_ms, "expired": expires_ms is not None and expires_ms <= now_ms,
    }  # fmt: skip


OPERATIONS: tuple[Operation, ...] = (
    Operation("GET", "/v1/broker", "describeBroker",
              "This broker: options in force and where each comes from, limits, tokens by name, disk, memory, cluster.",
              describe_broker, "admin",
              answers={200: Answer("Now. `tokens` is null without an auth file.", DESCRIBED)}, safe=True),
)  # fmt: skip
