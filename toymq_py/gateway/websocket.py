"""``/v1/topics/{t}/ws``: publish, subscribe, ack in JSON frames over one connection.

Contract: gateway.md. A frame is an object with ``op``; its answer has the frame's ``ref``, if it has one. A subscription works
as over TCP: its window limits unacked messages, and inflight messages are ready again when the connection ends.

    > {"op": "publish", "ref": 1, "payload": "hello"}       < {"op": "published", "ref": 1, "id": 7, "duplicate": false}
    > {"op": "subscribe", "consumer": "billing"}            < {"op": "subscribed"}
                                                            < {"op": "message", "topic": "orders", "id": 7, "attempt": 1, …}
    > {"op": "ack", "ids": [7]}                             < {"op": "acked", "count": 1}
"""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from toymq_py.auth.quotas import FLOOR_BYTES, Seat
from toymq_py.broker_waits import made
from toymq_py.consumer_options import Start, parse_mode
from toymq_py.disk_errors import storage_error
from toymq_py.errors import (
    AlreadySubscribed,
    BadArgument,
    BadFraming,
    BadName,
    InternalError,
    NotSubscribed,
    RequestError,
)
from toymq_py.gateway import answer_room
from toymq_py.gateway.access import check_again, refused, topics_made_by
from toymq_py.gateway.bodies import SEAT, check_members, parse_object
from toymq_py.gateway.consumer_operations import parse_failure, parse_ids
from toymq_py.gateway.message_operations import message_json
from toymq_py.gateway.operations import TOPIC, Answer, Need, Operation
from toymq_py.gateway.problems import UpgradeRequired
from toymq_py.gateway.publish_operations import LINE_MEMBERS, append, check_size, message_of
from toymq_py.gateway.request_context import Gateway
from toymq_py.gateway.websocket_end import refuse_bytes
from toymq_py.gateway.websocket_route import websocket_route
from toymq_py.lease_number import new_lease_number
from toymq_py.names import check_name
from toymq_py.records import MSG_ID_MAX, IdRange
from toymq_py.topic import DeliveredIds, Delivery, Duplicate, Published, Subscription
from toymq_py.units import DURATION_MS_MAX, check_number

logger = logging.getLogger("toymq_py.gateway")

OUTSTANDING_MAX = 256
"""Most frames that wait for the disk; at this number, or at ``max_inflight_bytes``, no more are read."""
REF_CHARS_MAX = 1024
TAKE_BYTES = 64 * 1024
TAKE_MESSAGES = 128
"""Messages that are leased and written at once, after the socket took the batch before; so only the last batch can be unsent in
part."""
WINDOW = 100
WINDOW_MAX = 10_000

MEMBERS: Mapping[str, frozenset[str]] = {
    "publish": LINE_MEMBERS,
    "subscribe": frozenset({"consumer", "window", "visibility_s", "mode", "start"}),
    "unsubscribe": frozenset(),
    "ack": frozenset({"ids"}),
    "nack": frozenset({"ids", "delay_s", "dead", "reason", "error"}),
    "extend": frozenset({"ids", "visibility_s"}),
}
SETTLED: Mapping[str, str] = {"ack": "acked", "nack": "nacked", "extend": "extended"}
"""Frames that settle delivered messages, and the ``op`` of their answers."""


OUTLET = "toymq.outlet"
"""Key in the ASGI scope's ``state``: the ``Outlet``. Deliveries must know which bytes the socket took; ASGI does not tell."""


class Outlet(Protocol):
    """The sending side of a WebSocket."""

    held: Subscription | None

    @property
    def stalled(self) -> bool:
        """Whether the socket's buffer is full."""

    async def wait_taken(self) -> bool:
        """Wait until the socket has taken everything written. Returns: False when the connection ended before."""

    def write_texts(self, texts: Sequence[bytes]) -> bool:
        """Write text frames. Returns: False when the connection is ending and nothing was written."""

    @property
    def left_bytes(self) -> int:
        """About how many bytes of the last write the socket has not taken, also after the connection is lost. Bytes in the TLS
        buffer count as taken (ADR 0035)."""


class Frame:
    """A frame that arrived."""

    __slots__ = ("alike", "chars", "error", "members", "op", "ref")

    def __init__(self, text: str) -> None:
        self.chars = len(text)
        self.ref: object = None
        self.op = "frame"
        self.members: dict[str, Any] = {}
        self.error: RequestError | RecursionError | None = None
        """The error with which the frame is refused; None: it is not."""
        self.alike: str | None = None
        """Frames of ``SETTLED`` for one id each that follow each other and have this value in common are carried out as one."""
        try:
            members = parse_object(text, "frame")
            self.ref = take_ref(members)
            self.op = take_op(members)
        except (RequestError, RecursionError) as error:
            self.error = error.with_traceback(None)  # a traceback would hold this frame, in a circle
            return
        self.members = members
        if self.op in SETTLED and type(ids := members.get("ids")) is list and len(ids) == 1:
            (msg_id,) = ids
            if type(msg_id) is int and 0 <= msg_id <= MSG_ID_MAX:
                self.alike = repr((self.op, {name: value for name, value in members.items() if name != "ids"}))


class Conversation:
    """One connection: reads frames, carries them out, and delivers messages."""

    def __init__(self, gateway: Gateway, socket: WebSocket, name: str, tasks: asyncio.TaskGroup) -> None:
        self._gateway = gateway
        self._socket = socket
        self._name = name
        self._outlet: Outlet = socket.scope["state"][OUTLET]
        self._tasks = tasks
        self._room = asyncio.Semaphore(OUTSTANDING_MAX)
        self._seat: Seat | None = socket.scope["state"].get(SEAT)
        self._latest: list[Frame] | None = None  # begun by nothing yet: an alike frame may join them
        self._answering: set[asyncio.Task[None]] = set()
        self._chars = 0  # of frames that are not answered yet
        self._released = asyncio.Event()
        self._subscription: Subscription | None = None
        self._woken = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None
        self._last_write: tuple[DeliveredIds, list[int]] | None = None
        """The delivery whose bytes the socket may not have taken, and the sizes of its messages."""

    async def run(self) -> None:
        """Serve until either side closes."""
        try:
            while True:
                await self._room.acquire()
                message = await self._socket.receive()
                text: str | None = message.get("text")
                if text is None:  # disconnected, or a binary frame
                    break
                self._arrived(Frame(text))
                while self._holds_too_much():
                    self._released.clear()
                    await self._released.wait()
            await asyncio.sleep(0)  # frames before the close are begun: an ack counts, a subscribe is undone below
        finally:
            self.end()
        await self.wait_answered()
        self.end()  # a subscription that one of them began meanwhile
        if message["type"] == "websocket.receive":
            await refuse_bytes(self._socket)

    def _holds_too_much(self) -> bool:
        """Whether the unanswered frames exceed the connection's limit, or its minimum share when memory is short."""
        room = self._seat is None or self._seat.settle(self._chars)
        return self._chars > (self._gateway.broker.options.max_inflight_bytes if room else FLOOR_BYTES)

    def _arrived(self, frame: Frame) -> None:
        """Schedule a frame, together with waiting frames before it if they are alike; further frames are read meanwhile."""
        self._chars += frame.chars
        latest = self._latest
        if latest is not None and frame.alike is not None and frame.alike == latest[0].alike:
            latest.append(frame)
        else:
            self._latest = [frame]
            answering = self._tasks.create_task(self._answer(self._latest))
            self._answering.add(answering)
            answering.add_done_callback(self._answering.discard)

    async def _answer(self, frames: list[Frame]) -> None:
        """Carry out a frame, or several similar ones, and answer each."""
        if self._latest is frames:
            self._latest = None
        with topics_made_by(self._socket):
            await self._answer_to(frames)

    async def _answer_to(self, frames: list[Frame]) -> None:
        first = frames[0]
        begun: Subscription | None = None
        try:
            if first.op == "subscribe":
                begun = await self._subscribe(first.members)
                answers: list[dict[str, Any]] = [{"op": "subscribed"}]
            elif first.op in SETTLED:
                answers = [{"op": SETTLED[first.op], "count": count} for count in await self._settle(frames)]
            else:
                answers = [await self._carry_out(first)]
        except RequestError as error:
            answers = [self._refusal(frame.op, error) for frame in frames]
        except OSError as error:
            refusal = storage_error(error)
            answers = [self._refusal(frame.op, refusal) for frame in frames]
        except Exception:
            logger.exception("bug in a WebSocket frame")
            answers = [self._refusal(frame.op, InternalError()) for frame in frames]
        try:
            for frame, answer in zip(frames, answers, strict=True):
                if frame.ref is not None:
                    answer["ref"] = frame.ref
                await self._send(answer)
        finally:
            for frame in frames:
                self._chars -= frame.chars
                self._room.release()  # only now: a client that does not read would have thousands of answers here
            self._holds_too_much()
            self._released.set()
        if begun is not None and begun is self._subscription:  # no message before the answer; it may have ended meanwhile
            self._pump = self._tasks.create_task(self._deliver(begun))

    def _refusal(self, op: str, error: RequestError) -> dict[str, Any]:
        refused(self._gateway, self._socket, op, error)
        return {"op": "error", "code": error.code, "detail": str(error)}

    async def _send(self, frame: dict[str, Any]) -> None:
        with suppress(WebSocketDisconnect, RuntimeError):  # it ended meanwhile
            await self._socket.send_text(json.dumps(frame))

    async def _carry_out(self, frame: Frame) -> dict[str, Any]:
        if frame.error is not None:
            raise frame.error
        if frame.op == "publish":
            self._may("publish")
            return await self._publish(frame.members)
        self._may("subscribe")
        self._held()
        self._unsubscribe()
        return {"op": "unsubscribed"}

    async def _settle(self, frames: list[Frame]) -> list[int]:
        """Ack, nack or extend for alike frames at once, as if one by one. Returns: the number of messages of each frame."""
        self._may("subscribe")
        held, op, members = self._held(), frames[0].op, frames[0].members
        channel = held.channel
        if op != "extend" and channel.single is not None:
            held.lessee.late = False  # see ``Deliveries.settles``
        ids = [frame.members["ids"][0] for frame in frames] if len(frames) > 1 else None
        if op == "ack":
            counts = [channel.ack(parse_ids(members.get("ids")))] if ids is None else channel.ack_each(ids)
            await self._gateway.stored(self._gateway.broker.topic(self._name).flush_offsets)
            return counts
        settle: Callable[[Sequence[IdRange]], int]
        if op == "nack":
            dead = members.get("dead", False)
            if type(dead) is not bool:
                raise BadArgument("dead must be true or false")
            failure = parse_failure(members.get("reason"), members.get("error"))
            settle = partial(channel.nack, delay_s=_seconds(members, "delay_s", 0), dead=dead, failure=failure)
        else:
            settle = partial(channel.touch, visibility_s=_seconds(members, "visibility_s", 1))
        if ids is None:
            return [settle(channel.leased_under(parse_ids(members.get("ids")), held.number))]
        return channel.settle_each(ids, held.number, settle)

    def _may(self, needs: Need) -> None:
        """Check rights, and that the broker is not shutting down. Raises: ShuttingDown, AuthFailed, Forbidden."""
        self._gateway.refuse_late()
        self._check(needs)

    def _check(self, needs: Need) -> None:
        """Check the token's current rights. Raises: AuthFailed, Forbidden."""
        check_again(self._gateway, self._socket, needs, self._name)

    def _held(self) -> Subscription:
        if self._subscription is None or self._subscription.closed:
            raise NotSubscribed("this connection has no subscription: send subscribe first")
        return self._subscription

    async def _publish(self, frame: dict[str, Any]) -> dict[str, Any]:
        gateway = self._gateway
        message = message_of(frame, LINE_MEMBERS)
        check_size(message.payload, message.headers, gateway.broker.options.max_payload_bytes)
        outcome: Published
        (outcome,) = append(await made(partial(gateway.broker.topic_to_publish, self._name)), [message])
        error = outcome.error or await gateway.settled(outcome.commit)
        if error is not None:
            return self._refusal("publish", error)
        if type(outcome) is Duplicate:
            gateway.broker.metrics.duplicate_total += 1
        return {"op": "published", "id": outcome.first_id, "duplicate": outcome.duplicate}

    # -- consuming

    async def _subscribe(self, frame: dict[str, Any]) -> Subscription:
        """Subscribe; messages are delivered only after the answer."""
        self._may("subscribe")
        if self._subscription is not None and not self._subscription.closed:
            raise AlreadySubscribed("this connection has a subscription: unsubscribe first, or open another connection")
        consumer, window, mode, start = (frame.get(name) for name in ("consumer", "window", "mode", "start"))
        if type(consumer) is not str:
            raise BadArgument("subscribe needs consumer, a string")
        if window is not None:
            check_number("window", window, 1, WINDOW_MAX)
        if start is not None and type(start) not in (str, int):
            raise BadArgument("start must be earliest, latest, a message id or @<unix-ms>")
        topic = await made(partial(self._gateway.broker.topic_or_new, self._name))
        subscription, registration = topic.subscribe(
            check_name("consumer", consumer),
            None if start is None else Start.parse_checked(str(start)),
            mode="exclusive" if mode is None else parse_mode(mode),
            window=WINDOW if window is None else window,
            visibility_s=_seconds(frame, "visibility_s", 1),
            wake=self._wake,
            ended=self._ended,
        )
        subscription.number = new_lease_number()
        self._subscription = self._outlet.held = subscription
        await self._gateway.stored(partial(topic.when_registered, subscription, registration))
        return subscription

    def _wake(self, subscription: Subscription) -> bool:
        self._woken.set()
        return not self._outlet.stalled

    def _ended(self, subscription: Subscription, code: str) -> None:
        self._woken.set()
        self._tasks.create_task(self._send({"op": "closed", "code": code}))

    def _unsubscribe(self) -> None:
        if self._subscription is not None:
            self._subscription.close()
        if self._pump is not None:
            self._pump.cancel()
        self._subscription = self._pump = self._last_write = None

    def end(self) -> None:
        """Stop the deliveries; messages that were not sent are given back without counting the attempt. Idempotent."""
        self._give_back()
        self._unsubscribe()

    async def wait_answered(self) -> None:
        """Wait until the frames that have begun are answered."""
        if self._answering:
            await asyncio.wait(self._answering)

    def _give_back(self) -> None:
        """Give back messages that the socket did not take completely; as over TCP, the attempt does not count."""
        if self._last_write is None:
            return
        delivered, sizes = self._last_write
        left, whole = self._outlet.left_bytes, len(sizes)
        while left > 0 and whole:
            whole -= 1
            left -= sizes[whole]
        delivered.unsend(whole)

    async def _deliver(self, subscription: Subscription) -> None:
        """Deliver while the window and the socket have room."""
        while True:
            if self._outlet.stalled and not subscription.closed:
                subscription.wake_others()  # woken before it was stalled, it leaves the messages to other sessions
            if not await self._outlet.wait_taken() or subscription.closed:
                return
            self._last_write = None
            self._woken.clear()
            try:
                self._check("subscribe")
                delivery = subscription.take(answer_room.bytes_to_take(self._socket, TAKE_BYTES), TAKE_MESSAGES)
            except OSError as error:
                await self._send(self._refusal("subscribe", storage_error(error)))
                await self._gateway.waiting.sleep(1)
                await asyncio.sleep(0)  # during the shutdown ``sleep`` returns at once
                continue
            except RequestError as error:
                subscription.close()
                refused(self._gateway, self._socket, "subscribe", error)
                await self._send({"op": "closed", "code": error.code})
                return
            if delivery is None:
                await self._woken.wait()
                continue
            if not answer_room.has_room(self._socket, delivery.size):
                delivery.unsend()
                del delivery
                await answer_room.wait_for_room(self._gateway.waiting, self._socket)
                continue
            if not self._write(delivery):
                return
            del delivery  # this frame lives as long as the client does not read
            await self._gateway.waiting.pause()  # a socket that takes all of it never waits

    def _write(self, delivery: Delivery) -> bool:
        """Write about ``TAKE_BYTES`` of a delivery, and give back the rest. Returns: False when the connection is ending."""
        messages: list[bytes] = []
        size = 0
        for row in range(delivery.start, delivery.stop):
            described = message_json(self._name, delivery.records, row, delivery.attempt)
            messages.append(json.dumps({"op": "message", **described}).encode())
            size += len(messages[-1])
            if size >= TAKE_BYTES:  # JSON may be six times as long as the payload
                break
        delivery.unsend(len(messages))
        if not self._outlet.write_texts(messages):
            delivery.unsend()
            return False
        self._last_write = delivery.without_records(), list(map(len, messages))
        return True


def take_ref(frame: dict[str, Any]) -> object:
    """Remove and return ``ref``, which the answer repeats. Raises: BadArgument if it is too long: unread answers hold it."""
    ref: object = frame.pop("ref", None)
    if len(json.dumps(ref)) > REF_CHARS_MAX:
        raise BadArgument(f"ref is too long: at most {REF_CHARS_MAX} characters as JSON are accepted")
    return ref


def take_op(frame: dict[str, Any]) -> str:
    """Remove and return ``op``, and check the other members. Raises: BadFraming, BadArgument."""
    op = frame.pop("op", None)
    if type(op) is not str:
        raise BadFraming(f"the frame has no op: use {', '.join(MEMBERS)}")
    known = MEMBERS.get(op)
    if known is None:
        raise BadArgument(f"unknown op {op[:100]!a}: use {', '.join(MEMBERS)}")
    check_members(frame, known)
    return op


def _seconds(frame: Mapping[str, Any], name: str, least_ms: int) -> float | None:
    value = frame.get(name)
    if value is None:
        return None
    if type(value) not in (int, float) or not least_ms <= value * 1000 <= DURATION_MS_MAX:
        raise BadArgument(f"invalid {name}: write seconds from {least_ms / 1000:g} to {DURATION_MS_MAX / 1000:g}")
    return float(value)


def route(gateway: Gateway) -> WebSocketRoute:
    """The route of the WebSockets."""

    def begin(socket: WebSocket) -> Callable[[asyncio.TaskGroup], Conversation]:
        name = TOPIC.parse(socket.path_params["topic"])
        if socket.scope["query_string"]:
            raise BadArgument("unknown parameter: a WebSocket takes none behind its ?, subscribe names the consumer")
        return partial(Conversation, gateway, socket, name)

    return websocket_route(gateway, "/v1/topics/{topic}/ws", "websocket", begin)


async def upgrade(gateway: Gateway, request: Request) -> Response:
    """``GET /v1/topics/{t}/ws`` without an upgrade."""
    TOPIC.need(request)
    raise UpgradeRequired("this path is a WebSocket: send a handshake with Upgrade: websocket")


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "GET", "/v1/topics/{topic}/ws", "websocket",
        f"A WebSocket: frames of JSON with op {', '.join(MEMBERS)}. docs/http.md has their members and answers.",
        upgrade, "see", (TOPIC,),
        answers={101: Answer("The handshake of a WebSocket of version 13 (RFC 6455).")},
        errors=(BadName, UpgradeRequired), safe=True,
    ),
)  # fmt: skip
