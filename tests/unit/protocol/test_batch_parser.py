"""Batches of pipelined PUBs and ACKs: which are parsed together, and which one by one."""

from collections.abc import Callable

import pytest

from tests.support.wire_events import count_of, events_of, flat
from toymq_py.failure import Failure
from toymq_py.protocol import Ack, Command, Nack, Ping, Publish, ServerConnection, SettlementRun, Touch
from toymq_py.protocol.batch_parser import NAMES_CACHED_MAX, BatchParser
from toymq_py.protocol.buffer import Buffer


def run(consumer: str, *ids: int) -> SettlementRun:
    return SettlementRun(Ack("t", consumer, ((ids[0], ids[0]),)), list(ids))


BATCHES: list[tuple[Callable[[BatchParser, list[Command], int], int], bytes, list[Command]]] = [
    (
        BatchParser.parse_publishes,
        b"PUB t - 1\na\nPUB t k 0\n\nPUB u - 1\nb\n",
        [Publish("t", [b"", b"k"], [b"a", b""]), Publish("u", [b""], [b"b"])],
    ),
    (
        BatchParser.parse_sequenced,
        b"PUB t p 1 seq=7\na\nPUB t p 2 seq=8\nbb\nPUB t q 1 seq=0\nc\n",
        [Publish("t", [b"p", b"p"], [b"a", b"bb"], seqs=[7, 8]), Publish("t", [b"q"], [b"c"], seqs=[0])],
    ),
    (
        BatchParser.parse_timed,
        b"PUB t - 1 delay=5 ttl=6\na\nPUB t k 1 delay=7 ttl=8\nb\n",
        [Publish("t", [b"", b"k"], [b"a", b"b"], delays_ms=[5, 7], ttls_ms=[6, 8])],
    ),
    (
        BatchParser.parse_acks,
        b"ACK t c 1\nACK t c 3-9\nACK u d 0\n",
        [Ack("t", "c", ((1, 1),)), Ack("t", "c", ((3, 9),)), Ack("u", "d", ((0, 0),))],
    ),
    (
        BatchParser.parse_acks,
        b"ACK t c 1\nACK t c 7\nACK t c 7\nACK t c 0\nACK t d 2\nACK t d 3\nACK t d 5-6\nACK t d 7\n",
        [run("c", 1, 7, 7, 0), run("d", 2, 3), Ack("t", "d", ((5, 6),)), Ack("t", "d", ((7, 7),))],
    ),
]


def parser_of(data: bytes) -> tuple[BatchParser, Buffer]:
    buffer = Buffer()
    buffer.add(data)
    return BatchParser(buffer, max_payload=100), buffer


LEFT = [b"", b"PING\n", b"PUB ../x - 1\nx\n", b"PUB t - 101 ", b"ACK t c 9-3\n", b"ACK t", b"PUB t k 5\nhe"]


@pytest.mark.parametrize("left", LEFT)
@pytest.mark.parametrize(("parse", "data", "expected"), BATCHES)
def test_a_batch_ends_before_what_must_be_parsed_alone(
    parse: Callable[[BatchParser, list[Command], int], int], data: bytes, expected: list[Command], left: bytes
) -> None:
    parser, buffer = parser_of(data + left)
    found: list[Command] = []
    count = parse(parser, found, 512)
    assert flat(found) == flat(expected)
    assert count == count_of(expected)
    assert buffer.data[buffer.pos :] == left


def test_acks_of_one_id_that_follow_each_other_are_one_run() -> None:
    parser, _ = parser_of(b"".join(b"ACK t c %d\n" % msg_id for msg_id in range(300)))
    found: list[Command] = []
    assert parser.parse_acks(found, 512) == 300
    assert found == [run("c", *range(300))]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"NACK t c %d\n", Nack("t", "c", ((0, 0),))),
        (b"NACK t c %d\r\n", Nack("t", "c", ((0, 0),))),
        (b"NACK t c %d delay=0 lease=7\n", Nack("t", "c", ((0, 0),), 0, lease=7)),
        (b"NACK t c %d delay=0 error=no%%20file\n", Nack("t", "c", ((0, 0),), 0, failure=Failure(error="no file"))),
        (b"TOUCH t c %d\n", Touch("t", "c", ((0, 0),))),
        (b"TOUCH t c %d visibility=5000 lease=7\r\n", Touch("t", "c", ((0, 0),), 5000, 7)),
        (b"ACK t c %d sync=1\n", Ack("t", "c", ((0, 0),), sync=True)),
        (b"ACK t c %d\r\n", Ack("t", "c", ((0, 0),))),
    ],
)
def test_lines_of_one_id_that_are_alike_are_one_run(line: bytes, expected: Ack | Nack | Touch) -> None:
    connection = ServerConnection(100)
    connection.receive_data(b"".join(line % msg_id for msg_id in range(600)) + b"PING\n")
    (first,) = connection.next_commands(512)
    assert isinstance(first, SettlementRun)
    assert first.command == expected
    assert first.ids == list(range(len(first.ids)))
    second, ping = connection.next_commands(512)
    assert isinstance(second, SettlementRun)
    assert second.ids == list(range(len(first.ids), 600))
    assert len(first.ids) > 500, "the others of a run count as one line each"
    assert ping == Ping()


@pytest.mark.parametrize(
    "other",
    [b"NACK t c 9 lease=8\n", b"NACK t c 9\n", b"NACK t c 9 lease=7 delay=0\n", b"NACK t d 9 lease=7\n",
     b"NACK t c 5-9 lease=7\n", b"NACK t c 9 lease=7\r\n",
     b"TOUCH t c 9 lease=7\n", b"PING\n", b"NACK t c x lease=7\n", b"NACK t c 9 lease=7 lease=7\n"],
)  # fmt: skip
@pytest.mark.parametrize("at", [1, 2, 15, 16, 17, 63, 64, 65])
def test_a_run_of_lines_ends_before_another(at: int, other: bytes) -> None:
    lines = [b"NACK t c %d lease=7\n" % msg_id for msg_id in [*range(at), *range(1000, 1040)]]
    lines.insert(at, other)
    alone = [event for line in lines for event in events_of(line)[0]]
    assert events_of(b"".join(lines))[0] == alone


@pytest.mark.parametrize("room", [1, 2, 16, 17, 79, 80, 81, 512])
@pytest.mark.parametrize("bad", [b"", b"x", b"1,2", b"-2", b"5 sync=1", b"9" * 19, b"1\r"])
@pytest.mark.parametrize("at", [1, 15, 16, 60])
def test_a_run_of_acks_ends_before_a_line_that_is_parsed_alone(at: int, bad: bytes, room: int) -> None:
    ids = [*range(at), *range(1000, 1040)]
    data = b"".join(b"ACK t c %d\n" % msg_id for msg_id in ids)
    cut = len(b"".join(b"ACK t c %d\n" % msg_id for msg_id in ids[:at]))
    parser, buffer = parser_of(data[:cut] + b"ACK t c " + bad + b"\n" + data[cut:])
    found: list[Command] = []
    count = parser.parse_acks(found, room)
    taken = flat(found)
    assert [ack.ids[0][0] for ack in taken[:at]] == ids[: min(at, room)]
    assert count == len(taken) <= room
    assert buffer.data[buffer.pos :].startswith(b"ACK t c ")
    assert len(taken) == min(at, room)


@pytest.mark.parametrize("count", [1, 2, 9, 40, 200])
@pytest.mark.parametrize("bad", [0, 1, 7, 8, 30])
def test_a_bad_key_inside_a_run_of_equal_shape_refuses_that_publish_alone(count: int, bad: int) -> None:
    keys = [b"k%03d" % n for n in range(count)]
    if bad < count:
        keys[bad] = b"k\x7f01"
    found, failed, _ = events_of(b"".join(b"PUB t %b 2\nxy\n" % key for key in keys))
    expected = [key if n != bad else "BAD_ARGUMENT" for n, key in enumerate(keys)]
    assert [event[0] if len(event) == 3 else event[1] for event in found] == expected
    assert not failed


def test_many_topics_do_not_fill_the_memory() -> None:
    parser, buffer = parser_of(b"")
    for n in range(3 * NAMES_CACHED_MAX):
        buffer.add(b"PUB t%d - 0\n\nACK t%d c 1\n" % (n, n))
        found: list[Command] = []
        assert parser.parse_publishes(found, 512) + parser.parse_acks(found, 512) == 2
    assert len(parser._topics) <= NAMES_CACHED_MAX
    assert len(parser._names) <= NAMES_CACHED_MAX
