"""Walking the frames of a segment. ADR 0012."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.frames import encode_attributes, encode_frame
from toymq_py.storage.record import Columns, Stop, scan, scanning, to_records


def two_frames() -> bytes:
    return encode_frame(0, 10, b"", b"abc") + encode_frame(1, 11, b"k", b"")


@pytest.mark.parametrize(
    ("data", "stop", "count"),
    [
        (two_frames(), Stop.END, 2),
        (two_frames() + b"\0" * 100, Stop.ZERO, 2),
        (two_frames() + b"\0" * 4, Stop.ZERO, 2),
        (two_frames() + b"\0" * 3, Stop.PARTIAL, 2),
        (two_frames()[:-1], Stop.PARTIAL, 1),
        (two_frames() + encode_frame(3, 12, b"", b""), Stop.INVALID, 2),
        (two_frames() + encode_frame(1, 12, b"", b""), Stop.INVALID, 2),
        (two_frames() + b"\xff" * 30, Stop.INVALID, 2),
        (two_frames() + b"\x19\0\0\0" + b"x" * 30, Stop.INVALID, 2),
        (b"", Stop.END, 0),
    ],
)
def test_why_a_scan_stops(data: bytes, stop: Stop, count: int) -> None:
    columns = Columns()
    pos, msg_id, why = scan(data, 0, 0, columns)
    assert (why, msg_id, len(columns.positions)) == (stop, count, count)
    assert pos == sum(len(frame) for frame in [two_frames()[:33], two_frames()[33:]][:count])


def test_a_scan_stops_at_what_it_was_asked_for() -> None:
    data = two_frames()
    assert scan(data, 0, 0, max_count=1)[1:] == (1, Stop.COUNT)
    assert scan(data, 0, 0, max_bytes=40)[1:] == (1, Stop.COUNT)
    assert scan(data, 0, 0, max_bytes=1)[1:] == (1, Stop.COUNT), "never before the first record"
    assert scan(data, 0, 0, max_bytes=len(data))[1:] == (2, Stop.END)


@st.composite
def logs(draw: st.DrawFn) -> bytearray:
    """Draw a log: runs of similar frames, a few different ones, perhaps a flipped bit, perhaps a cut."""
    data, msg_id = bytearray(), 0
    for _ in range(draw(st.integers(1, 4))):
        key, payload = draw(st.binary(max_size=3)), draw(st.binary(max_size=5))
        headers, sequenced = draw(st.sampled_from([b"", b"", b"h"])), draw(st.booleans())
        for row in range(draw(st.sampled_from([1, 2, 9, 17, 40, 160]))):
            block = encode_attributes(headers=headers, sequence=row * 3 if sequenced else None)
            data += encode_frame(msg_id, 1000 + row, key, payload, block)
            msg_id += 1
    for _ in range(draw(st.integers(0, 2))):
        data[draw(st.integers(0, len(data) - 1))] ^= 1 << draw(st.integers(0, 7))
    return data[: draw(st.integers(len(data) // 2, len(data)))] if draw(st.booleans()) else data


@given(
    data=logs(), limit=st.none() | st.integers(1, 200), max_bytes=st.none() | st.integers(1, 9000), with_payloads=st.booleans()
)
def test_many_at_a_time_are_what_they_are_one_by_one(
    data: bytearray, limit: int | None, max_bytes: int | None, with_payloads: bool
) -> None:
    def scanned(alike_min: int) -> tuple[object, ...]:
        columns = Columns()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scanning, "ALIKE_MIN", alike_min)
            found = scan(
                bytes(data), 0, 0, columns, with_payloads=with_payloads, max_count=limit, max_bytes=max_bytes
            )
        return (*found, *(getattr(columns, name) for name in Columns.__slots__))

    assert scanned(scanning.ALIKE_MIN) == scanned(1 << 30)


def test_rows_become_records() -> None:
    data = encode_frame(7, 1, b"k", b"a") + encode_frame(8, 2, b"", b"b", encode_attributes(headers=b"H: 1\n"))
    columns = Columns()
    scan(data, 0, 7, columns, with_payloads=True)
    records = to_records(7, columns)
    assert list(records.ids) == [7, 8]
    assert (records.keys, records.payloads, records.headers) == ([b"k", b""], [b"a", b"b"], [b"", b"H: 1\n"])
