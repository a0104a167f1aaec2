"""``/ws``: publish and live tails over a WebSocket."""

import asyncio
import base64
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from hashlib import sha256
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.support.broker_rig import DIR
from tests.support.http_rig import TIMEOUT_S, HttpRig, listening
from tests.support.sim_disk import SimDisk
from tests.support.tinymq_client import get, publish, texts
from toymq_py.auth.tokens import Authority, parse_grants
from toymq_py.gateway.tinymq import socket
from toymq_py.gateway.tinymq.names import shown_id
from toymq_py.topic import Commit

DIALECT = "tinymq"


@asynccontextmanager
async def frames(rig: HttpRig, query: str = "") -> AsyncIterator[ClientConnection]:
    async with connect(f"ws://127.0.0.1:{rig.port}/ws{query}") as ws:
        yield ws


async def ask(ws: ClientConnection, **frame: Any) -> Any:
    await ws.send(json.dumps(frame))
    return await hear(ws)


async def hear(ws: ClientConnection) -> Any:
    async with asyncio.timeout(TIMEOUT_S):
        return json.loads(await ws.recv())


async def test_a_websocket_publishes_and_looks_on(listener: HttpRig) -> None:
    async with frames(listener) as ws:
        assert await ask(ws, action="ping") == {"status": "pong"}
        assert await ask(ws, action="subscribe", topic="a/b") == {"status": "subscribed", "topic": "a/b"}
        published = await ask(ws, action="publish", topic="a/b", payload="é")
        pushed = await hear(ws)
        if "status" in pushed:
            published, pushed = pushed, published
        assert published == {"status": "published", "topic": "a/b", "id": shown_id("a.b", None, 0)}
        assert (pushed["id"], pushed["topic"]) == (published["id"], "a/b"), "the client finds its handler by the topic"
        assert base64.b64decode(pushed["payload"]).decode() == "é"
        assert await ask(ws, action="unsubscribe", topic="a/b") == {"status": "unsubscribed", "topic": "a/b"}
        await publish(listener, "a/b", b"x")
        assert await ask(ws, action="ping") == {"status": "pong"}, "and nothing else came"
    assert texts((await get(listener, "/consume/a/b?limit=10"))[1]) == ["é", "x"], "nothing was consumed"


async def test_a_frame_of_bytes_ends_it_with_a_reason(listener: HttpRig) -> None:
    """Found: a binary frame had no answer, and the connection stayed open: its client waited for ever."""
    async with frames(listener) as ws:
        assert (await ask(ws, action="subscribe", topic="t"))["status"] == "subscribed"
        await ws.send(json.dumps({"action": "ping"}))
        await ws.send(b'{"action": "ping"}')
        assert await hear(ws) == {"status": "pong"}
        with pytest.raises(ConnectionClosed) as closed:
            await hear(ws)
        assert closed.value.rcvd is not None
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1003, "send text frames")


async def test_a_websocket_has_globs_and_filters(listener: HttpRig) -> None:
    watchers = dict(listener.broker._subscriptions._watchers)
    async with frames(listener) as ws:
        assert (await ask(ws, action="subscribe", topic="*", filter_key="n", filter_val="2"))["status"] == "subscribed"
        await publish(listener, "t", {"n": 1}, {"n": 2})
        await publish(listener, "u", {"n": 2})
        assert sorted([(await hear(ws))["topic"] for _ in range(2)]) == ["t", "u"]
    await listener.until(lambda: listener.broker._subscriptions._watchers == watchers)


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        ("not-json", "json"),
        ("[]", "action"),
        ("{}", "action"),
        ('{"action": "consume", "topic": "t"}', "action"),
        ('{"action": "publish", "payload": "x"}', "topic required"),
        ('{"action": "publish", "topic": "t"}', "payload required"),
        ('{"action": "publish", "topic": "..", "payload": "x"}', "name"),
        ('{"action": "publish", "topic": "t.dlq", "payload": "x"}', "dead letters"),
        ('{"action": "subscribe"}', "topic required"),
        ('{"action": "subscribe", "topic": "t", "filter_key": "n"}', "filter_val required"),
        ('{"action": "unsubscribe", "topic": "t"}', "not subscribed"),
        ('{"action": "ping", "colour": "red"}', "colour"),
    ],
)
async def test_what_a_websocket_refuses(listener: HttpRig, frame: str, says: str) -> None:
    async with frames(listener) as ws:
        await ws.send(frame)
        answer = await hear(ws)
        assert (answer["status"], says in answer["message"]) == ("error", True), answer
        assert await ask(ws, action="ping") == {"status": "pong"}
    assert "t" not in listener.broker.topics


async def test_a_websocket_has_a_bounded_number_of_subscriptions(
    listener: HttpRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "SUBSCRIPTIONS_MAX", 2)
    async with frames(listener) as ws:
        answers = [await ask(ws, action="subscribe", topic=topic) for topic in ("t", "t", "u", "v")]
        assert [answer["status"] for answer in answers] == ["subscribed", "error", "subscribed", "error"]
        assert "already" in answers[1]["message"]
        await publish(listener, "t", {"n": 1})
        assert (await hear(ws))["topic"] == "t"
        assert (await listener.ask("DELETE", "/api/queues/delete?queue=t")).status_code == 200
        assert "deleted" in (await hear(ws))["message"]
        assert (await ask(ws, action="subscribe", topic="v"))["status"] == "subscribed"


async def test_a_websocket_is_let_in_by_a_token_of_its_query(fs: SimDisk) -> None:
    """The Go client can send its token in the query only. An action beyond the token's rights is refused topic by topic."""
    digest = sha256(b"secret-of-the-shop").hexdigest()
    rights = 'publish = ["shop.>"]\nsubscribe = ["shop.>"]'
    authority = Authority(parse_grants(f'[[token]]\nname = "shop"\nsha256 = "{digest}"\n{rights}\n', "auth.toml"))
    async with listening(DIR, fs=fs, dialects=["tinymq"], authority=authority) as rig:
        for query in ("", "?token=guess", "?token=%C3%A9"):
            with pytest.raises(InvalidStatus) as refused:
                async with frames(rig, query):
                    pass
            assert refused.value.response.status_code == 401
        async with frames(rig, "?token=secret-of-the-shop") as ws:
            assert (await ask(ws, action="publish", topic="shop/a", payload="x"))["status"] == "published"
            assert (await ask(ws, action="publish", topic="bank", payload="x"))["status"] == "error"
            assert (await ask(ws, action="subscribe", topic="*"))["status"] == "error"
            assert (await ask(ws, action="subscribe", topic="shop/*"))["status"] == "subscribed"


async def test_who_asks_for_no_upgrade_is_told(rig: HttpRig) -> None:
    answer = await rig.ask("GET", "/ws")
    assert (answer.status_code, answer.headers["upgrade"]) == (426, "websocket")


async def test_a_shutdown_answers_the_frame_that_was_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: at a shutdown a publish was stored, but its client was told only that the broker goes away."""
    held: list[Callable[[], None]] = []
    usual = Commit.add_waiter
    async with listening(DIR, fs=SimDisk(random.Random(1)), dialects=[DIALECT]) as rig, frames(rig) as ws:
        await ask(ws, action="publish", topic="t", payload="a")
        monkeypatch.setattr(Commit, "add_waiter", lambda self, call: held.append(partial(usual, self, call)))
        await ws.send(json.dumps({"action": "publish", "topic": "t", "payload": "b"}))
        await rig.until(lambda: held)
        rig.stop()
        await asyncio.sleep(0)
        held[0]()
        assert (await hear(ws))["status"] == "published"
        with pytest.raises(ConnectionClosed) as closed:
            await hear(ws)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1001
