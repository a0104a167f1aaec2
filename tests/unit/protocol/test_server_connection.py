"""Framing at the broker's end: bodies, refusals, limits that hold while bytes arrive. Contract: protocol.md."""

import tracemalloc

import pytest

from tests.support.wire_events import events_of, flat
from toymq_py.errors import QueueFull
from toymq_py.protocol import Ack, Ping, Publish, Quit, Rejected, ServerConnection


def codes(data: bytes, max_payload: int = 100) -> list[object]:
    """Return the events; a refusal as its code alone."""
    found, _, _ = events_of(data, max_payload=max_payload)
    return [event[0] if isinstance(event, tuple) and len(event) == 3 else event for event in found]


def pub(topic: str, key: str, body: bytes) -> tuple[object, ...]:
    return (topic, b"" if key == "-" else key.encode(), body, 0, None, None, None)


def test_a_run_of_publishes_is_one_event() -> None:
    connection = ServerConnection()
    connection.receive_data(b"PUB t - 1\na\nPUB t k 0\n\nPUB t - 3\nb\nc\nPUB u - 1\nd\nPING\n")
    assert connection.next_commands() == [
        Publish("t", [b"", b"k", b""], [b"a", b"", b"b\nc"]),
        Publish("u", [b""], [b"d"]),
        Ping(),
    ]
    assert connection.next_commands() == []


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_a_carriage_return_before_the_newline_is_tolerated(end: bytes) -> None:
    data = b"".join(line + end for line in (b"PING", b"ACK t c 1", b"PUB t - 1")) + b"x\n" + b"QUIT" + end
    assert codes(data) == [Ping(), Ack("t", "c", ((1, 1),)), pub("t", "-", b"x"), Quit()]


def test_the_body_is_counted_not_searched() -> None:
    body = b"PUB t - 1\nx\nQUIT\n"
    assert codes(b"PUB t - %d\n%b\nPING\n" % (len(body), body)) == [pub("t", "-", body), Ping()]


@pytest.mark.parametrize(
    ("head", "code"),
    [
        (b"PUB ../../x - 17", "BAD_NAME"),
        (b"PUB t a\x01b 17", "BAD_ARGUMENT"),
        (b"PUB t  17", "BAD_ARGUMENT"),
        (b"PUB t %b 17" % (b"k" * 513), "BAD_ARGUMENT"),
        (b"PUB t - 17 hdr=18", "BAD_ARGUMENT"),
        (b"PUB t - 17 ttl=0", "BAD_ARGUMENT"),
        (b"PUB t - 17 color=red", "BAD_ARGUMENT"),
        (b"PUB t - 17 ", "BAD_ARGUMENT"),
        (b"PUB t.* - 17", "BAD_NAME"),
    ],
)
def test_the_body_of_a_refused_publish_is_no_command(head: bytes, code: str) -> None:
    body = b"DELETE t\nPURGE t\n"
    assert codes(head + b"\n" + body + b"\nPING\n") == [code, Ping()]


def test_a_payload_above_the_limit_is_drained_and_the_next_command_runs() -> None:
    body = b"PUB t - 1\n" * 20
    assert codes(b"PUB t - %d\n%b\nPING\n" % (len(body), body)) == ["PAYLOAD_TOO_LARGE", Ping()]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"PUB t - x\n", "BAD_FRAMING"),
        (b"PUB t -\n", "BAD_FRAMING"),
        (b"PUB t - \n\n", "BAD_FRAMING"),  # found by fuzzing: taken for a PUB of nothing, unless it came in pieces
        (b"PUB\n", "BAD_FRAMING"),
        (b"PUB t - -1\n", "BAD_FRAMING"),
        (b"PUB t - +1\na\n", "BAD_FRAMING"),
        (b"PUB t - 1_0\n0123456789\n", "BAD_FRAMING"),
        ("PUB t - ²\nab\n".encode(), "BAD_FRAMING"),
        (b"PUB t - 1\nabPING\n", "BAD_FRAMING"),
        (b"PUB t - 100000000000\n", "PAYLOAD_TOO_LARGE"),
        (b"PUB t - %b\n" % (b"9" * 4000), "PAYLOAD_TOO_LARGE"),
        (b"PUB t - 67108865\n", "PAYLOAD_TOO_LARGE"),
        (b"GET / HTTP/1.1\r\n", "NOT_TCP"),
        (b"DELETE /orders HTTP/1.1\n", "NOT_TCP"),
        (b"PUB /orders - 5 HTTP/1.0\r\n", "NOT_TCP"),
        (b"PRI * HTTP/2.0\r\n", "NOT_TCP"),
        (b"HTTP/1.1\n", "NOT_TCP"),
        (b"hOsT:x\r\n", "NOT_TCP"),
        (b"P" * 4096, "LINE_TOO_LONG"),
        (b"PING" + b" " * 4092 + b"\n", "LINE_TOO_LONG"),
    ],
)
def test_where_the_next_frame_cannot_be_found_the_stream_ends(data: bytes, code: str) -> None:
    found, failed, _ = events_of(b"PING\n" + data + b"PING\nPUB t - 1\nx\n", max_payload=64 * 1024 * 1024)
    assert found[0] == Ping()
    assert found[1][0] == code
    assert found[1][2], "it is fatal"
    assert len(found) == 2, "nothing after it is read"
    assert failed


@pytest.mark.parametrize(
    ("data", "remedy"), [(b"AMQP\0\0\x09\x01", "the port of --amqp"), (b"\x16\x03\x01\x02\0", "the port of --tls-listen")]
)
def test_a_client_of_another_protocol_is_refused_before_any_newline(data: bytes, remedy: str) -> None:
    """Found by a trial: pika waited for an answer to its eight bytes until its time-out."""
    for whole in (data, data + b"\nPING\n"):
        found, failed, _ = events_of(whole)
        assert [event[0] for event in found] == ["BAD_FRAMING"]
        assert remedy in str(found[0])
        assert failed
    assert codes(b"AMQP\nPING\n") == ["UNKNOWN_COMMAND", Ping()]


def test_a_key_or_a_body_may_look_like_http() -> None:
    assert codes(b"PUB t HTTP/1.1 6\nHost:x\nPUB t Host: 1 hdr=0\nx\nPING\n")[-1] == Ping()
    assert "NOT_TCP" not in codes(b"PUB t HTTP/ 55\n" + b"x" * 55 + b"\nACK t HTTP 5\nhost\nPING\n")


def test_a_line_of_4096_bytes_with_its_newline_is_the_longest() -> None:
    line = b"PUB t - 1 hdr=" + b"0" * (4095 - 14) + b"\n"
    assert len(line) == 4096
    assert codes(line + b"x\nPING\n") == ["BAD_ARGUMENT", Ping()]
    assert codes(b"0" + line) == ["LINE_TOO_LONG"]


def test_a_body_that_was_refused_ends_with_a_newline_or_the_stream_does() -> None:
    found, failed, torn = events_of(b"PUB .x - 3\nabcdPING\n")
    assert [event[0] for event in found] == ["BAD_NAME", "BAD_FRAMING"]
    assert found[1][2], "a connection whose next frame cannot be found is ended, and told why"
    assert failed
    assert torn is False


@pytest.mark.parametrize(
    ("data", "torn"),
    [
        (b"", False),
        (b"PING\n", False),
        (b"PING", True),
        (b"PUB t - 5\n", True),
        (b"PUB t - 5\nhel", True),
        (b"PUB t - 5\nhello", True),
        (b"PUB .t - 5\nhel", True),
        (b"PUB t - 5\nhello\n", False),
    ],
)
def test_an_end_inside_a_frame_is_told_from_a_goodbye(data: bytes, torn: bool) -> None:
    assert events_of(data)[2] is torn
    connection = ServerConnection()
    assert connection.ended_torn is None, "before the end it is not known"


def test_a_partial_command_is_never_executed() -> None:
    assert events_of(b"QUIT")[0] == []
    assert events_of(b"PUB t - 5\nhello")[0] == []


@pytest.mark.parametrize("length", [0, 1, 511, 512])
def test_keys_up_to_512_bytes(length: int) -> None:
    key = b"k" * length
    found, _, _ = events_of(b"PUB t %b 1\nx\nPUB t k 1\ny\n" % key)
    if length:
        assert found[0] == ("t", key, b"x", 0, None, None, None)
    else:
        assert found[0][0] == "BAD_ARGUMENT"
    assert found[1] == ("t", b"k", b"y", 0, None, None, None)


def test_no_more_commands_at_a_time_than_asked_for() -> None:
    connection = ServerConnection()
    connection.receive_data(b"PUB t - 1\nx\n" * 10 + b"ACK t c 1\n" * 10 + b"PING\n" * 3)  # one PING counts as four
    sizes = []
    while commands := connection.next_commands(4):
        sizes.append(len(flat(commands)))
    assert sizes == [4, 4, 4, 4, 4, 1, 1, 1]


def peak_while(feed: list[bytes], max_payload: int = 64 * 1024 * 1024) -> tuple[int, list[object]]:
    """Return the peak memory of a connection that reads this stream, and the codes that it answered."""
    connection = ServerConnection(max_payload)
    found: list[object] = []
    tracemalloc.start()
    try:
        for data in feed:
            connection.receive_data(data)
            for command in connection.next_commands():
                found.append(command.error.code if isinstance(command, Rejected) else command)
        return tracemalloc.get_traced_memory()[1], found
    finally:
        tracemalloc.stop()


def test_a_hundred_gigabytes_announced_cost_nothing() -> None:
    peak, found = peak_while([b"PUB t - 100000000000\n", *[b"x" * 65_536] * 50])
    assert found == ["PAYLOAD_TOO_LARGE"]
    assert peak < 100_000


def test_an_endless_line_costs_nothing() -> None:
    peak, found = peak_while([b"A" * 65_536] * 200)
    assert found == ["LINE_TOO_LONG"]
    assert peak < 400_000


def test_a_refused_body_is_never_buffered() -> None:
    peak, found = peak_while([b"PUB t - 60000000\n", *[b"x" * 65_536] * 915, b"x" * 34_560, b"\nPING\n"], 2_000_000)
    assert found == ["PAYLOAD_TOO_LARGE", Ping()]
    assert peak < 400_000


def test_an_announced_body_is_allocated_as_it_arrives() -> None:
    peak, _ = peak_while([b"PUB t - 60000000\n", *[b"x" * 1000] * 10])
    assert peak < 100_000


def test_a_body_that_trickles_in_is_copied_a_bounded_number_of_times() -> None:
    connection = ServerConnection()
    connection.receive_data(b"PUB t - 1000000\n")
    piece = b"x" * 10
    for _ in range(100_000):
        connection.receive_data(piece)
        assert connection.next_commands() == []
        assert connection._buffer.data == b"", "nothing is joined before all is there"
    connection.receive_data(b"\n")
    assert flat(connection.next_commands()) == [pub("t", "-", b"x" * 1_000_000)]
    assert connection.buffered_bytes == 0


def test_a_refusal_holds_no_frames_of_the_parser() -> None:
    """Found: the traceback of each refused line held the parser's frames, and these the refusals: a reference cycle that only
    the garbage collector broke, with ten times the memory of the line."""
    connection = ServerConnection()
    connection.receive_data(b"FROB\nPUB ../x - 1\nx\nPUB t - 1 hdr=5\nx\nZ" + bytes(5000))
    refused = connection.next_commands()
    assert len(refused) == 4
    for command in refused:
        assert isinstance(command, Rejected)
        assert command.error.__traceback__ is None


def test_long_lists_of_ids_count_as_many_commands() -> None:
    """Found: 512 such lists in one read blocked the loop, and every other client, for half a second."""
    line = b"ACK t c " + b",".join(b"%d" % n for n in range(1, 1600, 2)) + b"\n"
    connection = ServerConnection()
    connection.receive_data(line * 100)
    sizes = []
    while found := connection.next_commands(512):
        sizes.append(len(found))
    assert sum(sizes) == 100
    assert max(sizes) <= 3


def test_what_was_parsed_is_not_held_while_more_is_awaited() -> None:
    tracemalloc.start()
    try:
        connections = [ServerConnection(200_000) for _ in range(50)]
        for connection in connections:
            connection.receive_data(b"PUB t - 100000\n" + bytes(100_000) + b"\n")
            connection.next_commands()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1_000_000, "ten thousand idle connections would hold a GiB"


@pytest.mark.parametrize("arrived", [0, 1, 999, 1000])
def test_a_body_that_arrives_can_be_dropped_and_its_publish_refused(arrived: int) -> None:
    connection = ServerConnection()
    connection.receive_data(b"PING\nPUB t p 1000 seq=7\n" + b"x" * arrived)
    assert connection.next_commands() == [Ping()]
    error = QueueFull("not now")
    assert connection.refuse_body(error)
    assert connection.buffered_bytes == 0
    assert not connection.refuse_body(error), "it is refused once"
    assert connection.next_commands() == [Rejected(error, ("t", b"p", 7))]
    for _ in range(1000 - arrived):
        connection.receive_data(b"x")
        assert connection.buffered_bytes <= 1
    connection.receive_data(b"\nPUB t - 1\ny\n")
    assert connection.next_commands() == [Publish("t", [b""], [b"y"], shape=(0, 1))]
    assert not connection.refuse_body(error), "nothing arrives"
