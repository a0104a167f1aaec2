"""A follower's reports, encoded and decoded by its leader."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toymq_py.errors import BadOperation
from toymq_py.replication.acks import Alive, Damaged, Failed, Fenced, Report, ReportReader, Synced, encode_report

numbers = st.integers(0, 2**64 - 1)
reports: st.SearchStrategy[Report] = st.one_of(
    st.builds(Synced, numbers), st.builds(Failed, numbers, st.integers(0, 2**16 - 1)), st.builds(Fenced, numbers),
    st.just(Alive()), st.builds(Damaged, st.sampled_from(["webhooks.json", "topics/t/00000000000000000000.log"]), numbers),
)  # fmt: skip


def read(*pieces: bytes) -> list[Report]:
    reader, found = ReportReader(), []
    for piece in pieces:
        reader.receive(piece)
        while (report := reader.next_report()) is not None:
            found.append(report)
    return found


@given(st.lists(reports, max_size=6), st.integers(1, 30))
def test_what_is_reported_is_read_however_it_is_split(sent: list[Report], step: int) -> None:
    stream = b"".join(map(encode_report, sent))
    assert read(*(stream[at : at + step] for at in range(0, len(stream), step))) == sent


def test_an_unknown_report_is_refused_by_name() -> None:
    with pytest.raises(BadOperation, match="unknown report b'X'"):
        read(encode_report(Synced(7)) + b"X" + bytes(40))


@pytest.mark.parametrize(("path_len", "path", "why"), [
    (301, b"x" * 301, "path of 301 bytes"), (5, b"../.x", "not a file"),
    (3, b"\xff\xfe\xfd", "not a file"), (0, b"", "not a file"),
])  # fmt: skip
def test_a_damage_that_names_no_file_of_the_layout_is_refused(path_len: int, path: bytes, why: str) -> None:
    with pytest.raises(BadOperation, match=why):
        read(b"D" + bytes(8) + path_len.to_bytes(2, "little") + path)
