"""``/ws`` of the dialect ``tinymq``: publish, and live tails, in JSON frames over one connection. Nothing is consumed or acked:
a subscription is a ``/stream``, and a connection may have several.

    > {"action": "publish", "topic": "orders", "payload": "hello"}      < {"status": "published", "topic": "orders", "id": "…"}
    > {"action": "subscribe", "topic": "orders.*"}                      < {"status": "subscribed", "topic": "orders.*"}
                                                                        < {"id": "…", "topic": "orders.eu", "payload": "…", …}
    > {"action": "ping"}                                                < {"status": "pong"}
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from toymq_py.disk_errors import storage_error
from toymq_py.errors import AlreadySubscribed, BadArgument, BadFraming, NotSubscribed, RequestError
from toymq_py.gateway import answer_room
from toymq_py.gateway.access import check_again, refused, topics_made_by
from toymq_py.gateway.bodies import check_members, parse_json
from toymq_py.gateway.http_request import query_of
from toymq_py.gateway.message_operations import HEARTBEAT_S
from toymq_py.gateway.operations import Need
from toymq_py.gateway.problems import UpgradeRequired
from toymq_py.gateway.publish_operations import Message, payload_bytes
from toymq_py.gateway.request_context import Gateway
from toymq_py.gateway.tinymq.live_tail import LiveTail
from toymq_py.gateway.tinymq.message_views import Filter, Place
from toymq_py.gateway.tinymq.messages import put
from toymq_py.gateway.tinymq.names import refuse, shown_id, topic_name, topic_or_glob
from toymq_py.gateway.websocket import OUTLET, Outlet
from toymq_py.gateway.websocket_end import refuse_bytes
from toymq_py.gateway.websocket_route import websocket_route
from toymq_py.names import is_pattern

PATH = "/ws"
SUBSCRIPTIONS_MAX = 64
"""Subscriptions of one connection; each may hold a page of messages."""
MEMBERS: Mapping[str, frozenset[str]] = {
    "ping": frozenset(),
    "publish": frozenset({"topic", "payload"}),
    "subscribe": frozenset({"topic", "filter_key", "filter_val"}),
    "unsubscribe": frozenset({"topic"}),
}


class Session:
    """One connection. A frame is answered before the next one is read."""

    def __init__(self, gateway: Gateway, socket: WebSocket, tasks: asyncio.TaskGroup) -> None:
        self._gateway = gateway
        self._socket = socket
        self._outlet: Outlet = socket.scope["state"][OUTLET]
        self._tasks = tasks
        self._answered = asyncio.Event()
        self._answered.set()
        self._tails: dict[str, LiveTail] = {}
        """By topic, as the frame spells it."""
        self._pumps: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Serve until either side closes, or a binary frame comes. (TinyMQ ignores binary frames, so that a client waits for
        ever.)"""
        try:
            while (text := (message := await self._socket.receive()).get("text")) is not None:
                self._answered.clear()
                with topics_made_by(self._socket):
                    await self._answer(text)
                self._answered.set()
        finally:
            self.end()
        if message["type"] == "websocket.receive":
            await refuse_bytes(self._socket)

    def end(self) -> None:
        """End all subscriptions. Idempotent."""
        for asked in list(self._tails):
            self._leave(asked)

    async def wait_answered(self) -> None:
        """Wait until the frame in progress is answered."""
        await self._answered.wait()

    def _leave(self, asked: str) -> None:
        self._tails.pop(asked).close()
        if (pump := self._pumps.pop(asked, None)) is not None:
            pump.cancel()

    async def _answer(self, text: str) -> None:
        begun: str | None = None
        action: str = "frame"
        frame: dict[str, Any] = {}
        try:
            action, frame = parse_frame(text)
            if action == "ping":
                answer = {"status": "pong"}
            elif action == "publish":
                answer = await self._publish(frame)
            elif action == "subscribe":
                begun = await self._subscribe(frame)
                answer = {"status": "subscribed", "topic": begun}
            else:
                if (asked := _text(frame, "topic")) not in self._tails:
                    raise NotSubscribed(f"not subscribed to {asked[:100]}: subscribe first")
                self._leave(asked)
                answer = {"status": "unsubscribed", "topic": asked}
        except RequestError as error:
            answer = self._refusal(error, action, frame.get("topic"))
        except OSError as error:
            answer = self._refusal(storage_error(error), action, frame.get("topic"))
        await self._send(answer)
        if begun in self._tails:  # no message before the answer
            self._pumps[begun] = self._tasks.create_task(self._pump(begun, self._tails[begun]))

    def _refusal(self, error: RequestError, action: str, topic: object) -> dict[str, str]:
        refused(self._gateway, self._socket, action, error, {"topic": topic} if type(topic) is str else {})
        return {"status": "error", "message": str(error)}

    async def _send(self, frame: dict[str, str]) -> None:
        with suppress(WebSocketDisconnect, RuntimeError):  # it ended meanwhile
            await self._socket.send_text(json.dumps(frame))

    def _check(self, needs: Need, name: str) -> None:
        self._gateway.refuse_late()
        check_again(self._gateway, self._socket, needs, name)

    async def _publish(self, frame: dict[str, Any]) -> dict[str, str]:
        asked = _text(frame, "topic")
        name = topic_name(asked)
        self._check("publish", name)
        outcome = await put(self._gateway, name, Message(payload_bytes(_text(frame, "payload"))))
        return {"status": "published", "topic": asked, "id": shown_id(name, None, outcome.first_id)}

    async def _subscribe(self, frame: dict[str, Any]) -> str:
        asked = _text(frame, "topic")
        name = topic_or_glob(asked)
        self._check("subscribe", name)
        wanted = Filter(_text(frame, "filter_key"), _text(frame, "filter_val")) if frame.get("filter_key") else None
        if asked in self._tails:
            raise AlreadySubscribed("already subscribed to this topic")
        if len(self._tails) >= SUBSCRIPTIONS_MAX:
            raise BadArgument(f"this connection has {SUBSCRIPTIONS_MAX} subscriptions, the limit: use a glob, which is one")
        place = Place(name, None, None if is_pattern(name) else asked)
        self._tails[asked] = LiveTail(self._gateway, place, wanted)
        self._tails[asked].open()
        return asked

    async def _pump(self, asked: str, tail: LiveTail) -> None:
        """Send the messages of one tail, as fast as the socket takes them."""
        why = "the topic was deleted"
        while tail.living:
            grown = await tail.grown(HEARTBEAT_S)
            if self._gateway.waiting.stopped or not await self._outlet.wait_taken():
                return
            try:
                check_again(self._gateway, self._socket, "subscribe", tail.place.name)
            except RequestError as error:
                refused(self._gateway, self._socket, "subscribe", error, {"topic": asked})
                why = "the token has no right to it any more"
                break
            await answer_room.wait_for_room(self._gateway.waiting, self._socket)
            try:
                texts = tail.take() if grown else []
            except OSError as error:
                why = str(storage_error(error))
                break
            if texts and not self._outlet.write_texts([text.encode() for text in texts]):
                return
            await self._gateway.waiting.pause()
        del self._pumps[asked]
        self._leave(asked)
        await self._send({"status": "error", "message": f"the subscription to {asked} has ended: {why}"})


def parse_frame(text: str) -> tuple[str, dict[str, Any]]:
    """Parse a frame into action and members. Raises: BadFraming, BadArgument."""
    try:
        frame = parse_json(text)
    except ValueError:
        raise BadFraming("invalid json format") from None
    action = frame.pop("action", None) if type(frame) is dict else None
    if type(frame) is not dict or type(action) is not str or action not in MEMBERS:
        raise BadArgument(f"unknown action: use {', '.join(MEMBERS)}")
    check_members(frame, MEMBERS[action])
    return action, frame


def _text(frame: dict[str, Any], name: str) -> str:
    value = frame.get(name)
    if type(value) is not str or not value:
        raise BadArgument(f"{name} required")
    return value


def route(gateway: Gateway) -> WebSocketRoute:
    """The route of the WebSocket."""

    def begin(socket: WebSocket) -> Callable[[asyncio.TaskGroup], Session]:
        query_of(socket.scope)  # too many parameters are refused
        return partial(Session, gateway, socket)

    return websocket_route(gateway, PATH, "tinymqSocket", begin, identify=_with_token_of_query, refuse=refuse)


def _with_token_of_query(socket: WebSocket) -> WebSocket:
    """Accept ``?token=`` instead of the header ``Authorization``, as TinyMQ's client cannot send headers."""
    token = None
    with suppress(BadArgument):
        token = query_of(socket.scope).get("token")
    if not token or "authorization" in socket.headers:
        return socket
    bearer = (b"authorization", b"Bearer " + token.encode())
    return WebSocket({**socket.scope, "headers": [*socket.scope["headers"], bearer]}, socket._receive, socket._send)


async def upgrade(gateway: Gateway, request: Request) -> Response:
    """``GET /ws`` without an upgrade: refused."""
    raise UpgradeRequired("this path is a WebSocket: send a handshake with Upgrade: websocket")
