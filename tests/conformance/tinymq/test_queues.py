"""The dialect ``tinymq``: ``/api/queues``, ``/api/stats`` and webhooks, row by row as dialects.md lists them."""

import asyncio

import pytest

from tests.support.broker_rig import DIR
from tests.support.http_rig import HttpRig, gateway
from tests.support.sim_disk import SimDisk
from tests.support.tinymq_answers import MADE_HERE, consume, publish, rig_post

DIALECT = "tinymq"


async def test_queues_and_stats(rig: HttpRig) -> None:
    made = await rig.ask("POST", "/api/queues", json={"name": "q", "policy": "drop-oldest", "retain": "1h30m"})
    assert (made.status_code, made.json()) == (201, {"status": "topic_created"})
    settings = rig.broker.topics["q"].settings
    assert (settings.when_full, settings.ttl, settings.retain_max_age) == ("drop-oldest", 5_400_000, None)
    assert (await rig.ask("POST", "/api/queues", json={"name": "q"})).status_code == 409
    assert (await rig.ask("POST", "/api/topics", json={"name": "p"})).status_code == 201
    for bad in ({}, {"name": 7}, {"name": "r", "policy": "best"}, {"name": "r", "retain": "1"}, {"name": "r", "colour": 1}):
        assert (await rig.ask("POST", "/api/queues", json=bad)).status_code == 400, bad
    await publish(rig, "q", b"x")
    row = {"Name": "q", "MessageCount": 1, "WaitingConsumers": 0, "IsDLQ": False, "HasWebhooks": False}
    listed = (await rig.ask("GET", "/api/queues")).json()
    assert listed[1] == row
    assert (await rig.ask("GET", "/api/stats")).json() == {"stats": listed, "total_webhooks": 0}


async def test_queue_publish_consume_peek_delete(rig: HttpRig) -> None:
    assert await rig_post(rig, "publish", {"queue": "q", "payload": "hello"}) == 202
    assert await rig_post(rig, "publish", {"queue": "q", "payload": ""}) == 400
    assert await rig_post(rig, "publish", {"queue": "q", "payload": "x", "broadcast": True}) == 400
    peeked = (await rig.ask("GET", "/api/queues/peek?queue=q&limit=5")).json()
    assert [message["payload_text"] for message in peeked] == ["hello"]
    answer = await rig.ask("POST", "/api/queues/consume", json={"queue": "q"})
    assert (answer.status_code, answer.json()["payload_text"]) == (200, "hello")
    assert await rig_post(rig, "consume", {"queue": "q"}) == 204
    assert rig.broker.topics["q"].consumers["tinymq"].floor == 1, "it is acked: it is not said what became of it"
    for method in ("DELETE", "POST"):
        await rig_post(rig, "publish", {"queue": "q", "payload": "x"})
        purged = await rig.ask(method, "/api/queues/purge?queue=q")
        assert (purged.status_code, purged.json()["status"]) == (200, "purged")
        assert await rig_post(rig, "consume", {"queue": "q"}) == 204
        assert (await rig.ask(method, "/api/queues/purge?queue=r")).status_code == 404
        assert (await rig.ask(method, "/api/queues/delete?queue=q")).status_code == 200
        assert (await rig.ask(method, "/api/queues/delete?queue=q")).status_code == 404
        assert "q" not in rig.broker.topics
    for path in ("purge", "delete"):
        assert (await rig.ask("GET", f"/api/queues/{path}?queue=q")).status_code == 405, "a GET changes nothing here"


async def test_a_full_queue_says_so_and_refused_messages_do_not_come_back(fs: SimDisk) -> None:
    """In the original, messages that were refused with 429 were there after a restart."""
    async with gateway(DIR, fs=fs, dialects=["tinymq"]) as rig:
        assert (await rig.ask("PUT", "/v1/topics/t", json={"backlog_max_messages": 1})).status_code == 201
        assert (await publish(rig, "t", b"a"))[0] == 202
        assert await publish(rig, "t", b"b") == (429, "queue capacity reached (max 1 messages)\n")
        after = fs.crash()
    async with gateway(DIR, fs=after, dialects=["tinymq"]) as rig:
        assert [message["payload_text"] for message in await consume(rig, "t", "peek=true&limit=10")] == ["a"]


@pytest.mark.parametrize("body", ['{"\\ud800": 1}', '{"name": "\\ud800"}', '{"name": "t", "policy": "\\ud800"}'])
async def test_half_of_a_surrogate_pair_is_refused_in_words(rig: HttpRig, body: str) -> None:
    """Found by a probe: the refusal repeated the lone surrogate, could not be encoded, and ended as 500."""
    answer = await rig.ask("POST", "/api/queues", content=body.encode())
    assert answer.status_code in (400, 422)


async def test_webhooks(rig: HttpRig) -> None:
    assert (await rig.ask("POST", "/webhook/a/b", json={"url": "http://127.0.0.1/"})).status_code == 403
    assert rig.gateway is not None
    rig.gateway.sender.private = True
    made = await rig.ask("POST", "/webhook/a/b", json={"url": "http://127.0.0.1:9/", "secret": "s"})
    assert (made.status_code, made.json()) == (201, {"status": "webhook_registered"})
    listed = (await rig.ask("GET", "/api/queues/webhooks?queue=a/b")).json()
    assert listed == ["http://127.0.0.1:9/"]
    await publish(rig, "a/b", b"x")
    assert (await rig.ask("GET", "/api/queues")).json()[0]["HasWebhooks"] is True


async def test_a_topic_of_a_webhook_is_as_all_that_are_made_here(rig: HttpRig) -> None:
    assert rig.gateway is not None
    for url, status in (("http://127.0.0.1/", 403), ("http://nowhere.invalid/", 400)):
        assert (await rig.ask("POST", "/webhook/t", json={"url": url})).status_code == status
    assert not rig.broker.topics, "nothing is left of what was refused"
    rig.gateway.sender.private = True
    async with asyncio.TaskGroup() as tasks:
        pushing = tasks.create_task(rig.gateway.webhooks.run())
        for topic in ("t", "t.dlq"):
            made = await rig.ask("POST", f"/webhook/{topic}", json={"url": "http://127.0.0.1:9/"})
            assert made.status_code == 201
            await rig.until_polled(topic)
        listed = (await rig.ask("GET", "/api/queues")).json()
        pushing.cancel()
    assert [(row["HasWebhooks"], row["WaitingConsumers"]) for row in listed] == [(True, 0)] * 2, "a push is no consumer"
    assert rig.broker.topics["t"].settings.to_json() == MADE_HERE
    assert rig.broker.topics["t.dlq"].settings.to_json() == {}


async def test_polls_that_wait_are_counted(rig: HttpRig) -> None:
    await publish(rig, "a/b", b"x")
    for query in ("auto_ack=true", "auto_ack=true&group=g"):
        await consume(rig, "a/b", query)

    async def waiting() -> list[int]:
        return [row["WaitingConsumers"] for row in (await rig.ask("GET", "/api/queues")).json()]

    async with asyncio.TaskGroup() as tasks:
        for n, (topic, query) in enumerate((("a/b", "timeout=10s"), ("a/*", "timeout=10s&group=g")), 1):
            tasks.create_task(consume(rig, topic, query))
            await rig.until(lambda n=n: rig.gateway is not None and len(rig.gateway.waiting) == n)
            assert await waiting() == [n]
        await publish(rig, "a/b", b"y")
    assert await waiting() == [0]


async def test_what_asks_for_dead_letters_before_there_are_any_finds_none(rig: HttpRig) -> None:
    assert await rig_post(rig, "consume", {"queue": "a.dlq"}) == 204
    assert await consume(rig, "b.dlq") is None
    assert (await rig.ask("POST", "/api/groups", json={"topic": "c.dlq", "group": "g"})).status_code == 201
    assert (await rig.ask("POST", "/api/queues", json={"name": "d.dlq"})).status_code == 201
    async with asyncio.TaskGroup() as tasks:
        stream = tasks.create_task(rig.ask("GET", "/stream/e.dlq"))
        await rig.until(lambda: rig.gateway is not None and len(rig.gateway.waiting) == 1)
        stream.cancel()
    assert {name: topic.settings.to_json() for name, topic in rig.broker.topics.items()} == {f"{a}.dlq": {} for a in "abcd"}, (
        "a stream makes none")
