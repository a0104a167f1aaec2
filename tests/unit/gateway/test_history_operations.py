"""The broker's last hour over HTTP: of the whole broker, of every topic, of one; by rights; empty before the first samples."""

import json
import random
from typing import Any

import pytest

from tests.support.http_rig import HttpRig, gateway, listening, refused
from tests.support.http_tokens import bearer, three_tokens
from tests.support.sim_disk import SimDisk
from toymq_py.observability import history
from toymq_py.observability.history import BROKER_COLUMNS, ROWS, STEP_S, TOPIC_COLUMNS

DIR = "/data/d"


def disk() -> SimDisk:
    return SimDisk(random.Random(1))


async def asked(rig: HttpRig, path: str = "/v1/history", **query: Any) -> dict[str, Any]:
    answer = await rig.ask("GET", path, params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_the_whole_and_topics() -> None:
    async with gateway(DIR, fs=disk()) as rig:
        assert rig.gateway is not None
        assert set((await asked(rig, topics="true"))["topics"]) == set(), "there was no sample yet"
        await rig.publish("t", "a", "b")
        await rig.publish("u", "a")
        await rig.gateway.history.sample()
        found = await asked(rig)
        assert set(found) == {"step_s", "last_ms", "part", "broker", "topics_left_out"}
        assert found["part"] is None
        assert (found["step_s"], tuple(found["broker"])) == (STEP_S, BROKER_COLUMNS)
        assert found["broker"]["backlog"] == [None] * (ROWS - 1) + [3]
        found = await asked(rig, topics="true", last_s=11)
        assert {name: numbers["backlog"] for name, numbers in found["topics"].items()} == {"t": [None, 2], "u": [None, 1]}
        assert tuple(found["topics"]["t"]) == TOPIC_COLUMNS
        found = await asked(rig, "/v1/topics/t/history", last_s=1)
        assert (found["topic"], found["kept"], found["numbers"]["backlog"]) == ("t", True, [2])


async def test_a_topic_without_a_ring_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async with gateway(DIR, fs=disk()) as rig:
        await rig.publish("t", "a")
        found = await asked(rig, "/v1/topics/t/history")
        assert (found["kept"], "numbers" in found) == (False, False)
        refused(await rig.ask("GET", "/v1/topics/nothing/history"), 404, "NO_SUCH_TOPIC")
        for wrong in ({"last_s": 0}, {"last_s": 3601}, {"topics": "yes"}, {"pattern": ">"}):
            refused(await rig.ask("GET", "/v1/history", params=wrong), 422, "BAD_ARGUMENT")
        assert (await rig.ask("HEAD", "/v1/history", params={"topics": "true"})).content == b""


async def test_a_token_is_shown_the_topics_that_it_may_see() -> None:
    async with gateway(DIR, fs=disk(), authority=three_tokens()) as rig:
        assert rig.gateway is not None
        for name in ("orders.new", "salaries"):
            await rig.ask("PUT", f"/v1/topics/{name}", headers=bearer("operator"))
        await rig.gateway.history.sample()
        seen = {}
        for name in ("billing", "operator", "outsider"):
            answer = await rig.ask("GET", "/v1/history", params={"topics": "true"}, headers=bearer(name))
            seen[name] = sorted(answer.json()["topics"])
        assert seen == {"billing": ["orders.new"], "operator": ["orders.new", "salaries"], "outsider": []}
        refused(await rig.ask("GET", "/v1/history"), 401, "AUTH_REQUIRED")
        refused(await rig.ask("GET", "/v1/topics/salaries/history", headers=bearer("billing")), 403, "FORBIDDEN")


async def test_the_server_samples_and_events_say_who_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "STEP_S", 0.01)
    monkeypatch.setattr(history, "SLOW_S", 0)
    async with listening(DIR, fs=disk()) as rig:
        await rig.publish("t", "a")
        await rig.lease("t", "c", max=1)
        slow = None
        while slow is None:
            async with rig.client.stream("GET", "/v1/events") as stream:
                async for line in stream.aiter_lines():
                    if line.startswith("data: "):
                        snapshot = json.loads(line[6:])
                        break
            slow = snapshot["topics"][0]["consumers"][0]["slow_since_ms"]
        assert 0 <= snapshot["now_ms"] - slow < 60_000
