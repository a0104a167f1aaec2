"""Command-line options for the place and format of an archive. The place is checked before Spark starts."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from toymq_py.errors import ConfigError

if TYPE_CHECKING:
    from toymq_spark.tables.table import Table

Command = Callable[..., Any]
Archived: TypeAlias = "Path | Table | None"
"""An archive to be read: the directory of one of Parquet files, or a table."""
FORMATS = ("parquet", "delta", "iceberg")
DIRECTORY = click.Path(exists=True, file_okay=False, path_type=Path)
_CATALOG = "toymq_spark.catalog"


def _keep_catalog(context: click.Context, parameter: click.Parameter, name: str | None) -> None:
    context.meta[_CATALOG] = name


_catalog = click.option(
    "--catalog", is_eager=True, expose_value=False, callback=_keep_catalog,
    help="Catalog of PyIceberg's configuration; the archive is then a table's name: lake.orders.",
)  # fmt: skip


def archive_option(command: Command) -> Command:
    """Add ``--archive``, an archive to read: the directory of an archive of Parquet files, or a table. Its parameter is
    ``from_archive``."""
    given = click.option("--archive", "from_archive", callback=_readable, help="Read an archive instead of topics.")
    return given(_catalog(command))


def target_options(command: Command) -> Command:
    """Add the options that say where ``archive`` writes; their parameters are ``to``, ``kind`` and ``partition_by``."""
    for option in (
        click.option("--partition-by", help="How a table is divided [default: days(timestamp),topic]."),
        _catalog,
        click.option("--format", "kind", type=click.Choice(FORMATS), default=FORMATS[0], help="Format of the archive."),
        click.option("--to", required=True, help="Directory of the archive, shared by all nodes; of a table also a URL."),
    ):
        command = option(command)
    return command


def target(to: str, kind: str, partition_by: str | None) -> "Path | Table":
    """Return what ``archive`` writes to: a directory of Parquet files, or a table. Raises: ConfigError, TableError."""
    catalog = click.get_current_context().meta[_CATALOG]
    if kind == FORMATS[0]:
        for name, value in (("--partition-by", partition_by), ("--catalog", catalog)):
            if value is not None:
                raise click.UsageError(f"{name} needs --format delta or iceberg")
        if "://" in to:
            raise ConfigError(f"{to}: an archive of Parquet files is a directory: give --format delta or iceberg for a URL")
        _refuse_table(Path(to))
        return Path(to)
    if catalog is not None and kind != "iceberg":
        raise click.UsageError("--catalog needs --format iceberg")
    from toymq_spark.tables.opening import open_table  # --help should not wait for the library

    table = open_table(to, kind, catalog, partition_by)
    table.state()
    return table


def parquet_archive(context: click.Context, parameter: click.Parameter, path: Path) -> Path:
    """Check that a path is an archive of Parquet files. Raises: NoArchive; ConfigError for a table."""
    from toymq_spark.manifest import Archive  # --help should not wait for pyarrow

    _refuse_table(path)
    Archive(path).require()
    return path


def _readable(context: click.Context, parameter: click.Parameter, place: str | None) -> "Path | Table | None":
    """Open the archive that ``--archive`` names, and check that it exists. Raises: ConfigError, TableError."""
    if place is None:
        return None
    from toymq_spark.manifest import NoArchive
    from toymq_spark.tables.opening import find_table

    table = find_table(place, context.meta[_CATALOG])
    if table is None:
        return parquet_archive(context, parameter, DIRECTORY.convert(place, parameter, context))
    if table.state() is None:
        raise NoArchive(f"{place} is not an archive: there is no table")
    return table


def _refuse_table(path: Path) -> None:
    """Check that a directory is not a table. Raises: ConfigError."""
    from toymq_spark.tables.opening import kind_of

    kind = kind_of(str(path))
    if kind is not None:
        raise ConfigError(
            f"{path} is a table of format {kind}, not an archive of Parquet files: archive to it with --format {kind}, compact "
            "it by its own library"
        )
