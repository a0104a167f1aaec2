"""Batches of pipelined PUBs and ACKs: what is taken at once, and what is left to be parsed alone."""

from collections.abc import Callable

import pytest

from tests.support.wire_events import events_of
from toymq_py.protocol import Ack, Command, Publish
from toymq_py.protocol.batch_parser import NAMES_CACHED_MAX, BatchParser
from toymq_py.protocol.buffer import Buffer

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
    assert found == expected
    assert count == sum(len(command.keys) if isinstance(command, Publish) else 1 for command in expected)
    assert buffer.data[buffer.pos :] == left


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
