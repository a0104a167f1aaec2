"""Publishing over HTTP: the answers, and the records in the log."""

import asyncio
import base64
import errno
import random
import socket
import zlib
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_rig import JSON_LINES, HttpRig, gateway, lines, refused
from tests.support.sim_disk import SimDisk
from toymq_py import partition_operations
from toymq_py.broker_waits import stored as stored_on_disk
from toymq_py.errors import REQUEST_ERRORS, QueueFull
from toymq_py.gateway import neighbours, publish_operations
from toymq_py.gateway.neighbours import Neighbours
from toymq_py.gateway.problems import RETRY_AFTER_S, STATUS
from toymq_py.gateway.publish_operations import BATCH_MESSAGES_MAX
from toymq_py.placement import Placement
from toymq_py.topic import Published, Refused, Topic

DIR = "/data/d"
MESSAGES = "/v1/topics/t/messages"
BATCH = "/v1/topics/t/messages:batch"


@pytest.fixture
async def fs() -> SimDisk:
    return SimDisk(random.Random(1))


@pytest.fixture
async def rig(fs: SimDisk) -> AsyncIterator[HttpRig]:
    async with gateway(DIR, fs=fs, max_payload_bytes=1000) as rig:
        yield rig


async def stored(rig: HttpRig) -> list[dict[str, Any]]:
    answer = await rig.ask("GET", "/v1/topics/t/log")
    messages: list[dict[str, Any]] = answer.json()["messages"]
    return messages


def test_every_code_has_a_status_and_what_passes_says_when() -> None:
    assert set(REQUEST_ERRORS) <= set(STATUS)
    for code, cls in REQUEST_ERRORS.items():
        assert not cls.retryable or code in RETRY_AFTER_S or STATUS[code] == 409, code


async def test_a_message_its_key_and_its_headers(rig: HttpRig) -> None:
    headers = {"Idempotency-Key": "order-17", "X-Header-Color": "red", "traceparent": "00-1-2-01", "X-Other": "no"}
    answer = await rig.ask("POST", MESSAGES, content=b"hello", headers=headers)
    assert (answer.status_code, answer.json()) == (201, {"id": 0, "duplicate": False})
    assert answer.headers["x-message-id"] == "0"
    again = await rig.ask("POST", MESSAGES, content=b"hello", headers=headers)
    assert (again.status_code, again.json()) == (201, {"id": 0, "duplicate": True})
    (message,) = await stored(rig)
    assert message == {
        "topic": "t", "id": 0, "key": "order-17", "headers": {"color": "red", "traceparent": "00-1-2-01"},
        "payload": "hello", "time_ms": message["time_ms"],
    }  # fmt: skip


async def test_what_was_answered_survives_a_power_cut(fs: SimDisk) -> None:
    async with gateway(DIR, fs=fs) as rig:
        assert (await rig.ask("POST", MESSAGES, content=b"one")).status_code == 201
        assert (await rig.ask("POST", BATCH, content=lines({"payload": "two"}), headers=JSON_LINES)).status_code == 201
        assert (await rig.ask("PUT", "/v1/topics/s", json={"visibility": 5})).status_code == 201
        after = fs.crash()
    async with gateway(DIR, fs=after) as rig:
        assert [message["payload"] for message in await stored(rig)] == ["one", "two"]
        assert (await rig.ask("GET", "/v1/topics/s")).json()["settings"] == {"visibility": 5}


async def test_delays_and_ttls_of_every_form(rig: HttpRig) -> None:
    """Delayed messages are not delivered yet, expiring ones report when; every form of publishing supports both."""
    part = b"--x\r\nX-Delay-Ms: 3600000\r\nX-Ttl-Ms: 7200000\r\n\r\npart\r\n--x--\r\n"
    batch = lines({"payload": "now"}, {"payload": "line", "delay_ms": 3_600_000, "ttl_ms": 7_200_000}, {"payload": "too"})
    for path, body, headers in (
        (MESSAGES, b"one", {"X-Delay-Ms": "3600000", "X-Ttl-Ms": "7200000"}),
        (BATCH, batch, JSON_LINES),
        (BATCH, part, {"content-type": "multipart/mixed; boundary=x"}),
    ):
        assert (await rig.ask("POST", path, content=body, headers=headers)).status_code == 201
    assert [message["payload"] for message in await rig.lease("t", max=10)] == ["now", "too"]
    for message in await stored(rig):
        late = message.get("expires_at_ms", message["time_ms"]) - message["time_ms"]
        if message["payload"] in ("now", "too"):
            assert late == 0, message
        else:  # counted from the request, which is not the loop pass that stamps the record
            assert 7_190_000 < late < 7_210_000, message
    counts = (await rig.ask("GET", "/v1/topics/t/consumers/c")).json()
    assert (counts["scheduled"], counts["inflight"]) == (3, 2)


@pytest.mark.parametrize("name", ["X-Delay-Ms", "X-Ttl-Ms"])
@pytest.mark.parametrize("value", ["-1", "1.5", "soon", "", "316224000001"])
async def test_times_that_make_no_sense(rig: HttpRig, name: str, value: str) -> None:
    refused(await rig.ask("POST", MESSAGES, content=b"x", headers={name: value}), 422, "BAD_ARGUMENT")
    assert not rig.broker.topics


@pytest.mark.parametrize("path", [MESSAGES, BATCH, "/publish/t", "/t/messages", "/v1/webhooks/w"])
async def test_what_is_coded_is_not_stored_as_if_it_were_not(fs: SimDisk, path: str) -> None:
    method = "PUT" if "webhooks" in path else "POST"
    async with gateway(DIR, fs=fs, dialects=["tinymq", "mq"]) as rig:
        await rig.ask("PUT", "/v1/topics/t")
        for coding in ("gzip", "identity, BR", "base64"):
            headers = {**JSON_LINES, "Content-Encoding": coding}
            answer = await rig.ask(method, path, content=zlib.compress(b"x"), headers=headers)
            assert (answer.status_code, answer.headers.get("accept-encoding", "identity")) == (415, "identity")
            assert coding in answer.text
        assert rig.broker.topics["t"].log.committed_id == 0
        for first in ("identity", ""):
            fields = [*JSON_LINES.items(), ("Content-Encoding", first), ("Content-Encoding", "gzip")]
            answer = await rig.ask(method, path, content=zlib.compress(b"x"), headers=fields)
            assert answer.status_code == 415, "every field counts"
        assert rig.broker.topics["t"].log.committed_id == 0


@pytest.mark.parametrize("codings", [["Identity"], ["Identity "], [""], ["identity, identity"], ["identity", "", "identity"]])
async def test_a_coding_that_changes_nothing_is_taken(rig: HttpRig, codings: list[str]) -> None:
    answer = await rig.ask("POST", MESSAGES, content=b"x", headers=[("Content-Encoding", coding) for coding in codings])
    assert answer.status_code == 201


async def test_a_part_that_is_coded_is_refused_alone(rig: HttpRig) -> None:
    parts = [b"Content-Transfer-Encoding: base64\r\n\r\neA==", b"Content-Encoding: gzip\r\n\r\n...",
             b"Content-Transfer-Encoding: base64\r\nContent-Transfer-Encoding: 7bit\r\n\r\neA==",
             b"Content-Transfer-Encoding: 8bit\r\n\r\nplain", b"Content-Transfer-Encoding: 7bit \r\n\r\nblank"]  # fmt: skip
    body = b"".join(b"--x\r\n%b\r\n" % part for part in parts) + b"--x--\r\n"
    answer = await rig.ask("POST", BATCH, content=body, headers={"content-type": "multipart/mixed; boundary=x"})
    results = refused(answer, 415, "UNKNOWN_CODING")["results"]
    assert [result.get("code") for result in results] == [*["UNKNOWN_CODING"] * 3, None, None]
    assert [message["payload"] for message in await stored(rig)] == ["plain", "blank"]


async def test_binary_payloads_come_back_as_base64(rig: HttpRig) -> None:
    payload = bytes(range(256))
    assert (await rig.ask("POST", MESSAGES, content=payload)).status_code == 201
    assert base64.b64decode((await stored(rig))[0]["payload_base64"]) == payload


@pytest.mark.parametrize("key", ["-", "a b", "x" * 513, "\x7f", "é"])
async def test_what_is_no_key_is_refused(rig: HttpRig, key: str) -> None:
    refused(await rig.ask("POST", MESSAGES, content=b"x", headers={"Idempotency-Key": key.encode()}), 422, "BAD_ARGUMENT")
    assert "t" not in rig.broker.topics


async def test_a_header_that_stands_twice_is_refused(rig: HttpRig) -> None:
    twice = [("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
    refused(await rig.ask("POST", MESSAGES, content=b"x", headers=twice), 422, "BAD_ARGUMENT")
    assert "t" not in rig.broker.topics


@pytest.mark.parametrize("name", ["%2e", "%2e%2e", ".hidden", "-x", "a%00b", "a%20b", "%C3%A9", "x" * 197, "a:b", "%23redrive"])
async def test_names_that_are_none_are_refused(rig: HttpRig, name: str) -> None:
    refused(await rig.ask("POST", f"/v1/topics/{name}/messages", content=b"x"), 422, "BAD_NAME")
    assert not rig.broker.topics


async def test_a_slash_makes_another_path(rig: HttpRig) -> None:
    refused(await rig.ask("POST", "/v1/topics/a%2Fb/messages", content=b"x"), 404, "UNKNOWN_COMMAND")


async def test_a_body_over_the_limit_is_refused_unread(rig: HttpRig) -> None:
    read = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal read
        for _ in range(100):
            read += 600
            yield bytes(600)

    refused(await rig.ask("POST", MESSAGES, content=body(), headers={"content-length": "60000"}), 413, "PAYLOAD_TOO_LARGE")
    assert read == 0, "what says its length is refused before the first byte"
    refused(await rig.ask("POST", MESSAGES, content=body()), 413, "PAYLOAD_TOO_LARGE")
    assert read == 1200, "what does not say it, with the byte that is too much"
    assert (await rig.ask("POST", MESSAGES, content=bytes(1000))).status_code == 201
    refused(await rig.ask("POST", MESSAGES, content=bytes(1000), headers={"x-header-a": "b"}), 413, "PAYLOAD_TOO_LARGE")


async def test_a_full_topic_says_when_to_come_again(rig: HttpRig, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = rig.broker.topic_or_new("t")
    monkeypatch.setattr(topic, "publish", lambda keys, *_, **options: [Refused(len(keys), QueueFull("100 messages"))])
    answer = await rig.ask("POST", MESSAGES, content=b"x")
    refused(answer, 429, "QUEUE_FULL")
    assert answer.headers["retry-after"] == "1"
    answer = await rig.ask("POST", BATCH, content=lines({"payload": "a"}, {"payload": "b"}), headers=JSON_LINES)
    assert len(refused(answer, 429, "QUEUE_FULL")["results"]) == 2
    assert answer.headers["retry-after"] == "1"


async def test_a_low_disk_refuses_publishes_and_nothing_else(fs: SimDisk) -> None:
    async with gateway(DIR, fs=fs) as rig:
        assert (await rig.ask("POST", MESSAGES, content=b"x")).status_code == 201
    async with gateway(DIR, fs=fs.kill(), min_free_bytes=1 << 60) as rig:
        answer = await rig.ask("POST", MESSAGES, content=b"x")
        refused(answer, 507, "DISK_LOW")
        assert answer.headers["retry-after"] == "10"
        assert len(await stored(rig)) == 1
        unready = await rig.ask("GET", "/readyz")
        assert unready.status_code == 503
        assert "disk" in unready.json()["reasons"][0]


async def test_a_full_disk_without_a_mark_is_not_ready_until_there_is_room(rig: HttpRig, fs: SimDisk) -> None:
    """Found: /readyz was 200, so a load balancer sent publishes to a broker that refused them."""

    async def reasons() -> list[str]:
        found: list[str] = (await rig.ask("GET", "/readyz")).json()["reasons"]
        return found

    assert rig.broker.options.min_free_bytes == 0
    assert (await rig.ask("POST", MESSAGES, content=b"0")).status_code == 201
    for room in (None, 1 << 20):
        fs.capacity_bytes = 0
        fs.fail("pwrite", 1, errno.ENOSPC, path=".log")
        refused(await rig.ask("POST", MESSAGES, content=b"1"), 507, "DISK_FULL")
        assert await reasons() == ["the disk is full"]
        if room is not None:
            fs.capacity_bytes = fs.used_bytes + room - 4096
            assert await reasons() == ["the disk is full"]
            fs.capacity_bytes = fs.used_bytes + room + 4096  # a thread may write segments.json meanwhile
        else:
            fs.capacity_bytes = None
            assert (await rig.ask("POST", MESSAGES, content=b"1")).status_code == 201
            fs.capacity_bytes = fs.used_bytes
        assert await reasons() == []


async def test_what_the_disk_did_not_take_is_no_2xx(rig: HttpRig, fs: SimDisk) -> None:
    assert (await rig.ask("POST", MESSAGES, content=b"0")).status_code == 201
    fs.fail("pwrite", 1, errno.ENOSPC, path=".log")
    refused(await rig.ask("POST", MESSAGES, content=b"1"), 507, "DISK_FULL")
    fs.fail("sync", 1, errno.EIO, path=".log")
    answer = await rig.ask("POST", MESSAGES, content=b"2")
    refused(answer, 503, "STORAGE_FAILED")
    assert answer.headers["retry-after"] == "10"
    answer = await rig.ask("POST", BATCH, content=lines({"payload": "3"}, {"payload": "4"}), headers=JSON_LINES)
    assert [result["code"] for result in refused(answer, 503, "STORAGE_FAILED")["results"]] == ["STORAGE_FAILED"] * 2
    assert (await rig.ask("GET", "/readyz")).status_code == 503
    assert rig.broker.metrics.errors == {"DISK_FULL": 1, "STORAGE_FAILED": 3}


async def test_a_batch_of_json_lines(rig: HttpRig) -> None:
    body = lines(
        {"payload": "a"}, {"payload": "b", "key": "k"}, {"payload": "b", "key": "k"},
        {"payload_base64": "AAH/"}, {"payload": "h", "headers": {"Color": "red: blue"}},
    )  # fmt: skip
    answer = await rig.ask("POST", BATCH, content=body, headers=JSON_LINES)
    assert answer.status_code == 201
    assert answer.json() == {"results": [
        {"id": 0, "duplicate": False}, {"id": 1, "duplicate": False}, {"id": 1, "duplicate": True},
        {"id": 2, "duplicate": False}, {"id": 3, "duplicate": False},
    ]}  # fmt: skip
    found = await stored(rig)
    assert [message.get("payload") for message in found] == ["a", "b", None, "h"]
    assert found[2]["payload_base64"] == "AAH/"
    assert found[3]["headers"] == {"Color": "red: blue"}


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("X-Delay-Ms", "60000", "'delay_ms' in a line"), ("X-Ttl-Ms", "9", "'ttl_ms'"), ("Idempotency-Key", "k", "'key'"),
        ("X-Route", "Ann", "'route'"), ("X-Header-Color", "red", "'headers'"), ("X-Delay", "5", "use X-Delay-Ms"),
    ],
)  # fmt: skip
async def test_a_batch_with_a_header_of_one_message_is_refused(rig: HttpRig, name: str, value: str, remedy: str) -> None:
    answer = await rig.ask("POST", BATCH, content=lines({"payload": "a"}), headers=JSON_LINES | {name: value})
    assert answer.status_code == 422
    assert remedy in answer.json()["detail"]
    assert (await rig.ask("GET", "/v1/topics")).json()["topics"] == []


@pytest.mark.parametrize(
    "bad",
    [
        "", "no json", "[]", "7", '{"payload": 7}', '{"payload": "a", "payload_base64": "YQ=="}', "{}",
        '{"payload": "a", "to": "b"}',
        '{"payload_base64": "?"}', '{"payload": "\\ud800"}', '{"payload": "a", "key": "-"}', '{"payload": "a", "key": 7}',
        '{"payload": "a", "headers": {"a": 7}}', '{"payload": "a", "headers": {"a\\nb": "c"}}',
        '{"payload": "a", "headers": []}',
        '{"payload": "a", "delay_ms": -1}', '{"payload": "a", "ttl_ms": 0}', '{"payload": "a", "ttl_ms": "1"}',
        '{"payload": "a", "delay_ms": 1000, "ttl_ms": 1000}',
        '{"payload": "a"}, {"payload": "b"}', "[" * 60_000,
    ],
    ids=lambda bad: bad[:60],
)  # fmt: skip
async def test_a_bad_line_harms_no_other_and_is_no_2xx(rig: HttpRig, bad: str) -> None:
    rig.broker.topic_or_new("t")
    answer = await rig.ask("POST", BATCH, content=lines({"payload": "a"}, bad, {"payload": "c"}), headers=JSON_LINES)
    results = refused(answer, 422, "BAD_ARGUMENT")["results"]
    assert [result.get("id", result.get("code")) for result in results] == [0, "BAD_ARGUMENT", 1]
    assert [message["payload"] for message in await stored(rig)] == ["a", "c"]


async def test_what_could_never_be_delivered_is_refused(rig: HttpRig) -> None:
    """Found by a trial: a delay as long as the ttl was accepted, and the message expired when it was due."""
    times = {"X-Delay-Ms": "5000", "X-Ttl-Ms": "5000"}
    answer = await rig.ask("POST", "/v1/topics/t/messages", content=b"x", headers=times)
    assert "a delay of 5s with a ttl of 5s: it would expire" in refused(answer, 422, "BAD_ARGUMENT")["detail"]
    times["X-Ttl-Ms"] = "5001"
    assert (await rig.ask("POST", "/v1/topics/t/messages", content=b"x", headers=times)).status_code == 201


async def test_a_line_over_the_limit_is_refused_alone(rig: HttpRig) -> None:
    answer = await rig.ask("POST", BATCH, content=lines({"payload": "x" * 1001}, {"payload": "c"}), headers=JSON_LINES)
    results = refused(answer, 413, "PAYLOAD_TOO_LARGE")["results"]
    assert [result.get("id", result.get("code")) for result in results] == ["PAYLOAD_TOO_LARGE", 0]


async def test_refused_lines_take_turns_too(rig: HttpRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by a trial: refused lines counted for nothing, and 128 large ones were parsed in one turn."""
    turns: list[int] = []
    one_turn = publish_operations._one_turn

    def counted(found: Any) -> Any:
        part = one_turn(found)
        turns.append(len(part))
        return part

    monkeypatch.setattr(publish_operations, "_one_turn", counted)
    line = "[" + "[]," * 20_000 + "[]]"
    answer = await rig.ask("POST", BATCH, content=lines(*[line] * 20), headers=JSON_LINES)
    assert refused(answer, 422, "BAD_ARGUMENT")["results"][19]["code"] == "BAD_ARGUMENT"
    assert max(turns) <= 1 + publish_operations.BYTES_PER_TURN // len(line)


async def test_a_batch_of_parts(rig: HttpRig) -> None:
    body = (
        b"--x\r\nIdempotency-Key: k\r\nX-Header-Color: red\r\n\r\n\x00\xff\r\n"
        b"--x\r\nContent-Disposition: form-data; name=m\r\n\r\nplain\r\n--x\r\n\r\n\r\n--x--\r\n"
    )
    answer = await rig.ask("POST", BATCH, content=body, headers={"content-type": "multipart/mixed; boundary=x"})
    assert (answer.status_code, [result["id"] for result in answer.json()["results"]]) == (201, [0, 1, 2])
    first, second, third = await stored(rig)
    assert (first["key"], first["headers"], first["payload_base64"]) == ("k", {"color": "red"}, "AP8=")
    assert (second["payload"], third["payload"]) == ("plain", "")


@pytest.mark.parametrize(
    ("media", "body"),
    [
        ("text/plain", b"x"),
        ("multipart/mixed", b"--x--"),
        ("multipart/mixed; boundary=x", b"no boundary"),
        ("multipart/mixed; boundary=x", b"--x\r\n\r\ncut off"),
        ("multipart/mixed; boundary=x", b"--x\r\nno header\r\n\r\na\r\n--x--\r\n"),
    ],
)
async def test_what_is_no_batch_stores_nothing(rig: HttpRig, media: str, body: bytes) -> None:
    refused(await rig.ask("POST", BATCH, content=body, headers={"content-type": media}), 400, "BAD_FRAMING")
    assert "t" not in rig.broker.topics


async def test_more_messages_than_a_batch_takes(rig: HttpRig) -> None:
    body = b"{}\n" * (BATCH_MESSAGES_MAX + 1)
    refused(await rig.ask("POST", BATCH, content=body, headers=JSON_LINES), 422, "BAD_ARGUMENT")
    assert "t" not in rig.broker.topics


async def test_as_many_messages_as_a_batch_takes_end_where_the_body_does(rig: HttpRig) -> None:
    """A full batch is accepted even when the last piece of the body is empty."""

    async def body() -> AsyncIterator[bytes]:
        yield b'{"payload":""}\n' * BATCH_MESSAGES_MAX
        yield b""

    answer = await rig.ask("POST", BATCH, content=body(), headers=JSON_LINES)
    assert (answer.status_code, len(answer.json()["results"])) == (201, BATCH_MESSAGES_MAX)


async def test_large_messages_are_taken_one_after_the_other(rig: HttpRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: a batch of 16 MiB in 15 messages blocked the loop for 61 ms."""
    monkeypatch.setattr(publish_operations, "BYTES_PER_TURN", 500)
    appended: list[int] = []
    usual = publish_operations.append

    def counted(topic: Topic, messages: Sequence[publish_operations.Message]) -> Sequence[Published]:
        appended.append(len(messages))
        return usual(topic, messages)

    monkeypatch.setattr(publish_operations, "append", counted)
    answer = await rig.ask("POST", BATCH, content=lines(*[{"payload": "x" * 400}] * 6), headers=JSON_LINES)
    assert (answer.status_code, appended) == (201, [2, 2, 2])


async def test_an_empty_batch_is_one(rig: HttpRig) -> None:
    answer = await rig.ask("POST", BATCH, content=b"", headers=JSON_LINES)
    assert (answer.status_code, answer.json()) == (201, {"results": []})


async def test_nothing_is_begun_while_the_broker_shuts_down(rig: HttpRig) -> None:
    assert rig.gateway is not None
    rig.gateway.waiting.stop()
    for method, path, body in (("POST", MESSAGES, b"x"), ("PUT", "/v1/topics/t", b"{}")):
        answer = await rig.ask(method, path, content=body)
        refused(answer, 503, "SHUTTING_DOWN")
        assert answer.headers["retry-after"] == "1"
    assert not rig.broker.topics


async def test_a_batch_that_loses_a_worker_says_of_each_message_what_is_known(
    rig: HttpRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found: messages for a worker that was not up, and for one that died, had the same error, although only the latter may be
    stored. A worker that hung was given up after 5 s, and stored its messages later."""
    monkeypatch.setattr(neighbours, "REACH_S", 0.5)
    sockets = [str(tmp_path / str(worker)) for worker in range(3)]
    rig.broker.placement = placement = Placement(0, ("a", "b", "c"), (), sockets)
    assert rig.gateway is not None
    rig.gateway.neighbours = Neighbours(placement)
    await stored_on_disk(lambda done: partition_operations.create(rig.broker, "t", {"partitions": "12"}, done))
    received: list[bytes] = []

    async def die_within(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append((await reader.readuntil(b"\r\n\r\n")).partition(b" HTTP")[0])
        writer.write(b"HTTP/1.1 200 OK\r\n" + (b"\r\n" if received[-1] == b"GET /healthz" else b"content-length: 9\r\n\r\n{"))
        writer.close()
        await writer.wait_closed()

    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(sockets[1])
        silent.listen()
        async with await asyncio.start_unix_server(die_within, sockets[2]):
            messages = [{"payload": "x", "route": f"r{number}"} for number in range(20)]
            answer = await rig.ask("POST", BATCH, content=lines(*messages), headers=JSON_LINES)
        silent.setblocking(False)
        for connection in accepted(silent):
            with connection:
                assert connection.recv(9999).startswith(b"GET /healthz "), "no message was sent"
    problem = refused(answer, 503, answer.json()["code"])
    workers = [placement.worker_of(f"t#{result['partition']}") for result in problem["results"]]
    assert set(workers) == {0, 1, 2}
    for worker, result in zip(workers, problem["results"], strict=True):
        if worker == 0:
            assert result["duplicate"] is False
        else:
            assert result["code"] == ("PLACEMENT_UNKNOWN" if worker == 1 else "SHUTTING_DOWN")
            assert result["detail"] == (
                "worker 1 does not answer (in time): try again" if worker == 1
                else "worker 2 ended before it answered: the outcome is unknown"
            )  # fmt: skip


def accepted(listener: socket.socket) -> Iterator[socket.socket]:
    with suppress(BlockingIOError):
        while True:
            yield listener.accept()[0]
