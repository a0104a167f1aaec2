"""What a replay does at a time, how it is paced, and what it makes of an archive that changed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.broker_process import BrokerProcess
from toymq import sync
from toymq_py.errors import OutOfRange
from toymq_py.storage.reader import Run
from toymq_spark.jobs import replay, replay_ranges
from toymq_spark.jobs.replay_ranges import Piece, overlapping, pieces_of_archive
from toymq_spark.manifest import Archive, Manifest, describe

NO_SPARK: Any = None


def archived(place: Path, *files: tuple[str, list[int]], day: str = "2026-11-21") -> Archive:
    """One batch with a file for each topic and its ids, days apart where a topic comes again."""
    archive = Archive(place)
    attempt = archive.attempt("0000000000")
    for number, (topic, ids) in enumerate(files):
        file = attempt / f"date=2026-11-{number + 1:02d}" / f"topic={topic}" / "part-0.parquet"
        file.parent.mkdir(parents=True)
        pq.write_table(pa.table({"offset": pa.array(ids, pa.int64())}), file)
    archive.commit(Manifest("0000000000", "q", tuple(describe(place, attempt))))
    return archive


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
    replay_ranges = pieces_of_archive(archive, rows)
    assert replay_ranges == [Piece(*one) for one in expected]
    for piece in replay_ranges:
        read = [
            row
            for file in overlapping(archive.files(), piece)
            for row in pq.ParquetFile(tmp_path / file.path).read()["offset"].to_pylist()
            if piece.start <= row < piece.end
        ]
        assert len(read) == piece.rows


class Published:
    """The sink: what it is given, and the clock of the job."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, counts: dict[int, int] | None = None) -> None:
        self.pieces: list[Piece] = []
        self.now_s = 0.0
        self._counts = counts or {}
        monkeypatch.setattr(replay, "_read", lambda spark, source, piece: piece)
        monkeypatch.setattr(replay, "_publish", self._publish)

    def _publish(self, piece: Piece, sink: dict[str, str]) -> int:
        self.pieces.append(piece)
        return self._counts.get(piece.start, piece.rows_max)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def run(self, source: Any, state: Path, rate: int) -> list[replay.Progress]:
        return list(
            replay.replay(NO_SPARK, source, {"topic": "t"}, state, rate=rate, monotonic=lambda: self.now_s, sleep=self.sleep)
        )


def test_a_gap_in_an_archive_takes_no_time_and_is_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It said that it had replayed 110 rows, of which there were 20, and took five times as long as the rate says."""
    archive = archived(tmp_path / "a", ("a", [*range(10), *range(10**9, 10**9 + 10)]))
    published = Published(monkeypatch)
    found = published.run(archive.path, tmp_path / "state", rate=10)
    assert found == [replay.Progress(1, 2, 10, 20), replay.Progress(2, 2, 20, 20)]
    assert published.now_s == 1.0


def test_an_archive_with_other_rows_than_planned_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = archived(tmp_path / "a", ("a", [*range(10)]))
    published = Published(monkeypatch, {5: 4})
    with pytest.raises(replay.ArchiveChanged, match=r"topic a had 5 rows from 5 to 9 when .*, and now it has 4"):
        published.run(archive.path, tmp_path / "state", rate=5)
    assert [piece.start for piece in published.pieces] == [0, 5]
    with pytest.raises(replay.ArchiveChanged):
        published.run(archive.path, tmp_path / "state", rate=5)
    assert [piece.start for piece in published.pieces] == [0, 5, 5], "and it does not pass the piece over next time"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "d") as running:
        yield running


def test_a_gap_in_a_topic_takes_no_time_either(broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where such gaps are not taken for a loss; else the replay refuses, as reading does."""
    url = f"toymq://127.0.0.1:{broker.port}"
    with sync.connect(url) as client:
        list(client.pub_many("a", ((None, b"x") for _ in range(300))))
        list(client.pub_many("b", ((None, b"x") for _ in range(25))))
    source = {"url": url, "subscribe": "a,b", "failOnDataLoss": "false"}
    seen: list[tuple[str, int]] = []

    def next_id(logs: Any, topic: str, at: int, end: int) -> int:
        seen.append((topic, at))
        return 290 if topic == "a" and 5 < at < 290 else at

    monkeypatch.setattr(replay_ranges, "_next_id", next_id)
    published = Published(monkeypatch, {0: 6})
    found = published.run(source, tmp_path / "state", rate=10)
    assert [(one.start, one.end) for one in published.pieces] == [(0, 10), (290, 300), (0, 10), (10, 20), (20, 25)]
    assert [(one.rows, one.total) for one in found] == [(6, 41), (16, 41), (22, 37), (32, 37), (37, 37)]
    assert len(seen) == 7, "a question for each piece and each end, whatever lies between"


def test_where_the_next_record_is() -> None:
    class Gaps:
        """Records 5 and 6, and retention below."""

        def read(self, topic: str, at: int, end: int, walk: Any) -> Iterator[Run[None]]:
            if at < 5:
                raise OutOfRange(5, "is the first id")
            yield from (Run(max(at, 5), 7, None) for _ in range(at < 7 and end > 5))

    logs: Any = Gaps()
    assert [replay_ranges._next_id(logs, "t", at, 9) for at in (0, 5, 6, 7)] == [5, 5, 6, 9]
    assert replay_ranges._next_id(logs, "t", 0, 3) == 3
