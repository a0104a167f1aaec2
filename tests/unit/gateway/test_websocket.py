"""WebSockets of the gateway, with a client of another implementation than the server's."""

import asyncio
import json
import logging
import random
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.support.http_rig import HttpRig, listening, refused
from tests.support.sim_disk import SimDisk
from tests.support.websockets import HANDSHAKE, frame_of, frames, sessions
from toymq_py.gateway import websocket_protocol
from toymq_py.gateway.websocket import REF_CHARS_MAX
from toymq_py.gateway.websocket_protocol import GatewayWebSocket
from toymq_py.records import IdRange
from toymq_py.topic import Channel, Commit

DIR = "/data/d"


@pytest.fixture
async def rig() -> AsyncIterator[HttpRig]:
    async with listening(DIR, fs=SimDisk(random.Random(1)), max_payload_bytes=1000) as rig:
        yield rig


async def test_publish_subscribe_ack(rig: HttpRig) -> None:
    async with frames(rig) as ws:
        assert await ws.ask(op="publish", ref=1, payload="a") == {"op": "published", "id": 0, "duplicate": False, "ref": 1}
        assert await ws.ask(op="subscribe", consumer="c") == {"op": "subscribed"}
        message = await ws.hear()
        assert message.items() >= {"op": "message", "topic": "t", "id": 0, "attempt": 1, "payload": "a"}.items()
        assert await ws.ask(op="ack", ids=[0], ref="x") == {"op": "acked", "count": 1, "ref": "x"}
        await rig.publish("t", "b")
        assert (await ws.hear())["payload"] == "b"
        assert (await ws.ask(op="nack", ids=[1], delay_s=0))["count"] == 1
        assert (await ws.hear())["attempt"] == 2
        assert (await ws.ask(op="extend", ids=["0-1"], visibility_s=60))["count"] == 1
        assert await ws.ask(op="unsubscribe") == {"op": "unsubscribed"}
    assert [m["id"] for m in await rig.lease("t")] == [1], "what was inflight is ready at once"


async def test_one_that_settles_something_too_late_does_not_hang(rig: HttpRig) -> None:
    async with frames(rig) as ws:
        await ws.ask(op="subscribe", consumer="c", mode="single")
        (session,) = rig.broker.topic("t").channel("c").sessions
        for op, hangs in (("extend", True), ("ack", False), ("nack", False)):
            session.late = True
            assert ((await ws.ask(op=op, ids=[7]))["count"], session.late) == (0, hangs)


async def test_a_nack_says_why_in_the_dead_letter(rig: HttpRig) -> None:
    async with frames(rig) as ws:
        await rig.publish("t", "bad")
        await ws.ask(op="subscribe", consumer="c")
        assert (await ws.hear())["id"] == 0
        for wrong in ({"error": 7}, {"error": {"text": 7}}, {"error": {"kind": "x"}}, {"reason": 7}):
            assert (await ws.ask(op="nack", ids=[0], **wrong))["code"] == "BAD_ARGUMENT"
        why = {"reason": "two\nwords", "error": "no such template: x.html"}
        assert (await ws.ask(op="nack", ids=[0], dead=True, **why))["count"] == 1
        await rig.until(lambda: "t.dlq" in rig.broker.topics and rig.broker.topics["t.dlq"].log.committed_id == 1)
    (letter,) = (await rig.ask("GET", "/v1/topics/t.dlq/log")).json()["messages"]
    assert [letter["headers"][f"toymq-{name}"] for name in ("reason", "error")] == ["two words", "no such template: x.html"]


async def test_a_lease_that_has_ended_does_not_act_on_the_next_one(rig: HttpRig) -> None:
    async with frames(rig) as ws:
        await rig.publish("t", "a")
        await ws.ask(op="subscribe", consumer="c", mode="shared", window=1, visibility_s=0.001)
        assert (await ws.hear())["id"] == 0
        assert [m["id"] for m in await rig.lease("t", wait_s=10, visibility_s=3600)] == [0]
        for frame in ({"op": "extend"}, {"op": "nack", "delay_s": 0}, {"op": "nack", "dead": True}):
            await ws.say(ids=[0], **frame)
            while (answer := await ws.hear())["op"] == "message":  # its lease may end more than once before the poll waits
                pass
            assert answer["count"] == 0
        assert (await ws.ask(op="ack", ids=[0]))["count"] == 1, "the work was done"


def settlements(rng: random.Random) -> list[dict[str, Any]]:
    """Return frames about messages 0 to 19: runs of the same operation, and others among them."""
    kinds: list[dict[str, Any]] = [
        {"op": "ack"}, {"op": "extend"}, {"op": "extend", "visibility_s": 90}, {"op": "nack", "delay_s": 60},
        {"op": "nack", "delay_s": 60, "dead": False}, {"op": "nack", "delay_s": 60, "dead": 0}, {"op": "nack", "dead": True},
        {"op": "extend", "visibility_s": "x"}, {"op": "ack", "colour": "red"},
    ]  # fmt: skip
    said: list[dict[str, Any]] = []
    for _ in range(12):
        kind, first = rng.choice(kinds), rng.randrange(20)
        rises, falls = [*range(first, 20)], [*range(first, -1, -1)]
        ids: list[Any] = rng.choice([rises, falls, [first, first, 21, 3], [f"{first}-19"], [-1]])
        said += [{**kind, "ids": [msg_id]} for msg_id in ids]
        other: dict[str, Any] = {"op": rng.choice(["ack", "extend"]), "ids": rng.choice([[1, 2], [], ["3"]])}
        said += rng.choice([[], [other]])
    return [{**frame, "ref": ref} for ref, frame in enumerate(said)]


@pytest.mark.parametrize("seed", range(12))
async def test_frames_that_come_together_are_carried_out_as_one_after_the_other(rig: HttpRig, seed: int) -> None:
    said = settlements(random.Random(seed))
    found = []
    for together in (True, False):
        topic = f"t{together}"
        await rig.publish(topic, *map(str, range(20)))
        async with frames(rig, topic) as ws:
            await ws.ask(op="subscribe", consumer="c")
            assert [(await ws.hear())["id"] for _ in range(20)] == list(range(20))
            if together:
                ws.socket.transport.write(b"".join(frame_of(1, json.dumps(frame).encode()) for frame in said))
                answers = [await ws.hear() for _ in said]
            else:
                answers = [await ws.ask(**frame) for frame in said]
            consumer = rig.broker.topics[topic].channels["c"].consumer
            await rig.until(lambda: not consumer.has_held())  # noqa: B023 (it is called here)
            state = [(consumer.has_acked_all(n, n), consumer.is_inflight(n), consumer.failed(n)) for n in range(20)]
        answers.sort(key=lambda answer: int(answer["ref"]))  # an ack waits for the disk, the others do not
        found.append((answers, state))
    assert found[0] == found[1]


async def test_frames_that_are_alike_and_come_together_are_one_change(rig: HttpRig, monkeypatch: pytest.MonkeyPatch) -> None:
    changes: list[list[tuple[int, int]]] = []
    touch = Channel.touch

    def spy(self: Channel, ids: Sequence[IdRange], visibility_s: float | None) -> int:
        changes.append(list(ids))
        return touch(self, ids, visibility_s)

    monkeypatch.setattr(Channel, "touch", spy)
    await rig.publish("t", *map(str, range(40)))
    async with frames(rig) as ws:
        await ws.ask(op="subscribe", consumer="c")
        for _ in range(40):
            await ws.hear()
        said = b"".join(frame_of(1, b'{"op":"extend","ids":[%d],"ref":%d}' % (n, n)) for n in range(40))
        ws.socket.transport.write(said)
        assert [await ws.hear() for _ in range(40)] == [{"op": "extended", "count": 1, "ref": n} for n in range(40)]
        assert changes == [[(0, 39)]]


async def test_publishes_keep_their_order_without_waiting_for_answers(rig: HttpRig) -> None:
    async with frames(rig) as ws:
        for n in range(300):
            await ws.say(op="publish", ref=n, payload=str(n))
        answers = [await ws.hear() for _ in range(300)]
        assert sorted((answer["ref"], answer["id"]) for answer in answers) == [(n, n) for n in range(300)]


async def test_the_window_bounds_what_is_unacked(rig: HttpRig) -> None:
    await rig.publish("t", *map(str, range(5)))
    async with frames(rig) as ws:
        assert (await ws.ask(op="subscribe", consumer="c", window=2))["op"] == "subscribed"
        assert [(await ws.hear())["id"] for _ in range(2)] == [0, 1]
        assert (await ws.ask(op="publish", payload="5"))["op"] == "published", "no message came before"
        await ws.say(op="ack", ids=[0])
        assert sorted([(await ws.hear())["op"] for _ in range(2)]) == ["acked", "message"]


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ("no json", "BAD_FRAMING"),
        ("[]", "BAD_FRAMING"),
        ("{}", "BAD_FRAMING"),
        ('{"op": "dance"}', "BAD_ARGUMENT"),
        ('{"op": "publish"}', "BAD_ARGUMENT"),
        ('{"op": "publish", "payload": "a", "colour": "red"}', "BAD_ARGUMENT"),
        ('{"op": "ack", "ids": [1]}', "NOT_SUBSCRIBED"),
        ('{"op": "unsubscribe"}', "NOT_SUBSCRIBED"),
        ('{"op": "subscribe"}', "BAD_ARGUMENT"),
        ('{"op": "subscribe", "consumer": ".c"}', "BAD_NAME"),
        ('{"op": "subscribe", "consumer": "c", "window": 0}', "BAD_ARGUMENT"),
        ('{"op": "subscribe", "consumer": "c", "visibility_s": 0}', "BAD_ARGUMENT"),
        ('{"op": "subscribe", "consumer": "c", "visibility_s": NaN}', "BAD_FRAMING"),
        ('{"op": "unsubscribe", "ref": NaN}', "BAD_FRAMING"),
        ('{"op": "unsubscribe", "ref": [-Infinity]}', "BAD_FRAMING"),
        ('{"op": "unsubscribe", "ref": 1e999}', "BAD_FRAMING"),
        ('{"op": "subscribe", "consumer": "c", "mode": "both"}', "BAD_ARGUMENT"),
        ('{"op": "subscribe", "consumer": "c", "start": "soon"}', "BAD_ARGUMENT"),
    ],
)
async def test_frames_that_are_refused_harm_nothing(rig: HttpRig, frame: str, code: str) -> None:
    async with frames(rig) as ws:
        await ws.socket.send(frame)
        assert (await ws.hear())["code"] == code
        assert (await ws.ask(op="publish", payload="a"))["op"] == "published"


@pytest.mark.parametrize(
    "frame", ['"op": "dance"', '"op": "publish", "colour": "red"', '"payload": "a"', '"op": "ack", "ids": [1]']
)
async def test_a_refusal_has_the_ref_of_its_frame(rig: HttpRig, frame: str) -> None:
    async with frames(rig) as ws:
        await ws.socket.send(f'{{{frame}, "ref": [7]}}')
        answer = await ws.hear()
        assert (answer["op"], answer["ref"]) == ("error", [7])


async def test_a_ref_has_a_limit(rig: HttpRig) -> None:
    """Found: the unread answers to 215 frames with a ``ref`` of 4 MB each took 2.5 GB."""
    async with frames(rig) as ws:
        assert (await ws.ask(op="unsubscribe", ref="x" * (REF_CHARS_MAX - 2)))["ref"] == "x" * (REF_CHARS_MAX - 2)
        answer = await ws.ask(op="unsubscribe", ref="x" * REF_CHARS_MAX)
        assert (answer["code"], "ref" in answer) == ("BAD_ARGUMENT", False)


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"payload": "x" * 1000}, None),
        ({"payload": "x" * 1001}, "PAYLOAD_TOO_LARGE"),
        ({"payload_base64": "AAAA" * 334}, "PAYLOAD_TOO_LARGE"),
        ({"payload": "x" * 995, "headers": {"a": "b"}}, None),
        ({"payload": "x" * 996, "headers": {"a": "b"}}, "PAYLOAD_TOO_LARGE"),
    ],
    ids=["limit", "text", "base64", "headers-limit", "headers"],
)
async def test_a_payload_over_the_limit(rig: HttpRig, more: dict[str, Any], code: str | None) -> None:
    async with frames(rig) as ws:
        answer = await ws.ask(op="publish", **more)
        assert answer.get("code") == code
        assert (await ws.ask(op="publish", payload="a"))["id"] == (code is None), "it left nothing, and the connection goes on"


@pytest.mark.parametrize("character", ["\u0434", "x"])
async def test_a_payload_of_the_limit_may_be_escaped(character: str) -> None:
    """Found: `json.dumps` turns two bytes that are not ASCII into six, and the connection was closed with 1009."""
    size = 300_000
    payload = character * (size // len(character.encode()))
    async with listening(DIR, fs=SimDisk(random.Random(1)), max_payload_bytes=size) as rig, frames(rig) as ws:
        assert (await ws.ask(op="publish", payload=payload))["op"] == "published"
        assert (await ws.ask(op="publish", payload=payload + "x"))["code"] == "PAYLOAD_TOO_LARGE"
        with pytest.raises(ConnectionClosed) as closed:
            await ws.ask(op="publish", payload="x" * (3 * size + 64 * 1024))
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009


async def test_a_message_in_parts_is_one(rig: HttpRig) -> None:
    async with frames(rig) as ws:
        await ws.socket.send(["", '{"op": "publish", ', "", '"payload": "ä', 'b"}', ""])
        assert (await ws.hear())["op"] == "published"
    assert [m["payload"] for m in await rig.lease("t")] == ["äb"]


async def test_a_frame_of_bytes_ends_it_with_a_reason(rig: HttpRig) -> None:
    async with frames(rig) as ws:
        assert (await ws.ask(op="subscribe", consumer="c"))["op"] == "subscribed"
        await ws.socket.send(b"{}")
        with pytest.raises(ConnectionClosed) as closed:
            await ws.hear()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1003
        assert not sessions(rig)


async def test_text_that_is_no_utf8(rig: HttpRig, caplog: pytest.LogCaptureFixture) -> None:
    async with frames(rig) as ws:
        ws.socket.transport.write(frame_of(1, b"\xff"))
        with pytest.raises(ConnectionClosed) as closed:
            await ws.hear()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1007
        assert no_errors(caplog)


async def test_a_second_subscription_and_a_takeover(rig: HttpRig) -> None:
    async with frames(rig) as ws, frames(rig) as other:
        assert (await ws.ask(op="subscribe", consumer="c"))["op"] == "subscribed"
        assert (await ws.ask(op="subscribe", consumer="d"))["code"] == "ALREADY_SUBSCRIBED"
        assert (await other.ask(op="subscribe", consumer="c", mode="shared"))["code"] == "MODE_CONFLICT"
        assert (await other.ask(op="subscribe", consumer="c"))["op"] == "subscribed"
        assert await ws.hear() == {"op": "closed", "code": "TAKEN_OVER"}


def pumps() -> int:
    """Return the number of tasks that deliver."""
    return sum("_deliver" in repr(task.get_coro()) for task in asyncio.all_tasks())


async def test_subscribe_unsubscribe_subscribe_in_one_go(rig: HttpRig) -> None:
    """Found by pipelining them: two tasks delivered for the second subscription, out of order, and one never ended."""
    await rig.publish("t", *map(str, range(50)))
    async with frames(rig) as ws:
        for frame in ({"op": "subscribe", "consumer": "a"}, {"op": "unsubscribe"}, {"op": "subscribe", "consumer": "b"}):
            await ws.say(**frame)
        await ws.say(op="publish", payload="last")
        heard = [await ws.hear() for _ in range(4 + 51)]
        assert sorted(frame["op"] for frame in heard if frame["op"] != "message") == (
            ["published", "subscribed", "subscribed", "unsubscribed"]
        )  # fmt: skip
        assert [frame["id"] for frame in heard if frame["op"] == "message"] == list(range(51))
        assert pumps() == 1
    await rig.until(lambda: not pumps())


async def test_what_was_said_before_the_end_is_carried_out(rig: HttpRig) -> None:
    """Found: a subscription that was made right before a close frame was held for ever."""
    await rig.publish("t", "a")
    async with frames(rig) as ws:
        assert (await ws.ask(op="subscribe", consumer="c"))["op"] == "subscribed"
        assert (await ws.hear())["id"] == 0
        ws.socket.transport.pause_reading()  # so that all of it comes in one read
        ack = frame_of(1, json.dumps({"op": "ack", "ids": [0]}).encode())
        ws.socket.transport.write(ack + frame_of(8, (1000).to_bytes(2, "big")))
        consumer = rig.broker.topics["t"].consumers["c"]
        await rig.until(lambda: not sessions(rig))
        assert consumer.floor == 1
        ws.socket.transport.abort()
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
    writer.write(HANDSHAKE + b"\r\n")
    await reader.readuntil(b"\r\n\r\n")
    subscribe = frame_of(1, json.dumps({"op": "subscribe", "consumer": "c"}).encode())
    writer.write(subscribe + frame_of(8, (1000).to_bytes(2, "big")))
    await reader.read()
    assert not sessions(rig)
    writer.close()


@pytest.mark.parametrize(
    ("topic", "origin", "status"),
    [("..", None, 422), ("t", "http://evil.example", 403), ("t", "null", 403), ("t/ws?consumer=c&x=", None, 422)],
)
async def test_who_is_not_let_in(rig: HttpRig, topic: str, origin: str | None, status: int) -> None:
    with pytest.raises(InvalidStatus) as refusal:
        async with frames(rig, topic.replace("..", "%2e%2e"), additional_headers={"Origin": origin} if origin else {}):
            pass
    assert refusal.value.response.status_code == status


async def test_a_shutdown_closes_it(rig: HttpRig) -> None:
    async with frames(rig) as ws:
        assert (await ws.ask(op="publish", payload="a"))["op"] == "published"
        rig.stop()
        with pytest.raises(ConnectionClosed) as closed:
            await ws.hear()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1001


async def test_what_was_begun_is_answered_before_a_shutdown_closes_it(rig: HttpRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: a publish was stored, and its client was told only that the broker goes away."""
    held: list[Callable[[], None]] = []
    usual = Commit.add_waiter
    async with frames(rig) as ws:
        await ws.ask(op="publish", payload="a")
        await ws.ask(op="subscribe", consumer="c")
        await ws.hear()
        monkeypatch.setattr(Commit, "add_waiter", lambda self, call: held.append(partial(usual, self, call)))
        await ws.say(op="publish", payload="b", ref="b")
        await ws.say(op="publish", payload="c", ref="c")
        await ws.say(op="ack", ids=[0], ref="ack")
        await rig.until(lambda: len(held) == 2)
        rig.stop()
        await ws.say(op="publish", payload="late", ref="late")
        heard = [await ws.hear()]
        for release in held:
            release()
        heard += [await ws.hear() for _ in range(3)]
        with pytest.raises(ConnectionClosed) as closed:
            await ws.hear()
    answers = {frame["ref"]: frame for frame in heard if "ref" in frame}
    assert [(answers[ref]["op"], answers[ref]["id"]) for ref in "bc"] == [("published", 1), ("published", 2)]
    assert (answers["ack"], answers["late"]["code"]) == ({"op": "acked", "count": 1, "ref": "ack"}, "SHUTTING_DOWN")
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1001


@pytest.mark.parametrize(
    "more",
    [
        b"Content-Length: 10\r\n\r\n",
        b"Content-Length: 5\r\n\r\nhello",
        b"Transfer-Encoding: chunked\r\n\r\n",
        b"X: 1\r\n" * 200 + b"\r\n",
        b"X: " + b"1" * 9000 + b"\r\n\r\n",
    ],
    ids=["length", "body", "chunked", "many-headers", "long-header"],
)
async def test_a_handshake_that_is_none_is_refused_and_a_shutdown_is_not_disturbed(rig: HttpRig, more: bytes) -> None:
    """Found: connections with an invalid handshake stayed open for ever, and a shutdown failed on the first of them. The rig
    stops the listener, and fails with it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
    writer.write(HANDSHAKE + more)
    async with asyncio.timeout(10):
        answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["code"] == "BAD_FRAMING"


@pytest.mark.parametrize("head", [b"", b"X: " + 1500 * b"1" + b"\r\n"], ids=["one-piece", "two-pieces"])
@pytest.mark.parametrize("writes", [1, 2, 3])
@pytest.mark.parametrize("count", [2, 200])
async def test_frames_before_the_answer_to_the_handshake_are_served_behind_it(
    rig: HttpRig, caplog: pytest.LogCaptureFixture, head: bytes, writes: int, count: int
) -> None:
    """Found: frames with the handshake were dropped, and those right after it failed an assertion of the library."""
    published = b"".join(frame_of(1, b'{"op":"publish","payload":"%d"}' % n) for n in range(count))
    said = HANDSHAKE + head + b"\r\n" + published
    cut = len(said) - len(published)
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
    ends = {1: [len(said)], 2: [cut, len(said)], 3: [cut, cut + 5, len(said)]}[writes]
    for begin, end in pairwise([0, *ends]):
        writer.write(said[begin:end])
        await asyncio.sleep(0)
    await rig.until(lambda: "t" in rig.broker.topics and rig.broker.topics["t"].log.committed_id == count)
    async with asyncio.timeout(10):
        assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(count)
    writer.close()
    assert no_errors(caplog)


def no_errors(caplog: pytest.LogCaptureFixture) -> bool:
    return not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def told(port: int, request: bytes) -> tuple[bytes, dict[str, str], dict[str, Any]]:
    """Return (status, headers, problem) of a response after which the connection is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    async with asyncio.timeout(10):
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    status, *fields = head.decode().split("\r\n")
    headers: dict[str, str] = {}
    for name, _, value in (field.partition(": ") for field in fields):
        headers[name.lower()] = f"{headers[name.lower()]}, {value}" if name.lower() in headers else value
    assert headers["content-type"] == "application/problem+json"
    return status.split()[1].encode(), headers, json.loads(body)


@pytest.mark.parametrize(
    ("old", "new", "status", "code"),
    [
        (b"/v1/topics/t/ws", b"/healthz", b"404", "UNKNOWN_COMMAND"),
        (b"/v1/topics/t/ws", b"/v1/nothing", b"404", "UNKNOWN_COMMAND"),
        (b"/v1/topics/t/ws", b"/v1/topics/t/ws%0A", b"404", "UNKNOWN_COMMAND"),
        (b"/v1/topics/t/ws", b"/v1/topics/%2e%2e/ws", b"422", "BAD_NAME"),
        (b"localhost", b"evil.example", b"403", "FORBIDDEN"),
        (b"Sec-WebSocket-Key", b"X-Key", b"400", "BAD_FRAMING"),
        (b"dGhlIHNhbXBsZSBub25jZQ==", b"none", b"400", "BAD_FRAMING"),
        (b"dGhlIHNhbXBsZSBub25jZQ==", b"\xe9" * 5000, b"400", "BAD_FRAMING"),
        (b"Version: 13", b"Version: 8", b"426", "BAD_VERSION"),
        (b"Sec-WebSocket-Version", b"X-Version", b"426", "BAD_VERSION"),
    ],
)
async def test_every_refusal_is_a_problem_and_none_is_logged(
    rig: HttpRig, caplog: pytest.LogCaptureFixture, old: bytes, new: bytes, status: bytes, code: str
) -> None:
    found, headers, problem = await told(rig.port, HANDSHAKE.replace(old, new) + b"\r\n")
    assert (found, problem["code"]) == (status, code)
    assert "close" in headers["connection"]
    if status == b"426":
        assert headers["sec-websocket-version"] == "13"
        assert headers["upgrade"] == "websocket"
        assert "Upgrade" in headers["connection"]
    rig.stop()
    assert no_errors(caplog)


async def test_a_request_that_asks_for_no_upgrade(rig: HttpRig) -> None:
    path = "/v1/topics/t/ws"
    for headers in ({}, {"connection": "upgrade", "upgrade": "h2c"}):
        answer = await rig.ask("GET", path, headers=headers)
        refused(answer, 426, "BAD_VERSION")
        assert (answer.headers["upgrade"], answer.headers["connection"]) == ("websocket", "Upgrade")
    answer = await rig.ask("POST", path)
    refused(answer, 405, "UNKNOWN_COMMAND")
    assert answer.headers["allow"] == "GET, HEAD"
    refused(await rig.ask("GET", "/v1/topics/.t/ws"), 422, "BAD_NAME")


@pytest.mark.parametrize("late", [False, True], ids=["shutdown", "timeout"])
async def test_a_handshake_that_nobody_completes_ends(rig: HttpRig, monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    """A connection with half a handshake is closed after a while, or with the listener."""
    begun: list[GatewayWebSocket] = []

    async def never(self: GatewayWebSocket) -> None:
        begun.append(self)

    monkeypatch.setattr(GatewayWebSocket, "run", never)
    if late:
        monkeypatch.setattr(websocket_protocol, "HEAD_TIMEOUT_S", 0.02)
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
    writer.write(HANDSHAKE + b"\r\n")
    await rig.until(lambda: begun)
    if not late:
        rig.stop()
    async with asyncio.timeout(10):
        assert (await reader.read())[:13] == (b"" if late else b"HTTP/1.1 503 ")
    writer.close()
