"""A run of publishes divided over partitions: each record once, in order, with all its fields."""

from hypothesis import given
from hypothesis import strategies as st

from toymq_py.partitions import Partitioned
from toymq_py.protocol import Publish
from toymq_py.routes import Router
from toymq_py.session.publish import grouped

ROWS = st.lists(st.tuples(st.sampled_from([b"", b"a", b"b", b"c"]), st.binary(max_size=3)), min_size=1, max_size=30)


@given(ROWS, st.integers(1, 5), st.booleans(), st.booleans())
def test_every_row_goes_once_and_those_of_a_partition_in_order(
    rows: list[tuple[bytes, bytes]], count: int, timed: bool, numbered: bool
) -> None:
    keys, bodies = [key or (b"p" if numbered else b"") for key, _ in rows], [body for _, body in rows]
    numbers = list(range(len(rows)))
    seqs = numbers if numbered else None
    command = Publish("t", keys, bodies, delays_ms=numbers if timed else None, seqs=seqs)
    whole = Partitioned("t", count)
    parts = list(grouped(command, whole, Router()))
    assert sorted(row for _, rows in parts for row in rows) == numbers, "each row once"
    expected = list(Router().numbers(whole, keys, sequences=seqs))
    for part, rows in parts:
        assert rows == sorted(rows)
        assert {whole.names[expected[row]] for row in rows} == {part.topic}
        assert (part.keys, part.bodies) == ([keys[row] for row in rows], [bodies[row] for row in rows])
        assert part.delays_ms == (rows if timed else None)
        assert part.seqs == (rows if numbered else None)
    assert len({part.topic for part, _ in parts}) == len(parts), "one run a partition"


def test_a_header_block_stays_with_its_body() -> None:
    command = Publish("t", [b"k"], [b"toymq-group: g\nbody"], hdr=15, ttls_ms=[5])
    ((part, _),) = grouped(command, Partitioned("t", 8), Router())
    assert (part.hdr, part.bodies, part.ttls_ms) == (15, command.bodies, [5])
