"""Runs of frames of one shape are cut out of the bytes together: the rows are those of parsing them one by one, whatever stands
between."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.frames import encode_attributes, encode_frame
from toymq_py.storage.record import ALIKE_ROWS_MAX, Stop
from toymq_spark import frames
from toymq_spark.frames import ALIKE_MIN, RowWalk
from toymq_spark.schema import arrow_schema, source_schema

SCHEMA = arrow_schema(source_schema(include_headers=True))
TS_NS = 1_781_767_800_123_456_789
BLOCKS = (
    b"", encode_attributes(sequence=77), encode_attributes(deliver_at_ns=5), encode_attributes(expires_at_ns=1 << 62),
    encode_attributes(headers=b"a: b\nc:d"), encode_attributes(headers=b"a: 45678"),
    encode_attributes(headers=b"n: 1", sequence=9),
)  # fmt: skip
assert len(BLOCKS[1]) == len(BLOCKS[5]), "headers as long as a number"


def stretch(first_id: int, count: int, key_len: int, payload_len: int, block: bytes) -> list[bytes]:
    return [
        encode_frame(n, TS_NS + n * 1001, (b"%d" % n).rjust(key_len, b"k")[:key_len], bytes([n % 256]) * payload_len, block)
        for n in range(first_id, first_id + count)
    ]


def walked(data: bytes, first_id: int, max_count: int) -> tuple[int, int, Stop, list[dict[str, object]], int]:
    """Return where it stopped, the rows, and how many batches they came in."""
    pos, next_id, stop, batches = RowWalk("t", SCHEMA)(data, 0, first_id, max_count)
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema.equals(SCHEMA)
    return pos, next_id, stop, [row for batch in batches for row in batch.to_pylist()], len(batches)


def one_by_one(data: bytes, first_id: int, max_count: int) -> tuple[int, int, Stop, list[dict[str, object]], int]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames, "ALIKE_MIN", 1 << 62)
        return walked(data, first_id, max_count)


shapes = st.tuples(st.integers(1, 150), st.integers(0, 3), st.integers(0, 4), st.sampled_from(BLOCKS))


@given(st.lists(shapes, min_size=1, max_size=5), st.integers(1, 400), st.integers(0, 4000), st.integers(0, 60))
def test_the_same_rows_as_one_by_one(
    given_shapes: list[tuple[int, int, int, bytes]], max_count: int, flipped: int, cut: int
) -> None:
    """A byte is flipped, the end is cut off, or the walk stops after some records."""
    pieces: list[bytes] = []
    for count, key_len, payload_len, block in given_shapes:
        pieces += stretch(40 + len(pieces), count, key_len, payload_len, block)
    data = bytearray(b"".join(pieces))
    del data[max(len(data) - cut, 0) :]
    if flipped < len(data):
        data[flipped] ^= 4
    found, expected = walked(bytes(data), 40, max_count), one_by_one(bytes(data), 40, max_count)
    assert found[:4] == expected[:4]


N = ALIKE_MIN
OF_ONE_LENGTH = {
    "other key": stretch(0, N, 3, 18, b"") + stretch(N, N, 4, 17, b""),
    "other key that looks alike": stretch(0, N, 3, 18, b"") + [
        encode_frame(N + n, TS_NS, b"abc\x12\0\0\0", b"p" * 14) for n in range(N)
    ],
    "attribute": stretch(0, N, 3, 18, b"") + stretch(N, N, 3, 5, BLOCKS[1]),
    "other attribute": stretch(0, N, 3, 5, BLOCKS[1]) + stretch(N, N, 3, 5, BLOCKS[2]),
    "headers": stretch(0, N, 3, 5, BLOCKS[5]),
    "headers behind a number": stretch(0, N, 3, 5, BLOCKS[3]) + stretch(N, N, 3, 5, BLOCKS[5]),
    "ids left out": stretch(0, N, 3, 18, b"") + stretch(N + 1, N, 3, 18, b""),
    "ids again": stretch(0, N, 3, 18, b"") + stretch(0, N, 3, 18, b""),
}


@pytest.mark.parametrize("pieces", OF_ONE_LENGTH.values(), ids=OF_ONE_LENGTH)
def test_frames_of_one_length_that_are_not_alike(pieces: list[bytes]) -> None:
    assert len({len(piece) for piece in pieces}) == 1
    data = b"".join(pieces)
    assert walked(data, 0, 1 << 40)[:4] == one_by_one(data, 0, 1 << 40)[:4]


@pytest.mark.parametrize("block", BLOCKS[:4], ids=["bare", "sequence", "deliver_at", "expires_at"])
def test_a_stretch_is_one_batch(block: bytes) -> None:
    count = 3 * ALIKE_ROWS_MAX + 1
    data = b"".join(stretch(0, count, 3, 5, block))
    pos, next_id, stop, rows, batches = walked(data, 0, 1 << 40)
    assert (pos, next_id, stop, len(rows), batches) == (len(data), count, Stop.END, count, 1)
    assert rows == one_by_one(data, 0, 1 << 40)[3]
    assert rows[-1]["key"] == (None if block == BLOCKS[1] else b"%3d" % (count - 1) if count < 1000 else b"307")


def test_damage_in_a_stretch_costs_nothing_before_it() -> None:
    pieces = stretch(0, 2000, 3, 100, b"")
    pieces[1500] = pieces[1500][:40] + b"\0" + pieces[1500][41:]
    pos, next_id, stop, rows, _ = walked(b"".join(pieces), 0, 1 << 40)
    assert (pos, next_id, stop, len(rows)) == (1500 * len(pieces[0]), 1500, Stop.INVALID, 1500)


def test_few_of_a_kind_are_not_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(frames.np, "frombuffer", lambda *args: asked.append(1))
    walked(b"".join(stretch(0, ALIKE_MIN - 1, 1, 1, b"")), 0, 1 << 40)
    walked(b"".join(stretch(0, 1, 1, 1, b"") + stretch(1, 500, 1, 2, b"")), 0, 300)
    assert not asked


def test_only_the_columns_that_are_wanted() -> None:
    schema = pa.schema([pa.field("offset", pa.int64(), nullable=False)])
    _, _, _, (batch,) = RowWalk("t", schema)(b"".join(stretch(7, 100, 1, 1, b"")), 0, 7, 1 << 40)
    assert batch.to_pydict() == {"offset": list(range(7, 107))}
