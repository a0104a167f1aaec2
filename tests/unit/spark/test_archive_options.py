"""The archive's location on the command line: an invalid one is refused before Spark starts."""

import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.support.requirements import require
from tests.support.tables import KINDS, archive
from toymq_spark import cli
from toymq_spark.manifest import Archive, Manifest
from toymq_spark.tables.opening import open_table


@pytest.fixture(autouse=True)
def _spark_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(app: str, master: str | None, settings: dict[str, str]) -> None:
        raise AssertionError(f"{app} has started Spark")

    monkeypatch.setattr("toymq_spark.session.build_session", started)


def command(*words: str) -> Result:
    return CliRunner().invoke(cli.main, [*words])


def refused(said: str, *words: str) -> None:
    done = command(*words)
    assert (done.exit_code, done.stdout) == (2, ""), done.exception
    assert done.stderr == f"toymq-pipeline: {said} (see `toymq-pipeline {words[0]} --help`)\n"


def starts(*words: str) -> None:
    assert "has started Spark" in str(command(*words).exception)


def test_options_that_do_not_fit_together(tmp_path: Path) -> None:
    to = ("archive", "--subscribe", "t", "--to")
    here = str(tmp_path / "a")
    refused("--partition-by needs --format delta or iceberg", *to, here, "--partition-by", "topic")
    refused("--catalog needs --format delta or iceberg", *to, here, "--catalog", "prod")
    refused("--catalog needs --format iceberg", *to, here, "--catalog", "prod", "--format", "delta")
    refused(
        "s3://b/a: an archive of Parquet files is a directory: give --format delta or iceberg for a URL", *to, "s3://b/a"
    )
    starts(*to, here)


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_is_found_by_its_directory(kind: str, tmp_path: Path) -> None:
    to = str(tmp_path / "a")
    archive(open_table(to, kind), 0)
    ledger = tmp_path / "ledger"
    ledger.touch()
    for words in (("report",), ("replay", "--to", "t", "--state", str(tmp_path)), ("watch", "--once"), ("verify", str(ledger))):
        starts(*words, "--archive", to)
    a_table = (
        f"{to} is a table of format {kind}, not an archive of Parquet files: archive to it with --format {kind}, compact it "
        "by its own library"
    )
    refused(a_table, "compact", to)
    refused(a_table, "archive", "--subscribe", "t", "--to", to)
    starts("archive", "--subscribe", "t", "--to", to, "--format", kind)
    refused("--archive excludes --subscribe", "watch", "--once", "--archive", to, "--subscribe", "t")
    refused("--archive excludes --url", "verify", str(ledger), "--archive", to, "--url", "toymq://a")
    refused("--archive excludes --data-dir", "verify", str(ledger), "--archive", to, "--data-dir", str(tmp_path))
    refused("--archive needs --once, and no --checkpoint", "watch", "--archive", to)


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_is_not_made_beside_other_files(kind: str, tmp_path: Path) -> None:
    Archive(tmp_path).commit(Manifest("0000000000", "q", ()))
    named = {"delta": "a Delta table", "iceberg": "an Iceberg table"}[kind]
    said = f"{tmp_path} is not {named}, and not empty (it has manifest): archive to another place"
    refused(said, "archive", "--subscribe", "t", "--to", str(tmp_path), "--format", kind)


@require("delta")
def test_an_object_store_has_no_place_for_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    from toymq_spark.tables.delta import DeltaArchive

    monkeypatch.setattr(DeltaArchive, "state", lambda self: None)
    words = ("archive", "--subscribe", "t", "--to", "s3://b/a", "--format", "delta")
    refused("s3://b/a is not a directory: give --checkpoint, a directory that all nodes share", *words)
    starts(*words, "--checkpoint", "/shared/progress")
    refused("s3://b/a is not an archive: there is no table", "report", "--archive", "s3://b/a")


def test_what_is_nowhere(tmp_path: Path) -> None:
    refused(f"Invalid value for '--archive': Directory '{tmp_path / 'none'}' does not exist", "report", "--archive",
            str(tmp_path / "none"))  # fmt: skip


@pytest.mark.parametrize(("kind", "package"), [("delta", "deltalake"), ("iceberg", "pyiceberg")])
def test_a_library_that_is_missing(kind: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, f"toymq_spark.tables.{kind}", raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == package] or [package]:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    done = command("archive", "--subscribe", "t", "--to", str(tmp_path / "a"), "--format", kind)
    assert (done.exit_code, done.stdout) == (2, "")
    assert re.fullmatch(rf"toymq-pipeline: this command needs .*{package}.*: .*pip install '\.\[tables\]'.*\n", done.stderr)
