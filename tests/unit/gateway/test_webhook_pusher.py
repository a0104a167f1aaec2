"""Pushes of webhooks: retried, independent of each other, and never sent to a forbidden address."""

import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.http_receiver import Receiver, receiving
from tests.support.http_rig import HttpRig, listening
from tests.support.sim_disk import SimDisk
from toymq_py.gateway import name_lookups, webhook_pusher, webhook_sender

DIR = "/data/d"


@pytest.fixture
def fs() -> SimDisk:
    return SimDisk(random.Random(1))


@pytest.fixture
async def rig(fs: SimDisk) -> AsyncIterator[HttpRig]:
    async with listening(DIR, fs=fs, private_webhooks=True) as rig:
        yield rig


def definition(receiver: Receiver, **more: object) -> dict[str, object]:
    return {"topic": "t", "url": f"http://localhost:{receiver.port}/hook?a=b", **more}


@pytest.mark.provokes_bugs
async def test_a_bug_under_one_webhook_ends_neither_the_broker_nor_another_one(
    rig: HttpRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found: the bug ended the broker, and each start after that."""
    make = webhook_pusher.LongPoll

    def failing(broker: Any, waiting: Any, topic: str, *rest: Any, **options: Any) -> Any:
        if topic == "broken":
            raise TypeError("interpreted classes cannot inherit from compiled")
        return make(broker, waiting, topic, *rest, **options)

    monkeypatch.setattr(webhook_pusher, "LongPoll", failing)
    async with receiving() as receiver:
        assert (await rig.ask("PUT", "/v1/webhooks/broken", json=definition(receiver, topic="broken"))).status_code == 201
        assert (await rig.ask("PUT", "/v1/webhooks/whole", json=definition(receiver))).status_code == 201
        await rig.publish("t", "a")
        assert (await receiver.next())[1] == b"a"
        failure = (await rig.ask("GET", "/v1/webhooks/broken")).json()["failure"]
        assert failure == "a bug in the broker; its log has the details"


async def test_targets_behind_one_address_share_no_cookies(rig: HttpRig) -> None:
    async with receiving() as one, receiving() as other:
        one.cookie = "Set-Cookie: session=secret\r\n"
        for receiver, name in ((one, "one"), (other, "other")):
            await rig.ask("PUT", f"/v1/webhooks/{name}", json=definition(receiver, topic=name))
        for receiver, name in ((one, "one"), (one, "one"), (other, "other")):
            await rig.publish(name, "a")
            headers, _ = await receiver.next()
            assert "cookie" not in headers


async def test_names_behind_one_address_share_no_connection(rig: HttpRig) -> None:
    """With a shared TLS connection only one name's certificate would be checked."""
    async with receiving() as receiver:
        for host in ("localhost", "127.0.0.1"):
            url = f"http://{host}:{receiver.port}/"
            assert (await rig.ask("PUT", f"/v1/webhooks/{host}", json={"topic": host, "url": url})).status_code == 201
        for n, host in enumerate(("localhost", "127.0.0.1", "localhost", "127.0.0.1")):
            await rig.publish(host, "a")
            await receiver.next()
            await rig.until(lambda n=n, host=host: rig.broker.topics[host].consumers[f"webhook.{host}"].floor == n // 2 + 1)
        assert receiver.connections == [{"localhost"}, {"127.0.0.1"}, {"localhost"}, {"127.0.0.1"}]


async def test_a_push_is_not_logged_with_its_url(rig: HttpRig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with receiving() as receiver:
        await rig.ask("PUT", "/v1/webhooks/hook", json=definition(receiver))
        await rig.publish("t", "a")
        await receiver.next()
        await rig.until(lambda: rig.broker.topic("t").consumers["webhook.hook"].floor == 1)
    assert "a=b" not in caplog.text


async def test_a_trace_goes_on_where_it_is_pushed_to(rig: HttpRig, caplog: pytest.LogCaptureFixture) -> None:
    trace_id, span_id = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    async with receiving() as receiver:
        receiver.answer = lambda number: 500
        await rig.ask("PUT", "/v1/webhooks/mine", json=definition(receiver))
        sent = {"traceparent": f"00-{trace_id}-{span_id}-01", "X-Header-Tracestate": "vendor=1"}
        await rig.ask("POST", "/v1/topics/t/messages", content=b"hello", headers=sent)
        headers, _ = await receiver.next()
        assert (headers["traceparent"], headers["tracestate"]) == (sent["traceparent"], "vendor=1")
        await rig.until(lambda: caplog.records)
    (line,) = caplog.records
    assert line.getMessage() == "webhook mine: localhost answered 500"
    assert (line.__dict__["trace_id"], line.__dict__["span_id"]) == (trace_id, span_id)


async def test_a_webhook_begins_where_its_consumer_is(rig: HttpRig) -> None:
    await rig.publish("t", "old")
    answer = await rig.ask("PUT", "/v1/topics/t/consumers/webhook.hook", json={"seek": "latest"})
    assert answer.status_code == 200
    async with receiving() as receiver:
        await rig.ask("PUT", "/v1/webhooks/hook", json=definition(receiver))
        await rig.publish("t", "new")
        assert (await receiver.next())[1] == b"new"


async def test_what_fails_is_pushed_again(rig: HttpRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook_sender, "RETRY_MIN_S", 0.001)
    async with receiving() as receiver:
        receiver.answer = lambda number: (500, 302, 404, 200)[number]
        await rig.ask("PUT", "/v1/webhooks/mine", json=definition(receiver))
        await rig.publish("t", "a")
        pushes = [await receiver.next() for _ in range(4)]
        assert [(headers["x-attempt"], body) for headers, body in pushes] == [(str(n), b"a") for n in range(1, 5)]
        await rig.until(lambda: rig.broker.topics["t"].consumers["webhook.mine"].floor == 1)
        assert (await rig.ask("GET", "/v1/webhooks/mine")).json()["failure"] is None


async def test_a_push_that_fails_for_good_says_why_in_the_dead_letter(rig: HttpRig, caplog: pytest.LogCaptureFixture) -> None:
    assert (await rig.ask("PUT", "/v1/topics/t", json={"max_attempts": 1})).status_code == 201
    async with receiving() as receiver:
        receiver.answer = lambda number: 503
        await rig.ask("PUT", "/v1/webhooks/mine", json=definition(receiver))
        await rig.publish("t", "a")
        await rig.until(lambda: "t.dlq" in rig.broker.topics and rig.broker.topics["t.dlq"].log.committed_id == 1)
    (letter,) = (await rig.ask("GET", "/v1/topics/t.dlq/log")).json()["messages"]
    assert letter["headers"]["toymq-reason"] == "max-attempts"
    assert "503" in letter["headers"]["toymq-error"]
    assert (await rig.ask("GET", "/v1/webhooks/mine")).json()["letters"] == 1
    assert "webhook mine: t:0 becomes a dead letter, its 1. since the start: localhost answered 503" in caplog.messages


async def test_dead_letters_of_webhooks_are_counted_one_by_one_and_logged_by_the_first_of_each(
    rig: HttpRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(webhook_pusher, "LETTER_LINES_PER_S", 1e-9)
    async with receiving() as receiver:
        receiver.answer = lambda number: 503
        for name, count in (("one", webhook_pusher.LETTER_LINES + 5), ("other", 3)):
            await rig.ask("PUT", f"/v1/topics/{name}", json={"max_attempts": 1})
            await rig.ask("PUT", f"/v1/webhooks/{name}", json=definition(receiver, topic=name))
            for _ in range(count):
                await rig.publish(name, "a")
            await rig.until(lambda name=name, count=count: rig.webhooks is not None and rig.webhooks.letters[name] == count)
    logged = [line for line in caplog.messages if "dead letter" in line]
    assert len(logged) == webhook_pusher.LETTER_LINES + 1
    assert logged[-1].startswith("webhook other: other:0 becomes a dead letter, its 1.")


async def test_a_name_that_moves_to_a_private_address_is_not_followed(fs: SimDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address is checked for every push, not only when the webhook is defined."""
    async with receiving() as receiver, listening(DIR, fs=fs, private_webhooks=True) as rig:
        assert (await rig.ask("PUT", "/v1/webhooks/mine", json=definition(receiver))).status_code == 201
        assert rig.webhooks is not None
        monkeypatch.setattr(rig.webhooks._sender, "private", False)
        await rig.publish("t", "a")
        await rig.until(lambda: rig.webhooks is not None and rig.webhooks.failures)
        assert "of this machine or its network" in rig.webhooks.failures["mine"]
        assert receiver.pushes.empty()


async def test_a_push_that_waits_for_the_lookups_of_others_counts_no_attempt(
    rig: HttpRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found: the push was reported as timed out, and used up an attempt of its message."""
    async with receiving() as receiver:
        await rig.ask("PUT", "/v1/webhooks/mine", json=definition(receiver))
        assert rig.webhooks is not None
        failures = rig.webhooks.failures
        monkeypatch.setattr(name_lookups, "THREADS_MAX", 0)
        monkeypatch.setattr(webhook_pusher, "LEASE_SPARE_S", 0.02)
        await rig.publish("t", "x")
        await rig.until(lambda: failures.get("mine", "").startswith("waits for the lookup of its host"))
        monkeypatch.setattr(name_lookups, "THREADS_MAX", 64)
        headers, _ = await receiver.next()
        assert headers["x-attempt"] == "1"
