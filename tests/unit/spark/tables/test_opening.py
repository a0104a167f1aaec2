"""Which kind of table is at a path, before its library is loaded."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.broker_process import environment
from tests.support.requirements import require
from tests.support.tables import KINDS, archive
from toymq_spark.tables.opening import find_table, kind_of, open_table


@pytest.mark.parametrize("kind", KINDS)
def test_a_directory_says_its_format(kind: str, tmp_path: Path) -> None:
    archive(open_table(str(tmp_path / "a"), kind), 0)
    assert kind_of(str(tmp_path / "a")) == kind
    found = find_table(str(tmp_path / "a"))
    assert found is not None
    assert found.state() is not None
    assert found.directory == tmp_path / "a"


def test_another_directory_can_only_have_files(tmp_path: Path) -> None:
    assert find_table(str(tmp_path)) is find_table(str(tmp_path / "none")) is None


@require("delta", "iceberg")
def test_a_url_is_a_delta_table_and_a_catalog_has_iceberg() -> None:
    found = [find_table("s3://history/orders"), find_table("lake.orders", "prod")]
    assert [type(table).__name__ for table in found] == ["DeltaArchive", "IcebergArchive"]
    assert [table and table.directory for table in found] == [None, None]


def test_no_library_is_loaded_for_parquet() -> None:
    program = """
import sys
from toymq_spark import archive_options, cli
from toymq_spark.jobs import archive, replay
from toymq_spark.tables.opening import find_table
find_table("/nowhere")
print([name for name in sys.modules if name.partition(".")[0] in ("deltalake", "pyiceberg", "sqlalchemy")])
"""
    done = subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
