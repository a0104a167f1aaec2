"""The common part of all WebSocket routes: each refusal is answered, counted, and in the audit trail."""

import json
import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.support.http_rig import HttpRig, listening
from tests.support.sim_disk import SimDisk
from tests.support.tokens import authority, grants, table, token

READER = table("reader", 'publish = ["a"]\nsubscribe = ["a"]')
EXPIRED = table("old", "expires = 1970-01-01")
PATHS = {"/v1/topics/no/ws": ("websocket", "op"), "/ws": ("tinymqSocket", "action")}
"""The action of the handshake, and the member that names that of a frame."""
ABOUT = {"/v1/topics/no/ws": " topic=no", "/ws": ""}
"""What the path of a handshake names."""


@pytest.fixture
async def rig(caplog: pytest.LogCaptureFixture) -> AsyncIterator[HttpRig]:
    caplog.set_level(logging.INFO, "toymq_py.audit")
    known = authority(READER, EXPIRED, wall_ns=lambda: 1)
    async with listening("/d", fs=SimDisk(random.Random(1)), authority=known, dialects=["tinymq"]) as rig:
        yield rig


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.name == "toymq_py.audit"]
    caplog.clear()
    return found


@asynccontextmanager
async def opened(rig: HttpRig, path: str, name: str = "reader", **more: Any) -> AsyncIterator[ClientConnection]:
    headers = {"authorization": f"Bearer {token(name)}"} if name else {}
    async with connect(f"ws://127.0.0.1:{rig.port}{path}", additional_headers=headers, **more) as socket:
        yield socket


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("name", "more", "who", "result"),
    [
        ("", {}, "-", "AUTH_REQUIRED"),
        ("stranger", {}, "-", "AUTH_FAILED"),
        ("old", {}, "old", "AUTH_FAILED"),
        ("reader", {"origin": "http://evil.example"}, "-", "FORBIDDEN"),
    ],
)
async def test_a_refused_handshake_is_in_the_audit_trail(
    rig: HttpRig, caplog: pytest.LogCaptureFixture, path: str, name: str, more: dict[str, Any], who: str, result: str
) -> None:
    """Found: refusals on ``/ws`` were not in the trail."""
    with pytest.raises(InvalidStatus) as refused:
        async with opened(rig, path, name, **more):
            pass
    assert refused.value.response.status_code == (403 if result == "FORBIDDEN" else 401)
    assert said(caplog) == [
        f"action={PATHS[path][0]}{ABOUT[path]} token={who} address=127.0.0.1 via=websocket result={result}"
    ]


async def test_a_token_of_the_query_that_is_refused_is_not_in_the_trail_itself(
    rig: HttpRig, caplog: pytest.LogCaptureFixture
) -> None:
    for query, result in (("?token=guess", "AUTH_FAILED"), ("?" + "&".join(["token=guess"] * 40), "AUTH_REQUIRED")):
        with pytest.raises(InvalidStatus):
            async with opened(rig, f"/ws{query}", ""):
                pass
        assert said(caplog) == [f"action=tinymqSocket token=- address=127.0.0.1 via=websocket result={result}"]


@pytest.mark.parametrize("path", PATHS)
async def test_a_refused_frame_is_in_the_audit_trail(rig: HttpRig, caplog: pytest.LogCaptureFixture, path: str) -> None:
    _, member = PATHS[path]
    named = {"topic": "no"} if path == "/ws" else {}
    async with opened(rig, path) as socket:
        for frame in ({member: "publish", "payload": "x"}, {member: "subscribe"} | ({} if named else {"consumer": "c"})):
            await socket.send(json.dumps({**frame, **named}))
            assert "may not" in str(json.loads(await socket.recv()))
        await socket.send("no json")
        await socket.recv()
    assert said(caplog) == [
        f"action={action} topic=no token=reader address=127.0.0.1 via=websocket result=FORBIDDEN"
        for action in ("publish", "subscribe")
    ]


@pytest.mark.parametrize(("path", "subscribe", "ends"), [
    ("/v1/topics/a/ws", {"op": "subscribe", "consumer": "c"}, "FORBIDDEN"),
    ("/ws", {"action": "subscribe", "topic": "a"}, "has ended"),
])  # fmt: skip
async def test_a_subscription_that_ends_with_the_right_to_it_is_in_the_audit_trail(
    rig: HttpRig, caplog: pytest.LogCaptureFixture, path: str, subscribe: dict[str, str], ends: str
) -> None:
    assert rig.authority is not None
    async with opened(rig, path) as socket:
        await socket.send(json.dumps(subscribe))
        await socket.recv()
        caplog.clear()
        rig.authority.replace(grants(table("reader", 'publish = ["a"]')))
        rig.broker.topic_or_new("a").publish([b""], [b"x"])
        assert ends in str(await socket.recv())
    assert said(caplog) == ["action=subscribe topic=a token=reader address=127.0.0.1 via=websocket result=FORBIDDEN"]


@pytest.mark.parametrize("path", PATHS)
async def test_a_websocket_that_ends_with_its_token_is_in_the_audit_trail(
    rig: HttpRig, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    assert rig.authority is not None
    async with opened(rig, path) as socket:
        rig.authority.replace(grants(EXPIRED))
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1008
    assert said(caplog) == [
        f"action={PATHS[path][0]}{ABOUT[path]} token=reader address=127.0.0.1 via=websocket result=AUTH_FAILED"
    ]
