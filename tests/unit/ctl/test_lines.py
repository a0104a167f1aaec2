"""A message as one line of text, JSON or raw bytes."""

import json

from toymqctl.lines import Row, own_key

ROW = Row("orders", 7, 1, 1000, b"k", {"Kind": "job"}, b"a\nb")


def test_text_is_one_line_and_says_key_and_a_later_attempt() -> None:
    assert ROW.format("text") == b"7 key=k\ta\\nb\n"
    again = Row("orders", 7, 3, 1000, b"", {}, b"x")
    assert again.format("text") == b"7 attempt=3\tx\n"


def test_text_names_the_topic_where_several_are_read_for_an_id_is_one_topics() -> None:
    part = Row("orders#3", 7, 1, 1000, b"k", {}, b"x")
    assert part.format("text", "orders") == b"orders#3 7 key=k\tx\n"
    assert part.format("text", "orders#*") == b"orders#3 7 key=k\tx\n"
    assert part.format("text", "orders#3") == b"7 key=k\tx\n", "as scripts read it"


def test_json_has_what_there_is_and_bytes_that_are_not_utf8_as_base64() -> None:
    assert json.loads(ROW.format("json")) == {
        "topic": "orders", "id": 7, "attempt": 1, "ts_ns": 1000, "key": "k", "headers": {"Kind": "job"}, "payload": "a\nb",
    }  # fmt: skip
    fetched = Row.fetched("orders", 8, 5, b"", b"", b"\xff")
    assert json.loads(fetched.format("json")) == {"topic": "orders", "id": 8, "ts_ns": 5, "payload_b64": "/w=="}


def test_raw_is_the_payload_and_a_newline() -> None:
    assert ROW.format("raw") == b"a\nb\n"


def test_the_key_is_that_of_the_publisher() -> None:
    assert own_key("orders", b"order-17", {}) == b"order-17"
    assert own_key("orders", b"~seq~abc-0", {}) == b"", "the client numbered it"
    assert own_key("orders.dlq", b"dlq:orders:7", {"toymq-origin-key": "order-17"}) == b"order-17"
    assert own_key("orders.dlq", b"dlq:orders:7", {}) == b""
    assert own_key("orders", b"redrive:orders.dlq:7", {"toymq-redrives": "1", "toymq-origin-key": "order-17"}) == b"order-17"
    assert own_key("orders", b"redrive:mine", {}) == b"redrive:mine", "a publisher may begin a key so"
