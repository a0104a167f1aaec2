"""Webhooks: pushed, signed, retried, stored."""

import asyncio
import base64
import hashlib
import hmac
import json
import random
import re
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_receiver import Receiver, receiving
from tests.support.http_rig import HttpRig, gateway, listening, refused
from tests.support.sim_disk import SimDisk
from toymq_py.gateway import neighbours, webhook_sender
from toymq_py.gateway.neighbours import Neighbours
from toymq_py.gateway.webhook_sender import WebhookSender
from toymq_py.placement import Placement, worker_of
from toymq_py.storage import webhooks_file

DIR = "/data/d"
SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef").decode()


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
        kept = (await rig.ask("GET", "/v1/webhooks/mine")).json()["secret"]
        assert kept == "(set)", "a PUT that names none left the pushes unsigned, silently: found by a trial"
        unsigned = await rig.ask("PUT", "/v1/webhooks/mine", json=definition(receiver) | {"secret": None})
        assert unsigned.json()["secret"] is None
        assert len((await rig.ask("GET", "/v1/webhooks")).json()["webhooks"]) == 1
        assert (await rig.ask("DELETE", "/v1/webhooks/mine")).status_code == 204
        assert not rig.broker.topics["t"].consumers
        refused(await rig.ask("DELETE", "/v1/webhooks/mine"), 404, "NO_SUCH_WEBHOOK")
        refused(await rig.ask("GET", "/v1/webhooks/mine"), 404, "NO_SUCH_WEBHOOK")


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
        assert (await rig.ask("GET", "/v1/webhooks")).json() == {"part": None, "webhooks": []}


async def test_a_name_that_no_server_answers_for_is_refused_in_time(rig: HttpRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: the request hung for over a minute."""
    monkeypatch.setattr(webhook_sender, "CHECK_S", 0.01)
    assert rig.webhooks is not None
    light = threading.Event()
    rig.webhooks._sender._lookups._lookup = lambda host: [str(light.wait(60))]
    answer = await rig.ask("PUT", "/v1/webhooks/mine", json={"topic": "t", "url": "http://dark.example/"})
    said = refused(answer, 422, "BAD_ARGUMENT")
    assert said["detail"] == "cannot resolve host dark.example within 0 s: no DNS server answers, or no thread is left"
    light.set()


async def test_a_secret_of_no_bytes_is_refused(rig: HttpRig) -> None:
    """Found: when the secret's environment variable was not set, the secret was only its prefix, and every stranger could
    sign."""
    async with receiving() as receiver:
        for secret, size in (("whsec_", 0), ("whsec_YQ==", 1)):
            answer = await rig.ask("PUT", "/v1/webhooks/mine", json=definition(receiver, secret=secret))
            assert f"the secret has {size} bytes behind whsec_ and needs 16" in refused(answer, 422, "BAD_ARGUMENT")["detail"]


@pytest.mark.parametrize("path", ["/v1/webhooks/mine", "/v1/alerts/mine"])
async def test_a_secret_that_was_taken_away_meanwhile_does_not_come_back(
    rig: HttpRig, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A PUT that keeps the secret may look up its host for seconds; it must not store a secret again that was removed
    meanwhile."""
    body: dict[str, object] = {"topic": "t", "url": "http://localhost/"}
    if "alerts" in path:
        body |= {"when": "lag", "threshold": 10}
    assert (await rig.ask("PUT", path, json=body | {"secret": SECRET})).status_code == 201
    check, looks_up, goes_on = WebhookSender.check, asyncio.Event(), asyncio.Event()

    async def slow_check(sender: WebhookSender, url: str) -> None:
        if url.endswith("/new"):
            looks_up.set()
            await goes_on.wait()
        await check(sender, url)

    monkeypatch.setattr(WebhookSender, "check", slow_check)
    keeps = asyncio.ensure_future(rig.ask("PUT", path, json=body | {"url": "http://localhost/new"}))
    await looks_up.wait()
    assert (await rig.ask("PUT", path, json=body | {"secret": None})).json()["secret"] is None
    goes_on.set()
    answer = (await keeps).json()
    assert (answer["url"], answer["secret"]) == ("http://localhost/new", None)


class Other:
    """Worker 1, simulated: it has webhooks, and may die during a change."""

    def __init__(self) -> None:
        self.webhooks: dict[str, dict[str, Any]] = {}
        self.asked: list[str] = []
        self.dies_within = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        method, path = head.decode().split(" ")[:2]
        body = await reader.readexactly(int(re.findall(rb"content-length: (\d+)", head)[0]))
        self.asked.append(f"{method} {path}")
        name, status, answer = path.removeprefix("/v1/webhooks/"), 200, b"{}"
        if method == self.dies_within:
            self.dies_within = ""
            writer.close()
            return
        if method == "PUT":
            self.webhooks[name] = json.loads(body)
        elif path != "/healthz" and name not in self.webhooks:
            status = 404
        elif method == "DELETE":
            del self.webhooks[name]
        elif path != "/healthz":
            answer = json.dumps(self.webhooks[name]).encode()
        writer.write(b"HTTP/1.1 %d x\r\ncontent-length: %d\r\n\r\n%b" % (status, len(answer), answer))
        writer.close()
        await writer.wait_closed()


@asynccontextmanager
async def two_workers(fs: SimDisk, path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[HttpRig, Other]]:
    async with gateway(DIR, fs=fs) as rig:
        assert rig.gateway is not None

        async def allow(url: str) -> None:
            """Allow any URL: nothing is pushed."""

        monkeypatch.setattr(rig.gateway.sender, "check", allow)
        rig.broker.placement = placement = Placement(0, ("a", "b"), (), (str(path / "0"), str(path / "1")))
        rig.gateway.neighbours = Neighbours(placement)
        other = Other()
        async with await asyncio.start_unix_server(other.serve, path / "1"):
            yield rig, other


HOOK = {"topic": "orders.*", "url": "https://example.com/"}
TOPIC_HERE = next(f"t{number}" for number in range(9) if worker_of(f"t{number}", 2) == 0)


async def test_a_webhook_of_all_workers_is_not_put_before_all_answer(
    fs: SimDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found: the webhook was stored at some workers and not at others."""
    monkeypatch.setattr(neighbours, "REACH_S", 0.5)
    async with two_workers(fs, tmp_path, monkeypatch) as (rig, other):
        (tmp_path / "1").rename(tmp_path / "away")
        with socket.socket(socket.AF_UNIX) as silent:
            silent.bind(str(tmp_path / "1"))
            silent.listen()
            refused(await rig.ask("PUT", "/v1/webhooks/mine", json=HOOK), 503, "PLACEMENT_UNKNOWN")
        assert (await rig.ask("GET", "/v1/webhooks")).json()["webhooks"] == []
        (tmp_path / "away").rename(tmp_path / "1")
        assert (await rig.ask("PUT", "/v1/webhooks/mine", json=HOOK)).status_code == 201
        assert other.webhooks["mine"]["topic"] == HOOK["topic"]


async def test_a_worker_that_ends_within_a_change_of_a_webhook_of_all_is_named_and_a_repeat_completes_it(
    fs: SimDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_workers(fs, tmp_path, monkeypatch) as (rig, other):
        other.dies_within = "PUT"
        detail = refused(await rig.ask("PUT", "/v1/webhooks/mine", json=HOOK), 503, "PLACEMENT_UNKNOWN")["detail"]
        assert detail == "worker 1 does not answer (it ended before it answered); part of it may be done: repeat it"
        assert (await rig.ask("PUT", "/v1/webhooks/mine", json=HOOK)).status_code == 200
        assert other.webhooks["mine"]["topic"] == HOOK["topic"]
        other.dies_within = "DELETE"
        plain = {**HOOK, "topic": TOPIC_HERE}
        refused(await rig.ask("PUT", "/v1/webhooks/mine", json=plain), 503, "PLACEMENT_UNKNOWN")
        assert (await rig.ask("PUT", "/v1/webhooks/mine", json=plain)).status_code == 200
        assert other.webhooks == {}, "it pushed the topics of the pattern for ever"


async def test_a_delete_that_was_done_here_and_not_there_is_completed_by_a_repeat_at_any(
    fs: SimDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found: the repeated DELETE at this worker was answered that there is no such webhook, and the other worker went on
    pushing."""
    async with two_workers(fs, tmp_path, monkeypatch) as (rig, other):
        other.webhooks["mine"] = dict(HOOK)
        assert (await rig.ask("DELETE", "/v1/webhooks/mine")).status_code == 204
        assert other.webhooks == {}
        refused(await rig.ask("DELETE", "/v1/webhooks/mine"), 404, "NO_SUCH_WEBHOOK")
        other.webhooks["mine"] = {**HOOK, "topic": "a topic of its own"}
        refused(await rig.ask("DELETE", "/v1/webhooks/mine"), 404, "NO_SUCH_WEBHOOK")
        assert other.webhooks, "another webhook of that name"
