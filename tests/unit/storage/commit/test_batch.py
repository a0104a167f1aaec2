"""A batch: runs of many connections are merged, and stay the same otherwise. ADR 0012."""

from hypothesis import given
from hypothesis import strategies as st

from tests.support.frames import encode_attributes
from toymq_py.storage.commit.batch import OPEN_ROWS_MAX, Batch
from toymq_py.storage.record import FRAME_OVERHEAD, Extras, iter_frames

runs = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 7]),  # nanoseconds since the run before
        st.lists(st.tuples(st.binary(max_size=3), st.binary(max_size=4)), min_size=1, max_size=OPEN_ROWS_MAX + 3),
        st.booleans(),  # with headers
        st.booleans(),  # the keys name producers
        st.booleans(),  # for the tail in memory, too
    ),
    min_size=1,
    max_size=12,
)


@given(runs=runs, first_id=st.integers(0, 99))
def test_a_batch_holds_what_was_added_in_order(
    runs: list[tuple[int, list[tuple[bytes, bytes]], bool, bool, bool]], first_id: int
) -> None:
    batch = Batch(first_id, roll=False)
    now = 10
    published: list[tuple[bytes, bytes, bytes]] = []
    times: list[int] = []
    tails: list[bool] = []
    plain: list[bytes] = []
    for passed, rows, with_headers, sequenced, tail in runs:
        now += passed
        keys, payloads = (list(column) for column in zip(*rows, strict=True))
        headers = [b"A: %b\n" % key for key in keys] if with_headers else None
        sequences = list(range(len(published), len(published) + len(rows))) if sequenced else None
        blocks = None
        if headers is not None or sequences is not None:
            blocks = [
                encode_attributes(headers=header, sequence=sequence)
                for header, sequence in zip(headers or [b""] * len(rows), sequences or [None] * len(rows), strict=True)
            ]
        plain += [b""] * len(rows) if sequenced else keys
        size = sum(FRAME_OVERHEAD + len(key) + len(payload) for key, payload in rows) + sum(map(len, blocks or ()))
        appended = batch.add(now, keys, payloads, blocks, headers and Extras(headers), size, tail=tail, sequences=sequences)
        assert (appended.first_id, appended.count, appended.size) == (first_id + len(published), len(rows), size)
        published += zip(keys, payloads, headers or [b""] * len(rows), strict=True)
        times += [now] * len(rows)
        tails += [tail] * len(rows)
    batch.close()
    frames = list(iter_frames(b"".join(batch.pieces)))
    assert [(frame.key, frame.payload, frame.headers) for frame in frames] == published
    assert [frame.msg_id for frame in frames] == list(range(first_id, batch.next_id))
    assert batch.size == sum(map(len, batch.pieces))
    assert batch.keys == [key for key in plain if key]
    assert batch.keyed == len(batch.keys)
    stamps = [frame.ts_ns for frame in frames]
    assert stamps == times
    assert batch.last_ts_ns == stamps[-1]
    for msg_id, offset, keyed, ts_ns in batch.index:
        frame = next(iter_frames(b"".join(batch.pieces)[offset:]))
        assert (frame.msg_id, frame.ts_ns) == (msg_id, ts_ns)
        assert keyed == sum(map(bool, plain[: msg_id - first_id]))
    held = [row for run in batch.rows for row in zip(*run[:3], strict=True)]
    assert batch.rows_next_id == first_id + len(held)
    assert held == [(ts, key, payload) for ts, (key, payload, _) in zip(stamps, published, strict=True)][: len(held)]
    assert len(held) >= [*tails, False].index(False), "what was for the tail is there"
