"""Topics over HTTP, their lists, and the pages."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable

import pytest

from tests.support.http_rig import HttpRig, gateway, refused
from tests.support.sim_disk import SimDisk
from toymq_py.data_directory import DataDirectory
from toymq_py.gateway.topic_operations import CONSUMERS_PER_TURN

DIR = "/data/d"
TOPIC = "/v1/topics/t"


@pytest.fixture
async def rig() -> AsyncIterator[HttpRig]:
    async with gateway(DIR, fs=SimDisk(random.Random(1)), max_topics=200) as rig:
        yield rig


async def test_a_topic_is_made_confirmed_changed_and_removed(rig: HttpRig) -> None:
    made = await rig.ask("PUT", TOPIC, json={"visibility": 1000})
    assert (made.status_code, made.json()["settings"]) == (201, {"visibility": 1000})
    assert (await rig.ask("PUT", TOPIC, json={"visibility": 1000})).status_code == 200
    assert (await rig.ask("PUT", TOPIC)).status_code == 200, "what is not named is not compared"
    problem = refused(await rig.ask("PUT", TOPIC, json={"visibility": 2000}), 409, "EXISTS")
    assert problem["detail"].endswith(", not 2s: config changes it, over HTTP PATCH"), "HTTP has no `config`"
    changed = await rig.ask("PATCH", TOPIC, json={"visibility": None, "dedupe_keys": "7"})
    assert (changed.status_code, changed.json()["settings"]) == (200, {"dedupe_keys": 7})
    assert (await rig.ask("GET", TOPIC)).json() == rig.broker.topic("t").describe()
    gone = await rig.ask("DELETE", TOPIC)
    assert (gone.status_code, gone.content) == (204, b"")
    for method in ("GET", "DELETE", "PATCH"):
        refused(await rig.ask(method, TOPIC, content=b'{"ttl": 1}' if method == "PATCH" else b""), 404, "NO_SUCH_TOPIC")


async def test_a_time_that_was_meant_in_seconds_is_warned_of(rig: HttpRig) -> None:
    """Found by a trial: ``{"visibility": 30}`` was 30 ms, silently."""
    made = await rig.ask("PUT", TOPIC, json={"visibility": 30, "nack_backoff_min": 50, "max_attempts": 5})
    warning = "visibility is 30 milliseconds; 30 seconds are 30000"
    assert (made.status_code, made.json()["warnings"]) == (201, [warning])
    assert (await rig.ask("PATCH", TOPIC, json={"ttl": 5})).json()["warnings"] == ["ttl is 5 milliseconds; 5 seconds are 5000"]
    assert "warnings" not in (await rig.ask("PATCH", TOPIC, json={"ttl": 5000, "visibility": None})).json()
    wrong = await rig.ask("PATCH", TOPIC, json={"visibility": "30s"})
    assert "write a whole number of milliseconds from 1 to 316224000000 (ten years)" in wrong.json()["detail"]


async def test_a_purged_topic_is_empty_and_its_ids_go_on(rig: HttpRig) -> None:
    await rig.publish("t", "a", "b")
    answer = await rig.ask("POST", f"{TOPIC}:purge")
    assert (answer.status_code, answer.json()) == (200, {"purged": 2})
    assert (await rig.ask("GET", f"{TOPIC}/log")).json()["messages"] == []
    assert (await rig.ask("POST", f"{TOPIC}/messages", content=b"c")).json()["id"] == 2
    refused(await rig.ask("POST", "/v1/topics/u:purge"), 404, "NO_SUCH_TOPIC")
    refused(await rig.ask("PUT", f"{TOPIC}:purge"), 405, "UNKNOWN_COMMAND")


async def test_a_full_topic_is_429_and_leaves_no_trace(rig: HttpRig) -> None:
    assert (await rig.ask("PUT", TOPIC, json={"backlog_max_messages": 1})).status_code == 201
    await rig.publish("t", "a")
    answer = await rig.ask("POST", f"{TOPIC}/messages", content=b"b")
    refused(answer, 429, "QUEUE_FULL")
    assert answer.headers["retry-after"] == "1"
    assert [m["payload"] for m in (await rig.ask("GET", f"{TOPIC}/log")).json()["messages"]] == ["a"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"no json", 400, "BAD_FRAMING"),
        (b"[]", 400, "BAD_FRAMING"),
        (b'{"colour": 7}', 422, "BAD_ARGUMENT"),
        (b'{"visibility": 0}', 422, "BAD_ARGUMENT"),
        (b'{"visibility": 1.5}', 422, "BAD_ARGUMENT"),
        (b'{"visibility": true}', 422, "BAD_ARGUMENT"),
        (b'{"visibility": "30s"}', 422, "BAD_ARGUMENT"),
        (b" " * 70_000, 413, "PAYLOAD_TOO_LARGE"),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_settings_that_make_no_sense(rig: HttpRig, body: bytes, status: int, code: str) -> None:
    refused(await rig.ask("PUT", TOPIC, content=body), status, code)
    assert not rig.broker.topics


async def test_more_topics_than_there_may_be(rig: HttpRig) -> None:
    for n in range(200):
        await rig.publish(f"events.{n}", "x")
    refused(await rig.ask("POST", "/v1/topics/more/messages", content=b"x"), 409, "TOO_MANY_TOPICS")
    listed = (await rig.ask("GET", "/v1/topics")).json()["topics"]
    assert [topic["topic"] for topic in listed] == sorted(f"events.{n}" for n in range(200))
    assert len((await rig.ask("GET", "/v1/topics?pattern=events.*")).json()["topics"]) == 200
    assert [t["topic"] for t in (await rig.ask("GET", "/v1/topics?pattern=events.7")).json()["topics"]] == ["events.7"]
    problem = refused(await rig.ask("GET", "/v1/topics?pattern=ev*nts"), 422, "BAD_NAME")
    assert problem["detail"].endswith("; pattern is 'ev*nts'")
    problem = refused(await rig.ask("GET", "/v1/topics/a%20b"), 422, "BAD_NAME")
    assert problem["detail"].endswith("; topic is 'a b'")


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", f"{TOPIC}/messages", b"y", 201),
        ("POST", f"{TOPIC}/messages:batch", b'{"payload": "y"}\n', 201),
        ("PUT", TOPIC, b'{"ttl": 5}', 201),
        ("GET", f"{TOPIC}/messages?consumer=c", b"", 204),
    ],
)
async def test_what_makes_a_topic_waits_for_the_one_that_is_being_deleted(
    rig: HttpRig, monkeypatch: pytest.MonkeyPatch, method: str, path: str, body: bytes, status: int
) -> None:
    """Found: such a request was refused with 404 or 409 as long as the disk needed for the delete."""
    await rig.publish("t", "a", "b")
    held: asyncio.Queue[Callable[[], None]] = asyncio.Queue()
    remove = DataDirectory.remove_topic
    monkeypatch.setattr(DataDirectory, "remove_topic", lambda self, *rest: held.put_nowait(lambda: remove(self, *rest)))
    deleting = asyncio.ensure_future(rig.ask("DELETE", TOPIC))
    go_on = await held.get()
    headers = {"content-type": "application/x-ndjson"} if "batch" in path else {}
    making = asyncio.ensure_future(rig.ask(method, path, content=body, headers=headers))
    refused(await rig.ask("POST", f"{TOPIC}:purge"), 404, "NO_SUCH_TOPIC")
    assert not making.done()
    go_on()
    answer = await making
    assert (answer.status_code, (await deleting).status_code) == (status, 204)
    assert rig.broker.topic("t").next_id == (b"y" in body), "it begins anew"


async def test_a_topic_is_described_in_slices(rig: HttpRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: describing 450 consumers at once blocked the loop for 15 ms, for every request."""
    assert rig.gateway is not None
    await rig.publish("t", "x")
    topic, turns = rig.broker.topic("t"), list[int]()
    for number in range(2 * CONSUMERS_PER_TURN + 1):
        await rig.lease("t", f"c{number}")
    describe, turn = topic.describe_consumer, rig.gateway.waiting.turn
    described: list[str] = []
    monkeypatch.setattr(topic, "describe_consumer", lambda name: described.append(name) or describe(name))

    async def counted_turn() -> None:
        turns.append(len(described))
        await turn()

    monkeypatch.setattr(rig.gateway.waiting, "turn", counted_turn)
    answer = (await rig.ask("GET", TOPIC)).json()
    assert turns == [CONSUMERS_PER_TURN, 2 * CONSUMERS_PER_TURN]
    whole = topic.describe()
    for each in (*answer["consumers"], *whole["consumers"]):
        del each["oldest_unacked_age_s"]
    assert answer == whole

    async def removed_meanwhile() -> None:
        await turn()
        rig.broker.topics.pop("t", None)

    monkeypatch.setattr(rig.gateway.waiting, "turn", removed_meanwhile)
    refused(await rig.ask("GET", TOPIC), 404, "NO_SUCH_TOPIC")
    rig.broker.topics["t"] = topic
