"""Open connections over HTTP: of all protocols, searched and closed; for admins only."""

import asyncio
import random
from collections.abc import AsyncIterator
from itertools import chain
from typing import Any

import pytest

from tests.support.http_rig import HttpRig, listening, refused
from tests.support.http_tokens import bearer, three_tokens
from tests.support.sim_disk import SimDisk
from tests.support.websockets import frames, sessions
from toymq_py.gateway import answer_room, connection_operations

DIR = "/data/d"
PATH = "/v1/connections"


@pytest.fixture
async def rig() -> AsyncIterator[HttpRig]:
    async with listening(DIR, fs=SimDisk(random.Random(1))) as rig:
        yield rig


async def listed(rig: HttpRig, **query: Any) -> list[dict[str, Any]]:
    answer = await rig.ask("GET", PATH, params=query)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["connections"]
    return found


async def test_every_protocol_is_listed_with_its_subscriptions(rig: HttpRig) -> None:
    await rig.publish("t", "a")
    wire = await rig.served.connect()
    assert (await wire.ask(b"HELLO 1 name=mailer\n")).startswith(b"HELLO")
    assert (await wire.ask(b"SUB t billing window=5 mode=shared\n")).startswith(b"OK")
    assert (await wire.message())[2] == b"a"
    async with frames(rig, "u") as ws:
        assert await ws.ask(op="subscribe", consumer="web", window=3) == {"op": "subscribed"}
        by_protocol = {each["protocol"]: each for each in await listed(rig)}
        session, socket, request = (by_protocol[name] for name in ("toymq", "websocket", "http"))
        assert session["name"] == "mailer"
        assert session["address"].startswith("127.0.0.1:")
        assert session["subscriptions"] == [
            {"topic": "t", "consumer": "billing", "mode": "shared", "inflight": 1, "window": 5, "active_in": None}
        ]
        assert [(each["topic"], each["consumer"]) for each in socket["subscriptions"]] == [("u", "web")]
        assert request["own"]
        assert not session["own"]
        assert await ws.ask(op="unsubscribe") == {"op": "unsubscribed"}
        (socket,) = await listed(rig, search="websocket")
        assert socket["subscriptions"] == [], "it has ended"


async def test_of_sessions_with_mode_single_each_says_where_it_is_active(rig: HttpRig) -> None:
    for topic in ("t.0", "t.1", "t.2"):
        await rig.publish(topic, "a")
    for name, what in ((b"first", b"t.*"), (b"second", b"t.*"), (b"third", b"t.1")):
        wire = await rig.served.connect()
        await wire.ask(b"HELLO 1 name=%b\n" % name)
        assert (await wire.ask(b"SUB %b c window=1 mode=single\n" % what)).startswith(b"OK")
    active = {each["name"]: each["subscriptions"][0]["active_in"] for each in await listed(rig) if each["protocol"] == "toymq"}
    assert sorted(chain.from_iterable(active.values())) == ["t.0", "t.1", "t.2"]
    assert active["first"]
    assert active["third"] in ([], ["t.1"])


async def test_a_search_finds_names_topics_and_consumers(rig: HttpRig, monkeypatch: pytest.MonkeyPatch) -> None:
    grown: list[int] = []
    monkeypatch.setattr(answer_room, "grow", lambda request, size: grown.append(size))
    for name, topic in ((b"mailer", b"orders"), (b"printer", b"labels.*")):
        wire = await rig.served.connect()
        await wire.ask(b"HELLO 1 name=%b\n" % name)
        assert (await wire.ask(b"SUB %b c-%b\n" % (topic, name))).startswith(b"OK")
    for search, name in (("MAIL", "mailer"), ("labels", "printer"), ("c-printer", "printer"), ("toymq-1", "mailer")):
        assert [each["name"] for each in await listed(rig, search=search)] == [name], search
    assert len(grown) == 4, "each that is listed counts when it is made"
    assert await listed(rig, search="nothing") == []
    for wrong in ({"search": ""}, {"search": "x" * 101}, {"max": 0}, {"max": 1001}):
        refused(await rig.ask("GET", PATH, params=wrong), 422, "BAD_ARGUMENT")


async def test_no_more_than_asked_for_is_described(rig: HttpRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_operations, "PER_TURN", 2)
    for _ in range(5):
        await (await rig.served.connect()).ask(b"HELLO 1\n")
    answer = (await rig.ask("GET", PATH, params={"max": 3})).json()
    assert (answer["open"], answer["more"], len(answer["connections"])) == (6, True, 3)
    answer = (await rig.ask("GET", PATH, params={"max": 6})).json()
    assert (answer["open"], answer["more"], len(answer["connections"])) == (6, False, 6)
    assert [each["since_ms"] for each in answer["connections"]] == sorted(
        (each["since_ms"] for each in answer["connections"]), reverse=True
    )


async def test_a_closed_connection_gives_its_messages_back(rig: HttpRig) -> None:
    await rig.publish("t", "a")
    wire = await rig.served.connect()
    await wire.ask(b"HELLO 1\n")
    await wire.ask(b"SUB t billing\n")
    assert (await wire.message())[:2] == (0, 1)
    (found,) = await listed(rig, search="billing")
    assert (await rig.ask("DELETE", f"{PATH}/{found['connection']}")).status_code == 204
    assert await wire.rest() == b""
    await rig.until(lambda: rig.broker.metrics.connections == 0)
    assert [message["attempt"] for message in await rig.lease("t", "billing")] == [2]
    problem = refused(await rig.ask("DELETE", f"{PATH}/{found['connection']}"), 404, "NO_SUCH_CONNECTION")
    assert found["connection"] in problem["detail"]


async def test_a_websocket_is_closed(rig: HttpRig) -> None:
    async with frames(rig) as ws:
        await ws.ask(op="subscribe", consumer="web")
        (found,) = await listed(rig, search="web")
        assert (await rig.ask("DELETE", f"{PATH}/{found['connection']}")).status_code == 204
        async with asyncio.timeout(10):
            await ws.socket.wait_closed()
    await rig.until(lambda: sessions(rig, consumer="web") == 0)


async def test_a_request_does_not_close_its_own_connection(rig: HttpRig) -> None:
    (own,) = [each for each in await listed(rig) if each["own"]]
    refused(await rig.ask("DELETE", f"{PATH}/{own['connection']}"), 422, "BAD_ARGUMENT")
    for wrong in ("7", "toymq-x", "smtp-1"):
        refused(await rig.ask("DELETE", f"{PATH}/{wrong}"), 422, "BAD_ARGUMENT")


async def test_admins_alone_see_and_close() -> None:
    async with listening(DIR, fs=SimDisk(random.Random(1)), authority=three_tokens()) as rig:
        wire = await rig.served.connect()
        assert (await wire.ask(b"HELLO 1 auth=billing-token\n")).startswith(b"HELLO")
        for headers, status, code in (({}, 401, "AUTH_REQUIRED"), (bearer("billing"), 403, "FORBIDDEN")):
            refused(await rig.ask("GET", PATH, headers=headers), status, code)
            refused(await rig.ask("DELETE", f"{PATH}/toymq-1", headers=headers), status, code)
        assert await wire.ask(b"PING\n") == b"PONG"
        answer = await rig.ask("GET", PATH, headers=bearer("operator"), params={"search": "billing"})
        assert [(each["connection"], each["token"]) for each in answer.json()["connections"]] == [("toymq-1", "billing")]
        assert (await rig.ask("DELETE", f"{PATH}/toymq-1", headers=bearer("operator"))).status_code == 204
        assert await wire.rest() == b""
