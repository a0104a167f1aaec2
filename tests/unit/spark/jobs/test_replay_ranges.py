"""The ranges of ids that a replay takes at a time."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.support.archives import archived
from tests.unit.spark.test_offsets import FakeLogs
from tests.unit.spark.test_options import source
from toymq_py.errors import OutOfRange
from toymq_py.storage.reader import RecordRun
from toymq_spark.jobs import replay_ranges
from toymq_spark.jobs.replay_ranges import Piece, cut_anew, overlapping, pieces_of_archive


@pytest.mark.parametrize(
    ("files", "rows", "expected"),
    [
        ([("a", [*range(10)])], 4, [("a", 0, 4, 4), ("a", 4, 8, 4), ("a", 8, 10, 2)]),
        ([("b", [5]), ("a", [7, 8])], 9, [("a", 7, 9, 2), ("b", 5, 6, 1)]),
        ([("a", [0, 1]), ("a", [10**15, 10**15 + 5])], 3, [("a", 0, 10**15 + 1, 3), ("a", 10**15 + 5, 10**15 + 6, 1)]),
        ([("a", [0, 1, 10**15, 10**15 + 5])], 2, [("a", 0, 2, 2), ("a", 10**15, 10**15 + 6, 2)]),
        ([("a", [0, 2, 4]), ("a", [1, 3])], 2, [("a", 0, 2, 2), ("a", 2, 4, 2), ("a", 4, 5, 1)]),
        ([("a", [0, 1]), ("a", [0, 1])], 1, [("a", 0, 1, 2), ("a", 1, 2, 2)]),
    ],
    ids=["no gap", "topics", "a gap between files", "a gap in a file", "two days mixed", "made anew"],
)
def test_pieces_of_an_archive_have_so_many_rows(
    files: list[tuple[str, list[int]]], rows: int, expected: list[tuple[str, int, int, int]], tmp_path: Path
) -> None:
    archive = archived(tmp_path, *files)
    pieces = pieces_of_archive(archive, rows)
    assert pieces == [Piece(*one) for one in expected]
    for piece in pieces:
        read = [
            row
            for file in overlapping(archive.files(), piece)
            for row in pq.ParquetFile(tmp_path / file.path).read()["offset"].to_pylist()
            if piece.start <= row < piece.end
        ]
        assert len(read) == piece.rows


@pytest.mark.parametrize(
    ("pieces", "rows", "expected"),
    [
        ([("a", 0, 10)], 4, [("a", 0, 4), ("a", 4, 8), ("a", 8, 10)]),
        ([("a", 0, 4, 4), ("a", 4, 8, 4), ("a", 8, 10, 2)], 9, [("a", 0, 9, 9), ("a", 9, 10, 1)]),
        ([("a", 0, 4), ("a", 9, 12), ("b", 12, 13)], 8, [("a", 0, 4), ("a", 9, 12), ("b", 12, 13)]),
        ([("a", 0, 9, 4), ("a", 9, 13, 4)], 2, [("a", 0, 9, 4), ("a", 9, 11, 2), ("a", 11, 13, 2)]),
    ],
    ids=["smaller", "larger", "apart", "with gaps"],
)
def test_another_rate_cuts_pieces_anew(
    pieces: list[tuple[Any, ...]], rows: int, expected: list[tuple[Any, ...]]
) -> None:
    assert cut_anew([Piece(*one) for one in pieces], rows) == [Piece(*one) for one in expected]


def test_pieces_of_a_topic_leave_out_what_was_removed() -> None:
    class Logs(FakeLogs):
        def removed(self, topic: str, incarnation: str | None = None) -> list[tuple[int, int]]:
            return [(4, 10**7)]

    end = 10**7 + 4
    pieces = replay_ranges.pieces_of_topics(source("batch"), Logs(t=(0, end)), {"t": 1}, {"t": end}, 2)
    assert pieces == [Piece("t", 1, 3), Piece("t", 3, 4), Piece("t", 10**7 + 1, 10**7 + 3), Piece("t", 10**7 + 3, end)]


def test_where_the_next_record_is() -> None:
    class Gaps:
        """A log with records 5 and 6 only; retention removed those below."""

        def read(self, topic: str, at: int, end: int, walk: Any) -> Iterator[RecordRun[None]]:
            if at < 5:
                raise OutOfRange(5, "is the first id")
            yield from (RecordRun(max(at, 5), 7, None) for _ in range(at < 7 and end > 5))

    logs: Any = Gaps()
    assert [replay_ranges._next_id(logs, "t", at, 9) for at in (0, 5, 6, 7)] == [5, 5, 6, 9]
    assert replay_ranges._next_id(logs, "t", 0, 3) == 3
