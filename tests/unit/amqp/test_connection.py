"""Events of an AMQP connection, in any pieces; frames out of their order. Contract: the specification, 4.2."""

import tracemalloc
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toymq_py.amqp import frames, methods
from toymq_py.amqp.connection import FRAMES_AT_ONCE, AmqpConnection, Event, NotAmqp, Signal
from toymq_py.amqp.errors import AmqpError
from toymq_py.amqp.frames import BODY, HEADER, PROTOCOL_HEADER, frame
from toymq_py.amqp.methods import Method

MAX = 100


def connection() -> AmqpConnection:
    return AmqpConnection(frame_max=4096, body_bytes_max=MAX, channel_max=9)


FLAGS_BYTES = 2
"""Of a content without properties."""


def publish(channel: int, body: bytes, pieces: int = 1, *, size: int | None = None) -> bytes:
    head = b"\0\x3c\0\0" + (len(body) if size is None else size).to_bytes(8) + b"\0\0"
    step = max(-(-len(body) // pieces), 1)
    bodies = [frame(BODY, channel, body[at : at + step]) for at in range(0, len(body), step)]
    return methods.encode(channel, "basic.publish", routing_key="q") + frame(HEADER, channel, head) + b"".join(bodies)


def events(found: AmqpConnection, *pieces: bytes) -> list[Event]:
    seen: list[Event] = []
    for piece in pieces:
        found.received(piece)
        with closing(found.events()) as some:  # type: ignore[type-var]
            seen += (event for event in some if event[1] is not Signal.NOTHING)
    return seen


SESSION = b"".join((
    PROTOCOL_HEADER, methods.encode(0, "connection.start-ok", mechanism="PLAIN"), methods.encode(1, "channel.open"),
    publish(1, b"one"), frames.HEARTBEAT_FRAME, publish(2, b"x" * 90, 4), publish(1, b""),
    methods.encode(1, "basic.ack", delivery_tag=7, multiple=True),
))  # fmt: skip


@given(st.lists(st.integers(0, len(SESSION)), max_size=20).map(sorted))
def test_a_session_is_the_same_however_it_is_cut(cuts: list[int]) -> None:
    pieces = [SESSION[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(SESSION)], strict=True)]
    found = connection()
    assert events(found, *pieces) == events(connection(), SESSION)
    assert found.held_bytes == 0


def test_what_a_session_says() -> None:
    seen = events(connection(), SESSION)
    assert [(channel, getattr(what, "name", getattr(what, "body", None))) for channel, what in seen] == [
        (0, "GREETING"), (0, "connection.start-ok"), (1, "channel.open"), (1, b"one"), (0, "HEARTBEAT"),
        (2, b"x" * 90), (1, b""), (1, "basic.ack"),
    ]  # fmt: skip


@pytest.mark.parametrize("data", [b"GET / HT", b"AMQP\0\0\x08\0", b"AMQP\x03\x01\0\0", b"\x16\x03\x01\0\0\0\0\0"])
def test_another_protocol_is_told(data: bytes) -> None:
    with pytest.raises(NotAmqp):
        events(connection(), data)


@pytest.mark.parametrize(
    ("data", "code", "text"),
    [
        (frame(BODY, 1, b"x"), 505, "a body without a content header"),
        (frame(HEADER, 1, bytes(14)), 505, "a content header without a method"),
        (methods.encode(1, "basic.publish") + methods.encode(1, "basic.qos"), 505, "basic.qos in the middle of a content"),
        (publish(1, b"ab", size=1), 505, "a body longer than its header says"),
        (methods.encode(1, "basic.publish") + frame(HEADER, 1, b"\0\x32" + bytes(12)), 501, "a content header of class 50"),
        (methods.encode(1, "basic.publish") + frame(HEADER, 1, b"\0\x3c" + bytes(10)), 502, "a content header without flags"),
        (frame(frames.HEARTBEAT, 1, b""), 501, "a heartbeat on channel 1"),
        (methods.encode(10, "channel.open"), 504, "channel 10 is above the limit, 9"),
        (methods.encode(0, "channel.open"), 503, "channel.open on channel 0"),
        (methods.encode(1, "connection.close"), 503, "connection.close on channel 1"),
    ],
)  # fmt: skip
def test_frames_out_of_their_order_end_the_connection(data: bytes, code: int, text: str) -> None:
    with pytest.raises(AmqpError, match=text) as refused:
        events(connection(), PROTOCOL_HEADER + data)
    assert (refused.value.code, refused.value.closes_connection) == (code, True)


def test_a_body_is_refused_by_what_its_header_announces() -> None:
    found = connection()
    data = methods.encode(1, "basic.publish") + frame(HEADER, 1, b"\0\x3c\0\0" + (2**64 - 1).to_bytes(8) + b"\0\0")
    (_, (channel, error)) = events(found, PROTOCOL_HEADER + data)
    assert isinstance(error, AmqpError)
    assert (channel, error.code, error.closes_connection) == (1, 406, False)
    found.discard(1)  # its frames are on their way
    more = frame(BODY, 1, b"x") + methods.encode(1, "basic.qos") + methods.encode(1, "channel.close-ok")
    ((channel, method),) = events(found, more)
    assert isinstance(method, Method)
    assert (channel, method.name, found.held_bytes) == (1, "channel.close-ok", 0)
    found.reopen(1)
    assert len(events(found, publish(1, b"again"))) == 1


def test_bodies_that_are_not_whole_are_counted() -> None:
    found = connection()
    events(found, PROTOCOL_HEADER, publish(1, b"x" * 50, size=80), publish(2, b"y" * 20, size=80))
    assert found.held_bytes == 70 + 2 * FLAGS_BYTES
    found.discard(1)
    assert found.held_bytes == 20 + FLAGS_BYTES


def test_properties_of_bodies_that_do_not_come_are_counted() -> None:
    """They counted for nothing: 128 KiB on each of 2,047 channels."""
    found = connection()
    events(found, PROTOCOL_HEADER)
    head = b"\0\x3c\0\0" + (80).to_bytes(8) + b"\x80\0\xff" + b"x" * 255
    for channel in (1, 2):
        events(found, methods.encode(channel, "basic.publish", routing_key="q") + frame(HEADER, channel, head))
        assert found.held_bytes == channel * (FLAGS_BYTES + 256)
    events(found, frame(BODY, 1, b"x" * 80))
    found.discard(2)
    assert found.held_bytes == 0


def test_what_is_given_back_comes_again_first_and_is_held() -> None:
    found = connection()
    events(found, PROTOCOL_HEADER)
    found.received(publish(1, b"one") + publish(2, b"two"))
    with closing(found.events()) as some:  # type: ignore[type-var]
        first = next(some)
        found.give_back(first)
    assert found.has_waiting
    assert found.held_bytes >= 3
    seen = events(found, b"")
    assert [what.body for _, what in seen] == [b"one", b"two"]  # type: ignore[union-attr]
    assert (found.has_waiting, found.held_bytes) == (False, 0)
    found.give_back(seen[1])
    found.discard(1)
    assert found.has_waiting
    found.discard(2)
    assert (found.has_waiting, found.held_bytes) == (False, 0), "its channel is closed"


def test_a_body_in_tiny_frames_is_not_held_as_objects() -> None:
    """Found: each body frame was an object of 35 bytes and an entry of a list: 26 times the bytes that were counted."""
    size = 30_000
    found = AmqpConnection(frame_max=4096, body_bytes_max=size, channel_max=9)
    events(found, PROTOCOL_HEADER)
    some = publish(1, b"ab" * (size // 2), size // 2)
    tracemalloc.start()
    try:
        assert events(found, some[:-10]) == []
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.held_bytes >= size - 2
    assert held < 2 * size
    ((_, content),) = events(found, some[-10:])
    assert content.body == b"ab" * (size // 2)  # type: ignore[union-attr]


def test_frames_of_all_sizes_make_a_body() -> None:
    sizes = [1, 2000, 3, 4, 1024, 1023, 5, 3000]
    body = bytes(number % 251 for number in range(sum(sizes)))
    found = AmqpConnection(frame_max=4096, body_bytes_max=len(body), channel_max=9)
    pieces, at = [publish(1, b"", size=len(body))], 0
    for size in sizes:
        pieces.append(frame(BODY, 1, body[at : at + size]))
        at += size
    seen = events(found, PROTOCOL_HEADER, *pieces)
    assert [what.body for _, what in seen[1:]] == [body]  # type: ignore[union-attr]


def test_a_connection_that_ends_holds_nothing_and_hears_the_answer() -> None:
    found = connection()
    half = publish(1, b"x" * 90, 9)
    events(found, PROTOCOL_HEADER, half[:-30])
    assert found.held_bytes > 0
    found.end()
    answer = methods.encode(0, "connection.close-ok")
    assert [what.name for _, what in events(found, half[-30:] + publish(2, b"y") + answer)] == [  # type: ignore[union-attr]
        "connection.close-ok",
    ]  # fmt: skip
    assert found.held_bytes == 0


def test_frames_without_an_event_are_read_so_many_at_once() -> None:
    """Thousands of bytes of a body, each a frame, came before the reader could look at the clock."""
    found = connection()
    events(found, PROTOCOL_HEADER, publish(1, b"x" * MAX, MAX)[: -9 * MAX])
    found.received(frame(BODY, 1, b"x") * FRAMES_AT_ONCE)
    with closing(found.events()) as some:  # type: ignore[type-var]
        assert list(some) == [(0, Signal.NOTHING)]


def test_behind_its_end_no_method_is_decoded_but_a_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client whose login was refused sent more of them, each with a table, until it was hung up on."""
    found = connection()
    events(found, PROTOCOL_HEADER)
    found.end()
    decoded: list[bytes] = []
    decode = methods.decode
    monkeypatch.setattr(methods, "decode", lambda payload: decoded.append(payload) or decode(payload))
    start_ok = methods.encode(0, "connection.start-ok", client_properties={"a": 1})
    seen = events(found, start_ok * 3, methods.encode(0, "connection.close-ok"))
    assert [what.name for _, what in seen if isinstance(what, Method)] == ["connection.close-ok"]
    assert len(decoded) == 1
