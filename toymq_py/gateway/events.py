"""``/v1/events``: snapshots of the broker as server-sent events, for the dashboard. Contract: gateway.md."""

from collections.abc import AsyncIterator
from functools import partial

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from toymq_py.gateway import answer_room
from toymq_py.gateway.access import may_go_on, present_grant
from toymq_py.gateway.operations import Answer, Operation
from toymq_py.gateway.request_context import Gateway
from toymq_py.gateway.turns import TURNS, Turns, in_turns

EVENT_STREAM = "text/event-stream"


class EventResponse(StreamingResponse):
    """Starlette's streaming response, sent in turns of the event loop, without keeping the last event while it waits."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._turns: Turns | None = scope.get(TURNS)
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await super().__call__(scope, receive, send)

    async def stream_response(self, send: Send) -> None:
        """Stream in a separate task, beside one that waits for the end of the connection."""
        stream = partial(self._stream, send)
        await (stream() if self._turns is None else in_turns(stream, self._turns))

    async def _stream(self, send: Send) -> None:
        async for piece in self.body_iterator:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            del piece
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def stream_response(events: AsyncIterator[bytes]) -> Response:
    """A response of server-sent events, which proxies are told not to buffer."""
    return EventResponse(events, headers={"cache-control": "no-store", "x-accel-buffering": "no"}, media_type=EVENT_STREAM)


async def events(gateway: Gateway, request: Request) -> Response:
    """``GET /v1/events``."""
    return stream_response(_watch(gateway, request))


async def _watch(gateway: Gateway, request: Request) -> AsyncIterator[bytes]:
    """Events until the token or login has ended; each shows what the rights at that time allow."""
    room = partial(answer_room.wait_for_room, gateway.waiting, request)
    async for event in gateway.snapshots.watch(lambda: present_grant(gateway, request), room):
        if not may_go_on(gateway, request, "events", "see", ""):
            return
        yield event


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "GET", "/v1/events", "events",
        "The broker once a second: an event `snapshot` with `now_ms`, `stats` and all `topics`, then `change` with the "
        "`topics` that differ and the names of those that are `gone`. A consumer has `oldest_unacked_at_ms` here, not an age. "
        "A topic names its `group` or `worker` where there are several. Those that do not answer are in `away`, a worker with "
        "its `pid`: their topics have `as_of_ms`, since when nothing was heard of them; null, and no figures, for nothing.",
        events, "see", answers={200: Answer("Until the broker shuts down.", {"type": "string"}, EVENT_STREAM)}, safe=True,
    ),
)  # fmt: skip
