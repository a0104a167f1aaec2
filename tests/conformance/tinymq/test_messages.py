"""The dialect ``tinymq`` of HTTP, row by row as dialects.md lists it, and what the original server lost."""

import asyncio
import base64
import errno
import json
import random
from datetime import datetime, timedelta
from typing import Any

import pytest
from starlette.requests import Request

from tests.support.broker_rig import DIR
from tests.support.http_rig import HttpRig, gateway
from tests.support.sim_disk import SimDisk
from tests.support.tinymq_answers import MADE_HERE, consume, publish, rig_post
from toymq_py.auth.tokens import Authority
from toymq_py.gateway.problems import RETRY_AFTER_S
from toymq_py.gateway.tinymq import message_views, messages
from toymq_py.gateway.tinymq.live_tail import LiveTail
from toymq_py.gateway.tinymq.message_views import Place
from toymq_py.gateway.tinymq.names import shown_id

DIALECT = "tinymq"
TWO_MIB = 2_097_152


def number(message: dict[str, Any]) -> str:
    """Return a message's number in its topic, from the first part of its id."""
    return str(int(message["id"][:8], 16))


# -- publish


async def test_publish(rig: HttpRig) -> None:
    assert await publish(rig, "a/b", b"x") == (202, {"status": "accepted", "topic": "a/b", "id": shown_id("a.b", None, 0)})
    assert "a.b" in rig.broker.topics
    assert rig.broker.topics["a.b"].settings.to_json() == MADE_HERE


async def test_idempotency(rig: HttpRig) -> None:
    ignored = {"status": "ignored", "reason": "idempotency_key_exists", "topic": "t"}
    assert (await publish(rig, "t", b"x", headers={"Idempotency-Key": "k"}))[0] == 202
    assert await publish(rig, "t", b"y", headers={"Idempotency-Key": "k"}) == (200, ignored)
    assert (await publish(rig, "t", b"same", params={"idempotency": "auto"}))[0] == 202
    assert await publish(rig, "t", b"same", params={"idempotency": "auto"}) == (200, ignored)


@pytest.mark.parametrize(
    ("topic", "body", "query", "says"),
    [
        ("t", b"", {}, "empty"),
        ("..", b"x", {}, "name"),
        ("a b", b"x", {}, "name"),
        ("t", b"x", {"ttl": "soon"}, "ttl"),
        ("t", b"x", {"delay": "5"}, "delay"),
        ("t", b"x", {"delay": "-1s"}, "delay"),
        ("t", b"x", {"priority": "high"}, "priority"),
        ("t", b"x", {"priority": "low"}, "priority"),
        ("t", b"x", {"broadcast": "true"}, "broadcast"),
        ("t", b"x", {"idempotency": "yes"}, "idempotency"),
        ("t", b"x", {"colour": "red"}, "colour"),
    ],
    ids=str,
)
async def test_publishes_that_are_400(rig: HttpRig, topic: str, body: bytes, query: dict[str, str], says: str) -> None:
    code, text = await publish(rig, topic.replace(".", "%2e"), body, params=query)
    assert code == 400
    assert says in text
    assert not rig.broker.topics


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "publish/{}"), ("GET", "consume/{}"), ("POST", "ack/{}/0"), ("POST", "webhook/{}"), ("GET", "stream/{}")],
)
async def test_a_name_with_a_line_break_is_400_and_in_words_of_the_original(rig: HttpRig, method: str, path: str) -> None:
    """Found by schemathesis: a path with a line break matched no route of the dialect, so the answer was not the original's."""
    answer = await rig.ask(method, "/" + path.format("a%0Ab"), content=b"x" if method == "POST" else None)
    assert (answer.status_code, answer.headers["content-type"]) == (400, "text/plain; charset=utf-8"), answer.text
    assert not rig.broker.topics


async def test_two_mebibytes_and_one_byte_more(rig: HttpRig) -> None:
    assert (await publish(rig, "t", bytes(TWO_MIB)))[0] == 202
    assert (await publish(rig, "t", bytes(TWO_MIB + 1)))[0] == 413
    assert (await publish(rig, "t", bytes(TWO_MIB), headers={"X-MQ-A": ""}))[0] == 413, "headers are counted"
    assert await rig_post(rig, "publish", {"queue": "t", "payload": "x" * TWO_MIB}) == 202
    assert await rig_post(rig, "publish", {"queue": "t", "payload": "x" * (TWO_MIB + 1)}) == 413
    assert await rig_post(rig, "publish", {"queue": "t", "payload": "\1" * TWO_MIB}) == 202, "six bytes each, as JSON"
    assert rig.broker.topics["t"].log.committed_id == 3


async def test_two_mebibytes_come_back(rig: HttpRig) -> None:
    await publish(rig, "t", b"\1" * TWO_MIB)
    found = await consume(rig, "t")
    assert (await rig.ask("POST", "/requeue", json=found)).status_code == 202


async def test_less_than_two_mebibytes_where_the_broker_takes_less(fs: SimDisk) -> None:
    async with gateway(DIR, fs=fs, dialects=["tinymq"], max_payload_bytes=1000) as rig:
        for size, status in ((1000, 202), (1001, 413)):
            assert (await publish(rig, "t", bytes(size)))[0] == status
            assert await rig_post(rig, "publish", {"queue": "t", "payload": "x" * size}) == status
        assert (await publish(rig, "t", bytes(989), headers={"X-MQ-A": "1"}))[0] == 202
        assert (await publish(rig, "t", bytes(990), headers={"X-MQ-A": "12"}))[0] == 413


async def test_headers_are_utf_8(rig: HttpRig) -> None:
    assert (await publish(rig, "t", b"x", headers=[("X-MQ-Name", "é".encode())]))[0] == 202
    assert (await consume(rig, "t"))["headers"] == {"x-mq-name": "é"}
    status, said = await publish(rig, "t", b"x", headers=[("X-MQ-Name", b"\xe9")])
    assert (status, said) == (400, "invalid header value b'\\xe9': headers must be UTF-8\n")


async def test_half_of_a_surrogate_pair_is_no_payload(rig: HttpRig) -> None:
    body = b'{"queue": "t", "payload": "a\\ud800b"}'
    assert (await rig.ask("POST", "/api/queues/publish", content=body)).status_code == 400
    assert not rig.broker.topics


# -- consume


async def test_one_message_is_an_object(rig: HttpRig) -> None:
    await publish(rig, "t", b"hello", headers={"X-MQ-Color": "red", "X-Other": "no"})
    found = await consume(rig, "t")
    assert found.pop("timestamp").endswith("Z")
    assert found == {
        "id": shown_id("t", None, 0),
        "topic": "t", "payload": base64.b64encode(b"hello").decode(), "retry_count": 0, "payload_encoding": "base64",
        "payload_text": "hello", "headers": {"x-mq-color": "red"},
    }  # fmt: skip
    assert await consume(rig, "t") is None


async def test_many_are_an_array(rig: HttpRig) -> None:
    for n in range(3):
        await publish(rig, "t", bytes([255, n]))
    found = await consume(rig, "t", "limit=1000")
    assert [base64.b64decode(message["payload"]) for message in found] == [bytes([255, n]) for n in range(3)]
    assert "payload_text" not in found[0]
    for bad in ("limit=0", "limit=x", "timeout=10", "group=.g", "auto_ack=maybe", "filter_key=a"):
        assert (await rig.ask("GET", f"/consume/t?{bad}")).status_code == 400, bad


async def test_wildcards_cross_dots(rig: HttpRig) -> None:
    for topic in ("a/b/c", "a/d", "e"):
        await publish(rig, topic, b"x")
    assert sorted(message["topic"] for message in await consume(rig, "a/*", "limit=10")) == ["a.b.c", "a.d"]
    assert [message["topic"] for message in await consume(rig, "*", "limit=10")] == ["e"]


async def test_groups_see_everything_from_the_first_message_on(rig: HttpRig) -> None:
    """The original lost a group's first message."""
    await publish(rig, "t", b"a")
    for group in ("", "group=one", "group=two"):
        assert number(await consume(rig, "t", group)) == "0"
        assert await consume(rig, "t", group) is None
    made = await rig.ask("POST", "/api/groups", json={"topic": "t", "group": "three"})
    assert made.status_code == 201
    assert (await rig.ask("POST", "/api/groups", json={"topic": "t", "group": "three"})).status_code == 201
    assert made.json() == {"status": "created", "virtual_topic": "t::three"}
    listed = await rig.ask("GET", "/api/groups?topic=t")
    assert (listed.status_code, listed.json()) == (200, {"topic": "t", "groups": ["one", "two", "three"]})
    assert (await rig.ask("GET", "/api/groups?topic=a/b")).json() == {"topic": "a/b", "groups": []}
    assert (await rig.ask("GET", "/api/groups")).status_code == 400, "the topic is missing"
    assert "a.b" not in rig.broker.topics
    assert number(await consume(rig, "t", "group=three")) == "0"


async def test_auto_ack_peek_and_filter(rig: HttpRig) -> None:
    for n, colour in enumerate(("red", "blue", "red")):
        await publish(rig, "t", str(n).encode(), headers={"X-MQ-Color": colour})
    assert [number(m) for m in await consume(rig, "t", "peek=true&limit=2")] == ["0", "1"]
    assert [number(m) for m in await consume(rig, "t", "filter_key=X-MQ-Color&filter_val=red&limit=10")] == ["0", "2"]
    assert [number(m) for m in await consume(rig, "t", "auto_ack=true&limit=2")] == ["0", "1"]
    assert rig.broker.topics["t"].consumers["tinymq"].floor == 2
    assert number(await consume(rig, "t", "peek=true")) == "2"


async def test_auto_ack_acks_nothing_for_who_has_gone(rig: HttpRig) -> None:
    async def gone() -> dict[str, str]:
        return {"type": "http.disconnect"}

    assert rig.gateway is not None
    await publish(rig, "t", b"a")
    scope = {"type": "http", "path_params": {"topic": "t"}, "query_string": b"auto_ack=true", "headers": []}
    assert (await messages.consume(rig.gateway, Request(scope, gone))).status_code == 204
    found = await consume(rig, "t", "auto_ack=true")
    assert (number(found), found["retry_count"]) == ("0", 0)


async def test_auto_ack_answers_although_the_ack_is_not_stored(rig: HttpRig, fs: SimDisk) -> None:
    """Found by a review: when the ack could not be stored, the message counted as acked, the answer was 503, and the message
    was never delivered."""
    await publish(rig, "t", b"a")
    assert await consume(rig, "t", "auto_ack=true&group=before")
    fs.fail("pwrite", 1, errno.EIO, sticky=True, path="offsets.json")
    assert (await consume(rig, "t", "auto_ack=true"))["payload_text"] == "a"
    fs.heal()


async def test_a_group_has_no_name_of_a_webhook(rig: HttpRig) -> None:
    await publish(rig, "t", b"a")
    group = {"topic": "t", "group": "webhook.w"}
    assert (await rig.ask("POST", "/api/groups", json=group)).status_code == 400
    assert (await rig.ask("GET", "/consume/t?group=webhook.w")).status_code == 400
    assert (await rig.ask("POST", "/requeue", json={**group, "id": "0"})).status_code == 400


async def test_a_peek_shows_what_is_not_acked_with_its_times_and_retries(rig: HttpRig) -> None:
    for n in range(6):
        query = {"delay": "1h"} if n in (1, 4) else {"ttl": "1us"} if n == 2 else {"ttl": "1h"} if n == 3 else {}
        assert (await publish(rig, "t", str(n).encode(), params=query))[0] == 202
    await rig.until(lambda: rig.gateway is not None and rig.gateway.clock.wall_ns() > published(rig, 2) + 2_000_000)
    unseen = await peek(rig, "limit=10")
    assert [(number(m), m["retry_count"]) for m in unseen] == [("0", 0), ("1", 0), ("3", 0), ("4", 0), ("5", 0)]
    hour = timedelta(hours=1)
    for message in unseen:
        late = number(message) in ("1", "4")
        assert ("deliver_at" in message) is late
        if late or "expires_at" in message:
            at = message["deliver_at" if late else "expires_at"]
            assert abs(datetime.fromisoformat(at) - datetime.fromisoformat(message["timestamp"]) - hour) < hour / 100
    assert [number(m) for m in await consume(rig, "t", "limit=2")] == ["0", "3"]
    assert [(number(m), m["retry_count"]) for m in await peek(rig, "limit=10")][:3] == [("0", 0), ("1", 0), ("3", 0)]
    assert (await rig.ask("POST", "/ack/t/3")).status_code == 200
    assert (await rig.ask("POST", "/requeue", json={"topic": "t", "id": "0"})).status_code == 202
    assert [(number(m), m["retry_count"]) for m in await peek(rig, "limit=10")] == [("0", 1), ("1", 0), ("4", 0), ("5", 0)]
    assert [number(m) for m in await peek(rig, "limit=10&group=g")] == ["0", "1", "3", "4", "5"], "of another group"
    assert (await consume(rig, "t"))["retry_count"] == 1, "as it was shown"
    listed = (await rig.ask("GET", "/api/queues/peek?queue=t")).json()
    assert [number(m) for m in listed] == ["0", "1", "4", "5"]


def published(rig: HttpRig, msg_id: int) -> int:
    run, row, _ = rig.broker.topics["t"].log.read(msg_id, 1)
    assert run is not None
    return run.ts_ns[row]


async def peek(rig: HttpRig, query: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = await consume(rig, "t", f"peek=true&{query}")
    return found


async def test_a_peek_is_bounded(rig: HttpRig, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(4):
        await publish(rig, "t", bytes(TWO_MIB))
    assert len(await peek(rig, "limit=1000")) == 2, "in bytes, as consume"
    for n in range(8):
        await publish(rig, "u", b"x", headers={"X-MQ-N": str(n)})
    monkeypatch.setattr(message_views, "LOOKED_AT_MAX", 6)
    assert len(await consume(rig, "u", "peek=true&limit=1000")) == 6
    assert await consume(rig, "u", "filter_key=X-MQ-N&filter_val=6") is None
    topic = rig.broker.topics["u"]
    await consume(rig, "u", "limit=5&auto_ack=true")
    assert number(await consume(rig, "u", "filter_key=X-MQ-N&filter_val=6")) == "6", "what is acked at the front costs nothing"
    assert topic.consumers["tinymq"].inflight == 0


async def test_polling_an_empty_queue_loses_nothing(rig: HttpRig) -> None:
    """The original lost the next message."""
    assert await consume(rig, "t", "timeout=10ms") is None
    await publish(rig, "t", b"a")
    assert number(await consume(rig, "t")) == "0"
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(consume(rig, "u", "timeout=10s"))
        await rig.until_polled("u")
        await publish(rig, "u", b"b")
    assert waiting.result()["payload_text"] == "b"


async def test_ttl_and_delay(rig: HttpRig) -> None:
    assert (await publish(rig, "t", b"late", params={"delay": "1h", "ttl": "2h"}))[0] == 202
    assert (await publish(rig, "t", b"soon", params={"ttl": "2m"}))[0] == 202
    assert await rig_post(rig, "publish", {"queue": "t", "payload": "late", "delay": "1h"}) == 202
    assert await rig_post(rig, "publish", {"queue": "t", "payload": "x", "delay": "later"}) == 400
    found = await consume(rig, "t", "limit=10&timeout=0")
    assert [message["payload_text"] for message in found] == ["soon"]
    assert found[0]["expires_at"] > found[0]["timestamp"]


async def test_zero_needs_no_unit_and_is_none(rig: HttpRig) -> None:
    """``delay=0`` and ``ttl=0`` are accepted without a unit, as in the original. Found: a ttl of 0 made messages expire before
    they could be delivered."""
    assert (await publish(rig, "t", b"a", params={"delay": "0", "ttl": "0"}))[0] == 202
    assert await rig_post(rig, "publish", {"queue": "t", "payload": "b", "delay": "0", "ttl": "0"}) == 202
    assert ["expires_at" in message for message in await consume(rig, "t", "limit=10")] == [False, False]
    assert (await rig.ask("POST", "/api/queues", json={"name": "q", "retain": "0"})).status_code == 201
    assert rig.broker.topics["q"].settings.ttl is None


async def test_ack_and_requeue(rig: HttpRig) -> None:
    for payload in (b"a", b"b"):
        await publish(rig, "a/b", payload)
    found = await consume(rig, "a/b")
    answer = await rig.ask("POST", "/ack/a/b/0")
    assert (answer.status_code, answer.json()) == (200, {"status": "success", "message": "Message acknowledged"})
    missing = (404, {"status": "error", "message": "Message not found"})
    for path in ("/ack/a/b/0", "/ack/a/b/9", "/ack/a/b/0?group=g", "/ack/a/b/4a5e", "/ack/a/b/-1", "/ack/none/0"):
        answer = await rig.ask("POST", path)
        assert (answer.status_code, answer.json()) == missing
    for gone in ({}, {"topic": "none"}, {"id": "4a5e"}, {"group": "g"}):
        answer = await rig.ask("POST", "/requeue", json=found | gone)
        assert (answer.status_code, answer.json()) == missing
    assert "none" not in rig.broker.topics
    found = await consume(rig, "a/b")
    answer = await rig.ask("POST", "/requeue", json=found)
    assert (answer.status_code, answer.json()) == (202, {"status": "requeued"})
    again = await consume(rig, "a/b")
    assert (number(again), again["retry_count"]) == ("1", 1)


async def test_the_third_attempt_is_the_last_and_there_is_a_way_back(rig: HttpRig) -> None:
    await publish(rig, "t", b"a")
    for attempt in range(3):
        found = await consume(rig, "t")
        assert found["retry_count"] == attempt
        assert (await rig.ask("POST", "/requeue", json=found)).status_code == 202
    assert await consume(rig, "t") is None
    await rig.until(lambda: "t.dlq" in rig.broker.topics and rig.broker.topics["t.dlq"].log.committed_id == 1)
    listed = {queue["Name"]: queue["IsDLQ"] for queue in (await rig.ask("GET", "/api/queues")).json()}
    assert listed == {"t": False, "t.dlq": True}
    assert (await publish(rig, "t.dlq", b"x"))[0] == 403
    answer = await rig.ask("POST", "/api/queues/redrive?queue=t")
    assert (answer.status_code, answer.json()) == (200, {"status": "success", "redriven_messages": 1})
    assert (await consume(rig, "t"))["payload_text"] == "a"


async def test_what_a_group_leased_is_acked_without_its_name(rig: HttpRig) -> None:
    await publish(rig, "t", b"a")
    await consume(rig, "t", "group=g")
    assert (await rig.ask("POST", "/ack/t/0")).status_code == 200
    assert rig.broker.topics["t"].consumers["g"].floor == 1


def leased(rig: HttpRig, topic: str, msg_id: int = 0) -> list[str]:
    return [name for name, consumer in rig.broker.topics[topic].consumers.items() if consumer.is_inflight(msg_id)]


async def test_requeue_gives_back_the_lease_of_its_own_group(rig: HttpRig) -> None:
    await publish(rig, "t", b"a")
    found = {group: await consume(rig, "t", f"group={group}") for group in ("g1", "g2", "g3", "g4")}
    assert found["g2"]["group"] == "g2", "so a consumer need not remember it"
    assert (await rig.ask("POST", "/requeue", json=found["g2"])).status_code == 202
    assert leased(rig, "t") == ["g1", "g3", "g4"]
    del found["g1"]["group"]
    assert (await rig.ask("POST", "/requeue?group=g3", json=found["g1"])).status_code == 202
    assert leased(rig, "t") == ["g1", "g4"]
    found["g1"] |= {"topic": "t", "id": "0"}  # which does not say whose it is
    answer = await rig.ask("POST", "/requeue", json=found["g1"])
    assert (answer.status_code, leased(rig, "t")) == (400, ["g1", "g4"]), "no other's, when it is not clear whose it is"
    assert "group" in answer.text
    for bad in (7, "", "a b"):
        assert (await rig.ask("POST", "/requeue", json=found["g4"] | {"group": bad})).status_code == 400, bad
    assert "group" not in await consume(rig, "t")
    assert (await rig.ask("POST", "/requeue", json=found["g1"])).status_code == 202
    assert leased(rig, "t") == ["g1", "g4"], "of those without a group, when they have one"
    assert (await rig.ask("POST", "/requeue", json=found["g4"])).status_code == 202
    assert (await rig.ask("POST", "/requeue", json=found["g1"])).status_code == 202
    assert leased(rig, "t") == [], "or of the only group that has it"


async def test_ack_takes_from_its_own_group(rig: HttpRig) -> None:
    await publish(rig, "t", b"a")
    for group in ("g1", "g2"):
        await consume(rig, "t", f"group={group}")
    answer = await rig.ask("POST", "/ack/t/0")
    assert (answer.status_code, leased(rig, "t")) == (400, ["g1", "g2"])
    assert (await rig.ask("POST", "/ack/t/0?group=g2")).status_code == 200
    await consume(rig, "t")
    assert (await rig.ask("POST", "/ack/t/0")).status_code == 200
    assert leased(rig, "t") == ["g1"]
    assert (await rig.ask("POST", "/ack/t/0")).status_code == 200
    assert leased(rig, "t") == []


async def test_auto_ack_takes_nothing_of_what_lies_between(rig: HttpRig) -> None:
    for delay in ("1h", "0s", "1h"):
        await publish(rig, "t", b"x", params={"delay": delay})
    assert number(await consume(rig, "t")) == "1"
    topic = rig.broker.topics["t"]
    topic.consumers["tinymq"].fall_due(topic.delays.schedule.take_due(2**63, 2))
    assert [number(message) for message in await consume(rig, "t", "limit=10&auto_ack=true")] == ["0", "2"]
    assert leased(rig, "t", 1) == ["tinymq"]


async def test_what_is_consumed_and_not_acked_is_not_gone(fs: SimDisk) -> None:
    """The original removed what was consumed, gave 404 to its ack, and brought everything back after a restart."""
    async with gateway(DIR, fs=fs, dialects=["tinymq"]) as rig:
        for payload in (b"a", b"b"):
            await publish(rig, "t", payload)
            await consume(rig, "t")
        assert (await rig.ask("POST", "/ack/t/0")).status_code == 200
        after = fs.crash()
    async with gateway(DIR, fs=after, dialects=["tinymq"]) as rig:
        assert [number(message) for message in await consume(rig, "t", "limit=10")] == ["1"]


async def test_an_ack_after_a_kill_is_taken_where_it_is_clear_whose_it_is(fs: SimDisk) -> None:
    async with gateway(DIR, fs=fs, dialects=["tinymq"]) as rig:
        known = [("one", ""), ("two", ""), ("two", "group=g")]
        for again in range(2):  # the consumers are on the disk, what is delivered to them is not
            for topic, group in known:
                assert (await consume(rig, topic, group) is None) == (again == 0)
            for topic in ("one", "two") if again == 0 else ():
                await publish(rig, topic, b"a")
        after = fs.peek_crash(random.Random(1))
    async with gateway(DIR, fs=after, dialects=["tinymq"]) as rig:
        assert (await rig.ask("POST", "/ack/one/0")).status_code == 200
        assert await consume(rig, "one") is None
        assert (await rig.ask("POST", "/ack/two/0")).status_code == 400
        assert (await rig.ask("POST", "/ack/two/0?group=g")).status_code == 200
        assert await consume(rig, "two", "group=g") is None
        assert number(await consume(rig, "two")) == "0"


async def test_a_failed_write_is_no_202(rig: HttpRig, fs: SimDisk) -> None:
    """A publish that cannot be written is refused; the original answered 202."""
    await publish(rig, "t", b"a")
    fs.fail("pwrite", 1, errno.ENOSPC, path=".log")
    assert (await publish(rig, "t", b"b"))[0] == 507
    assert [number(message) for message in await consume(rig, "t", "limit=10")] == ["0"]


async def test_refusals_say_when_to_try_again_and_how_to_ask(fs: SimDisk) -> None:
    """Refusals have the headers Retry-After and WWW-Authenticate, as those of /v1 do."""
    async with gateway(DIR, fs=fs, dialects=["tinymq"], authority=Authority([])) as rig:
        answer = await rig.ask("GET", "/consume/t")
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        answer = await rig.ask("POST", "/publish/t", headers={"authorization": "Bearer guess"})
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    async with gateway(DIR, fs=fs, dialects=["tinymq"]) as rig:
        await publish(rig, "t", b"a")
        fs.fail("pwrite", 1, errno.ENOSPC, path=".log")
        answer = await rig.ask("POST", "/publish/t", content=b"b")
        assert (answer.status_code, answer.headers["retry-after"]) == (507, str(RETRY_AFTER_S["DISK_FULL"]))


async def test_health(rig: HttpRig) -> None:
    assert {"status", "version", "uptime_seconds"} <= set((await rig.ask("GET", "/healthz")).json())
    assert (await rig.ask("GET", "/metrics")).status_code == 200


async def test_a_stream_makes_no_topic_and_shows_what_comes_to_it(rig: HttpRig) -> None:
    """Found by a trial: a request for a stream created its topic, so an image link in any web page could create topics."""
    assert rig.gateway is not None
    with LiveTail(rig.gateway, Place("a.b", None, "a/b"), None) as tail:
        assert tail.living
        assert not rig.broker.topics
        await publish(rig, "a/c", b"other")
        assert not tail.take()
        await publish(rig, "a/b", b"x")
        assert [json.loads(text)["payload_text"] for text in tail.take()] == ["x"]
        await rig.ask("DELETE", "/api/queues/delete?queue=a/b")
        await rig.until(lambda: "a.b" not in rig.broker.topics)
        assert not tail.take()
        assert not tail.living, "it was deleted"
