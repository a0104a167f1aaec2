"""Partitioned topics over HTTP, with one process and with two workers: any of them answers every request."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote
from zlib import crc32

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.worker_processes import serving

COUNT = 6


class Http:
    """An HTTP client that asks one worker after the other in turn."""

    def __init__(self, *urls: str) -> None:
        self.urls = urls
        self._turn = 0

    def __call__(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
        self._turn += 1
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        url = f"{self.urls[self._turn % len(self.urls)]}{path}"
        request = urllib.request.Request(url, data=data, method=method, headers=named)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                text = answer.read()
                return answer.status, json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())


@pytest.fixture(params=[1, 2])
def http(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Http]:
    if request.param == 1:
        with BrokerProcess(tmp_path / "d", "--http", "127.0.0.1:0") as broker:
            yield Http(f"{broker.http}v1")
    else:
        with serving(tmp_path / "data", 2, "--http", "127.0.0.1:0") as workers:
            workers.ready(2)
            yield Http(*(f"{workers.http(worker)}/v1" for worker in (0, 1)))


def test_a_partitioned_topic(http: Http) -> None:
    assert http("PUT", "/topics/orders", {"partitions": COUNT, "visibility": 60_000})[0] == 201
    status, made = http("PUT", "/topics/orders", {"partitions": COUNT})
    assert (status, made["partitions"], len(made["parts"]), made["settings"]) == (200, COUNT, COUNT, {"visibility": 60_000})
    status, held = http("GET", "/topics/orders/settings")
    visibility = next(each for each in held["settings"] if each["setting"] == "visibility")
    assert (status, visibility["value"], visibility["from"]) == (200, 60_000, "topic")
    status, refused = http("PUT", "/topics/orders", {"partitions": 2})
    assert (status, refused["code"]) == (409, "EXISTS")
    lengths = [0] * COUNT
    for number in range(24):
        partition = crc32(b"customer-%d" % (number % 7)) % COUNT
        headers: tuple[dict[str, str], ...] = (
            {"X_Route": f"customer-{number % 7}", "Idempotency_Key": f"n{number}"},
            {"X_Header_Toymq_Group": f"customer-{number % 7}"},
        )
        status, receipt = http("POST", "/topics/orders/messages", b"hello", **headers[number % 2])
        assert (status, receipt) == (201, {"id": lengths[partition], "duplicate": False, "partition": partition})
        lengths[partition] += 1
    status, again = http("POST", "/topics/orders/messages", b"hello", X_Route="customer-0", Idempotency_Key="n0")
    assert (status, again["duplicate"]) == (201, True)
    lines = [{"payload": "x", word: f"{word}{number}"} for word in ("route", "key") for number in range(9)]
    batch = "\n".join(map(json.dumps, lines)).encode()
    status, answer = http("POST", "/topics/orders/messages:batch", batch, Content_Type="application/x-ndjson")
    assert status == 201, answer
    expected = [crc32(str(line.get("route") or line.get("key")).encode()) % COUNT for line in lines]
    assert [result["partition"] for result in answer["results"]] == expected
    for partition, result in zip(expected, answer["results"], strict=True):
        assert result["id"] == lengths[partition]
        lengths[partition] += 1
    bad = b'{"payload": "x", "route": "a b"}\n{"payload": "x", "route": "r"}'
    status, answer = http("POST", "/topics/orders/messages:batch", bad, Content_Type="application/x-ndjson")
    assert (status, answer["code"], [sorted(result) for result in answer["results"]]) == (
        422, "BAD_ARGUMENT", [["code", "detail"], ["duplicate", "id", "partition"]],
    )  # fmt: skip
    lengths[crc32(b"r") % COUNT] += 1
    for _ in http.urls:
        _, described = http("GET", "/topics/orders")
        assert [part["messages"] for part in described["parts"]] == lengths
    total, seen = sum(lengths), 0
    for _ in range(200):
        status, answer = http("GET", "/topics/orders/messages?consumer=c&max=5")
        for message in answer["messages"] if status == 200 else ():
            path = f"/topics/{quote(message['topic'])}/messages/{message['id']}?consumer=c"
            assert http("DELETE", path)[0] == 204
            seen += 1
        if seen == total:
            break
    assert seen == total, "the consumer gets those of every partition"
    assert http("GET", "/topics/orders/consumers/c")[1]["backlog"] == 0
    status, moved = http("PUT", "/topics/orders/consumers/c", {"seek": "earliest"})
    assert (status, moved["backlog"]) == (200, total)
    assert http("PUT", "/topics/orders/consumers/c", {"seek": 0})[0] == 422
    changed = http("PATCH", f"/topics/orders?partitions={COUNT}", {"ttl": 3_600_000})[1]
    assert changed["settings"] == {"visibility": 60_000, "ttl": 3_600_000}
    assert http("PATCH", "/topics/orders", {"partitions": 3})[0] == 422
    assert http("DELETE", "/topics/orders/consumers/c")[0] == 204
    assert http("DELETE", "/topics/orders/consumers/c")[0] == 404
    assert http("GET", "/topics/orders%233/log")[0] == 200
    status, refused = http("GET", "/topics/orders/log")
    assert (status, refused["code"]) == (409, "PARTITIONED")
    status, refused = http("PUT", "/webhooks/mine", {"topic": "orders", "url": "https://example.com/"})
    assert (status, refused["detail"]) == (422, "orders is partitioned: write orders#*, or one of its partitions")
    assert http("POST", "/topics/orders:purge") == (200, {"purged": total})
    for said in ("", "#3/messages/0?consumer=c", "?partitions=2", "#3?partitions=6"):
        for _ in http.urls:
            assert http("PATCH", f"/topics/orders{said}", {"ttl": 1000})[0] == 409
            status, refused = http("DELETE", f"/topics/orders{said}")
            assert (status, refused["code"]) == (409, "PARTITIONED"), said
    assert len(http("GET", "/topics/orders")[1]["parts"]) == COUNT
    assert http("DELETE", f"/topics/orders?partitions={COUNT}")[0] == 204
    for _ in http.urls:
        assert http("GET", "/topics/orders")[0] == 404
        assert http("GET", "/topics/orders%231")[0] == 404


def test_dead_letters_of_all_partitions(http: Http) -> None:
    http("PUT", "/topics/orders", {"partitions": COUNT})
    for number in range(12):
        http("POST", "/topics/orders/messages", b"%d" % number)
    dead = 0
    for _ in range(50):
        status, answer = http("GET", "/topics/orders/messages?consumer=c&max=12")
        for message in answer["messages"] if status == 200 else ():
            path = f"/topics/{quote(message['topic'])}/messages/{message['id']}:nack?consumer=c&dead=true"
            assert http("POST", path)[0] == 204
            dead += 1
        if dead == 12:
            break
    assert dead == 12
    for _ in range(50):  # a letter is stored a moment after its nack
        _, listed = http("GET", "/topics?pattern=orders%23*.dlq")
        if sum(topic["messages"] for topic in listed["topics"]) == 12:
            break
    assert http("POST", "/topics/orders.dlq:redrive") == (200, {"redriven": 12})
