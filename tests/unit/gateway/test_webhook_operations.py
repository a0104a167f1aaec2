"""Webhooks: pushed, signed, tried again, kept."""

import asyncio
import base64
import hashlib
import hmac
import json
import random
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.http_rig import HttpRig, listening, refused
from tests.support.sim_disk import SimDisk
from toymq_py.gateway import name_lookups, webhook_pusher
from toymq_py.storage import webhooks_file

DIR = "/data/d"
SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef").decode()


class Receiver:
    """Somebody's web server: notes what is pushed, and answers what it is told to."""

    def __init__(self) -> None:
        self.port = 0
        self.cookie = ""
        self.answer: Callable[[int], int] = lambda number: 200
        self.pushes: asyncio.Queue[tuple[dict[str, str], bytes]] = asyncio.Queue()
        self.connections: list[set[str]] = []
        """The names that each was asked by."""
        self._number = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.append(asked := set())
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode():
                lines = head.split("\r\n")
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:] if line)}
                asked.add(headers["host"].partition(":")[0])
                body = await reader.readexactly(int(headers["content-length"]))
                status = self.answer(self._number)
                self._number += 1
                location = "Location: http://169.254.169.254/\r\n" if status == 302 else ""
                writer.write(f"HTTP/1.1 {status} X\r\n{location}{self.cookie}Content-Length: 0\r\n\r\n".encode())
                self.pushes.put_nowait((headers, body))
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()

    async def next(self) -> tuple[dict[str, str], bytes]:
        async with asyncio.timeout(10):
            return await self.pushes.get()


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    async with await asyncio.start_server(receiver.handle, "127.0.0.1", 0) as server:
        receiver.port = server.sockets[0].getsockname()[1]
        yield receiver
        server.close()


@pytest.fixture
def fs() -> SimDisk:
    return SimDisk(random.Random(1))


@pytest.fixture
async def rig(fs: SimDisk) -> AsyncIterator[HttpRig]:
    async with listening(DIR, fs=fs, private_webhooks=True) as rig:
        yield rig


def definition(receiver: Receiver, **more: object) -> dict[str, object]:
    return {"topic": "t", "url": f"http://localhost:{receiver.port}/hook?a=b", **more}


async def test_a_message_is_pushed_signed_and_acked(rig: HttpRig) -> None:
    async with receiving() as receiver:
        answer = await rig.ask("PUT", "/v1/webhooks/mine", json=definition(receiver, secret=SECRET))
        assert answer.status_code == 201
        assert "0123" not in answer.text
        assert SECRET not in answer.text
        sent = {"Idempotency-Key": "k", "X-Header-Color": "red"}
        assert (await rig.ask("POST", "/v1/topics/t/messages", content=b"hello", headers=sent)).status_code == 201
        headers, body = await receiver.next()
        assert (body, headers["host"]) == (b"hello", f"localhost:{receiver.port}")
        assert (headers["x-topic"], headers["x-message-id"], headers["x-attempt"]) == ("t", "0", "1")
        assert (headers["idempotency-key"], json.loads(headers["x-headers"])) == ("k", {"color": "red"})
        signed = f"t:0.{headers['webhook-timestamp']}.hello".encode()
        expected = base64.b64encode(hmac.new(b"0123456789abcdef", signed, hashlib.sha256).digest()).decode()
        assert (headers["webhook-id"], headers["webhook-signature"]) == ("t:0", f"v1,{expected}")
        await rig.until(lambda: rig.broker.topics["t"].consumers["webhook.mine"].floor == 1)
        assert (await rig.ask("PUT", "/v1/webhooks/mine", json=definition(receiver))).status_code == 200
        assert (await rig.ask("GET", "/v1/webhooks/mine")).json()["secret"] is None
        assert len((await rig.ask("GET", "/v1/webhooks")).json()["webhooks"]) == 1
        assert (await rig.ask("DELETE", "/v1/webhooks/mine")).status_code == 204
        assert not rig.broker.topics["t"].consumers
        refused(await rig.ask("DELETE", "/v1/webhooks/mine"), 404, "NO_SUCH_WEBHOOK")
        refused(await rig.ask("GET", "/v1/webhooks/mine"), 404, "NO_SUCH_WEBHOOK")


@pytest.mark.provokes_bugs
async def test_a_bug_under_one_webhook_ends_neither_the_broker_nor_another_one(
    rig: HttpRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended the broker, and each start after that."""
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
    """Over TLS it would be one name's certificate that was checked."""
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


@pytest.mark.parametrize("host", ["a..b", f"{70 * 'a'}.com"])
async def test_a_host_that_can_have_no_address_is_refused(rig: HttpRig, host: str) -> None:
    answer = await rig.ask("PUT", "/v1/webhooks/hook", json={"topic": "t", "url": f"http://{host}/"})
    refused(answer, 422, "BAD_ARGUMENT")


async def test_a_webhook_that_moves_to_another_topic_leaves_nothing_behind(rig: HttpRig) -> None:
    async with receiving() as receiver:
        for topic in ("a.b", "a.c"):
            await rig.publish(topic, "x")
        consumers = {topic: rig.broker.topic(topic).channels for topic in ("a.b", "a.c")}
        for topic, has in (("a.b", ["a.b"]), ("a.*", ["a.b", "a.c"]), ("a.c", ["a.c"])):
            await rig.ask("PUT", "/v1/webhooks/hook", json=definition(receiver, topic=topic))
            await rig.until(lambda has=has: all("webhook.hook" in consumers[each] for each in has))
            assert [each for each, found in consumers.items() if "webhook.hook" in found] == has


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


async def test_what_fails_is_pushed_again(rig: HttpRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook_pusher, "RETRY_MIN_S", 0.001)
    async with receiving() as receiver:
        receiver.answer = lambda number: (500, 302, 404, 200)[number]
        await rig.ask("PUT", "/v1/webhooks/mine", json=definition(receiver))
        await rig.publish("t", "a")
        pushes = [await receiver.next() for _ in range(4)]
        assert [(headers["x-attempt"], body) for headers, body in pushes] == [(str(n), b"a") for n in range(1, 5)]
        await rig.until(lambda: rig.broker.topics["t"].consumers["webhook.mine"].floor == 1)
        assert (await rig.ask("GET", "/v1/webhooks/mine")).json()["failure"] is None


async def test_a_push_that_fails_for_good_says_why_in_the_dead_letter(rig: HttpRig) -> None:
    assert (await rig.ask("PUT", "/v1/topics/t", json={"max_attempts": 1})).status_code == 201
    async with receiving() as receiver:
        receiver.answer = lambda number: 503
        await rig.ask("PUT", "/v1/webhooks/mine", json=definition(receiver))
        await rig.publish("t", "a")
        await rig.until(lambda: "t.dlq" in rig.broker.topics and rig.broker.topics["t.dlq"].log.committed_id == 1)
    (letter,) = (await rig.ask("GET", "/v1/topics/t.dlq/log")).json()["messages"]
    assert letter["headers"]["toymq-reason"] == "max-attempts"
    assert "503" in letter["headers"]["toymq-error"]


async def test_a_definition_survives_a_power_cut_and_goes_on_where_it_was(fs: SimDisk) -> None:
    async with receiving() as receiver:
        async with listening(DIR, fs=fs, private_webhooks=True) as rig:
            assert (await rig.ask("PUT", "/v1/webhooks/mine", json=definition(receiver))).status_code == 201
            after = fs.crash()
        async with listening(DIR, fs=after, private_webhooks=True) as rig:
            await rig.publish("t", "a")
            assert (await receiver.next())[1] == b"a"


async def test_a_damaged_file_is_said_and_kept(fs: SimDisk) -> None:
    async with listening(DIR, fs=fs) as rig:
        pass
    file = fs.open(f"{DIR}/{webhooks_file.FILE_NAME}", create=True)
    file.pwrite(b"damaged", 0)
    file.close()
    async with listening(DIR, fs=fs.kill(), private_webhooks=True) as rig:
        answer = await rig.ask("PUT", "/v1/webhooks/mine", json={"topic": "t", "url": "http://127.0.0.1:9/"})
        refused(answer, 503, "STORAGE_FAILED")
        refused(await rig.ask("GET", "/v1/webhooks"), 503, "STORAGE_FAILED")
        refused(await rig.ask("GET", "/v1/webhooks/mine"), 503, "STORAGE_FAILED")
        await rig.publish("t", "a")


async def test_private_addresses_are_refused_unless_allowed(fs: SimDisk) -> None:
    async with listening(DIR, fs=fs) as rig:
        for host in ("localhost", "127.0.0.1", "169.254.169.254", "[::1]", "10.0.0.1"):
            answer = await rig.ask("PUT", "/v1/webhooks/mine", json={"topic": "t", "url": f"http://{host}/"})
            refused(answer, 403, "FORBIDDEN")
        assert (await rig.ask("GET", "/v1/webhooks")).json() == {"webhooks": []}


async def test_a_name_that_moves_to_a_private_address_is_not_followed(fs: SimDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address is checked for every push, not for the definition alone."""
    async with receiving() as receiver, listening(DIR, fs=fs, private_webhooks=True) as rig:
        assert (await rig.ask("PUT", "/v1/webhooks/mine", json=definition(receiver))).status_code == 201
        assert rig.webhooks is not None
        monkeypatch.setattr(rig.webhooks, "private", False)
        await rig.publish("t", "a")
        await rig.until(lambda: rig.webhooks is not None and rig.webhooks.failures)
        assert "of this machine or its network" in rig.webhooks.failures["mine"]
        assert receiver.pushes.empty()


async def test_a_name_that_no_server_answers_for_is_refused_in_time(rig: HttpRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request hung for over a minute."""
    monkeypatch.setattr(webhook_pusher, "CHECK_S", 0.01)
    assert rig.webhooks is not None
    light = threading.Event()
    rig.webhooks._lookups._lookup = lambda host: [str(light.wait(60))]
    answer = await rig.ask("PUT", "/v1/webhooks/mine", json={"topic": "t", "url": "http://dark.example/"})
    said = refused(answer, 422, "BAD_ARGUMENT")
    assert said["detail"] == "cannot resolve host dark.example within 0 s: no DNS server answers, or no thread is left"
    light.set()


async def test_a_push_that_waits_for_the_lookups_of_others_counts_no_attempt(
    rig: HttpRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was said to have timed out, and brought the message nearer to its end as a dead letter."""
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


async def test_a_secret_of_no_bytes_is_refused(rig: HttpRig) -> None:
    """The variable behind the prefix was not set, and anybody could sign."""
    async with receiving() as receiver:
        for secret, size in (("whsec_", 0), ("whsec_YQ==", 1)):
            answer = await rig.ask("PUT", "/v1/webhooks/mine", json=definition(receiver, secret=secret))
            assert f"the secret has {size} bytes behind whsec_ and needs 16" in refused(answer, 422, "BAD_ARGUMENT")["detail"]
