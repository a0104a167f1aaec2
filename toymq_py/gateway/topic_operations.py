"""Create, configure, describe, list, purge and delete topics; statistics. Contract: gateway.md; protocol.md, "JSON shapes"."""

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from toymq_py import partition_operations
from toymq_py.broker import Done
from toymq_py.errors import (
    BadArgument,
    BadFraming,
    BadName,
    IsPartitioned,
    NoSuchConsumer,
    NoSuchTopic,
    RequestError,
    StorageFailed,
    TooManyTopics,
    TopicExists,
)
from toymq_py.gateway import answer_room, whole_topics
from toymq_py.gateway.access import CREATE_TOPIC, grant_of, is_internal
from toymq_py.gateway.bodies import JSON_BYTES_MAX, parse_object, read_body
from toymq_py.gateway.operations import PATTERN, TOPIC, Answer, Body, Operation
from toymq_py.gateway.request_context import Gateway
from toymq_py.gateway.snapshots import TOPICS_PER_TURN
from toymq_py.merging import merged_stats, merged_topics
from toymq_py.partitioned_topics import refuse_partitions
from toymq_py.partitions import PARTITIONS
from toymq_py.setting_units import setting_doubt
from toymq_py.topic import Topic

CONSUMERS_PER_TURN = 32
"""Consumers that one slice describes, in a millisecond or two."""
SETTINGS = {"type": "object", "description": "The topic's settings: integers in milliseconds, bytes and counts, and words. "
            "null or \"default\" unsets one. At creation also `partitions`.",
            "additionalProperties": {"type": ["integer", "string", "null"]}}  # fmt: skip
DESCRIPTION = {"type": "object", "required": ["topic", "first_id", "next_id", "state", "settings", "consumers"],
               "properties": {"topic": {"type": "string"}, "first_id": {"type": "integer"}, "next_id": {"type": "integer"},
                              "messages": {"type": "integer"}, "bytes": {"type": "integer"}, "segments": {"type": "integer"},
                              "state": {"enum": ["ok", "degraded", "failed"]}, "settings": {"type": "object"},
                              "consumers": {"type": "array", "items": {"type": "object"}},
                              "warnings": {"type": "array", "items": {"type": "string"}}}}  # fmt: skip

PURGED = {"type": "object", "required": ["purged"], "properties": {"purged": {"type": "integer"}}}
LISTING = {"type": "object", "properties": {"topics": {"type": "array", "items": DESCRIPTION}}}


def json_response(content: Any, status: int = 200) -> Response:
    """A JSON response that is not cached."""
    return Response(json.dumps(content), status, {"cache-control": "no-store"}, "application/json")


def json_rows(members: Mapping[str, Any], name: str, rows: Iterable[str]) -> Response:
    """A JSON response, not cached: ``members``, and under ``name`` a list of rows that are already encoded."""
    content = f'{json.dumps(members)[:-1]}, "{name}": [{", ".join(rows)}]}}'
    return Response(content, 200, {"cache-control": "no-store"}, "application/json")


async def settings_of(request: Request) -> dict[str, str]:
    """Settings of a JSON body, as strings. Raises: BadFraming, BadArgument, PayloadTooLarge."""
    body = await read_body(request, JSON_BYTES_MAX)
    changes = {}
    for name, value in (parse_object(body) if body else {}).items():
        if value is None:
            changes[name] = "default"
        elif type(value) is int or type(value) is str:
            changes[name] = str(value)
        else:
            raise BadArgument(f"invalid setting {name[:100]!a}: write a whole number, a string or null")
    return changes


async def put_topic(gateway: Gateway, request: Request) -> Response:
    """``PUT /v1/topics/{t}``."""
    name = TOPIC.need(request)
    changes = await settings_of(request)
    gateway.refuse_late()
    known = gateway.broker.has(name) or name in gateway.broker.partitioned.by_name
    if gateway.errands is not None and (PARTITIONS in changes or whole_topics.is_whole(gateway, name)):
        await gateway.errands.create(name, changes)
        return json_response(await _described(gateway, request, name, changes), 200 if known else 201)
    if PARTITIONS in changes or whole_topics.is_whole(gateway, name):
        await whole_topics.reach_others(gateway, request)
    await gateway.stored(lambda done: partition_operations.create(gateway.broker, name, changes, done))
    if (whole := gateway.broker.partitioned.find(name)) is not None:
        await whole_topics.ask_others(gateway, request, json.dumps({**changes, PARTITIONS: whole.count}).encode())
    return json_response(await _described(gateway, request, name, changes), 200 if known else 201)


async def patch_topic(gateway: Gateway, request: Request) -> Response:
    """``PATCH /v1/topics/{t}``."""
    name = TOPIC.need(request)
    changes = await settings_of(request)
    refuse_partitions(changes)
    whole_topics.check_meant(gateway, request, name)
    gateway.refuse_late()
    if changes and (errands := whole_topics.errands_for(gateway, name)) is not None:
        await errands.configure(name, changes)
    elif changes:
        if whole_topics.is_whole(gateway, name):
            await whole_topics.reach_others(gateway, request)
        await gateway.stored(lambda done: partition_operations.configure(gateway.broker, name, changes, done))
        if whole_topics.is_whole(gateway, name):
            await whole_topics.ask_others(gateway, request, json.dumps(changes).encode(), whole=name)
    return json_response(await _described(gateway, request, name, changes))


async def _described(gateway: Gateway, request: Request, name: str, changes: Mapping[str, str]) -> dict[str, Any]:
    """The description of a topic after a change, with ``warnings`` about values that were most likely meant as seconds:
    ``{"visibility": 30}`` means 30 ms."""
    described = await whole_topics.described_after(_describe(gateway, request, name))
    warnings = [
        f"{setting} is {value} milliseconds; {value} seconds are {value}000"
        for setting, value in changes.items() if setting_doubt(setting, value) is not None
    ]  # fmt: skip
    return described | {"warnings": warnings} if warnings else described


async def get_topic(gateway: Gateway, request: Request) -> Response:
    """``GET /v1/topics/{t}``."""
    name = TOPIC.need(request)
    if whole_topics.is_whole(gateway, name):
        await asyncio.sleep(0)  # from here on in a task (``steps.py``)
        return json_response(await whole_topics.describe(gateway, request, name))
    topic = gateway.broker.topic(name)
    rows, backlog, scheduled = await _consumers(gateway, request, topic)
    described = {**topic.describe(consumers=False), "backlog": backlog, "scheduled": scheduled}
    del described["consumers"]
    return json_rows(described, "consumers", rows)


async def _consumers(gateway: Gateway, request: Request, topic: Topic) -> tuple[list[str], int, int]:
    """A topic's consumers as JSON, encoded in slices, with the largest backlog and the largest number of scheduled messages.
    Raises: NoSuchTopic, QueueFull."""
    rows: list[str] = []
    backlog = scheduled = size = 0
    for number, name in enumerate(topic.consumers):
        if number and not number % CONSUMERS_PER_TURN:
            answer_room.grow(request, size)
            size = 0
            await gateway.waiting.turn()
            gateway.broker.topic(topic.name)
        with suppress(NoSuchConsumer):
            described = topic.describe_consumer(name)
            backlog, scheduled = max(backlog, described["backlog"]), max(scheduled, described["scheduled"])
            rows.append(json.dumps(described))
            size += len(rows[-1])
    return (rows, backlog, scheduled) if rows else (rows, *topic.unconsumed())


async def _describe(gateway: Gateway, request: Request, name: str) -> dict[str, Any]:
    if whole_topics.is_whole(gateway, name):
        return await whole_topics.describe(gateway, request, name)
    return gateway.broker.topic(name).describe()


async def delete_topic(gateway: Gateway, request: Request) -> Response:
    """``DELETE /v1/topics/{t}``."""
    name = TOPIC.need(request)
    whole_topics.check_meant(gateway, request, name)

    def begin(done: Done) -> None:
        partition_operations.delete(gateway.broker, name, lambda count, error: done(error))

    if gateway.errands is not None and name in gateway.broker.partitioned.by_name:
        await gateway.errands.delete(name)
        return Response(status_code=204)
    if whole_topics.is_whole(gateway, name):  # here last: while a worker has it, the request can be sent again
        await whole_topics.reach_others(gateway, request)
        await whole_topics.ask_others(gateway, request)
    try:
        await gateway.stored(begin)
    except NoSuchTopic:  # a worker that was killed in an earlier DELETE may have partitions of the name still
        await whole_topics.check_meant_elsewhere(gateway, request, name)
        if all(answer is None for answer in await whole_topics.ask_others(gateway, request)):
            raise
    return Response(status_code=204)


async def purge_topic(gateway: Gateway, request: Request) -> Response:
    """``POST /v1/topics/{t}:purge``."""
    name = TOPIC.need(request)

    async def here() -> dict[str, int]:
        return {"purged": await purge(gateway, name)}

    if not whole_topics.is_whole(gateway, name):
        return json_response(await here())
    if gateway.errands is not None:
        return json_response({"purged": await gateway.errands.purge(name)})
    found = await whole_topics.here_and_there(gateway, request, name, here)
    return json_response({"purged": sum(one["purged"] for one in found)})


async def purge(gateway: Gateway, name: str) -> int:
    """Drop all messages of a topic. Returns: how many, once the purge is on stable storage. Raises: RequestError."""
    gateway.refuse_late()
    purged = 0

    def begin(done: Done) -> None:
        def counted(count: int, error: OSError | RequestError | None) -> None:
            nonlocal purged
            purged = count
            done(error)

        partition_operations.purge(gateway.broker, name, counted)

    await gateway.stored(begin)
    return purged


async def list_topics(gateway: Gateway, request: Request) -> Response:
    """``GET /v1/topics``."""
    grant = grant_of(request)
    described = gateway.broker.describe(PATTERN.of(request))
    if gateway.errands is not None:
        described = iter(await gateway.errands.topics(PATTERN.of(request)))
    if gateway.neighbours is not None and not is_internal(request):
        query = f"?{request.url.query}" if request.url.query else ""
        described = merged_topics([described, await gateway.neighbours.topics(query)])
    if grant is not None:
        described = (item for item in described if grant.sees(item["topic"]))
    content = b'{"topics": [%b]}' % await listed(gateway, request, described)
    return Response(content, 200, {"cache-control": "no-store"}, "application/json")


async def listed(gateway: Gateway, request: Request, described: Iterator[dict[str, Any]]) -> bytes:
    """Topics as JSON, joined by commas, encoded in slices: 5,000 at once would block the loop for 50 ms. Raises: QueueFull."""
    pieces: list[bytes] = []
    while items := [json.dumps(item) for item in islice(described, TOPICS_PER_TURN)]:
        pieces.append(", ".join(items).encode())
        answer_room.grow(request, len(pieces[-1]))
        await gateway.waiting.turn()
    return b", ".join(pieces)


async def stats(gateway: Gateway, request: Request) -> Response:
    """``GET /v1/stats``."""
    if gateway.errands is not None:
        of_all, _ = await gateway.errands.stats()
        return json_response(of_all)
    found = [gateway.broker.stats()]
    if gateway.neighbours is not None and not is_internal(request):
        found += await gateway.neighbours.stats()
    return json_response(merged_stats(found))


OPERATIONS: tuple[Operation, ...] = (
    Operation("GET", "/v1/topics", "listTopics", "Every topic, or those of a name or pattern.", list_topics, "see", (PATTERN,),
              answers={200: Answer("By name.", LISTING)},
              errors=(BadName,), safe=True),
    Operation("PUT", "/v1/topics/{topic}", CREATE_TOPIC,
              "Create a topic; 200 when it exists with the same values of the given settings.",
              put_topic, "admin", (TOPIC,),
              Body("Settings.", {"application/json": SETTINGS}),
              {201: Answer("It was created.", DESCRIPTION), 200: Answer("It was there.", DESCRIPTION)},
              (BadArgument, BadFraming, BadName, NoSuchTopic, TopicExists, TooManyTopics, StorageFailed), makes_topic=True),
    Operation("PATCH", "/v1/topics/{topic}", "configureTopic", "Change settings.", patch_topic, "admin",
              (TOPIC, whole_topics.ALL_PARTITIONS),
              Body("Settings.", {"application/json": SETTINGS}),
              {200: Answer("The settings are on stable storage and in effect.", DESCRIPTION)},
              (BadArgument, BadFraming, BadName, IsPartitioned, NoSuchTopic, StorageFailed)),
    Operation("GET", "/v1/topics/{topic}", "describeTopic", "Describe a topic: settings, sizes, consumers.", get_topic,
              "describe", (TOPIC,),
              answers={200: Answer("As DESCRIBE.", DESCRIPTION)}, errors=(BadName, NoSuchTopic), safe=True, brief=True),
    Operation("DELETE", "/v1/topics/{topic}", "deleteTopic", "Delete a topic with its messages and consumers.", delete_topic,
              "admin", (TOPIC, whole_topics.ALL_PARTITIONS),
              answers={204: Answer("It is deleted, durably.")}, errors=(BadName, IsPartitioned, NoSuchTopic, StorageFailed)),
    Operation("POST", "/v1/topics/{topic}:purge", "purgeTopic", "Drop all messages; the next id stays the same.",
              purge_topic, "admin", (TOPIC,), answers={200: Answer("How many were dropped, durably.", PURGED)},
              errors=(BadName, NoSuchTopic, StorageFailed)),
    Operation("GET", "/v1/stats", "stats", "Statistics of the broker, as STATS without its topics.", stats, "see",
              answers={200: Answer("Now.", {"type": "object"})}, safe=True),
)  # fmt: skip
