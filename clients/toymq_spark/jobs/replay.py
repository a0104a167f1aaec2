"""The job ``replay``: publishes an archive, or a range of a topic, to a topic, with keys and headers, each record once, at a
limited rate.

The plan, a file, lists the pieces to read; a job that is run again continues with the piece in which it died. That piece has
the same rows, assigned to tasks in the same way, so the sink knows which rows are stored (``publishing``). The archive may be
compacted during a replay: the files of a piece are looked up when it is read, and its rows are counted.
"""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from toymq.url import parse_url
from toymq_py.errors import ConfigError, DamagedData, LocalError
from toymq_spark import offsets
from toymq_spark.errors import OptionError
from toymq_spark.jobs import archive as archive_job
from toymq_spark.jobs import archive_table
from toymq_spark.jobs.replay_ranges import Piece, cut_anew, overlapping, pieces_of_archive, pieces_of_topics
from toymq_spark.manifest import Archive, write_atomically
from toymq_spark.options import parse_source
from toymq_spark.places import open_logs
from toymq_spark.tables.table import Files, Table

Source: TypeAlias = Mapping[str, str] | Path | Table
"""Options of ``format("toymq")``, the directory of an archive of Parquet files, or an archive's table."""
PIECE_ROWS = 200_000
TASKS = 4
"""Tasks of a piece; fixed, since a task needs the same rows in every run."""
COLUMNS = ("key", "value", "headers", "topic", "partition", "offset")


class ArchiveChanged(LocalError):
    """The archive has other rows than when the replay was planned; compaction alone never changes rows."""


@dataclass(frozen=True)
class Plan:
    """The pieces of a replay. ``what``: its source and sink; ``piece_rows``: rows per piece, for pieces that have not begun."""

    name: str
    what: dict[str, Any]
    pieces: list[Piece]
    piece_rows: int


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress after a piece. ``rows``: rows that this run has published; ``total``: those of the whole replay, in which a
    piece that was not read yet counts with all its ids."""

    piece: int
    pieces: int
    rows: int
    total: int


def replay(
    spark: SparkSession,
    source: Source,
    sink: Mapping[str, str],
    state: Path,
    *,
    rate: int | None = None,
    monotonic: Callable[[], float] = time.monotonic,  # noqa: TID251 (a job has no Clock)
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Progress]:
    """Replay piece by piece; yield the progress after each.

    Args:
        source: an archive, or options of the source.
        sink: options of the sink, with the target as ``topic``.
        state: a directory for the plan and its progress.
        rate: most rows per second; a run that continues a replay may have another rate.

    Raises: ConfigError when the state belongs to another replay. NoArchive, DamagedData, TableError and ArchiveChanged.
    """
    what = {"source": _shown(source) if isinstance(source, Mapping) else _name(source), "sink": _shown(sink)}
    done, piece_rows = _done(state), PIECE_ROWS if rate is None else min(rate, PIECE_ROWS)
    plan = _planned(state, what, lambda: _plan(source, what, piece_rows), done, piece_rows)
    began, rows = monotonic(), 0
    total = sum(piece.rows_max for piece in plan.pieces[done:])
    for number in range(done, len(plan.pieces)):
        piece = plan.pieces[number]
        count = _publish(_read(spark, source, piece), {**sink, "producerId": f"{plan.name}.{number}"})
        if piece.rows not in (None, count):
            raise ArchiveChanged(
                f"{what['source']}: topic {piece.topic} had {piece.rows} rows from {piece.start} to {piece.end - 1} when this "
                f"replay was planned, and has {count} now"
            )
        write_atomically(state / "done.json", {"pieces": number + 1})
        rows += count
        total += count - piece.rows_max
        yield Progress(number + 1, len(plan.pieces), rows, total)
        if rate is not None:
            ahead_s = rows / rate - (monotonic() - began)
            if ahead_s > 0 and number + 1 < len(plan.pieces):
                sleep(ahead_s)


def _publish(table: DataFrame, sink: Mapping[str, str]) -> int:
    """Publish the rows of a DataFrame. Returns: their number."""
    seen = Observation()
    rows = table.select(*COLUMNS).observe(seen, F.count(F.lit(1)).alias("rows")).repartition(TASKS, "offset")
    rows.write.format("toymq").mode("append").options(**sink).save()
    return int(seen.get["rows"])


def _name(archive: Path | Table) -> str:
    return str(archive) if isinstance(archive, Path) else archive.place


def _shown(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options without secrets, since the plan is a file that others may read."""
    shown = {name.lower(): value for name, value in options.items() if name.lower() != "toymq.token"}
    if "url" in shown:
        shown["url"] = str(parse_url(shown["url"]))
    return shown


def _plan(source: Source, what: dict[str, Any], piece_rows: int) -> Plan:
    name = f"replay-{uuid.uuid4().hex}"
    if not isinstance(source, Mapping):
        archive = Archive(source) if isinstance(source, Path) else Files(source.snapshot())
        return Plan(name, what, pieces_of_archive(archive, piece_rows), piece_rows)
    options = parse_source(source, "batch")
    if options.latest_by_key:
        why = "a replay is of all records of ids: latestByKey and latestByGroup have no effect, leave it out"
        raise OptionError(f"option startingOffsets: {why}")
    logs = open_logs(options.place, options.history)
    try:
        start = offsets.starting(options, logs, missing_is_empty=False)
        end = offsets.ending(options, logs, start)
        return Plan(name, what, pieces_of_topics(options, logs, start, end, piece_rows), piece_rows)
    finally:
        logs.close()


def _read(spark: SparkSession, source: Source, piece: Piece) -> DataFrame:
    if isinstance(source, Path):
        files = [file.path for file in overlapping(Archive(source).files(), piece)]
        archived = archive_job.read(spark, source, files)
        return archived.where((F.col("topic") == piece.topic) & F.col("offset").between(piece.start, piece.end - 1))
    if not isinstance(source, Mapping):
        return archive_table.read(spark, source.snapshot(), COLUMNS, piece.topic, piece.start, piece.end)
    ends = {
        "startingOffsets": f'{{"{piece.topic}": {{"0": {piece.start}}}}}',
        "endingOffsets": f'{{"{piece.topic}": {{"0": {piece.end}}}}}',
    }
    chosen = ("subscribe", "assign", "starting", "ending")  # the plan has it
    place = {name: value for name, value in source.items() if not name.lower().startswith(chosen)}
    options = {**place, "subscribe": piece.topic, **ends, "includeHeaders": "true", "partitions": "topics"}
    return spark.read.format("toymq").options(**options).load()


def _planned(state: Path, what: dict[str, Any], make: Callable[[], Plan], done: int, piece_rows: int) -> Plan:
    """Return the plan in the state directory, or make a new one. If the rate has changed, pieces that have not begun get
    another size; a piece that may have begun stays, since the sink recognises it by its number and rows. Raises: ConfigError,
    DamagedData, OSError."""
    file = state / "plan.json"
    if not file.exists():
        plan = make()
        if plan.pieces:  # an empty plan would exclude later records for ever
            state.mkdir(parents=True, exist_ok=True)
            write_atomically(file, asdict(plan))
        return plan
    found = archive_job.load_json(file)
    try:
        planned_for = dict(found["what"])
        planned_for.pop("rate", None)  # of a toymq before 2026-11-28
        pieces = [Piece(**piece) for piece in found["pieces"]]
        plan = Plan(found["name"], planned_for, pieces, found.get("piece_rows", 0))
    except (KeyError, TypeError, ValueError):
        raise DamagedData(f"{file}: invalid plan of a replay") from None
    if plan.what != what:
        raise ConfigError(f"{state} belongs to another replay, of {plan.what}: use another directory")
    if plan.piece_rows != piece_rows:
        begun = done + 1
        pieces = [*plan.pieces[:begun], *cut_anew(plan.pieces[begun:], piece_rows)]
        plan = replace(plan, pieces=pieces, piece_rows=piece_rows)
        write_atomically(file, asdict(plan))
    return plan


def _done(state: Path) -> int:
    file = state / "done.json"
    return int(archive_job.load_json(file)["pieces"]) if file.exists() else 0
