"""The statistics of the last hour, for the broker and for each topic. Contract: gateway.md; ADR 0145."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import chain
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from toymq_py.errors import BadArgument, BadName, NoSuchTopic
from toymq_py.gateway.access import grant_of, is_internal
from toymq_py.gateway.events import EventResponse
from toymq_py.gateway.operations import TOPIC, Answer, Operation, count, flag
from toymq_py.gateway.request_context import Gateway
from toymq_py.gateway.topic_operations import json_response
from toymq_py.merging import merged_columns
from toymq_py.observability.history import ROWS, STEP_S, Window

HOUR_S = ROWS * STEP_S


LAST_S = count("last_s", "How many seconds to look back.", 1, HOUR_S, default=HOUR_S)
TOPICS = flag("topics", "Whether to add every topic that the token may see.", default=False)

_NUMBERS = {"type": "array", "items": {"type": ["number", "null"]}}
_COLUMNS = {"type": "object", "additionalProperties": _NUMBERS}
_FRAME = {"step_s": {"type": "integer"}, "last_ms": {"type": "integer"}}
HISTORY = {"type": "object", "required": ["step_s", "last_ms", "part", "broker", "topics_left_out"], "properties": {
    **_FRAME, "part": {"type": ["string", "null"]}, "broker": _COLUMNS, "topics_left_out": {"type": "integer"},
    "topics": {"type": "object", "additionalProperties": _COLUMNS}}}  # fmt: skip
_WHOSE = "By column; null where nothing is known. `part`: the group that is asked, of several, whose numbers they are; or null."
TOPIC_HISTORY = {"type": "object", "required": ["step_s", "last_ms", "topic", "kept"], "properties": {
    **_FRAME, "topic": {"type": "string"}, "kept": {"type": "boolean"}, "numbers": _COLUMNS}}  # fmt: skip


def _frame(window: Window) -> dict[str, Any]:
    return {"step_s": STEP_S, "last_ms": window.last_ms}


async def history(gateway: Gateway, request: Request) -> Response:
    """``GET /v1/history``."""
    kept, window = gateway.history, gateway.history.window(LAST_S.or_(HOUR_S, request))
    others: list[dict[str, Any]] = []
    if gateway.neighbours is not None and not is_internal(request):
        others = [json.loads(answer) for answer in await gateway.neighbours.ask(f"/v1/history?{request.url.query}")]
    columns = merged_columns([kept.whole(window), *(other["broker"] for other in others)])
    left_out = kept.topics_left_out + sum(other["topics_left_out"] for other in others)
    part = gateway.broker.placement.part if gateway.neighbours is None else None  # of groups each keeps its own
    whole = _frame(window) | {"part": part, "broker": columns, "topics_left_out": left_out}
    if not TOPICS.or_(False, request):
        return json_response(whole)
    pieces = _with_topics(gateway, request, window, whole, [other["topics"] for other in others])
    if is_internal(request):  # another worker asks, which reads no chunks
        return Response(b"".join([piece async for piece in pieces]), media_type="application/json")
    return EventResponse(pieces, headers={"cache-control": "no-store"}, media_type="application/json")


async def _with_topics(
    gateway: Gateway, request: Request, window: Window, whole: dict[str, Any], of_others: Sequence[Mapping[str, Any]]
) -> AsyncIterator[bytes]:
    """Stream the answer topic by topic, as fast as the client reads: whole, for a thousand topics, it would take 10 MB."""
    yield json.dumps(whole)[:-1].encode() + b', "topics": {'
    grant, comma = grant_of(request), ""
    ours = ((name, gateway.history.topic(name, window)) for name in gateway.history.topics)
    for name, numbers in chain(ours, *(topics.items() for topics in of_others)):
        if (grant is None or grant.sees(name)) and numbers is not None:
            yield f"{comma}{json.dumps(name)}: {json.dumps(numbers)}".encode()
            comma = ", "
            await gateway.waiting.turn()
    yield b"}}"


async def topic_history(gateway: Gateway, request: Request) -> Response:
    """``GET /v1/topics/{t}/history``."""
    name, window = gateway.broker.topic(TOPIC.need(request)).name, gateway.history.window(LAST_S.or_(HOUR_S, request))
    numbers = gateway.history.topic(name, window)
    found = {} if numbers is None else {"numbers": numbers}
    return json_response(_frame(window) | {"topic": name, "kept": numbers is not None} | found)


OPERATIONS: tuple[Operation, ...] = (
    Operation("GET", "/v1/history", "history",
              "The broker's rates, backlog and dead letters of the last hour, a number each ten seconds, the newest last.",
              history, "see", (LAST_S, TOPICS), answers={200: Answer(_WHOSE, HISTORY)},
              errors=(BadArgument,), safe=True),
    Operation("GET", "/v1/topics/{topic}/history", "topicHistory", "The same of one topic.", topic_history, "describe",
              (TOPIC, LAST_S),
              answers={200: Answer("`kept` is false of a topic beyond the bound, or younger than ten seconds.", TOPIC_HISTORY)},
              errors=(BadArgument, BadName, NoSuchTopic), safe=True),
)  # fmt: skip
