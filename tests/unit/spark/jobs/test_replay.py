"""``replay``: its pieces, its pace, and an archive that has changed since the plan."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.archives import archived
from tests.support.broker_process import BrokerProcess
from toymq import sync
from toymq_spark.errors import OptionError
from toymq_spark.jobs import replay, replay_ranges
from toymq_spark.jobs.replay_ranges import Piece
from toymq_spark.manifest import Archive, Manifest, NoArchive

NO_SPARK: Any = None


def test_a_directory_without_a_manifest_is_refused_and_leaves_no_state(tmp_path: Path) -> None:
    with pytest.raises(NoArchive):
        list(replay.replay(NO_SPARK, tmp_path, {"topic": "t"}, tmp_path / "state"))
    assert not (tmp_path / "state").exists()


def test_a_replay_of_nothing_leaves_no_plan(tmp_path: Path) -> None:
    """Found: after a replay of an empty archive the same command published nothing for ever, whatever was archived later."""
    empty = tmp_path / "empty"
    Archive(empty).commit(Manifest("0000000000", "q", ()))
    state = tmp_path / "state"
    assert list(replay.replay(NO_SPARK, empty, {"topic": "t"}, state)) == []
    assert not (state / "plan.json").exists()


def test_latest_by_key_is_no_range_of_ids(tmp_path: Path) -> None:
    source = {"url": "toymq://127.0.0.1:1", "subscribe": "t", "startingOffsets": "latestByKey"}
    with pytest.raises(OptionError, match="option startingOffsets: a replay is of all records of ids"):
        list(replay.replay(NO_SPARK, source, {"topic": "t"}, tmp_path / "state"))
    assert not (tmp_path / "state").exists()


class Published:
    """The sink: the rows that it got, and the clock of the job."""

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
    """Found: a replay reported 110 rows, of which there were 20, and took five times as long as its rate says."""
    archive = archived(tmp_path / "a", ("a", [*range(10), *range(10**9, 10**9 + 10)]))
    published = Published(monkeypatch)
    found = published.run(archive.path, tmp_path / "state", rate=10)
    assert found == [replay.Progress(1, 2, 10, 20), replay.Progress(2, 2, 20, 20)]
    assert published.now_s == 1.0


def test_an_archive_with_other_rows_than_planned_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = archived(tmp_path / "a", ("a", [*range(10)]))
    published = Published(monkeypatch, {5: 4})
    with pytest.raises(replay.ArchiveChanged, match=r"topic a had 5 rows from 5 to 9 when .*, and has 4 now"):
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
    """The options tolerate such gaps as no loss; otherwise the replay refuses, as reading does."""
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


def test_a_replay_goes_on_at_another_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: with another rate the plan was refused as that of another replay. The piece that may have begun keeps its number
    and its rows."""
    archive, state = archived(tmp_path / "a", ("a", [*range(100)])), tmp_path / "state"
    published = Published(monkeypatch)
    steps = replay.replay(NO_SPARK, archive.path, {"topic": "t"}, state, rate=20, monotonic=lambda: 0.0, sleep=lambda _: None)
    next(steps)
    next(steps)
    (state / "done.json").write_text('{"pieces": 1}')  # it had not been written yet
    published.pieces.clear()
    assert published.run(archive.path, state, 50)[-1] == replay.Progress(4, 4, 80, 80)
    assert [(piece.start, piece.end) for piece in published.pieces] == [(20, 40), (40, 90), (90, 100)]
    assert published.run(archive.path, state, 7) == [], "it is done"


def test_a_plan_of_an_earlier_version_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive, state = archived(tmp_path / "a", ("a", [*range(30)])), tmp_path / "state"
    published = Published(monkeypatch)
    published.run(archive.path, state, 10)
    plan = json.loads((state / "plan.json").read_text())
    del plan["piece_rows"]
    plan["what"]["rate"] = 10
    (state / "plan.json").write_text(json.dumps(plan))
    (state / "done.json").write_text('{"pieces": 1}')
    assert [step.rows for step in published.run(archive.path, state, 10)] == [10, 20]
