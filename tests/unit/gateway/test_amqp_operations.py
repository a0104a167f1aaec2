"""Exchanges, queues and bindings over HTTP: pages, searches, declarations; for admins only."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.http_rig import HttpRig, gateway, refused
from tests.support.http_tokens import bearer, three_tokens
from tests.support.sim_disk import SimDisk
from toymq_py.amqp import AmqpServer
from toymq_py.clock import SystemClock
from toymq_py.gateway import amqp_operations, answer_room

DIR = "/data/d"
WANTED = {
    "exchange": [{"name": "orders", "type": "topic"}],
    "queue": [{"name": f"q{number}"} for number in range(5)],
    "binding": [{"source": "orders", "queue": f"q{number}", "routing_key": "a.*"} for number in range(5)],
}


def serve(rig: HttpRig) -> AmqpServer:
    """Make the broker speak AMQP, without a listener."""
    assert rig.gateway is not None
    rig.gateway.amqp = server = AmqpServer(rig.broker, SystemClock(), asyncio.get_running_loop())
    return server


@pytest.fixture
async def rig() -> AsyncIterator[HttpRig]:
    async with gateway(DIR, fs=SimDisk(random.Random(1))) as rig:
        server = serve(rig)
        yield rig
        server.vhosts.close()


async def listed(rig: HttpRig, kind: str, **query: Any) -> Any:
    answer = await rig.ask("GET", f"/v1/{kind}", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_what_was_declared_is_listed_a_page_at_a_time(rig: HttpRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amqp_operations, "PER_TURN", 2)
    assert (await rig.ask("POST", "/v1/amqp:declare", json=WANTED)).json() == {"declared": 11}
    assert (await rig.ask("POST", "/v1/amqp:declare", json=WANTED)).json() == {"declared": 0}
    grown: list[int] = []
    monkeypatch.setattr(answer_room, "grow", lambda request, size: grown.append(size))
    found = await listed(rig, "queues", max=2)
    assert grown == [len(json.dumps(each)) for each in found["queues"]], "each row counts when it is made"
    assert (found["served"], found["total"], found["more"]) == (True, 5, True)
    assert [each["name"] for each in found["queues"]] == ["q0", "q1"]
    assert found["queues"][0] == {
        "vhost": "/", "name": "q0", "topic": "q0", "durable": True, "exclusive": False, "auto_delete": False, "arguments": {},
        "ready": 0, "consumers": 0, "lasting": True,
    }  # fmt: skip
    found = await listed(rig, "queues", max=2, skip=4)
    assert ([each["name"] for each in found["queues"]], found["more"]) == (["q4"], False)
    found = await listed(rig, "bindings", search="Q3")
    assert (found["total"], found["more"], [each["queue"] for each in found["bindings"]]) == (5, False, ["q3"])
    found = await listed(rig, "exchanges", search="topic")
    assert [(each["name"], each["bindings"]) for each in found["exchanges"]] == [("amq.topic", 0), ("orders", 5)]
    for kind, wrong in (("queues", {"max": 1001}), ("bindings", {"skip": -1}), ("exchanges", {"search": ""})):
        refused(await rig.ask("GET", f"/v1/{kind}", params=wrong), 422, "BAD_ARGUMENT")


async def test_what_differs_or_is_wrong_is_refused_by_name(rig: HttpRig) -> None:
    await rig.ask("POST", "/v1/amqp:declare", json=WANTED)
    for body, text in (
        ({"exchange": [{"name": "orders", "type": "fanout"}]}, "type=topic -> fanout: what is there is not changed"),
        ({"exchange": [{"name": "e", "type": "odd"}]}, "unknown exchange type 'odd'"),
        ({"binding": [{"source": "absent", "queue": "q1"}]}, "no exchange 'absent'"),
        ({"queue": [{"name": "q", "durable": False, "auto_delete": True}]}, "would not outlive a restart"),
        ({"queue": [{"name": "new"}, {"name": "q9", "arguments": {"x-message-ttl": -1}}]}, "changed before that: + queue new"),
        ({"queue": {}}, "queue is an array of objects"),
        ({"topic": []}, "unknown member 'topic'"),
    ):  # fmt: skip
        problem = refused(await rig.ask("POST", "/v1/amqp:declare", json=body), 422, "BAD_ARGUMENT")
        assert text in problem["detail"], problem["detail"]
    assert [each["name"] for each in (await listed(rig, "queues", search="n"))["queues"]] == ["new"]


async def test_a_body_that_names_one_thing_twice_declares_nothing(rig: HttpRig) -> None:
    binding = {"source": "amq.topic", "queue": "q", "routing_key": "a"}
    for body, text in (
        ({"queue": [{"name": "q"}, {"name": "q", "arguments": {"x-max-length": 1}}]}, "queue number 2: queue q stands twice"),
        ({"exchange": [{"name": "e", "type": kind} for kind in ("direct", "fanout")]}, "number 2: exchange e stands twice"),
        ({"queue": [{"name": "q"}], "binding": [binding, binding]}, "binding amq.topic -> queue q a stands twice"),
    ):  # fmt: skip
        problem = refused(await rig.ask("POST", "/v1/amqp:declare", json=body), 422, "BAD_ARGUMENT")
        assert text in problem["detail"], problem["detail"]
    assert (await listed(rig, "queues"))["total"] == 0
    both = [{"name": "q"}, {"name": "p"}]
    assert (await rig.ask("POST", "/v1/amqp:declare", json={"queue": both})).json() == {"declared": 2}


async def test_a_name_that_a_frame_of_amqp_cannot_have_is_refused(rig: HttpRig) -> None:
    odd = "evil\ud800"
    for body, text in (
        ({"exchange": [{"name": odd, "type": "direct"}]}, "exchange number 1: name is not UTF-8"),
        ({"queue": [{"name": odd}]}, "queue number 1: name is not UTF-8"),
        ({"binding": [{"source": "amq.topic", "queue": "q", "routing_key": odd}]}, "routing_key is not UTF-8"),
        ({"queue": [{"name": "q", "arguments": {"x": [odd]}}]}, "a text of arguments is not UTF-8"),
        ({"queue": [{"name": "q", "arguments": {odd: 1}}]}, "a text of arguments is not UTF-8"),
    ):  # fmt: skip
        problem = refused(await rig.ask("POST", "/v1/amqp:declare", content=json.dumps(body)), 422, "BAD_ARGUMENT")
        assert text in problem["detail"], problem["detail"]


async def test_arguments_that_no_client_could_declare_are_refused(rig: HttpRig) -> None:
    """Found in review: 900 nested arrays were answered INTERNAL, and 450 were stored, where an AMQP frame may have 32."""

    def nested(depth: int) -> str:
        return f'{{"queue": [{{"name": "q{depth}", "arguments": {{"a": {"[" * depth}{"]" * depth}}}}}]}}'

    for depth in (32, 450, 900):
        problem = refused(await rig.ask("POST", "/v1/amqp:declare", content=nested(depth)), 422, "BAD_ARGUMENT")
        assert "nested more than 32 deep" in problem["detail"]
    assert (await rig.ask("POST", "/v1/amqp:declare", content=nested(31))).json() == {"declared": 1}
    for arguments, text in (({"a": 1 << 63}, "more than 64 bits"), ({"a": {"n" * 256: 1}}, "at most 255 bytes")):
        wanted = {"queue": [{"name": "q", "arguments": arguments}]}
        problem = refused(await rig.ask("POST", "/v1/amqp:declare", json=wanted), 422, "BAD_ARGUMENT")
        assert text in problem["detail"]


async def test_a_topic_with_messages_does_not_become_a_queue_that_goes_by_itself(rig: HttpRig) -> None:
    await rig.publish("orders", "of another protocol")
    wanted = {"queue": [{"name": "orders", "auto_delete": True}]}
    problem = refused(await rig.ask("POST", "/v1/amqp:declare", json=wanted), 422, "BAD_ARGUMENT")
    assert "would be deleted with queue 'orders'" in problem["detail"]
    assert (await rig.ask("POST", "/v1/amqp:declare", json={"queue": [{"name": "orders"}]})).json() == {"declared": 1}


async def test_admins_alone_and_without_amqp_there_is_nothing() -> None:
    async with gateway(DIR, fs=SimDisk(random.Random(1)), authority=three_tokens()) as rig:
        for kind in ("exchanges", "queues", "bindings"):
            for headers, status, code in (({}, 401, "AUTH_REQUIRED"), (bearer("billing"), 403, "FORBIDDEN")):
                refused(await rig.ask("GET", f"/v1/{kind}", headers=headers), status, code)
            answer = await rig.ask("GET", f"/v1/{kind}", headers=bearer("operator"))
            assert answer.json() == {"served": False, "total": 0, "more": False, kind: []}
        refused(await rig.ask("POST", "/v1/amqp:declare", json=WANTED, headers=bearer("billing")), 403, "FORBIDDEN")
        answer = await rig.ask("POST", "/v1/amqp:declare", json=WANTED, headers=bearer("operator"))
        problem = refused(answer, 422, "BAD_ARGUMENT")
        assert "start it with --amqp" in problem["detail"]
