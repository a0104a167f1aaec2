"""Which partition a publish goes to: that of its route wherever there is one, else the next in turn."""

from itertools import pairwise
from zlib import crc32

from hypothesis import given
from hypothesis import strategies as st

from toymq_py.partitions import Partitioned
from toymq_py.routes import Router

KEYS = st.binary(max_size=20).filter(lambda key: not key.startswith(b"~seq~"))
COUNTS = st.integers(1, 1024)


@given(COUNTS, st.lists(st.tuples(KEYS, KEYS), min_size=1, max_size=20))
def test_a_route_goes_before_a_key_and_a_key_before_the_turn(count: int, rows: list[tuple[bytes, bytes]]) -> None:
    whole = Partitioned("t", count)
    found = (Router().numbers(whole, [key for key, _ in rows], routes=[route for _, route in rows]))
    turn = 0
    for (key, route), number in zip(rows, found, strict=True):
        if route or key:
            assert number == crc32(route or key) % count
        else:
            assert number == turn % count, "what has no route goes to the next partition"
            turn += 1


@given(COUNTS, KEYS.filter(bool), st.text("abc", min_size=1, max_size=9))
def test_a_group_stays_in_one_partition(count: int, key: bytes, group: str) -> None:
    """With a group in two partitions the order of the group, which mode=keyed keeps, would be lost."""
    block = b"a: b\ntoymq-group: %b\n" % group.encode()
    whole = Partitioned("t", count)
    for keys, sequences in (([key], None), ([b"~seq~x"], [7])):
        assert (Router().numbers(whole, keys, blocks=[block], sequences=sequences)) == [crc32(group.encode()) % count]


@given(COUNTS, st.integers(0, 2**64 - 1), st.integers(1, 50))
def test_numbered_publishes_go_in_turn_and_their_repeats_where_the_first_ones_went(count: int, first: int, length: int) -> None:
    whole, sequences = Partitioned("t", count), list(range(first, first + length))
    producer = [b"~seq~p"] * length
    once = (Router().numbers(whole, producer, sequences=sequences))
    assert [(after - before) % count for before, after in pairwise(once)] == [1 % count] * (length - 1)
    for at in range(length):
        assert (Router().numbers(whole, producer[at:], sequences=sequences[at:])) == once[at:]
    assert set(Router().numbers(whole, producer, sequences=sequences, routes=[b"r"] * length)) == {crc32(b"r") % count}


def test_each_topic_has_turns_of_its_own() -> None:
    router, one, other = Router(), Partitioned("one", 3), Partitioned("other", 2)
    assert [router.numbers(topic, [b""])[0] for topic in (one, one, other, one, other, other, one)] == [0, 1, 0, 2, 1, 0, 0]


def test_connections_that_publish_one_message_each_do_not_all_choose_the_same_partition() -> None:
    whole = Partitioned("t", 4)
    assert [Router(session).numbers(whole, [b""]) for session in range(5)] == [[0], [1], [2], [3], [0]]
    assert Router(3).numbers(whole, [b""] * 3) == [3, 0, 1]
