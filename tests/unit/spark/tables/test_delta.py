"""Delta only: its log, its statistics, object stores."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.requirements import require
from tests.support.s3 import bucket
from tests.support.tables import QUERY, ROWS, archive, ids, program_of_the_page
from toymq_py.errors import ConfigError
from toymq_spark.tables.opening import open_table
from toymq_spark.tables.table import Files, State, TableError

if TYPE_CHECKING:
    from toymq_spark.tables.delta import DeltaArchive

pytestmark = require("delta")


def delta(place: object) -> "DeltaArchive":
    from toymq_spark.tables.delta import DeltaArchive

    return DeltaArchive(str(place))


def test_a_batch_is_an_application_transaction(tmp_path: Path) -> None:
    """A batch is marked as other writers of Delta do: Spark's ``txnAppId`` and ``txnVersion``."""
    archive(delta(tmp_path), 0)
    archive(delta(tmp_path), 1)
    actions = [json.loads(line) for line in (tmp_path / "_delta_log" / f"{2:020d}.json").read_text().splitlines()]
    assert [action["txn"]["appId"] for action in actions if "txn" in action] == [QUERY]
    assert [action["txn"]["version"] for action in actions if "txn" in action] == [1]
    stats = [json.loads(action["add"]["stats"]) for action in actions if "add" in action]
    assert sum(file["numRecords"] for file in stats) == ROWS
    assert all(file["minValues"]["timestamp"] <= file["maxValues"]["timestamp"] for file in stats)


def test_batches_stay_known_when_the_log_is_cut(tmp_path: Path) -> None:
    from deltalake import DeltaTable

    for number in range(4):
        archive(delta(tmp_path), number)
    table = DeltaTable(tmp_path)
    table.create_checkpoint()
    log = tmp_path / "_delta_log"
    for version in range(table.version()):
        (log / f"{version:020d}.json").unlink()
    assert delta(tmp_path).state() == State(QUERY, 3)
    assert not archive(delta(tmp_path), 2)
    assert archive(delta(tmp_path), 4)
    assert sum(file.rows for file in Files(delta(tmp_path).snapshot()).files()) == 5 * ROWS


def test_the_log_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """delta-rs does not sync it, but Spark considers the batch done."""
    from toymq_spark.tables import delta as module

    archive(delta(tmp_path / "a"), 0)
    synced: list[Path] = []
    monkeypatch.setattr(module, "sync", synced.append)
    archive(delta(tmp_path / "a"), 1)
    log = tmp_path / "a" / "_delta_log"
    assert {log / f"{2:020d}.json", log, tmp_path / "a"} <= set(synced)


def test_progress_survives_a_vacuum(tmp_path: Path) -> None:
    from deltalake import DeltaTable

    from toymq_spark.tables.table import CHECKPOINT

    archive(delta(tmp_path), 0)
    for place in (CHECKPOINT, "left"):
        (tmp_path / place / "offsets").mkdir(parents=True)
        (tmp_path / place / "offsets" / "0").touch()
    gone = DeltaTable(tmp_path).vacuum(0, enforce_retention_duration=False, dry_run=False, full=True)
    assert gone == ["left/offsets/0"], "and what a killed driver left"
    assert ids("delta", tmp_path) == list(range(ROWS))


def test_the_program_of_the_page(tmp_path: Path) -> None:
    for number in range(3):
        archive(delta(tmp_path / "a"), number)
    program_of_the_page("deltalake", tmp_path / "a")
    assert len(Files(delta(tmp_path / "a").snapshot()).files()) < 8, "it compacts"
    assert ids("delta", tmp_path / "a") == list(range(3 * ROWS))


def test_a_path_with_a_percent_sign_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a Delta table cannot be in a path with %"):
        delta(tmp_path / "100%")


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with bucket(monkeypatch) as url:
        yield url


@require("s3")
def test_an_object_store(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert delta(s3).state() is None
    for number in (0, 1, 1):
        archive(open_table(s3, "delta"), number)
    snapshot = delta(s3).snapshot()
    found = [row for batch in snapshot.batches(snapshot.paths(), ["offset"]) for row in batch.column("offset").to_pylist()]
    assert sorted(found) == list(range(2 * ROWS))
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.replace("s3", "nothing"))
    with pytest.raises(TableError) as caught:
        delta("s3://another/table").state()
    assert str(caught.value).startswith("s3://another/table: ")
    assert "\n" not in str(caught.value)
