"""The lag of streaming queries: a listener that keeps the latest progress of each query."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery

from toymq_spark.errors import OptionError
from toymq_spark.offsets import Offsets, from_json, removed_of


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a query after one batch. ``behind``: unread records by topic, when Spark last asked the source."""

    query: str
    batch: int
    rows: int
    rows_per_s: float
    duration_ms: int
    behind: dict[str, int]

    @property
    def behind_total(self) -> int:
        return sum(self.behind.values())


def progress_of(found: dict[str, Any]) -> Progress:
    """Convert Spark's report on a batch (``query.lastProgress``, or an event's ``progress.json``) to a ``Progress``."""
    behind: dict[str, int] = {}
    for source in found.get("sources", ()):
        end, latest = _read(source.get("endOffset"), from_json), _read(source.get("latestOffset"), from_json)
        removed = _read(source.get("latestOffset"), removed_of)
        for topic, next_id in latest.items():
            behind[topic] = max(next_id - end.get(topic, 0) - removed.get(topic, 0), 0)
    return Progress(
        query=str(found.get("name") or found["id"]),
        batch=int(found["batchId"]),
        rows=int(found.get("numInputRows", 0)),
        rows_per_s=float(found.get("processedRowsPerSecond") or 0),
        duration_ms=int(found.get("batchDuration", 0)),
        behind=behind,
    )


def followed(query: StreamingQuery) -> Iterator[tuple[Progress, int]]:
    """Yield each batch of a query once, with the number of rows so far, until the query ends. The query is stopped when the
    caller stops iterating."""
    last_batch, total = -1, 0
    try:
        ended = False
        while not ended:
            ended = bool(query.awaitTermination(1))
            for found in map(progress_of, query.recentProgress):
                if found.batch > last_batch:
                    last_batch, total = found.batch, total + found.rows
                    yield found, total
    finally:
        query.stop()


def _read(reported: Any, read: Callable[[dict[str, Any]], Offsets]) -> Offsets:
    """Read numbers by topic from the offsets of one source. Spark gives offsets as an object, as JSON, or as None if there are
    none."""
    found = json.loads(reported) if isinstance(reported, str) else reported
    if not isinstance(found, dict):
        return {}
    try:
        return read(found)
    except OptionError:  # of a source of another kind
        return {}


class BehindLatest(StreamingQueryListener):
    """A listener: ``spark.streams.addListener(BehindLatest(print))`` calls ``print`` with the progress of each batch of every
    query.

    ``queries`` has the latest progress of each running query.
    """

    def __init__(self, took: Callable[[Progress], object] = lambda progress: None) -> None:
        self.queries: dict[str, Progress] = {}
        self._took = took

    def exposition(self) -> str:
        """Return the gauge ``toymq_spark_behind`` in Prometheus' text format, for a handler of ``/metrics`` or a textfile
        collector. A Python source cannot add to Spark's own metrics."""
        lines = ["# HELP toymq_spark_behind Unread records of a query.", "# TYPE toymq_spark_behind gauge"]
        for progress in list(self.queries.values()):
            query = progress.query.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
            lines += (f'toymq_spark_behind{{query="{query}",topic="{topic}"}} {n}' for topic, n in progress.behind.items())
        return "\n".join(lines) + "\n"

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = progress_of(json.loads(event.progress.json))
        self.queries[str(event.progress.id)] = progress
        self._took(progress)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self.queries.pop(str(event.id), None)
