"""Iceberg only: catalogs, snapshots that expire, metadata that is synced."""

import json
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.requirements import require
from tests.support.tables import QUERY, ROWS, SCHEMA, archive, ids, program_of_the_page
from toymq_py.errors import ConfigError
from toymq_spark.manifest import NoArchive
from toymq_spark.tables.table import Files, State, TableError

if TYPE_CHECKING:
    from toymq_spark.tables.iceberg import IcebergArchive

pytestmark = require("iceberg")


def iceberg(place: object, catalog: str | None = None, partition_by: str | None = None) -> "IcebergArchive":
    from toymq_spark.tables.iceberg import IcebergArchive

    return IcebergArchive(str(place), catalog, partition_by)


def test_batches_stay_known_when_snapshots_expire(tmp_path: Path) -> None:
    for number in range(3):
        archive(iceberg(tmp_path), number)
    with iceberg(tmp_path)._catalog() as catalog:
        table = catalog.load_table("toymq.archive")
        summaries = [dict(one.summary.additional_properties) for one in table.metadata.snapshots if one.summary is not None]
        assert [one["toymq.batch"] for one in summaries] == ["0", "1", "2"]
        assert {one["toymq.query"] for one in summaries} == {QUERY}
        assert "commit.retry.num-retries" not in table.properties, "other writers keep their retries"
        expired = [one.snapshot_id for one in table.metadata.snapshots][:-1]
        table.maintenance.expire_snapshots().by_ids(expired).commit()
        table.transaction().set_properties({"owner": "another program"}).commit_transaction()
    assert iceberg(tmp_path).state() == State(QUERY, 2)
    assert not archive(iceberg(tmp_path), 1)
    assert archive(iceberg(tmp_path), 3)
    assert ids("iceberg", tmp_path) == list(range(4 * ROWS))


def test_the_partition_is_iceberg_s_own(tmp_path: Path) -> None:
    archive(iceberg(tmp_path, partition_by="days(timestamp),topic"), 0)
    (metadata,) = sorted((tmp_path / "metadata").glob("00001-*.json"))
    fields = json.loads(metadata.read_text())["partition-specs"][-1]["fields"]
    assert [(field["name"], field["transform"]) for field in fields] == [("timestamp_day", "day"), ("topic", "identity")]


def test_metadata_is_synced_before_the_catalog_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from toymq_spark.tables import iceberg as module

    archive(iceberg(tmp_path), 0)
    synced: list[Path] = []
    monkeypatch.setattr(module, "sync", synced.append)
    before = set((tmp_path / "metadata").iterdir())
    archive(iceberg(tmp_path), 1)
    made = set((tmp_path / "metadata").iterdir()) - before
    assert len(made) >= 3, "a manifest, their list, and the table's metadata"
    assert made <= set(synced)


def test_a_catalog_of_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalog's options are PyIceberg's own: those of REST, Glue or Hive work like the one here."""
    from pyiceberg.catalog import sql
    from pyiceberg.utils.config import Config

    for name, value in (("TYPE", "sql"), ("URI", f"sqlite:///{tmp_path}/own.db"), ("WAREHOUSE", f"file://{tmp_path}/w h")):
        monkeypatch.setenv(f"PYICEBERG_CATALOG__PROD__{name}", value)
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    table = iceberg("lake.orders", "prod")
    assert (table.state(), table.directory) == (None, None)
    with pytest.raises(NoArchive, match=r"lake.orders is not an archive"):
        table.snapshot()
    for number in (0, 1, 1):
        archive(iceberg("lake.orders", "prod"), number)
    files = Files(table.snapshot())
    assert sorted(files.offsets_of(files.files()).to_pylist()) == list(range(2 * ROWS))
    with closing(sql.SqlCatalog("prod", uri=f"sqlite:///{tmp_path}/own.db")) as catalog:
        assert catalog.list_tables("lake") == [("lake", "orders")]
    assert (tmp_path / "w h" / "lake" / "orders" / "data").is_dir() or list((tmp_path / "w h").rglob("*.parquet"))


def test_the_program_of_the_page(tmp_path: Path) -> None:
    archive(iceberg(tmp_path / "a"), 0)
    catalog = program_of_the_page("pyiceberg", tmp_path / "a")["catalog"]
    with closing(catalog):
        assert catalog.load_table("toymq.archive").scan(row_filter="topic = 'orders'").to_arrow().num_rows == ROWS


def test_a_place_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="s3://b/t: an Iceberg table in an object store needs a catalog: give --catalog"):
        iceberg("s3://b/t")
    for name in ("orders", "/data/or.ders"):
        with pytest.raises(ConfigError, match=r"with --catalog write a name, as lake.orders"):
            iceberg(name, "prod")
    with pytest.raises(TableError, match=r"lake.orders: "):
        iceberg("lake.orders", "nowhere").state()


def test_a_table_with_another_partition_is_not_ours_to_divide(tmp_path: Path) -> None:
    archive(iceberg(tmp_path), 0)
    with iceberg(tmp_path)._catalog() as catalog:
        table = catalog.load_table("toymq.archive")
        with table.update_spec() as spec:
            spec.add_field("offset", "bucket[4]", "spread")
    with pytest.raises(ConfigError, match="is partitioned by spread: archive to another place"):
        iceberg(tmp_path).prepare(QUERY, SCHEMA)
