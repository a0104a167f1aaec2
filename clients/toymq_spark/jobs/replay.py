"""``replay``: an archive, or a range of a topic, into a topic: keys and headers kept, each record once, at a rate.

What is to be read is planned once, in pieces, and the plan is a file: a job that is run again goes on with the piece that it
died in. That piece has the same rows, dealt out in the same way, so the sink knows which of them are there (``publishing``).
"""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from toymq_client.url import parse_url
from toymq_py.errors import ConfigError, DamagedData
from toymq_spark import offsets
from toymq_spark.jobs import archive as archive_job
from toymq_spark.logs import open_logs
from toymq_spark.manifest import Archive, write_atomically
from toymq_spark.offsets import IdSpan
from toymq_spark.options import parse_source

PIECE_ROWS = 200_000
TASKS = 4
"""Of a piece; fixed, since the rows of a task must be the same in every run."""
COLUMNS = ("key", "value", "headers", "topic", "partition", "offset")


@dataclass(frozen=True)
class Plan:
    """``what`` is everything that the pieces follow from; ``files`` are an archive's at the time, without them a topic's."""

    name: str
    what: dict[str, Any]
    pieces: list[IdSpan]
    files: list[str] | None


@dataclass(frozen=True, slots=True)
class Progress:
    """After a piece. Counts are of rows, of this run."""

    piece: int
    pieces: int
    rows: int
    total: int


def replay(
    spark: SparkSession,
    source: Mapping[str, str] | Path,
    sink: Mapping[str, str],
    state: Path,
    *,
    rate: int | None = None,
    monotonic: Callable[[], float] = time.monotonic,  # noqa: TID251 (a job has no Clock)
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Progress]:
    """
    Args:
        source: an archive, or options of ``format("toymq")``.
        sink: options of the sink; ``topic`` is where everything goes.
        state: a directory for the plan and for how far it is.
        rate: rows a second at most.

    Raises: ConfigError when the state belongs to another replay. NoArchive, DamagedData.
    """
    what = {"source": str(source) if isinstance(source, Path) else _shown(source), "sink": _shown(sink), "rate": rate}
    plan = _planned(state, what, lambda: _plan(source, what, PIECE_ROWS if rate is None else min(rate, PIECE_ROWS)))
    done = _done(state)
    began, rows = monotonic(), 0
    total = sum(piece.end - piece.start for piece in plan.pieces[done:])
    for number in range(done, len(plan.pieces)):
        piece = plan.pieces[number]
        table = _read(spark, source, plan, piece).select(*COLUMNS).repartition(TASKS, "offset")
        table.write.format("toymq").mode("append").options(**sink, producerId=f"{plan.name}.{number}").save()
        write_atomically(state / "done.json", {"pieces": number + 1})
        rows += piece.end - piece.start
        yield Progress(number + 1, len(plan.pieces), rows, total)
        if rate is not None:
            ahead_s = rows / rate - (monotonic() - began)
            if ahead_s > 0 and number + 1 < len(plan.pieces):
                sleep(ahead_s)


def _shown(options: Mapping[str, str]) -> dict[str, str]:
    """Options without secrets: a plan is a file."""
    shown = {name.lower(): value for name, value in options.items() if name.lower() != "toymq.token"}
    if "url" in shown:
        shown["url"] = str(parse_url(shown["url"]))
    return shown


def _plan(source: Mapping[str, str] | Path, what: dict[str, Any], piece_rows: int) -> Plan:
    name = f"replay-{uuid.uuid4().hex}"
    if isinstance(source, Path):
        files = Archive(source).files()
        bounds: dict[str, tuple[int, int]] = {}
        for file in files:
            first, last = bounds.get(file.topic, (file.first_id, file.last_id))
            bounds[file.topic] = min(first, file.first_id), max(last, file.last_id)
        pieces = [
            IdSpan(topic, at, min(at + piece_rows, last + 1))
            for topic, (first, last) in sorted(bounds.items())
            for at in range(first, last + 1, piece_rows)
        ]
        return Plan(name, what, pieces, [file.path for file in files])
    options = parse_source({**source, "maxRecordsPerPartition": str(piece_rows)}, "batch")
    logs = open_logs(options.place)
    try:
        start = offsets.starting(options, logs, missing_is_empty=False)
        end = offsets.ending(options, logs, start)
    finally:
        logs.close()
    return Plan(name, what, offsets.cut(options, start, end), None)


def _read(spark: SparkSession, source: Mapping[str, str] | Path, plan: Plan, piece: IdSpan) -> DataFrame:
    if isinstance(source, Path):
        archived = archive_job.read(spark, source, plan.files)
        return archived.where((F.col("topic") == piece.topic) & F.col("offset").between(piece.start, piece.end - 1))
    ends = {
        "startingOffsets": f'{{"{piece.topic}": {{"0": {piece.start}}}}}',
        "endingOffsets": f'{{"{piece.topic}": {{"0": {piece.end}}}}}',
    }
    chosen = ("subscribe", "assign", "starting", "ending")  # the plan says it already
    place = {name: value for name, value in source.items() if not name.lower().startswith(chosen)}
    options = {**place, "subscribe": piece.topic, **ends, "includeHeaders": "true"}
    return spark.read.format("toymq").options(**options).load()


def _planned(state: Path, what: dict[str, Any], make: Callable[[], Plan]) -> Plan:
    file = state / "plan.json"
    if not file.exists():
        plan = make()
        if plan.pieces:  # a plan of nothing would keep out for ever what comes after it
            state.mkdir(parents=True, exist_ok=True)
            write_atomically(file, asdict(plan))
        return plan
    found = archive_job.load_json(file)
    try:
        plan = Plan(found["name"], found["what"], [IdSpan(**piece) for piece in found["pieces"]], found["files"])
    except (KeyError, TypeError):
        raise DamagedData(f"{file} is no plan of a replay") from None
    if plan.what != what:
        raise ConfigError(f"{state} belongs to another replay, of {plan.what}: give another directory")
    return plan


def _done(state: Path) -> int:
    file = state / "done.json"
    return int(archive_job.load_json(file)["pieces"]) if file.exists() else 0
