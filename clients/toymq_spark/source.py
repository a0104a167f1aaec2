"""``format("toymq")`` for reading: Spark's interface, mapped to id ranges.

Contract: spark.md, "Source, batch and streaming". Readers are pickled and sent to executors, so they hold options and no open
connection. Nothing depends on ``commit`` or ``stop``: Spark calls them late or never.
"""

import itertools
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from toymq_py.errors import NoSuchTopic, OutOfRange
from toymq_py.records import IdRange
from toymq_py.storage.id_ranges import subtract
from toymq_py.storage.reader import RecordRun, Walk
from toymq_py.tier.reader import SegmentLost
from toymq_spark import latest, offsets
from toymq_spark.batches import joined
from toymq_spark.frames import RowWalk
from toymq_spark.offsets import Incarnations, Offsets
from toymq_spark.options import BrokerAddress, History, SourceOptions
from toymq_spark.partitions import column_values
from toymq_spark.places import open_logs
from toymq_spark.pushdown import Bounds
from toymq_spark.record_sources import POLL_INTERVAL_S, Logs
from toymq_spark.schema import arrow_schema, check_projection
from toymq_spark.spans import IdSpan, Removed, Segments, count_of, cut
from toymq_spark.values.codec import Codec
from toymq_spark.values.formats import codec_of
from toymq_spark.values.letters import LetterBox
from toymq_spark.values.typed import TypedRows

plan_logger = logging.getLogger("toymq_spark.plan")
plan_logger.setLevel(logging.INFO)  # so that Spark's log of Python workers has it; a handler of its own decides beyond that

T = TypeVar("T")

LATEST_OFFSET_WAIT_S = 1.0
"""Time that a request for the latest offset waits for news: Spark asks every 10 ms otherwise, which costs 17 % of a core."""

PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


class SpanPartition(InputPartition):
    """Spark's input partition for one task: an id range of a topic."""

    def __init__(self, span: IdSpan) -> None:
        super().__init__(span)
        self.span = span


class RowReader:
    """Reads id ranges as rows of a schema. Made on the driver, used in the tasks."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        """Prepare to read the columns of ``schema``. Raises: OptionError."""
        check_projection(schema, options.include_headers, typed=options.values is not None)
        self._options = options
        self._schema = schema
        self._codec: Codec | None = None
        if options.values is not None and "value" in schema.names:
            self._codec = codec_of(options.values, schema["value"].dataType, reading=True)

    def read(self, span: IdSpan) -> Iterator[pa.RecordBatch]:
        """Read an id range. A repeated call reads the same rows.

        Raises: DataLoss with ``failOnDataLoss`` when ids of the range have no record; BadValue; OSError and ToymqError of the
            log.
        """
        wanted = arrow_schema(self._schema)
        if self._codec is None:
            return self._rows(span, wanted)
        return self._typed_rows(span, wanted, self._codec)

    def _typed_rows(self, span: IdSpan, wanted: pa.Schema, codec: Codec) -> Iterator[pa.RecordBatch]:
        values, place = self._options.values, self._options.place
        assert values is not None
        letters = None
        if values.bad_rows == "deadletter" and isinstance(place, BrokerAddress):
            letters = LetterBox(place, span.topic, span.incarnation)
        try:
            typed = TypedRows(codec, wanted, span.topic, values.bad_rows, None if letters is None else letters.send)
            yield from typed(self._rows(span, typed.raw))
        finally:
            if letters is not None:
                letters.close()

    def _rows(self, span: IdSpan, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
        logs = open_logs(self._options.place, self._options.history)
        try:
            read = self._newest_of if self._options.latest_by_key else self._records
            yield from joined(read(logs, span, wanted))
        finally:
            logs.close()

    def _records(self, logs: Logs, span: IdSpan, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
        topic, partition = column_values(span.topic, divided=self._options.divided)
        return (batch for run in _whole(self._options, logs, span, RowWalk(topic, wanted, partition)) for batch in run.seen)

    def _newest_of(self, logs: Logs, span: IdSpan, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
        columns = latest.GROUP_COLUMNS if self._options.by_group else latest.COLUMNS
        ids = latest.newest(span.topic, self._records(logs, span, columns))
        more = wanted if "offset" in wanted.names else wanted.append(latest.COLUMNS.field("offset"))
        for start, end in latest.ranges(ids):
            batches = self._records(logs, replace(span, start=start, end=end), more)
            yield from (batch.select(wanted.names) for batch in latest.only(batches, ids))


def _whole(options: SourceOptions, logs: Logs, span: IdSpan, walk: Walk[T]) -> Iterator[RecordRun[T]]:
    """Yield the runs of records in an id range; every id without a record is reported as lost, unless it was removed on
    purpose."""
    expected = span.start
    while True:
        try:
            for run in logs.read(span.topic, expected, span.end, walk, span.incarnation, span.segments):
                if run.first_id > expected:
                    _passed(options, logs, span, expected, run.first_id)
                yield run
                expected = run.next_id
            break
        except OutOfRange as error:
            first_id = min(error.first_id, span.end)
            if first_id <= expected:
                break  # past the end
            offsets.lost(options, span.topic, expected, first_id - 1, "retention removed them while they were read")
            expected = first_id
        except SegmentLost as lost:
            next_id = min(lost.next_id, span.end)
            _passed(options, logs, span, expected, next_id, str(lost))
            expected = next_id
        except NoSuchTopic:
            offsets.lost(options, span.topic, expected, span.end - 1, "the topic was deleted while they were read")
            return
    if expected < span.end:
        _passed(options, logs, span, expected, span.end)


def _passed(options: SourceOptions, logs: Logs, span: IdSpan, start: int, end: int, why: str | None = None) -> None:
    """Report the ids of a range, all without a record, that were not removed on purpose. Raises: DataLoss."""
    for first, last in subtract([(start, end - 1)], logs.removed(span.topic, span.incarnation)):
        if why is None:
            try:
                next_id = logs.bounds(span.topic).next_id
            except NoSuchTopic:
                next_id = first
            why = "the log holds no record of them" if first < next_id else f"the log ends at {next_id}, before them"
        offsets.lost(options, span.topic, first, last, why)


def _removed(options: SourceOptions, logs: Logs, start: Offsets, end: Offsets, incarnations: Incarnations) -> Removed:
    """Return the ids that were removed on purpose, for topics large enough to be read by several tasks."""
    least = options.max_records_per_partition if options.min_partitions is None else 0
    return {
        topic: logs.removed(topic, incarnations.get(topic))
        for topic, stop in end.items() if stop - start.get(topic, 0) > least
    }  # fmt: skip


def _history(
    options: SourceOptions, logs: Logs, topic: str, incarnation: str | None, start: int, end: int, known_end: int | None = None
) -> Segments:
    """Return the segments of a range to read in a bucket. Empty for a range that one task can read: the bucket need not be
    listed for it."""
    waiting = (end if known_end is None else known_end) - start
    return logs.history(topic, incarnation, start, end) if end > start and waiting >= options.max_records_per_partition else ()


def _tell(options: SourceOptions, spans: list[IdSpan]) -> None:
    """Log which ids are read from where, which Spark's plan cannot show."""
    history = options.place if isinstance(options.place, History) else options.history
    if history is None:
        return
    for topic, of_topic in itertools.groupby(spans, lambda span: span.topic):
        for in_bucket, some in itertools.groupby(of_topic, lambda span: bool(span.segments)):
            parts, where = [*some], history.url if in_bucket or history.alone else "the broker"
            plan_logger.info("topic %s: records %d to %d come from %s, in %d tasks",
                             topic, parts[0].start, parts[-1].end - 1, where, len(parts))  # fmt: skip


class BatchReader(DataSourceReader):
    """The reader of a batch query, over fixed id ranges."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        """Check options and columns. Raises: OptionError."""
        self._rows = RowReader(options, schema)
        self._options = options
        self._bounds = Bounds()

    def partitions(self) -> list[InputPartition]:
        logs = open_logs(self._options.place, self._options.history)
        try:
            seen: Incarnations = {}
            start = offsets.starting(self._options, logs, missing_is_empty=False, seen=seen)
            end = offsets.ending(self._options, logs, start)
            start, end = self._bounds.narrow(start, end, logs.id_at_time)
            history: dict[str, Segments] = {}
            removed: Removed = {}
            if not self._options.latest_by_key:  # it seeks rows here and there
                for topic in end:
                    history[topic] = _history(self._options, logs, topic, seen.get(topic), start[topic], end[topic])
                removed = _removed(self._options, logs, start, end, seen)
        finally:
            logs.close()
        if self._options.latest_by_key:
            spans = [IdSpan(topic, begin, end[topic], seen.get(topic)) for topic, begin in start.items() if end[topic] > begin]
        else:
            spans = cut(self._options, start, end, seen, history, removed)
        _tell(self._options, spans)
        # Without a partition Spark would create one and read it.
        return [SpanPartition(span) for span in spans] or [SpanPartition(IdSpan("", 0, 0))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SpanPartition)
        if partition.span.start == partition.span.end:
            return iter(())
        return self._rows.read(partition.span)


class PushdownReader(BatchReader):
    """A batch reader that narrows its id ranges by Spark's filters.

    A separate class: Spark refuses a reader with ``pushFilters`` while ``spark.sql.python.filterPushdown.enabled`` is false.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._bounds.take(filters)


def batch_reader(options: SourceOptions, schema: StructType) -> BatchReader:
    """Make the reader of a batch query, with filter pushdown if Spark has that enabled. Raises: OptionError."""
    # A source cannot read Spark's settings, but Spark pushes filters in a worker of its own.
    pushing = PUSHDOWN_WORKER in sys.modules or getattr(sys.modules["__main__"].__spec__, "name", "") == PUSHDOWN_WORKER
    # A condition holds for the newest rows; those that meet it would be others.
    return (PushdownReader if pushing and not options.latest_by_key else BatchReader)(options, schema)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a streaming query; it runs in a process beside the driver."""

    def __init__(
        self,
        options: SourceOptions,
        schema: StructType,
        *,
        monotonic: Callable[[], float] = time.monotonic,  # noqa: TID251
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Check options and columns. Raises: OptionError."""
        self._rows = RowReader(options, schema)
        self._options = options
        self._monotonic = monotonic
        self._sleep = sleep
        self._logs: Logs | None = None
        self._target: Offsets | None = None
        self._seen: Incarnations = {}
        self._last_trigger_s = monotonic()
        self._latest: Offsets | None = None
        self._gaps: dict[str, list[IdRange]] = {}
        """Of the topics whose backlog was counted, since ``latestOffset`` was called."""
        self._passed: dict[str, int] = {}
        """Ids without a record in what is left unread, by topic."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_logs": None}

    def initialOffset(self) -> dict[str, Any]:
        seen: Incarnations = {}
        start = offsets.starting(self._options, self._open(), missing_is_empty=True, seen=seen)
        return offsets.to_json(start, seen)

    def prepareForTriggerAvailableNow(self) -> None:
        self._seen = {}
        self._target = offsets.latest(self._options, self._open(), self._seen)

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begin, known = offsets.from_json(start), offsets.incarnations_of(start)
        self._gaps = {}
        end = self._target
        if end is None:
            end = self._look(begin, known)
            if not isinstance(limit, ReadAllAvailable) and self._too_few(begin, end):
                self._count_passed(begin, end)
                return start
        end = end | offsets.deleted(self._options, self._open(), begin)
        rows = None if isinstance(limit, ReadAllAvailable) else self._options.max_offsets_per_trigger
        old = {topic: begin[topic] for topic in begin.keys() - offsets.made_anew(known, self._seen)}
        reached = offsets.share(old, end, rows, self._removed)
        # One that is gone has none; one that does not tell it now, on a full disk, keeps what is known.
        kept = {topic: incarnation for topic, incarnation in known.items() if reached.get(topic)}
        in_bucket = {topic: at for topic, at in offsets.in_bucket_of(start).items() if reached.get(topic) == old.get(topic)}
        for topic in reached.keys() & end.keys():
            first_id, incarnation = old.get(topic, 0), self._seen.get(topic)
            segments = _history(self._options, self._open(), topic, incarnation, first_id, reached[topic], end[topic])
            ends = [each.next_id for each in segments if each.next_id <= reached[topic]]
            if ends and rows is not None:  # the next batch begins with a whole segment
                reached[topic] = ends[-1]
            if segments:
                in_bucket[topic] = min(segments[-1].next_id, reached[topic])
        found = offsets.to_json(reached, kept | self._seen, in_bucket)
        if found != start:
            self._last_trigger_s = self._monotonic()
        self._count_passed(reached, end)
        return found

    def _removed(self, topic: str) -> list[IdRange]:
        if topic not in self._gaps:
            self._gaps[topic] = self._open().removed(topic, self._seen.get(topic))
        return self._gaps[topic]

    def _count_passed(self, reached: Offsets, end: Offsets) -> None:
        self._passed = {}
        for topic, next_id in end.items():
            first_id = reached.get(topic, 0)
            if next_id > first_id and (passed := next_id - first_id - count_of(first_id, next_id, self._removed(topic))):
                self._passed[topic] = passed

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the ends of the topics, for Spark's report; ``"removed"`` in it counts the ids before each end that have no
        record."""
        latest = self._target if self._latest is None else self._latest
        if latest is None:
            return None
        return offsets.to_json(latest, self._seen, removed=self._passed)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begin, stop = offsets.from_json(start), offsets.from_json(end)
        known, planned = offsets.incarnations_of(start), offsets.incarnations_of(end)
        begin = offsets.retained(self._options, self._open(), begin, stop, known, planned)
        history = {
            topic: self._open().history(topic, planned.get(topic), begin.get(topic, 0), at, again=True)
            for topic, at in offsets.in_bucket_of(end).items()
            if begin.get(topic, 0) < at
        }
        spans = cut(self._options, begin, stop, planned, history, _removed(self._options, self._open(), begin, stop, planned))
        _tell(self._options, spans)
        return [SpanPartition(span) for span in spans]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SpanPartition)
        return self._rows.read(partition.span)

    def stop(self) -> None:
        if self._logs is not None:
            self._logs.close()
            self._logs = None

    def _open(self) -> Logs:
        if self._logs is None:
            self._logs = open_logs(self._options.place, self._options.history)
        return self._logs

    def _look(self, begin: Offsets, known: Incarnations) -> Offsets:
        """Return the next ids of the topics; wait briefly for a record when there is none beyond ``begin``."""
        logs = self._open()
        deadline = self._monotonic() + LATEST_OFFSET_WAIT_S
        while True:
            self._seen = {}
            self._latest = end = offsets.latest(self._options, logs, self._seen)
            left = deadline - self._monotonic()
            news = any(begin.get(topic, 0) != next_id for topic, next_id in end.items())
            if left <= 0 or news or offsets.made_anew(known, self._seen):
                return end
            topic = next(iter(end), None)
            alone = len(end) == 1 and self._options.topics.pattern is None
            wait_s = left if alone else min(left, POLL_INTERVAL_S)
            if topic is None:  # no topic matches the pattern yet
                self._sleep(wait_s)
            else:
                logs.wait(topic, end[topic], wait_s)

    def _too_few(self, begin: Offsets, end: Offsets) -> bool:
        """Whether fewer than minOffsetsPerTrigger records wait, and maxTriggerDelay is not over."""
        least = self._options.min_offsets_per_trigger
        if least is None:
            return False
        ids = {topic: next_id for topic, next_id in end.items() if next_id > begin.get(topic, 0)}
        waiting = sum(next_id - begin.get(topic, 0) for topic, next_id in ids.items())
        if waiting >= least:  # some of the ids may have no record
            waiting = sum(count_of(begin.get(topic, 0), next_id, self._removed(topic)) for topic, next_id in ids.items())
        waited_ms = (self._monotonic() - self._last_trigger_s) * 1000
        return waiting < least and waited_ms < self._options.max_trigger_delay_ms
