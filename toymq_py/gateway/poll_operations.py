"""``GET /v1/topics/{t}/messages``: lease messages, or wait for some (long polling). Contract: gateway.md; delivery.md.

A poll whose client is gone leases nothing; its leases end by their deadline alone.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from toymq_py.consumer_options import POLL_MODES, Mode, parse_mode
from toymq_py.errors import (
    BadArgument,
    BadName,
    ModeConflict,
    NoSuchConsumer,
    NoSuchTopic,
    RequestError,
    StorageFailed,
    TooManyConsumers,
    TooManyTopics,
)
from toymq_py.gateway import answer_room
from toymq_py.gateway.access import check_again
from toymq_py.gateway.consumer_operations import VISIBILITY_S
from toymq_py.gateway.long_poll import LongPoll
from toymq_py.gateway.message_operations import MESSAGE, READ_BYTES, message_json
from toymq_py.gateway.operations import CONSUMER, PATTERN_OR_TOPIC, Answer, Operation, Parameter, count, seconds
from toymq_py.gateway.read_ahead import CROWDED
from toymq_py.gateway.request_context import Gateway
from toymq_py.topic import Delivery

T = TypeVar("T")

LEASE_MAX = 1000
PROMPT_BYTES = 16 * 1024
"""Larger answers are not encoded as soon as their messages are taken, behind a wait, but in a turn."""
LEASE_BYTES_MAX = 4 * 1024 * 1024
"""Payload bytes of one poll, about; a single larger message is returned, too."""
WAIT_S_MAX = 60.0
"""The longest wait: proxies close connections that are silent for longer."""

MAX = count("max", "Messages to return at most.", 1, LEASE_MAX, default=1)
WAIT_S = seconds("wait_s", "How long to wait for the first message.", 0, WAIT_S_MAX, default=0)

MODE: Parameter[Mode] = Parameter(
    "mode", "query", "How workers share the consumer; keyed: one message of each group key at a time, in order. Default: as it "
    "was last used.", {"type": "string", "enum": list(POLL_MODES)}, lambda text: parse_mode(text, POLL_MODES),
)  # fmt: skip


class LeasedResponse(Response):
    """A response with leased messages; if the client is gone they are given back, and the attempt does not count."""

    def __init__(
        self, content: str | bytes, deliveries: Sequence[Delivery], headers: Mapping[str, str], media: str
    ) -> None:
        super().__init__(content, 200, headers, media)
        self._deliveries = deliveries

    def give_back(self) -> None:
        """Give the messages back: the client is gone."""
        give_back(self._deliveries)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if await Request(scope, receive).is_disconnected():
            self.give_back()
        else:
            await super().__call__(scope, receive, send)


def give_back(deliveries: Iterable[Delivery]) -> None:
    """Give back messages that were not sent; no attempt is counted."""
    for delivery in deliveries:
        delivery.unsend()


async def lease_for(gateway: Gateway, request: Request, polling: LongPoll, max_count: int, wait_s: float) -> list[Delivery]:
    """Lease messages by ``LongPoll.poll``, which ends early when the client disconnects or its token loses the right. Raises:
    RequestError, OSError."""
    max_bytes = answer_room.bytes_to_take(request, LEASE_BYTES_MAX)
    if not wait_s:
        return await polling.poll(max_count, max_bytes, 0)
    check = partial(check_again, gateway, request, "subscribe", polling.name)
    return await watched(request, partial(polling.poll, max_count, max_bytes, wait_s, check), polling.end, polling.end_wait)


async def watched(
    request: Request, wait: Callable[[], Awaitable[list[T]]], gone: Callable[[], None], unseen: Callable[[], None]
) -> list[T]:
    """Await ``wait`` and return its result. Meanwhile ``gone`` is called when the client is or may be gone, and ``unseen`` when
    its loss could no longer be noticed. Raises: RequestError, OSError."""
    found: list[T] = []
    refusal: RequestError | OSError | None = None
    await asyncio.sleep(0)  # from here on in a task (``steps.py``)
    async with asyncio.TaskGroup() as tasks:
        watcher = tasks.create_task(_watch(request, gone, unseen))
        try:
            found = await wait()
        except (RequestError, OSError) as error:  # the TaskGroup would raise it as an ExceptionGroup
            refusal = error.with_traceback(None)
        finally:
            watcher.cancel()
    if refusal is not None:
        raise refusal
    return found


async def _watch(request: Request, gone: Callable[[], None], unseen: Callable[[], None]) -> None:
    while (kind := (await request.receive())["type"]) != "http.disconnect":
        if kind == CROWDED:
            unseen()
    gone()


async def encode_leased(
    gateway: Gateway, request: Request, deliveries: Sequence[Delivery], describe: Callable[[Delivery, int], dict[str, Any]]
) -> list[str]:
    """Encode leased messages as JSON texts, in slices, and count their bytes for the connection. Beyond its limit the messages
    are given back. Raises: QueueFull."""
    texts: list[str] = []
    unpaused = 0
    try:
        size = sum(delivery.size for delivery in deliveries)
        answer_room.hold(request, size)
        if size > PROMPT_BYTES:
            await gateway.waiting.turn()
        for delivery in deliveries:
            for row in range(delivery.start, delivery.stop):
                texts.append(text := json.dumps(describe(delivery, row)))
                answer_room.hold(request, len(text))
                unpaused += len(text)
                if unpaused >= READ_BYTES:
                    unpaused = 0
                    await gateway.waiting.turn()
    except BaseException:
        give_back(deliveries)
        raise
    return texts


async def lease(gateway: Gateway, request: Request) -> Response:
    """``GET /v1/topics/{t}/messages``."""
    name, consumer, wait_s = PATTERN_OR_TOPIC.need(request), CONSUMER.need(request), WAIT_S.or_(0.0, request)
    max_count, visibility_s = MAX.or_(1, request), VISIBILITY_S.of(request)
    gateway.refuse_late()
    polling = LongPoll(
        gateway.broker, gateway.waiting, name, consumer, visibility_s=visibility_s, mode=MODE.of(request)
    )
    polling.charge = partial(answer_room.charge, request)
    deliveries = await lease_for(gateway, request, polling, max_count, wait_s)
    if not deliveries:
        return Response(status_code=204)
    texts = await encode_leased(
        gateway, request, deliveries, lambda each, row: message_json(each.topic, each.records, row, each.attempt)
    )
    content = f'{{"lease": {polling.lease}, "messages": [{", ".join(texts)}]}}'
    return LeasedResponse(content, deliveries, {"cache-control": "no-store"}, "application/json")


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "GET", "/v1/topics/{topic}/messages", "lease",
        "Lease messages for a consumer, which is created if need be. A message that is not acked before its lease ends is "
        "delivered again.",
        lease, "subscribe", (PATTERN_OR_TOPIC, CONSUMER, MAX, WAIT_S, VISIBILITY_S, MODE),
        answers={
            200: Answer("Leased messages, and the number of their lease for nack and extend.", {
                "type": "object", "required": ["lease", "messages"],
                "properties": {"lease": {"type": "integer"}, "messages": {"type": "array", "items": MESSAGE}},
            }),
            204: Answer("None in time."),
        },
        errors=(
            BadArgument, BadName, NoSuchTopic, NoSuchConsumer, ModeConflict, TooManyTopics, TooManyConsumers, StorageFailed,
        ),
        brief=True,
    ),
)  # fmt: skip
