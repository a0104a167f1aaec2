"""Properties of a message: as bytes, and in the header block of the log. ADR 0123."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toymq_py.amqp import properties
from toymq_py.amqp.errors import AmqpError
from toymq_py.amqp.fields import VALUES_MAX
from toymq_py.amqp.properties import Envelope, as_logged, envelope_of
from toymq_py.units import DURATION_MS_MAX

SHORT = st.text(max_size=40)
PROPERTIES = st.fixed_dictionaries({}, optional={
    "content-type": SHORT, "correlation-id": SHORT, "reply-to": SHORT, "message-id": SHORT, "type": SHORT, "user-id": SHORT,
    "expiration": SHORT, "priority": st.integers(0, 255), "delivery-mode": st.sampled_from((1, 2)),
    "timestamp": st.integers(0, 2**40),
    "headers": st.dictionaries(SHORT, SHORT | st.integers(-5, 5) | st.none() | st.lists(st.integers(0, 3)), max_size=5),
})  # fmt: skip


@given(SHORT, SHORT, PROPERTIES)
def test_a_message_is_delivered_as_it_was_published(exchange: str, routing_key: str, found: dict[str, Any]) -> None:
    raw = properties.encode(found)
    assert properties.decode(raw) == found
    block, same = as_logged(Envelope(exchange, routing_key, raw))
    assert same == found
    assert envelope_of("q", block) == Envelope(exchange, routing_key, raw)


@given(st.binary(max_size=80))
def test_junk_is_properties_or_a_syntax_error(data: bytes) -> None:
    with suppress(AmqpError):
        found = properties.decode(data)
        assert properties.decode(properties.encode(found)).keys() == found.keys()


def test_other_protocols_see_what_a_header_line_can_show() -> None:
    found = {
        "content-type": "text/plain", "correlation-id": "7", "message-id": "a\nb",
        "headers": {
            "color": "red", "toymq-group": "ann", "toymq-reason": "forged", "n": 1, "a:b": "x", "l": "a\nb", "type": "own",
        },
    }  # fmt: skip
    block, _ = as_logged(Envelope("logs", "a.b", properties.encode(found)))
    first, *lines = block.decode().splitlines()
    assert first.startswith("amqp-properties: ")
    assert lines == [
        "amqp-exchange: logs", "amqp-routing-key: a.b", "content-type: text/plain", "correlation-id: 7", "color: red",
        "toymq-group: ann",
    ]  # fmt: skip


def test_what_came_by_another_protocol_has_its_headers() -> None:
    found = envelope_of("jobs", b"content-type: application/json\ntrace: 1\nno colon\n")
    assert (found.exchange, found.routing_key) == ("", "jobs")
    assert properties.decode(found.properties) == {"content-type": "application/json", "headers": {"trace": "1"}}
    assert envelope_of("jobs", b"") == Envelope("", "jobs", properties.NOTHING)
    assert envelope_of("jobs", b"type: %b\n" % (b"x" * 300)).properties == properties.encode({"headers": {"type": "x" * 300}})


@pytest.mark.parametrize("value", [b"", b"!", b"AAAA", b"AWUBcv//", b"AWUBcgAAAA=="])
def test_a_mark_that_another_client_wrote_is_a_header(value: bytes) -> None:
    """The header `amqp-properties` of a client that speaks another protocol must not be taken for AMQP properties: it would
    break the frames of an AMQP client."""
    found = envelope_of("q", b"amqp-properties: %b\n" % value)
    assert properties.decode(found.properties) == {"headers": {"amqp-properties": value.decode()}}


@pytest.mark.parametrize(
    ("found", "ms"),
    [
        ({}, None), ({"priority": 1, "message-id": "1"}, None), ({"expiration": "0"}, 0), ({"expiration": "60000"}, 60_000),
        ({"headers": {"n": 1}, "expiration": "5"}, 5), ({"expiration": "soon"}, None),
        ({"expiration": "9" * 15}, DURATION_MS_MAX),
    ],
)  # fmt: skip
def test_the_expiration_of_encoded_properties(found: dict[str, Any], ms: int | None) -> None:
    assert properties.expiration_of(properties.encode(found)) == ms


def test_a_dead_letter_says_why() -> None:
    block, _ = as_logged(Envelope("", "q", properties.encode({"headers": {"n": 1}})))
    found = envelope_of("q.dlq", block + b"toymq-reason: failed\n")
    assert properties.decode(found.properties)["headers"] == {"n": 1, "toymq-reason": "failed"}


@given(SHORT, SHORT, PROPERTIES, st.integers(1, 255))
def test_the_priority_stands_in_the_block(exchange: str, routing_key: str, found: dict[str, Any], most: int) -> None:
    block, _ = as_logged(Envelope(exchange, routing_key, properties.encode(found)))
    assert properties.priority_of(most, block) == min(found.get("priority", 0), most)


@given(st.binary(max_size=80))
def test_a_priority_in_junk_is_none(data: bytes) -> None:
    assert properties.priority_of(9, data) == 0
    assert 0 <= properties.priority_of(9, properties.MARK + data) <= 9


def test_a_message_with_more_headers_than_may_arrive_is_delivered_as_it_was_stored() -> None:
    """From before there was a limit."""
    raw = properties.encode({"headers": {"list": [None] * (VALUES_MAX + 1)}, "priority": 3})
    with pytest.raises(AmqpError, match="values in all"):
        as_logged(Envelope("", "q", raw))
    block = properties.block_of(Envelope("", "q", raw), {})
    assert envelope_of("q", block + b"toymq-reason: x\n").properties.endswith(properties.encode({"priority": 3})[2:])
    assert envelope_of("q", block) == Envelope("", "q", raw)
    assert properties.priority_of(9, block) == 3
