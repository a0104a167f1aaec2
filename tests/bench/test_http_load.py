"""Requests of the HTTP load."""

import json

from toymq_bench.http_load import request


def parts(data: bytes) -> tuple[list[str], bytes]:
    head, _, body = data.partition(b"\r\n\r\n")
    return head.decode().split("\r\n"), body


def test_one_message_a_request_with_a_key_in_its_header() -> None:
    head, body = parts(request("t", 3, 100, 1, keyed=True))
    assert head[0] == "POST /v1/topics/t/messages HTTP/1.1"
    assert f"Content-Length: {len(body)}" in head
    assert len(body) == 100
    (key,) = [line for line in head if line.startswith("Idempotency-Key: ")]
    assert key.endswith("-3")
    assert not any("Idempotency" in line for line in parts(request("t", 3, 100, 1, keyed=False))[0])


def test_a_batch_is_json_lines_each_with_its_own_key() -> None:
    head, body = parts(request("t", 3, 10, 4, keyed=True))
    assert head[0] == "POST /v1/topics/t/messages:batch HTTP/1.1"
    assert "Content-Type: application/x-ndjson" in head
    assert f"Content-Length: {len(body)}" in head
    messages = [json.loads(line) for line in body.splitlines()]
    assert [len(message["payload"]) for message in messages] == [10] * 4
    assert len({message["key"] for message in messages}) == 4
    assert all("key" not in json.loads(line) for line in parts(request("t", 0, 10, 2, keyed=False))[1].splitlines())
