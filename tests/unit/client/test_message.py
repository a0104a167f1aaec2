"""What is no payload, key, header or duration is refused by name, with what to write instead."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from toymq import connect, sync
from toymq.arguments import key_bytes, payload_bytes, to_ms
from toymq.message import chunks, format_headers


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: payload_bytes("text"), "a payload is bytes, not str: use payload.encode()"),
        (lambda: payload_bytes({"id": 17}), "a payload is bytes, not dict: use json.dumps(payload).encode()"),
        (lambda: payload_bytes(None), "a payload is bytes, not None: use json.dumps(payload).encode()"),
        (lambda: next(chunks(["text"], 8, 100, None, None, None)), "a payload is bytes, not str: use payload.encode()"),  # type: ignore[list-item]
        (lambda: to_ms("delay", "5s"), "delay is a number of seconds, not '5s': delay=5 is five seconds"),  # type: ignore[arg-type]
        (
            lambda: to_ms("ttl", timedelta(seconds=5)),  # type: ignore[arg-type]
            "ttl is a number of seconds, not datetime.timedelta(seconds=5): use ttl.total_seconds()",
        ),
        (lambda: key_bytes(17), "a key is str or bytes, not int: use str(key)"),  # type: ignore[arg-type]
        (lambda: format_headers({"n": 1}), "a header's name and value are str, not 'n': 1; use str()"),  # type: ignore[dict-item]
        (lambda: connect(timeout_s="5s"), "timeout_s is a number of seconds, not '5s': timeout_s=5 is five seconds"),  # type: ignore[arg-type]
        (lambda: sync.connect(wait_s="5s"), "wait_s is a number of seconds, not '5s': wait_s=5 is five seconds"),  # type: ignore[arg-type]
    ],
    ids=["str", "dict", "None", "one of many", "delay", "timedelta", "key", "header", "timeout_s", "wait_s"],
)
def test_a_mistake_is_named_with_its_remedy(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(TypeError) as error:
        call()
    assert str(error.value) == said


def test_what_holds_bytes_is_a_payload() -> None:
    assert [payload_bytes(payload) for payload in (b"a", bytearray(b"a"), memoryview(b"a"))] == [b"a"] * 3
