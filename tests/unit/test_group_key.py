"""The group key of a message. Contract: delivery.md, "mode"."""

import pytest

from toymq_py.group_key import group_key
from toymq_py.records import KEY_BYTES_MAX


@pytest.mark.parametrize(("key", "block", "group"), [
    (b"", b"", b""),
    (b"order-7", b"", b"order-7"),
    (b"order-7", b"trace: 1\n", b"order-7"),
    (b"order-7", b"toymq-group: customer 3\n", b"customer 3"),
    (b"", b"trace: 1\ntoymq-group:customer 3\nother: x\n", b"customer 3"),
    (b"", b"toymq-group: last", b"last"),
    (b"order-7", b"toymq-group: \n", b""),
    (b"order-7", b"x-toymq-group: other\n", b"order-7"),
    (b"order-7", b"x-toymq-group: other\ntoymq-group: mine\n", b"mine"),
    (b"~seq~client", b"", b""),
    (b"~seq~client", b"trace: 1\n", b""),
])  # fmt: skip
def test_the_header_comes_before_the_key(key: bytes, block: bytes, group: bytes) -> None:
    assert group_key("t", key, block) == group


def test_a_record_that_came_back_has_the_group_of_its_message() -> None:
    assert group_key("t", b"redrive:t.dlq:4:17", b"toymq-origin-key: order-7\ntoymq-redrives: 1\n") == b"order-7"
    assert group_key("t", b"redrive:t.dlq:4:17", b"toymq-redrives: 1\n") == b"", "its message had no key"
    assert group_key("t", b"redrive:u.dlq:4:17", b"toymq-origin-key: x\n") == b"redrive:u.dlq:4:17", "it came from elsewhere"


def test_a_long_group_takes_no_more_memory_than_a_key() -> None:
    long, other = (group_key("t", b"", b"toymq-group: " + b"x" * 100_000 + end) for end in (b"1", b"2"))
    assert len(long) <= KEY_BYTES_MAX
    assert long != other
