"""Answers as bytes."""

import pytest

from toymq_py.gateway.answers import encode_head, encode_last


def test_a_head_has_its_status_and_the_common_headers() -> None:
    head = encode_head(201, [(b"x-message-id", b"7")], b"date: now\r\n")
    assert head == b"HTTP/1.1 201 Created\r\ndate: now\r\nx-message-id: 7\r\n\r\n"


@pytest.mark.parametrize("value", [b"a\r\nset-cookie: b", b"a\nb", b"a\rb"])
def test_a_header_with_a_line_break_is_not_sent(value: bytes) -> None:
    with pytest.raises(ValueError, match="line break"):
        encode_head(200, [(b"x", value)])


def test_the_last_answer_ends_the_connection() -> None:
    head, _, body = encode_last(422, [(b"content-length", b"3")], b"why").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 422 ")
    assert {b"connection: close", b"x-content-type-options: nosniff", b"content-length: 3"} <= set(head.split(b"\r\n"))
    assert body == b"why"
