"""What programs written to TinyMQ rely on: its command line ``tmq``, its Go client, its documentation. Each case is one that
the original passes, and a program of its breaks without."""

import asyncio
import base64
import errno
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any
from uuid import UUID

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

from tests.support.broker_rig import DIR
from tests.support.http_rig import TIMEOUT_S, HttpRig, gateway, listening
from tests.support.sim_disk import SimDisk
from toymq_py.auth.tokens import Authority, parse_grants
from toymq_py.gateway.tinymq import messages, socket
from toymq_py.gateway.tinymq.names import shown_id

DIALECT = "tinymq"


async def publish(rig: HttpRig, topic: str, *payloads: Any, **query: str) -> list[str]:
    """Ids of messages; what is no bytes is JSON."""
    ids = []
    for payload in payloads:
        content = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        answer = await rig.ask("POST", f"/publish/{topic}", content=content, params=query)
        assert answer.status_code == 202, answer.text
        ids.append(answer.json()["id"])
    return ids


async def get(rig: HttpRig, path: str) -> tuple[int, Any]:
    answer = await rig.ask("GET", path)
    return answer.status_code, answer.json() if "json" in answer.headers.get("content-type", "") else None


async def post(rig: HttpRig, path: str, body: Any = None) -> tuple[int, Any]:
    answer = await rig.ask("POST", path, json=body)
    return answer.status_code, answer.json() if "json" in answer.headers["content-type"] else answer.text


def texts(messages: Any) -> list[str]:
    return [message["payload_text"] for message in messages]


# -- ids


async def test_the_first_eight_characters_of_an_id_tell_messages_apart(rig: HttpRig) -> None:
    """``tmq tail`` shows them, and ends where there are fewer."""
    ids = await publish(rig, "t", b"a", b"b")
    assert len({each[:8] for each in ids}) == 2
    assert all(UUID(each).version == 8 for each in ids)
    assert [message["id"] for message in (await get(rig, "/consume/t?limit=2"))[1]] == ids


async def test_an_id_belongs_to_one_topic_and_one_group(rig: HttpRig) -> None:
    """Programs keep the ids of what they have done, of all topics in one place."""
    (of_t,), (of_u,) = await publish(rig, "t", b"a"), await publish(rig, "u", b"a")
    of_g = (await get(rig, "/consume/t?group=g"))[1]["id"]
    assert len({of_t, of_u, of_g}) == 3
    assert len({each[:8] for each in (of_t, of_u, of_g)}) == 1
    assert await post(rig, f"/ack/t/{of_u}") == (404, {"status": "error", "message": "Message not found"})
    for number in (2**32 - 1, 2**32, 2**48 + 1, 2**64 - 1):
        each = shown_id("t", None, number)
        assert UUID(each).version == 8
        assert messages.message_id(rig.broker.topics["t"], each) == (number, None, True)
        assert messages.message_id(rig.broker.topics["t"], shown_id("t", "g", number)) == (number, "g", True)
    for none in (of_t.upper(), of_t[:-1], of_t + "0", shown_id("t", "h", 0)):
        assert (await post(rig, f"/ack/t/{none}"))[0] == 404, none
    assert (await post(rig, "/ack/t/0"))[0] == 200, "a plain number does, too"


# -- acks


async def test_a_message_that_was_only_peeked_at_is_acked(fs: SimDisk) -> None:
    """The main way to ack there: what is consumed is gone."""
    async with gateway(DIR, fs=fs, dialects=["tinymq"]) as rig:
        await publish(rig, "t", b"a", b"b", b"c", b"d")
        _, peeked = await get(rig, "/consume/t?peek=true&limit=10")
        assert await post(rig, f"/ack/t/{peeked[1]['id']}") == (200, {"status": "success", "message": "Message acknowledged"})
        assert (await post(rig, f"/ack/t/{peeked[1]['id']}"))[0] == 404, "once"
        _, peeked = await get(rig, "/api/queues/peek?queue=t")
        assert texts(peeked) == ["a", "c", "d"]
        assert (await post(rig, f"/ack/t/{peeked[2]['id']}"))[0] == 200
        assert (await post(rig, "/ack/t/4"))[0] == 404, "that there never was"
        _, peeked = await get(rig, "/consume/t?peek=true&group=g&limit=9")
        assert texts(peeked) == ["a", "b", "c", "d"], "a group's are its own"
        after = fs.crash()
    async with gateway(DIR, fs=after, dialects=["tinymq"]) as rig:
        assert texts((await get(rig, "/consume/t?limit=10"))[1]) == ["a", "c"], "also after a power cut"


async def test_a_delayed_message_that_was_peeked_at_is_acked(rig: HttpRig) -> None:
    await publish(rig, "t", b"a", delay="1h")
    _, peeked = await get(rig, "/consume/t?peek=true")
    assert (await post(rig, f"/ack/t/{peeked['id']}"))[0] == 200
    assert (await get(rig, "/consume/t?peek=true"))[0] == 204


async def test_an_ack_says_by_its_id_or_its_topic_whose_it_is(rig: HttpRig) -> None:
    """A group's queue is a topic of its own there, ``topic::group``: that is what its messages say."""
    await publish(rig, "a/b", b"x")
    found = {group: (await get(rig, f"/consume/a/b?group={group}"))[1] for group in ("g", "h")}
    assert [found[group]["topic"] for group in found] == ["a/b::g", "a/b::h"]
    channels = rig.broker.topics["a.b"].channels
    assert (await post(rig, f"/ack/a/b/{found['g']['id']}"))[0] == 200
    assert [channels[group].consumer.floor for group in ("g", "h")] == [1, 0]
    assert (await post(rig, f"/ack/{found['h']['topic']}/{found['h']['id']}"))[0] == 200
    assert channels["h"].consumer.floor == 1
    _, peeked = await get(rig, "/consume/a/b?peek=true")
    assert peeked["topic"] == "a/b"
    assert (await post(rig, f"/ack/a/b/{peeked['id']}"))[0] == 200
    assert channels["tinymq"].consumer.floor == 1
    assert (await get(rig, "/consume/a/b::i"))[1]["group"] == "i", "and what a virtual topic is asked for"
    assert (await get(rig, "/consume/a/b::i?group=k"))[0] == 400
    assert (await get(rig, "/consume/a/b::.i"))[0] == 400


async def test_an_ack_ends_no_lease_of_a_group_for_who_peeked(rig: HttpRig) -> None:
    await publish(rig, "t", b"x")
    await get(rig, "/consume/t?group=g")
    _, peeked = await get(rig, "/consume/t?peek=true")
    assert (await post(rig, f"/ack/t/{peeked['id']}"))[0] == 200
    assert rig.broker.topics["t"].consumers["g"].is_inflight(0)


# -- dead letters


async def test_a_dead_letter_is_there_when_the_requeue_is_answered(rig: HttpRig) -> None:
    """It was 202 before, and who looked at once found nothing."""
    await publish(rig, "t", b"a", b"b")
    for _ in range(3):
        _, found = await get(rig, "/consume/t")
        assert (await post(rig, "/requeue", found))[0] == 202
    assert texts((await get(rig, "/api/queues/peek?queue=t.dlq"))[1]) == ["a"]


async def test_a_requeue_whose_dead_letter_cannot_be_stored_is_no_202(
    rig: HttpRig, fs: SimDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "BURIAL_S", 0.01)
    await publish(rig, "t", b"a")
    for _ in range(2):
        assert (await post(rig, "/requeue", (await get(rig, "/consume/t"))[1]))[0] == 202
    _, found = await get(rig, "/consume/t")
    fs.fail("open", 1, errno.ENOSPC, sticky=True, path="t.dlq")
    fs.fail("pwrite", 1, errno.ENOSPC, sticky=True, path="t.dlq")
    status, text = await post(rig, "/requeue", found)
    assert (status, "dead letter" in text) == (503, True)
    fs.heal()


# -- queues


async def test_a_queue_is_made_as_the_clients_say_it(rig: HttpRig) -> None:
    """``{"policy": "", "retain": ""}`` is what a Go program sends that sets neither."""
    assert (await post(rig, "/api/topics", {"name": "t", "policy": "", "retain": ""}))[0] == 201
    assert rig.broker.topics["t"].settings.to_json() == {"max_attempts": 3, "backlog_max_messages": 100_000}
    assert (await post(rig, "/api/topics", {"name": "u", "policy": "reject", "retain": "100ms"}))[0] == 201
    assert rig.broker.topics["u"].settings.ttl == 100


async def test_retain_is_how_long_a_message_is_there(rig: HttpRig) -> None:
    """It was a retention of whole segments, which a quiet queue never left. A ttl of the message's own counts before it."""
    assert (await post(rig, "/api/topics", {"name": "t", "retain": "1ms"}))[0] == 201
    await publish(rig, "t", b"a")
    await publish(rig, "t", b"b", ttl="1h")
    run, row, _ = rig.broker.topics["t"].log.read(0, 1)
    assert run is not None
    await rig.until(lambda: rig.gateway is not None and rig.gateway.clock.wall_ns() > run.ts_ns[row] + 2_000_000)
    assert texts((await get(rig, "/consume/t?limit=10"))[1]) == ["b"]


async def test_a_peek_of_a_queue_that_there_is_not(rig: HttpRig) -> None:
    missing = {"status": "not_found", "message": "Topic does not exist"}
    assert await get(rig, "/consume/none?peek=true") == (404, missing)
    assert await get(rig, "/api/queues/peek?queue=none") == (200, [])
    assert not rig.broker.topics, "and none is made"
    assert (await post(rig, "/api/topics", {"name": "none"}))[0] == 201
    assert await get(rig, "/consume/none?peek=true") == (204, None)


async def test_more_than_a_thousand_are_a_thousand(rig: HttpRig) -> None:
    await publish(rig, "t", b"a")
    assert len((await get(rig, "/consume/t?limit=5000"))[1]) == 1


async def test_what_a_publish_by_json_answers(rig: HttpRig) -> None:
    status, answer = await post(rig, "/api/queues/publish", {"queue": "a/b", "payload": "x", "ttl": "", "delay": ""})
    assert (status, answer) == (202, {"status": "accepted", "queue": "a/b", "id": shown_id("a.b", None, 0)})


async def test_there_is_no_cluster(rig: HttpRig) -> None:
    """``tmq cluster status`` asks."""
    assert await get(rig, "/api/cluster/status") == (200, {"clustering_enabled": False})


# -- filters

PAID = "filter_key=status&filter_val=paid"


async def test_a_filter_looks_at_members_of_the_payload(rig: HttpRig) -> None:
    found = [{"status": "paid", "n": 1}, {"status": "open"}, [1], {"status": ["paid"]}, {"status": "paid", "n": 1.5}]
    await publish(rig, "t", *found, b"no JSON", b'{"status": "paid"', {"n": 10_000_000}, {"n": True}, {"n": None}, {"n": "1"})
    shown = (await get(rig, f"/consume/t?{PAID}&limit=10"))[1]
    assert [json.loads(text) for text in texts(shown)] == [found[0], found[4]]
    for value, count in (("1", 2), ("1.5", 1), ("10000000", 1), ("1e%2B07", 1), ("true", 1), ("null", 1), ("[1]", 0)):
        _, shown = await get(rig, f"/consume/t?filter_key=n&filter_val={value}&limit=10")
        assert len(shown or []) == count, value
    assert rig.broker.topics["t"].consumers.get("tinymq") is None, "nothing is consumed"


async def test_a_filter_with_auto_ack_takes_what_it_shows_and_leaves_the_rest(rig: HttpRig) -> None:
    """The original drops the rest; a program that asks again and again must not get the same one for ever."""
    await publish(rig, "t", {"status": "open"}, {"status": "paid", "n": 1}, {"status": "paid", "n": 2})
    for n in (1, 2):
        _, found = await get(rig, f"/consume/t?{PAID}&auto_ack=true")
        assert json.loads(found["payload_text"])["n"] == n
    assert await get(rig, f"/consume/t?{PAID}&auto_ack=true") == (204, None)
    assert json.loads((await get(rig, "/consume/t"))[1]["payload_text"]) == {"status": "open"}


async def test_a_filter_shows_nothing_that_another_worker_has_or_that_is_not_due(rig: HttpRig) -> None:
    await publish(rig, "t", {"status": "paid"}, {"status": "paid"})
    await publish(rig, "t", {"status": "paid"}, delay="1h")
    _, leased = await get(rig, "/consume/t")
    _, shown = await get(rig, f"/consume/t?{PAID}&limit=10")
    assert len(shown) == 1
    assert shown[0]["id"] != leased["id"]
    assert (await post(rig, f"/ack/t/{shown[0]['id']}"))[0] == 200


async def test_a_filter_waits_for_what_it_wants(rig: HttpRig) -> None:
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(get(rig, f"/consume/t?{PAID}&auto_ack=true&timeout=30s"))
        await rig.until(lambda: rig.gateway is not None and len(rig.gateway.waiting) == 1)
        await publish(rig, "t", {"status": "open"})
        assert not waiting.done()
        await publish(rig, "t", {"status": "paid"})
    assert json.loads(waiting.result()[1]["payload_text"]) == {"status": "paid"}
    assert await get(rig, f"/consume/t?{PAID}&timeout=10ms") == (204, None)


# -- what is published, as it comes


@asynccontextmanager
async def events(rig: HttpRig, path: str) -> AsyncIterator[AsyncIterator[Any]]:
    """The data of server-sent events."""
    async with rig.client.stream("GET", path) as answer:
        assert answer.status_code == 200

        async def data() -> AsyncIterator[Any]:
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    yield json.loads(line[6:])

        yield data()


@pytest.fixture
async def listener(fs: SimDisk) -> AsyncIterator[HttpRig]:
    async with listening(DIR, fs=fs, dialects=["tinymq"]) as rig:
        yield rig


async def test_a_stream_says_first_that_it_is_connected(listener: HttpRig) -> None:
    """``tmq tail`` waits for that; what is published from then on comes."""
    async with asyncio.timeout(TIMEOUT_S), events(listener, "/stream/a/b") as found:
        assert await anext(found) == {"status": "connected", "topic": "a/b"}
        (msg_id,) = await publish(listener, "a/b", b"x")
        message = await anext(found)
    assert (message["id"], message["topic"], base64.b64decode(message["payload"])) == (msg_id, "a/b", b"x")


async def test_a_stream_of_a_glob_has_topics_to_come_and_a_filter(listener: HttpRig) -> None:
    await publish(listener, "orders/eu", {"status": "paid"})
    async with asyncio.timeout(TIMEOUT_S), events(listener, f"/stream/orders/*?{PAID}") as found:
        assert (await anext(found))["status"] == "connected"
        await publish(listener, "orders/eu", {"status": "open"}, {"status": "paid", "n": 1})
        await publish(listener, "orders/us/ny", {"status": "paid", "n": 2})
        await publish(listener, "bills", {"status": "paid", "n": 3})
        await publish(listener, "orders/eu", {"status": "paid", "n": 4})
        shown = [await anext(found) for _ in range(3)]
    assert sorted((each["topic"], json.loads(each["payload_text"])["n"]) for each in shown) == [
        ("orders.eu", 1), ("orders.eu", 4), ("orders.us.ny", 2),
    ]  # fmt: skip


async def test_a_stream_ends_with_its_topic(listener: HttpRig) -> None:
    watchers = dict(listener.broker._subscriptions._watchers)
    async with asyncio.timeout(TIMEOUT_S), events(listener, "/stream/t") as found:
        await anext(found)
        await publish(listener, "t", {"n": 1})
        assert "payload" in str(await anext(found))
        assert (await listener.ask("DELETE", "/api/queues/delete?queue=t")).status_code == 200
        assert [each async for each in found] == []
    assert listener.broker._subscriptions._watchers == watchers


@pytest.mark.parametrize("path", ["/publish/t", "/v1/topics/t/messages"])
async def test_a_body_that_is_not_read_to_its_end_closes_the_connection_and_says_so(listener: HttpRig, path: str) -> None:
    """Else a client sends the next request on a connection that is about to close. And the answer arrives, whatever is sent."""
    size = 3_000_000 if path.startswith("/publish") else 70_000_000
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    async with asyncio.timeout(TIMEOUT_S):
        writer.write(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n".encode())
        writer.write(bytes(500_000))
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        assert head.startswith(b"http/1.1 413 ")
        assert b"\r\nconnection: close\r\n" in head
        await reader.read()  # the broker closes
    writer.close()


# -- WebSockets


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
        await ws.send(b"bytes say nothing")
        assert await ask(ws, action="unsubscribe", topic="a/b") == {"status": "unsubscribed", "topic": "a/b"}
        await publish(listener, "a/b", b"x")
        assert await ask(ws, action="ping") == {"status": "pong"}, "and nothing else came"
    assert texts((await get(listener, "/consume/a/b?limit=10"))[1]) == ["é", "x"], "nothing was consumed"


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
    """The Go client has no other way. What the token may not, is refused topic by topic."""
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
