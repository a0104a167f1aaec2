"""Records encoded together give the same bytes as one by one. ADR 0012, ADR 0039."""

from hypothesis import given
from hypothesis import strategies as st

from tests.support.frames import encode_attributes, encode_frame
from toymq_py.records import shape_of
from toymq_py.storage.record import encode_alike, encode_records, iter_frames

u64 = st.integers(0, 2**64 - 1)


@given(
    first_id=st.integers(0, 2**64 - 20),
    ts_ns=u64,
    rows=st.lists(st.tuples(st.binary(max_size=9), st.binary(max_size=9), st.binary(max_size=9)), min_size=1, max_size=9),
    with_headers=st.booleans(),
)
def test_a_run_is_the_frames_one_by_one(
    first_id: int, ts_ns: int, rows: list[tuple[bytes, bytes, bytes]], with_headers: bool
) -> None:
    keys, payloads, headers = (list(column) for column in zip(*rows, strict=True))
    blocks = [encode_attributes(headers=block) for block in headers] if with_headers else None
    data = b"".join(encode_records(first_id, ts_ns, keys, payloads, blocks))
    one_by_one = [
        encode_frame(first_id + row, ts_ns, key, payload, blocks[row] if blocks else b"")
        for row, (key, payload) in enumerate(zip(keys, payloads, strict=True))
    ]
    assert data == b"".join(one_by_one)
    frames = list(iter_frames(data))
    assert [frame.payload for frame in frames] == payloads
    assert [frame.key for frame in frames] == keys
    assert [frame.headers for frame in frames] == (headers if with_headers else [b""] * len(rows))


@given(
    first_id=st.integers(0, 2**64 - 300),
    ts_ns=u64,
    shape=st.tuples(st.integers(0, 20), st.integers(0, 40)),
    rows=st.sampled_from([1, 15, 16, 17, 64, 80, 127, 128, 129, 272]),
    seed=st.binary(min_size=7, max_size=7),
)
def test_alike_ones_are_the_same_frames(first_id: int, ts_ns: int, shape: tuple[int, int], rows: int, seed: bytes) -> None:
    text = seed * (60 * rows)
    keys = [text[61 * row : 61 * row + shape[0]] for row in range(rows)]
    payloads = [text[53 * row : 53 * row + shape[1]] for row in range(rows)]
    assert shape_of(keys, payloads) == shape
    assert shape_of([*keys, b"k" * 21], [*payloads, b""]) is None
    one_by_one = [encode_frame(first_id + row, ts_ns, keys[row], payloads[row]) for row in range(rows)]
    assert encode_alike(first_id, ts_ns, keys, payloads, shape) == b"".join(one_by_one)
