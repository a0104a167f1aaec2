"""A message's headers in HTTP, in JSON and in the log."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toymq_py.errors import BadArgument
from toymq_py.gateway.headers import header_block, headers_of, parse_block

NAME = st.text(st.characters(exclude_characters=":\n", codec="utf-8"), min_size=1)
VALUE = st.text(st.characters(exclude_characters="\n", codec="utf-8"))


@given(st.dictionaries(NAME, VALUE))
def test_a_block_has_the_headers_that_went_in(headers: dict[str, str]) -> None:
    assert parse_block(header_block(headers.items())) == headers


@pytest.mark.parametrize(("name", "value"), [("", "x"), ("a:b", "x"), ("a\nb", "x"), ("a", "x\ny"), ("a", "\ud800")])
def test_a_header_that_would_be_read_as_another_is_refused(name: str, value: str) -> None:
    with pytest.raises(BadArgument, match="header"):
        header_block([(name, value)])


def test_lines_without_a_colon_are_left_out() -> None:
    assert parse_block(b"a: b\nno header\nc:d\n\xff: e\n") == {"a": "b", "c": "d", "\ufffd": "e"}


def test_only_prefixed_headers_and_the_trace_become_a_messages() -> None:
    raw = [(b"host", b"h"), (b"x-header-color", "röd".encode()), (b"traceparent", b"00-1"), (b"x-headers", b"n")]
    assert headers_of(raw) == "color: röd\ntraceparent: 00-1\n".encode()
    assert headers_of(raw[:1]) == b""
    with pytest.raises(BadArgument, match=r"b'\\xff'"):
        headers_of([(b"x-header-a", b"\xff")])


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("x-delay", "X-Delay-Ms"), ("x-delay-s", "X-Delay-Ms"), ("x-ttl", "X-Ttl-Ms"), ("x-expires", "X-Ttl-Ms"),
        ("x-key", "Idempotency-Key"), ("x-dedupe-key", "Idempotency-Key"), ("x-idempotency-key", "Idempotency-Key"),
        ("x-partition-key", "X-Route"), ("x-toymq-group", "X-Header-Toymq-Group"),
    ],
)  # fmt: skip
def test_a_misspelled_header_of_a_publish_is_refused_with_the_right_one(name: str, meant: str) -> None:
    with pytest.raises(BadArgument, match=f"unknown header '{name}': use {meant}"):
        headers_of([(name.encode(), b"5000")])


def test_headers_of_proxies_and_our_own_are_taken() -> None:
    passed = (
        "x-delay-ms", "x-ttl-ms", "x-route", "x-request-id", "x-forwarded-for", "x-real-ip", "x-requested-with",
        "x-amzn-trace-id", "x-b3-traceid", "x-envoy-expected-rq-timeout-ms", "x-correlation-id", "x-api-key", "x-topic",
    )  # fmt: skip
    assert headers_of([(name.encode(), b"1") for name in passed]) == b""
