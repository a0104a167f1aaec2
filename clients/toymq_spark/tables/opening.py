"""Opens the table at a place (directory, URL or catalog name). The library of a format is imported only when it is needed."""

from pathlib import Path

from toymq_spark.tables.table import Table

DELTA, ICEBERG = "delta", "iceberg"
MARKS = {"_delta_log": DELTA, "_catalog.db": ICEBERG}
"""What a directory has that is a table of a format."""


def open_table(place: str, kind: str, catalog: str | None = None, partition_by: str | None = None) -> Table:
    """
    Args:
        place: a directory or a URL, or with ``catalog`` the name of a table.
        kind: ``DELTA`` or ``ICEBERG``.
        partition_by: how a new table is partitioned; None: as the existing table, or else the default.

    Raises: ConfigError.
    """
    if kind == ICEBERG:
        from toymq_spark.tables.iceberg import IcebergArchive

        return IcebergArchive(place, catalog, partition_by)
    from toymq_spark.tables.delta import DeltaArchive

    return DeltaArchive(place, partition_by)


def kind_of(place: str) -> str | None:
    """Return the format of the table in a directory; None if there is no table."""
    return next((kind for mark, kind in MARKS.items() if (Path(place) / mark).exists()), None)


def find_table(place: str, catalog: str | None = None) -> Table | None:
    """Open the existing table at a place; None where there can only be an archive of Parquet files. Raises: ConfigError."""
    if catalog is not None:
        return open_table(place, ICEBERG, catalog)
    kind = DELTA if "://" in place else kind_of(place)
    return None if kind is None else open_table(place, kind)
